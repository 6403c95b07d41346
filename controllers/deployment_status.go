package controllers

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// Reasons of conditions, as clients know them.
const (
	reasonNewSet       = "NewReplicaSetCreated"
	reasonFoundSet     = "FoundNewReplicaSet"
	reasonSetUpdated   = "ReplicaSetUpdated"
	reasonSetAvailable = "NewReplicaSetAvailable"
	reasonTimedOut     = "ProgressDeadlineExceeded"
	reasonPaused       = "DeploymentPaused"
	reasonResumed      = "DeploymentResumed"
	reasonMinimum      = "MinimumReplicasAvailable"
	reasonNoMinimum    = "MinimumReplicasUnavailable"
)

// syncStatus writes the counts and the Available condition, and with progress
// also how the rollout is getting on.
func (ro *rollout) syncStatus(progress bool) {
	status, all := &ro.next.Status, ro.all()
	count := func(of func(counts) int32) int32 {
		return total(all, func(set *appsv1.ReplicaSet) int32 { return of(ro.counted[set.UID]) })
	}
	status.ObservedGeneration = ro.next.Generation
	status.Replicas = count(func(c counts) int32 { return c.active })
	status.ReadyReplicas = count(func(c counts) int32 { return c.ready })
	status.AvailableReplicas = count(func(c counts) int32 { return c.available })
	status.UnavailableReplicas = max(0, total(all, replicas)-status.AvailableReplicas)
	status.UpdatedReplicas = 0
	if ro.hashed != nil {
		status.UpdatedReplicas = ro.counted[ro.hashed.UID].active
	}
	_, unavailable := bounds(ro.next)
	if status.AvailableReplicas >= ro.wanted()-unavailable {
		ro.setCondition(appsv1.DeploymentAvailable, corev1.ConditionTrue, reasonMinimum,
			"Deployment has minimum availability.")
	} else {
		ro.setCondition(appsv1.DeploymentAvailable, corev1.ConditionFalse, reasonNoMinimum,
			"Deployment does not have minimum availability.")
	}
	if _, ok := progressDeadline(ro.next); !ok {
		status.Conditions = slices.DeleteFunc(status.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Type == appsv1.DeploymentProgressing
		})
	} else if progress {
		ro.syncProgress()
	}
}

// complete reports whether a status says that the rollout is over.
func (ro *rollout) complete(status *appsv1.DeploymentStatus) bool {
	return status.UpdatedReplicas == ro.wanted() && status.Replicas == ro.wanted() &&
		status.AvailableReplicas == ro.wanted() && status.ObservedGeneration >= ro.next.Generation
}

// syncProgress sets the Progressing condition, and asks for a pass at the
// deadline.
func (ro *rollout) syncProgress() {
	status := &ro.next.Status
	current := deploymentCondition(status, appsv1.DeploymentProgressing)
	if status.Replicas == status.UpdatedReplicas && current != nil && current.Reason == reasonSetAvailable {
		return // a finished rollout stays finished when pods come and go
	}
	name := fmt.Sprintf("Deployment %q", ro.next.Name)
	if ro.hashed != nil {
		name = fmt.Sprintf("ReplicaSet %q", ro.hashed.Name)
	}
	switch {
	case ro.complete(status):
		ro.setCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonSetAvailable,
			name+" has successfully progressed.")
	case progressed(&ro.read.Status, status):
		ro.noteProgress(name + " is progressing.")
	case ro.timedOut(current):
		ro.setCondition(appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonTimedOut,
			name+" has timed out progressing.")
	}
}

// noteProgress renews the condition, which starts the deadline anew.
func (ro *rollout) noteProgress(message string) {
	status := &ro.next.Status
	since := ro.stamp()
	if current := deploymentCondition(status, appsv1.DeploymentProgressing); current != nil {
		if current.Status == corev1.ConditionTrue {
			since = current.LastTransitionTime
		}
		status.Conditions = slices.DeleteFunc(status.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Type == appsv1.DeploymentProgressing
		})
	}
	ro.setCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonSetUpdated, message)
	deploymentCondition(status, appsv1.DeploymentProgressing).LastTransitionTime = since
}

// progressed reports whether a rollout has moved between two statuses.
func progressed(before, after *appsv1.DeploymentStatus) bool {
	return after.UpdatedReplicas > before.UpdatedReplicas ||
		after.Replicas-after.UpdatedReplicas < before.Replicas-before.UpdatedReplicas ||
		after.ReadyReplicas > before.ReadyReplicas || after.AvailableReplicas > before.AvailableReplicas
}

// timedOut reports whether the deadline has passed without progress.
func (ro *rollout) timedOut(current *appsv1.DeploymentCondition) bool {
	limit, _ := progressDeadline(ro.next)
	switch {
	case current == nil || current.Reason == reasonSetAvailable:
		return false
	case current.Reason == reasonTimedOut:
		return true
	}
	left := current.LastUpdateTime.Add(seconds(limit)).Sub(ro.now)
	if left >= 0 {
		ro.plan.again(left + 1e9)
	}
	return left < 0
}

func deploymentCondition(status *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range status.Conditions {
		if status.Conditions[i].Type == kind {
			return &status.Conditions[i]
		}
	}
	return nil
}

// setCondition puts a condition in place. One with the same status and reason
// stays as it is.
func (ro *rollout) setCondition(kind appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string) {
	wanted := appsv1.DeploymentCondition{Type: kind, Status: status, Reason: reason, Message: message,
		LastUpdateTime: ro.stamp(), LastTransitionTime: ro.stamp()}
	current := deploymentCondition(&ro.next.Status, kind)
	if current == nil {
		ro.next.Status.Conditions = append(ro.next.Status.Conditions, wanted)
		return
	}
	if current.Status == status {
		if current.Reason == reason {
			return
		}
		wanted.LastTransitionTime = current.LastTransitionTime
	}
	*current = wanted
}
