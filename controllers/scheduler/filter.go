package scheduler

import (
	"fmt"
	"sort"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// defaultMaxPods is the limit of a node that does not report one.
const defaultMaxPods = 110

// request is what filter and score need of a pod, worked out once.
type request struct {
	pod      *corev1.Pod
	affinity nodeaffinity.RequiredNodeAffinity
	requests corev1.ResourceList
	names    []corev1.ResourceName
	ports    []hostPort
}

func newRequest(pod *corev1.Pod) *request {
	r := &request{
		pod:      pod,
		affinity: nodeaffinity.GetRequiredNodeAffinity(pod),
		requests: Requests(pod),
		ports:    hostPorts(pod),
	}
	for name := range r.requests {
		r.names = append(r.names, name)
	}
	sort.Slice(r.names, func(i, j int) bool { return r.names[i] < r.names[j] })
	return r
}

// filter returns why the node cannot take the pod; nothing means that it can.
// Only resources can give more than one reason: the other filters end the
// look at the node, in the order in which Kubernetes runs them.
func (n *node) filter(r *request) []string {
	if n.object.DeletionTimestamp != nil {
		return []string{"node(s) were being deleted"}
	}
	if n.object.Spec.Unschedulable && !tolerates(r.pod, &corev1.Taint{
		Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}) {
		return []string{"node(s) were unschedulable"}
	}
	if taint := n.untolerated(r.pod); taint != nil {
		return []string{fmt.Sprintf("node(s) had untolerated taint {%s: %s}", taint.Key, taint.Value)}
	}
	if !n.ready {
		return []string{"node(s) were not ready"}
	}
	if match, err := r.affinity.Match(n.object); err != nil {
		return []string{fmt.Sprintf("node(s) didn't match Pod's node affinity/selector: %v", err)}
	} else if !match {
		return []string{"node(s) didn't match Pod's node affinity/selector"}
	}
	for _, wanted := range r.ports {
		for _, held := range n.ports {
			if wanted.conflicts(held) {
				return []string{"node(s) didn't have free ports for the requested pod ports"}
			}
		}
	}
	return n.short(r)
}

// untolerated returns the first taint that keeps the pod off the node.
func (n *node) untolerated(pod *corev1.Pod) *corev1.Taint {
	for i := range n.object.Spec.Taints {
		taint := &n.object.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule || taint.Key == corev1.TaintNodeUnschedulable {
			continue // the first only lowers the score, the second has its own filter
		}
		if !tolerates(pod, taint) {
			return taint
		}
	}
	return nil
}

// short lists the resources of which the node has too little left.
func (n *node) short(r *request) []string {
	var reasons []string
	limit := int64(defaultMaxPods)
	if q, ok := n.object.Status.Allocatable[corev1.ResourcePods]; ok {
		limit = q.Value()
	}
	if n.pods+1 > limit {
		reasons = append(reasons, "Too many pods")
	}
	for _, name := range r.names {
		wanted := r.requests[name]
		if wanted.IsZero() {
			continue
		}
		free := n.object.Status.Allocatable[name].DeepCopy()
		if used, ok := n.requested[name]; ok {
			free.Sub(used)
		}
		if wanted.Cmp(free) > 0 {
			reasons = append(reasons, "Insufficient "+string(name))
		}
	}
	return reasons
}

// tolerates reports whether one of the pod's tolerations covers the taint.
func tolerates(pod *corev1.Pod, taint *corev1.Taint) bool {
	for i := range pod.Spec.Tolerations {
		if pod.Spec.Tolerations[i].ToleratesTaint(klog.Background(), taint, false) {
			return true
		}
	}
	return false
}
