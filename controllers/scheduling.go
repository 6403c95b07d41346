package controllers

import (
	"errors"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shepherd-project/shepherd/controllers/scheduler"
)

// planScheduling binds pods that wait for a node. A bind names the pod in the
// version that was read, unbound and undeleted, and the node's UID, so a pod is
// bound at most once. A pod that fits nowhere says so in its PodScheduled
// condition, which is written only when it changes.
func planScheduling(w *world) (*plan, error) {
	pods, err := list[*corev1.Pod](w, resPods, "")
	if err != nil {
		return nil, err
	}
	nodes, err := list[*corev1.Node](w, resNodes, "")
	if err != nil {
		return nil, err
	}
	p := &plan{}
	var waiting []*corev1.Pod
	for _, pod := range pods {
		if wantsNode(pod) {
			waiting = append(waiting, pod)
		}
	}
	if len(waiting) == 0 {
		return p, nil
	}
	sort.SliceStable(waiting, func(i, j int) bool { return before(waiting[i], waiting[j]) })
	state := scheduler.New(nodes, pods)
	for _, pod := range waiting {
		node, err := state.Place(pod, w.rand)
		var unfit *scheduler.FitError
		switch {
		case err == nil:
			p.add(w.bind(pod, node))
		case errors.As(err, &unfit):
			p.add(w.unschedulable(pod, corev1.PodReasonUnschedulable, unfit.Error()))
		default:
			p.add(w.unschedulable(pod, corev1.PodReasonSchedulerError, err.Error()))
		}
	}
	return p, nil
}

// wantsNode reports whether the pod waits for this scheduler.
func wantsNode(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0 &&
		(pod.Spec.SchedulerName == "" || pod.Spec.SchedulerName == corev1.DefaultSchedulerName) &&
		!finished(pod)
}

// before orders waiting pods: higher priority, then older.
func before(a, b *corev1.Pod) bool {
	if pa, pb := priority(a), priority(b); pa != pb {
		return pa > pb
	}
	return a.CreationTimestamp.Before(&b.CreationTimestamp)
}

func priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

func (w *world) bind(pod *corev1.Pod, node *corev1.Node) *change {
	bound := pod.DeepCopy()
	bound.Spec.NodeName = node.Name
	setPodCondition(bound, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, w.stamp())
	c := (&change{}).live(pod).exists(node)
	return c.update(pod, bound)
}

// unschedulable says why the pod waits; the change is empty if the pod says so
// already.
func (w *world) unschedulable(pod *corev1.Pod, reason, message string) *change {
	updated := pod.DeepCopy()
	c := &change{}
	if setPodCondition(updated, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message,
	}, w.stamp()) {
		c.live(pod).update(pod, updated)
	}
	return c
}

// stamp is the cluster time as objects hold it, in whole seconds.
func (w *world) stamp() metav1.Time { return metav1.NewTime(w.now.UTC().Truncate(1e9)) }

// stampUp is the first whole second that is not before now, for times from
// which a grace is counted: rounded down, the grace would end too early.
func (w *world) stampUp() metav1.Time {
	return metav1.NewTime(w.now.UTC().Add(time.Second - 1).Truncate(time.Second))
}

// setPodCondition puts the condition in place and reports whether anything
// changed. The transition time moves only when the status does.
func setPodCondition(pod *corev1.Pod, wanted corev1.PodCondition, at metav1.Time) bool {
	wanted.LastTransitionTime = at
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		if c.Type != wanted.Type {
			continue
		}
		if c.Status == wanted.Status {
			wanted.LastTransitionTime = c.LastTransitionTime
			if c.Reason == wanted.Reason && c.Message == wanted.Message {
				return false
			}
		}
		wanted.ObservedGeneration, wanted.LastProbeTime = c.ObservedGeneration, c.LastProbeTime
		*c = wanted
		return true
	}
	pod.Status.Conditions = append(pod.Status.Conditions, wanted)
	return true
}
