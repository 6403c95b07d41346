package controllers

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// expirePods removes pods that no agent will finish: those that were deleted
// before they had a node, and the oldest finished ones beyond the limit.
func (g *garbage) expirePods() {
	var done []*corev1.Pod
	for _, obj := range g.objects {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			continue
		}
		switch {
		case pod.DeletionTimestamp != nil && pod.Spec.NodeName == "" && len(pod.Finalizers) == 0:
			g.plan.add((&change{}).remove(pod))
		case pod.DeletionTimestamp == nil && finished(pod):
			done = append(done, pod)
		}
	}
	slices.SortStableFunc(done, func(a, b *corev1.Pod) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for _, pod := range done[:max(0, len(done)-g.config.FinishedPods)] {
		g.plan.add((&change{}).delete(pod, g.now))
	}
}

// expireEvents removes events that were last seen too long ago.
func (g *garbage) expireEvents() error {
	events, err := list[*corev1.Event](g.world, resEvents, "")
	if err != nil {
		return err
	}
	c := &change{}
	for _, event := range events {
		if g.now.Sub(lastSeen(event)) < g.config.EventTTL {
			continue
		}
		c.delete(event, g.now)
		if len(c.ops) >= garbageBatch {
			g.plan.add(c)
			c = &change{}
		}
	}
	g.plan.add(c)
	return nil
}

// lastSeen is the latest of an event's times.
func lastSeen(event *corev1.Event) time.Time {
	last := event.CreationTimestamp.Time
	times := []time.Time{event.LastTimestamp.Time, event.EventTime.Time}
	if event.Series != nil {
		times = append(times, event.Series.LastObservedTime.Time)
	}
	for _, t := range times {
		if t.After(last) {
			last = t
		}
	}
	return last
}
