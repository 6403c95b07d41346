package controllers

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// setReplicas changes the size of a ReplicaSet, with the annotations that a
// later proportional scaling reads.
func (ro *rollout) setReplicas(set *appsv1.ReplicaSet, n int32) {
	n = max(n, 0)
	set.Spec.Replicas = &n
	ro.annotateSize(set)
}

// roll takes a step of a rolling update: the new ReplicaSet up as far as the
// surge allows, or else the old ones down as far as enough pods stay available.
func (ro *rollout) roll() {
	fresh := ro.hashed == nil
	ro.ensureNewSet(true)
	if fresh || ro.hashed == nil {
		return
	}
	if size := ro.newSize(); size != replicas(ro.hashed) {
		ro.setReplicas(ro.hashed, size)
		return
	}
	ro.shrinkOld()
}

// newSize is how large the new ReplicaSet may be now. Pods that an old one is
// still to delete count, so that the surge holds for the pods themselves and
// not only for the numbers in the specs.
func (ro *rollout) newSize() int32 {
	size := int32(0)
	if ro.hashed != nil {
		size = replicas(ro.hashed)
	}
	if size >= ro.wanted() {
		return ro.wanted()
	}
	surge, _ := bounds(ro.next)
	room := ro.wanted() + surge - total(ro.all(), ro.present)
	return size + min(max(room, 0), ro.wanted()-size)
}

// shrinkOld scales the old ReplicaSets down: first by what is not available,
// which costs nothing, then by what the available pods allow.
func (ro *rollout) shrinkOld() {
	old := ro.old()
	if total(old, replicas) == 0 {
		return
	}
	_, unavailable := bounds(ro.next)
	least := ro.wanted() - unavailable
	waiting := replicas(ro.hashed) - ro.serving(ro.hashed)
	room := total(ro.all(), replicas) - least - waiting
	if room <= 0 {
		return
	}
	for _, set := range old {
		if broken := replicas(set) - ro.serving(set); broken > 0 && room > 0 {
			drop := min(broken, room)
			room -= drop
			ro.setReplicas(set, replicas(set)-drop)
		}
	}
	spare := total(ro.all(), ro.serving) - least
	for _, set := range old {
		if spare <= 0 {
			return
		}
		if drop := min(replicas(set), spare); drop > 0 {
			spare -= drop
			ro.setReplicas(set, replicas(set)-drop)
		}
	}
}

// recreate takes a step of the Recreate strategy: all old pods go, and only
// when the last one is gone does the new ReplicaSet start.
func (ro *rollout) recreate() {
	ro.ensureNewSet(false)
	stopping := false
	for _, set := range ro.old() {
		if replicas(set) > 0 {
			ro.setReplicas(set, 0)
			stopping = true
		}
	}
	if stopping || ro.oldPodsRun() {
		return
	}
	ro.ensureNewSet(true)
	if ro.hashed != nil && replicas(ro.hashed) != ro.wanted() {
		ro.setReplicas(ro.hashed, ro.wanted())
	}
}

// oldPodsRun reports whether a pod of an old ReplicaSet may still run,
// terminating ones included.
func (ro *rollout) oldPodsRun() bool {
	for _, set := range ro.old() {
		for _, pod := range ro.podsOf[set.UID] {
			if !finished(pod) {
				return true
			}
		}
	}
	return false
}

// progressDeadline returns spec.progressDeadlineSeconds and whether it is set
// to something that can pass.
func progressDeadline(d *appsv1.Deployment) (int32, bool) {
	const never = 1<<31 - 1
	seconds := value(d.Spec.ProgressDeadlineSeconds, 600)
	return seconds, seconds != never
}

// markPaused keeps the progress condition in step with spec.paused, so that the
// deadline does not run while nothing may progress.
func (ro *rollout) markPaused() {
	if _, ok := progressDeadline(ro.next); !ok {
		return
	}
	current := deploymentCondition(&ro.next.Status, appsv1.DeploymentProgressing)
	if current != nil && current.Reason == reasonTimedOut {
		return
	}
	marked := current != nil && current.Reason == reasonPaused
	switch {
	case ro.next.Spec.Paused && !marked:
		ro.setCondition(appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonPaused, "Deployment is paused")
	case !ro.next.Spec.Paused && marked:
		ro.setCondition(appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonResumed, "Deployment is resumed")
	}
}
