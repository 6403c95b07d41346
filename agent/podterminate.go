package agent

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shepherd-project/shepherd/agent/runtime"
)

// orphanGrace is for containers of a pod whose spec nobody knows any more.
const orphanGrace = 10 * time.Second

// deleteAgain is when an object that is still there, for a finalizer's sake,
// is deleted once more.
const deleteAgain = 10 * time.Second

// terminate ends a pod that is being deleted: its containers, then everything
// else that it has here, then the object itself.
func (w *podWorker) terminate(ctx context.Context, pod *corev1.Pod) (next time.Duration, done bool) {
	if !w.removed {
		w.observe(ctx, pod)
		w.stopProbes()
		w.reportKilling(ctx, pod)
		w.publish(ctx, pod)
		w.preStop(ctx, pod)
		w.stopContainers(ctx, pod, grace(pod))
		if ctx.Err() != nil {
			return time.Millisecond, false
		}
		w.observe(ctx, pod)
		final := w.report(ctx, pod)
		if err := w.removeAll(ctx, 0); err != nil {
			w.m.logger.Error("pod not removed, trying again", "pod", pod.Namespace+"/"+pod.Name, "error", err)
			return w.removal.next(), false
		}
		w.removed = true
		w.removal.reset()
		w.sayLast(ctx, pod, final)
	}
	if wait := time.Until(w.deleteAt); wait > 0 {
		return w.afterDeletion(wait)
	}
	zero := int64(0)
	uid := types.UID(w.uid)
	callCtx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := w.m.client.Pods(pod.Namespace).Delete(callCtx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &uid},
	})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// Gone, or another pod has its name by now. With a finalizer it is
		// still there, and this worker has nothing more to do about it.
		w.deleteAt = time.Now().Add(deleteAgain)
		return w.afterDeletion(deleteAgain)
	}
	if ctx.Err() == nil {
		w.m.logger.Warn("deletion not finished, trying again", "pod", pod.Namespace+"/"+pod.Name, "error", err)
	}
	return w.removal.next(), false
}

// afterDeletion ends the worker once the source no longer has the pod. Until
// the watch has said so, a worker for a pod that is wanted would be made anew.
func (w *podWorker) afterDeletion(wait time.Duration) (time.Duration, bool) {
	pods, _ := w.m.source.snapshot()
	_, listed := pods[types.UID(w.uid)]
	return wait, !listed
}

// sayLast reports how the containers ended, before the object goes. It is
// worth one attempt: the deletion does not wait for it.
func (w *podWorker) sayLast(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) {
	for i := range status.Conditions {
		c := &status.Conditions[i]
		if c.Type == corev1.PodReady || c.Type == corev1.ContainersReady {
			c.Status = corev1.ConditionFalse
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := w.m.reporter.send(ctx, pod, status); err != nil && !apierrors.IsNotFound(err) {
		w.m.logger.Debug("last status not reported", "pod", pod.Namespace+"/"+pod.Name, "error", err)
	}
}

// orphan removes a pod that the server has confirmed not to have.
func (w *podWorker) orphan(ctx context.Context, pod *corev1.Pod) (time.Duration, bool) {
	wait := orphanGrace
	if pod != nil {
		wait = min(grace(pod), corev1.DefaultTerminationGracePeriodSeconds*time.Second)
	}
	w.stopProbes()
	if !w.removed {
		w.m.logger.Info("removing a pod that the cluster no longer has", "uid", w.uid)
	}
	if err := w.removeAll(ctx, wait); err != nil {
		if ctx.Err() == nil {
			w.m.logger.Error("pod not removed, trying again", "uid", w.uid, "error", err)
		}
		return w.removal.next(), false
	}
	w.removed = true
	// What sync has told meanwhile is that the pod is still missing.
	w.mu.Lock()
	w.dirty = !w.absent
	w.mu.Unlock()
	return time.Second, true
}

// removeAll removes everything that the pod has on this machine. Each step can
// be repeated.
func (w *podWorker) removeAll(ctx context.Context, grace time.Duration) error {
	if err := w.m.runtime.RemovePod(ctx, w.uid, grace); err != nil {
		return fmt.Errorf("remove from the runtime: %w", err)
	}
	if err := w.m.network.RemovePod(ctx, w.uid); err != nil {
		return fmt.Errorf("remove the network: %w", err)
	}
	if err := w.m.volumes.Remove(w.uid); err != nil {
		return fmt.Errorf("remove the volumes: %w", err)
	}
	return nil
}

func (w *podWorker) reportKilling(ctx context.Context, pod *corev1.Pod) {
	st := w.status(ctx)
	if w.killed || st == nil {
		return
	}
	w.killed = true
	for _, c := range st.Containers {
		if c.State != runtime.Exited {
			w.m.events.event(pod, c.Name, corev1.EventTypeNormal, "Killing", "Stopping container %s", c.Name)
		}
	}
}
