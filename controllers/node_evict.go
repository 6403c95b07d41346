package controllers

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/shepherd-project/shepherd/fsm"
)

// evict removes pods that do not tolerate a NoExecute taint of their node, when
// their time has come.
//
// The agent of an unreachable node cannot confirm that a pod has stopped, so
// the pod is removed outright and its ReplicaSet replaces it at once: plain
// replicas may run twice for a while. While no node at all is ready, nothing is
// gained by that, and the fault is more likely on this side: nobody is evicted.
func (n *nodeWork) evict(node *corev1.Node) {
	unreachable := nodeReady(node) == corev1.ConditionUnknown
	if unreachable && (n.ages == nil || n.alive(node) || !n.someReady) {
		return
	}
	for _, pod := range n.podsOn[node.Name] {
		at, leaves := n.evictionTime(pod, node)
		if !leaves {
			continue
		}
		if left := at.Sub(n.now); left > 0 {
			n.plan.again(left)
			continue
		}
		c := (&change{}).live(node)
		switch {
		case unreachable && len(pod.Finalizers) == 0:
			c.remove(pod)
		case unreachable && pod.DeletionTimestamp != nil:
			continue // who put the finalizer there has the last word
		case pod.DeletionTimestamp == nil:
			n.disrupt(c, pod)
		}
		n.plan.add(c)
	}
}

// disrupt deletes a pod as a client would, and says in its status why.
func (n *nodeWork) disrupt(c *change, pod *corev1.Pod) {
	marked := pod.DeepCopy()
	setPodCondition(marked, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "DeletionByTaintManager", Message: "Taint manager: deleting due to NoExecute taint"}, n.stamp())
	c.delete(marked, n.now)
}

// evictionTime returns when the pod has to leave the node, if it has to.
func (n *nodeWork) evictionTime(pod *corev1.Pod, node *corev1.Node) (at time.Time, leaves bool) {
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		since := n.now
		if taint.TimeAdded != nil {
			since = taint.TimeAdded.Time
		}
		stay, forever := n.tolerance(pod, taint)
		if forever {
			continue
		}
		end := since.Add(stay)
		if stay == 0 {
			end = n.now // nothing was promised that a rounded time could cut short
		}
		if !leaves || end.Before(at) {
			at, leaves = end, true
		}
	}
	return at, leaves
}

// tolerance is how long a pod may stay after a taint was added. A pod that says
// nothing about a node that is not ready or not reachable may stay for the
// eviction grace.
func (n *nodeWork) tolerance(pod *corev1.Pod, taint *corev1.Taint) (stay time.Duration, forever bool) {
	tolerated, limited := false, false
	for i := range pod.Spec.Tolerations {
		toleration := &pod.Spec.Tolerations[i]
		if !toleration.ToleratesTaint(klog.Background(), taint, false) {
			continue
		}
		tolerated = true
		if toleration.TolerationSeconds == nil {
			continue
		}
		if d := max(time.Duration(*toleration.TolerationSeconds)*time.Second, 0); !limited || d < stay {
			stay, limited = d, true
		}
	}
	switch {
	case tolerated:
		return stay, !limited
	case taint.Key == corev1.TaintNodeUnreachable || taint.Key == corev1.TaintNodeNotReady:
		return n.config.EvictionGrace, false
	}
	return 0, false
}

// dropStranded removes the pods of nodes that are not in the cluster any more:
// nobody is left to stop them.
func (n *nodeWork) dropStranded() {
	for name, pods := range n.podsOn {
		if name == "" || n.nodes[name] != nil {
			continue
		}
		for _, pod := range pods {
			c := (&change{}).absent(fsm.Key{Resource: resNodes, Name: name})
			if len(pod.Finalizers) == 0 {
				c.remove(pod)
			} else {
				c.delete(pod, n.now)
			}
			n.plan.add(c)
		}
	}
}
