package controllers

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// rankForDeletion orders pods by how little they would be missed, least first,
// by the rules of Kubernetes: without a node before with one, pending before
// running, not ready before ready, cheaper (pod-deletion-cost) first, doubled
// up on a node first, ready for a shorter time first, more restarts first,
// younger first. Names settle what is left, so that the order is total.
func rankForDeletion(pods []*corev1.Pod) []*corev1.Pod {
	together := map[string]int{}
	for _, pod := range pods {
		if pod.Spec.NodeName != "" {
			together[pod.Spec.NodeName]++
		}
	}
	ranked := slices.Clone(pods)
	slices.SortFunc(ranked, func(a, b *corev1.Pod) int {
		return cmp.Or(
			falseFirst(a.Spec.NodeName != "", b.Spec.NodeName != ""),
			cmp.Compare(phaseRank(a), phaseRank(b)),
			falseFirst(ready(a), ready(b)),
			cmp.Compare(deletionCost(a), deletionCost(b)),
			-cmp.Compare(together[a.Spec.NodeName], together[b.Spec.NodeName]),
			-compareTimes(readySince(a), readySince(b)),
			-cmp.Compare(restarts(a), restarts(b)),
			-compareTimes(a.CreationTimestamp, b.CreationTimestamp),
			cmp.Compare(a.Name, b.Name),
		)
	})
	return ranked
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case !a:
		return -1
	}
	return 1
}

func phaseRank(pod *corev1.Pod) int {
	switch pod.Status.Phase {
	case corev1.PodRunning:
		return 2
	case corev1.PodUnknown:
		return 1
	}
	return 0
}

// deletionCost reads the annotation; one that cannot be read counts as none.
func deletionCost(pod *corev1.Pod) int64 {
	cost, err := strconv.ParseInt(pod.Annotations[corev1.PodDeletionCost], 10, 32)
	if err != nil {
		return 0
	}
	return cost
}

func readySince(pod *corev1.Pod) metav1.Time {
	if !ready(pod) {
		return metav1.Time{}
	}
	return podCondition(pod, corev1.PodReady).LastTransitionTime
}

// compareTimes orders a time that is not set last.
func compareTimes(a, b metav1.Time) int {
	if a.IsZero() || b.IsZero() {
		return falseFirst(a.IsZero(), b.IsZero())
	}
	return a.Time.Truncate(time.Second).Compare(b.Time.Truncate(time.Second))
}

// restarts is the highest count among the pod's containers.
func restarts(pod *corev1.Pod) int32 {
	highest := int32(0)
	for i := range pod.Status.ContainerStatuses {
		highest = max(highest, pod.Status.ContainerStatuses[i].RestartCount)
	}
	return highest
}
