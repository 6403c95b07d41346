package controllers

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// errNoPodCIDR is the problem of a node when the cluster's range is used up.
var errNoPodCIDR = errors.New("no range of pod addresses is free")

// nodeWork is one pass over the nodes and their pods.
type nodeWork struct {
	*world
	plan   *plan
	nodes  map[string]*corev1.Node
	podsOn map[string][]*corev1.Pod // by node name; unbound pods under ""
	// someReady: pods that leave a node have somewhere to go.
	someReady bool
}

// planNodes gives each node its range of pod addresses, judges who is alive,
// taints those that are not, evicts their pods after a time, and writes the
// leases that Kubernetes clients look at.
func planNodes(w *world) (*plan, error) {
	nodes, err := list[*corev1.Node](w, resNodes, "")
	if err != nil {
		return nil, err
	}
	pods, err := list[*corev1.Pod](w, resPods, "")
	if err != nil {
		return nil, err
	}
	n := &nodeWork{world: w, plan: &plan{}, nodes: map[string]*corev1.Node{}, podsOn: map[string][]*corev1.Pod{}}
	for _, node := range nodes {
		n.nodes[node.Name] = node
		n.someReady = n.someReady || (nodeReady(node) == corev1.ConditionTrue && node.DeletionTimestamp == nil)
	}
	for _, pod := range pods {
		n.podsOn[pod.Spec.NodeName] = append(n.podsOn[pod.Spec.NodeName], pod)
	}
	ranges := newPodRanges(w, nodes)
	for _, node := range nodes {
		if node.DeletionTimestamp != nil {
			continue
		}
		// One update of a node at a time: the next pass does the rest.
		c := ranges.plan(n.plan, node)
		if len(c.ops) == 0 {
			c = n.judge(node)
		}
		n.plan.add(c)
		n.evict(node)
	}
	n.dropStranded()
	return n.plan, n.renewLeases(nodes)
}

