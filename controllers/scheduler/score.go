package scheduler

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// score says how well a pod sits on a node. Its fields are compared in order;
// a node that wins an earlier field is better whatever the later ones say.
type score struct {
	softTaints int     // PreferNoSchedule taints that the pod does not tolerate: fewer is better
	preferred  int64   // weight of the preferred node affinity terms that match: more is better
	siblings   int     // pods of the same owner already there: fewer is better
	free       float64 // mean free share of cpu and memory after the pod is placed: more is better
}

// better reports whether s beats o.
func (s score) better(o score) bool {
	if s.softTaints != o.softTaints {
		return s.softTaints < o.softTaints
	}
	if s.preferred != o.preferred {
		return s.preferred > o.preferred
	}
	if s.siblings != o.siblings {
		return s.siblings < o.siblings
	}
	return s.free > o.free
}

// score rates a node that passed the filter.
func (n *node) score(r *request, preferred func(*corev1.Node) int64) score {
	s := score{preferred: preferred(n.object)}
	for i := range n.object.Spec.Taints {
		taint := &n.object.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule && !tolerates(r.pod, taint) {
			s.softTaints++
		}
	}
	if owner := controllerUID(r.pod); owner != types.UID("") {
		s.siblings = n.owners[owner]
	}
	s.free = n.freeShare(r)
	return s
}

// freeShare is the mean of the shares of cpu, memory and pod slots that would
// be left with the pod on the node. The pod slots keep pods without requests
// from piling up on one machine.
func (n *node) freeShare(r *request) float64 {
	share := func(total, used float64) float64 {
		if total <= 0 {
			return 0
		}
		return (total - used) / total
	}
	sum := 0.0
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		total, used, wanted := n.object.Status.Allocatable[name], n.requested[name], r.requests[name]
		sum += share(total.AsApproximateFloat64(), used.AsApproximateFloat64()+wanted.AsApproximateFloat64())
	}
	slots := float64(defaultMaxPods)
	if q, ok := n.object.Status.Allocatable[corev1.ResourcePods]; ok {
		slots = q.AsApproximateFloat64()
	}
	return (sum + share(slots, float64(n.pods+1))) / 3
}
