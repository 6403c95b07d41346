package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shepherd-project/shepherd/agent/probe"
	"github.com/shepherd-project/shepherd/agent/runtime"
)

// hook runs a lifecycle handler of a running container.
func (w *podWorker) hook(ctx context.Context, pod *corev1.Pod, spec *corev1.Container, h *corev1.LifecycleHandler, limit time.Duration) error {
	if h.Sleep != nil {
		pause(ctx, min(time.Duration(h.Sleep.Seconds)*time.Second, limit))
		return ctx.Err()
	}
	p := &corev1.Probe{
		ProbeHandler:   corev1.ProbeHandler{Exec: h.Exec, HTTPGet: h.HTTPGet, TCPSocket: h.TCPSocket},
		TimeoutSeconds: int32(max(limit/time.Second, 1)),
	}
	return probe.Check(ctx, p, w.probeTarget(pod, spec))
}

// preStop runs the hooks of all running containers at the same time, for at
// most the grace period.
func (w *podWorker) preStop(ctx context.Context, pod *corev1.Pod) {
	var wg sync.WaitGroup
	for i := range pod.Spec.Containers {
		spec := &pod.Spec.Containers[i]
		if spec.Lifecycle == nil || spec.Lifecycle.PreStop == nil || w.container(spec.Name).state != runtime.Running || grace(pod) == 0 {
			continue
		}
		wg.Go(func() {
			if err := w.hook(ctx, pod, spec, spec.Lifecycle.PreStop, grace(pod)); err != nil && ctx.Err() == nil {
				w.m.events.event(pod, spec.Name, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed: %v", err)
			}
		})
	}
	wg.Wait()
}

// postStart runs a container's hook beside it; one that fails ends it.
func (w *podWorker) postStart(pod *corev1.Pod, spec *corev1.Container) {
	if spec.Lifecycle == nil || spec.Lifecycle.PostStart == nil {
		return
	}
	ctx := w.life // a hook outlives the pass that began it
	w.wg.Go(func() {
		defer kick(w.wake)
		guard(w.m.logger, "post-start hook", func() {
			err := w.hook(ctx, pod, spec, spec.Lifecycle.PostStart, time.Minute)
			if err == nil || ctx.Err() != nil {
				return
			}
			w.m.events.event(pod, spec.Name, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed: %v", err)
			if err := w.m.runtime.StopContainer(ctx, w.uid, spec.Name, grace(pod)); err != nil {
				w.m.logger.Warn("container not stopped", "error", fmt.Errorf("after its hook: %w", err))
			}
		})
	})
}