// nodeReady is the status of the node's Ready condition, Unknown if it has none.
func nodeReady(node *corev1.Node) corev1.ConditionStatus {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

// podRanges knows which ranges of pod addresses are taken.
type podRanges struct {
	*world
	used map[netip.Prefix]string
	next netip.Prefix
}

func newPodRanges(w *world, nodes []*corev1.Node) *podRanges {
	r := &podRanges{world: w, used: map[netip.Prefix]string{},
		next: netip.PrefixFrom(w.config.ClusterCIDR.Addr(), w.config.NodeMask)}
	for _, node := range nodes {
		if prefix, err := netip.ParsePrefix(node.Spec.PodCIDR); err == nil {
			r.used[prefix] = node.Name
		}
	}
	return r
}

// plan gives the node a range and reserves it in the same command, or reserves
// the one that it has.
func (r *podRanges) plan(p *plan, node *corev1.Node) *change {
	if node.Spec.PodCIDR != "" {
		key := podCIDRKey(node.Spec.PodCIDR)
		if r.view.Get(key) != nil {
			return &change{}
		}
		return (&change{}).exists(node).reserve(key, node)
	}
	prefix, err := r.free()
	if err != nil {
		p.problem(describe(node, err))
		return &change{}
	}
	r.used[prefix] = node.Name
	updated := node.DeepCopy()
	updated.Spec.PodCIDR, updated.Spec.PodCIDRs = prefix.String(), []string{prefix.String()}
	touch(updated)
	return (&change{}).live(node).reserve(podCIDRKey(prefix.String()), node).update(node, updated)
}

// free returns the lowest range that nobody holds.
func (r *podRanges) free() (netip.Prefix, error) {
	for prefix := r.next; r.config.ClusterCIDR.Contains(prefix.Addr()); {
		following, err := nextPrefix(prefix)
		if r.used[prefix] == "" && r.view.Get(podCIDRKey(prefix.String())) == nil {
			return prefix, nil
		}
		if err != nil {
			break
		}
		prefix = following
		r.next = following
	}
	return netip.Prefix{}, fmt.Errorf("%w in %s", errNoPodCIDR, r.config.ClusterCIDR)
}

// age is how long ago the node was last heard of, but never more than how long
// it exists: its agent may be about to send its first heartbeat. A node without
// an age counts from the beginning of this generation of controllers. Both can
// only delay a death.
func (n *nodeWork) age(node *corev1.Node) time.Duration {
	age, ok := n.ages[node.Name]
	if !ok {
		age = n.now.Sub(n.since)
	}
	return max(min(age, n.now.Sub(node.CreationTimestamp.Time)), 0)
}

// alive reports whether the node was heard of lately enough.
func (n *nodeWork) alive(node *corev1.Node) bool { return n.age(node) < n.config.NodeMonitorGrace }

// judge marks the node by what is known of it. Its conditions are made Unknown
// when it has not been heard of for too long; only its agent makes them known
// again. The taints follow from the Ready condition.
func (n *nodeWork) judge(node *corev1.Node) *change {
	updated := node.DeepCopy()
	if n.ages != nil {
		if n.alive(node) {
			if nodeReady(node) != corev1.ConditionUnknown {
				n.plan.again(n.config.NodeMonitorGrace - n.age(node)) // it dies then, unless it is heard of
			}
		} else {
			n.markUnknown(updated)
			n.markPodsNotReady(node)
		}
	}
	n.taint(updated)
	c := &change{}
	if !apiequality.Semantic.DeepEqual(node, updated) {
		if !apiequality.Semantic.DeepEqual(node.Spec, updated.Spec) {
			touch(updated)
		}
		c.live(node).update(node, updated)
	}
	return c
}

// monitored are the conditions that an agent reports.
var monitored = map[corev1.NodeConditionType]bool{
	corev1.NodeReady: true, corev1.NodeMemoryPressure: true, corev1.NodeDiskPressure: true, corev1.NodePIDPressure: true,
}

func (n *nodeWork) markUnknown(node *corev1.Node) {
	hasReady := false
	for i := range node.Status.Conditions {
		c := &node.Status.Conditions[i]
		hasReady = hasReady || c.Type == corev1.NodeReady
		if monitored[c.Type] && c.Status != corev1.ConditionUnknown {
			c.Status, c.LastTransitionTime = corev1.ConditionUnknown, n.stamp()
			c.Reason, c.Message = "NodeStatusUnknown", "Kubelet stopped posting node status."
		}
	}
	if !hasReady {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: n.stamp(),
			Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.",
		})
	}
}

// markPodsNotReady takes the pods of a dead node out of service. Their agent
// reports them again when it is back.
func (n *nodeWork) markPodsNotReady(node *corev1.Node) {
	for _, pod := range n.podsOn[node.Name] {
		if !ready(pod) {
			continue
		}
		updated := pod.DeepCopy()
		setPodCondition(updated, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse,
			Reason: "NodeNotReady", Message: "Node is not ready"}, n.stamp())
		n.plan.add((&change{}).exists(node).update(pod, updated))
	}
}

// taint keeps the taints that follow from the node's state.
func (n *nodeWork) taint(node *corev1.Node) {
	status := nodeReady(node)
	wanted := map[string]bool{
		corev1.TaintNodeNotReady:      status == corev1.ConditionFalse,
		corev1.TaintNodeUnreachable:   status == corev1.ConditionUnknown,
		corev1.TaintNodeUnschedulable: node.Spec.Unschedulable,
	}
	var taints []corev1.Taint
	have := map[string]bool{}
	for _, taint := range node.Spec.Taints {
		if needed, ours := wanted[taint.Key]; ours && !needed {
			continue
		}
		if taint.Effect == corev1.TaintEffectNoExecute && taint.TimeAdded == nil {
			now := n.stampUp()
			taint.TimeAdded = &now // from when on tolerationSeconds count
		}
		have[taint.Key+string(taint.Effect)] = true
		taints = append(taints, taint)
	}
	add := func(key string, effects ...corev1.TaintEffect) {
		for _, effect := range effects {
			if wanted[key] && !have[key+string(effect)] {
				now := n.stampUp()
				taints = append(taints, corev1.Taint{Key: key, Effect: effect, TimeAdded: &now})
			}
		}
	}
	add(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
	node.Spec.Taints = taints
}

// nodeOwner is the reference from a lease to its node.
func nodeOwner(node *corev1.Node) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
}
