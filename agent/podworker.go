package agent

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shepherd-project/shepherd/agent/runtime"
)

// podWorker looks after one pod. Its goroutine makes pass after pass: each
// looks at the whole of the pod, wanted and real, and does what is next. What
// can take long in a pass ends when the pod's deletion is asked for.
type podWorker struct {
	m    *podManager
	uid  string
	wake chan struct{}
	wg   sync.WaitGroup // what the worker does in the background

	mu        sync.Mutex
	pod       *corev1.Pod // as last seen; nil for a pod the server never told of
	absent    bool        // missing from the server's list
	namespace string      // of an unknown pod
	name      string
	dirty     bool               // told of something since the pass began
	interrupt context.CancelFunc // ends the pass under way

	// The rest belongs to the worker's goroutine.
	life       context.Context // ends with the agent, not with a pass
	containers map[string]*containerState
	seeded     bool
	startTime  time.Time
	volumesAt  time.Time // when the volumes were last brought up to date
	sandbox    retry
	sandboxAt  time.Time
	removal    retry
	removed    bool      // nothing of the pod is left on this machine
	deleteAt   time.Time // not to be deleted from the server again before
	killed     bool      // Killing was reported
	failReason string
	failText   string
}

func newPodWorker(m *podManager, uid string) *podWorker {
	return &podWorker{m: m, uid: uid, wake: make(chan struct{}, 1), containers: map[string]*containerState{},
		sandbox: retry{base: time.Second, limit: 20 * time.Second}, removal: retry{base: 500 * time.Millisecond, limit: 5 * time.Second}}
}

// update tells the worker what the server has.
func (w *podWorker) update(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pod != nil && !newer(pod, w.pod) {
		w.absent = false
		kick(w.wake)
		return
	}
	if urgent(w.pod, pod) && w.interrupt != nil {
		w.interrupt()
	}
	w.pod, w.absent, w.dirty = pod, false, true
	kick(w.wake)
}

// refresh is update for an object that may be older than what is known.
func (w *podWorker) refresh(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pod != nil && newer(pod, w.pod) {
		w.pod = pod
	}
}

// missing tells the worker that the server's list lacks the pod.
func (w *podWorker) missing(namespace, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.absent && w.interrupt != nil {
		w.interrupt()
	}
	w.absent, w.dirty = true, true
	if namespace != "" {
		w.namespace, w.name = namespace, name
	}
	kick(w.wake)
}

// newer compares resource versions, which in this cluster are numbers that
// only grow.
func newer(a, b *corev1.Pod) bool {
	x, err1 := strconv.ParseUint(a.ResourceVersion, 10, 64)
	y, err2 := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return err1 != nil || err2 != nil || x > y
}

// urgent: the pod is to be deleted, or faster than before.
func urgent(before, now *corev1.Pod) bool {
	if now.DeletionTimestamp == nil {
		return false
	}
	return before == nil || before.DeletionTimestamp == nil || grace(now) < grace(before)
}

// grace is how long the pod's containers have to end by themselves.
func grace(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	switch {
	case pod.DeletionGracePeriodSeconds != nil:
		seconds = *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		seconds = *pod.Spec.TerminationGracePeriodSeconds
	}
	return time.Duration(max(seconds, 0)) * time.Second
}

// run makes passes until the pod is gone or ctx ends. Containers go on
// running when it is ctx that ends.
func (w *podWorker) run(ctx context.Context) {
	defer w.wg.Wait()
	defer w.stopProbes()
	w.life = ctx
	for ctx.Err() == nil {
		passCtx, cancel := context.WithCancel(ctx)
		w.mu.Lock()
		w.interrupt, w.dirty = cancel, false
		w.mu.Unlock()
		next, done := time.Second, false
		guard(w.m.logger, "pod sync", func() { next, done = w.pass(passCtx) })
		cancel()
		if done && w.m.forget(w) {
			return
		}
		w.sleep(ctx, next)
	}
}

func (w *podWorker) sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		d = time.Hour // nothing to do by itself: the manager's tick comes anyway
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.wake:
	case <-ctx.Done():
	}
}

// pass does what is next for the pod. It returns when to look again, zero for
// not before something happens, and whether the worker is no longer needed.
func (w *podWorker) pass(ctx context.Context) (next time.Duration, done bool) {
	w.mu.Lock()
	pod, absent := w.pod, w.absent
	w.mu.Unlock()
	if absent {
		found, err := w.confirm(ctx, pod)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, errEpoch) {
				w.m.logger.Warn("cannot confirm that a pod is gone", "uid", w.uid, "error", err)
			}
			return w.removal.next(), false
		}
		if found == nil {
			return w.orphan(ctx, pod)
		}
		pod = found
		w.update(found)
	}
	if pod == nil {
		return 0, false
	}
	if pod.DeletionTimestamp != nil {
		return w.terminate(ctx, pod)
	}
	return w.keep(ctx, pod), false
}

// confirm asks the server, with a linearizable read, whether the pod exists.
// It returns nil if it does not. A pod of which nothing runs is not asked for.
func (w *podWorker) confirm(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	if err := w.m.mayKill(); err != nil {
		return nil, err
	}
	w.mu.Lock()
	namespace, name := w.namespace, w.name
	w.mu.Unlock()
	if pod != nil {
		namespace, name = pod.Namespace, pod.Name
	}
	if name == "" {
		if w.status(ctx) == nil {
			return nil, nil // leftovers only: no process would be killed
		}
		return nil, fmt.Errorf("pod %s has no name", w.uid)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found, err := w.m.client.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case found.UID != types.UID(w.uid) || found.Spec.NodeName != w.m.cfg.NodeName:
		return nil, nil
	}
	return found, nil
}

// status is what runs of the pod; nil for nothing.
func (w *podWorker) status(ctx context.Context) *runtime.PodStatus {
	for _, st := range w.m.runtime.Pods(ctx) {
		if st.UID == w.uid {
			return &st
		}
	}
	return nil
}

// keep makes the pod run as it should, reports how it does, and returns when
// to look again.
func (w *podWorker) keep(ctx context.Context, pod *corev1.Pod) time.Duration {
	w.observe(ctx, pod)
	p := planPod(pod, w.views())
	if p.initialized && w.expired(pod) {
		p.done, p.failed = true, true
	}
	finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	var next time.Duration
	switch {
	case p.done || finished:
		w.finish(ctx, pod)
	default:
		next = w.start(ctx, pod, &p)
	}
	w.observe(ctx, pod)
	w.probe(pod)
	w.publish(ctx, pod)
	if d := pod.Spec.ActiveDeadlineSeconds; d != nil && next == 0 && !p.done && !finished {
		next = time.Second
	}
	return next
}

// expired says whether the pod has run for longer than it may.
func (w *podWorker) expired(pod *corev1.Pod) bool {
	d := pod.Spec.ActiveDeadlineSeconds
	if d == nil || time.Since(w.startTime) < time.Duration(*d)*time.Second {
		return false
	}
	w.failReason, w.failText = "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
	return true
}

// finish stops what still runs of a pod that has ended: sidecars, or all of it
// after its deadline. The pod stays, for its logs, until it is deleted.
func (w *podWorker) finish(ctx context.Context, pod *corev1.Pod) {
	w.stopProbes()
	w.stopContainers(ctx, pod, grace(pod))
	w.observe(ctx, pod)
}

// stopContainers stops all containers at the same time.
func (w *podWorker) stopContainers(ctx context.Context, pod *corev1.Pod, grace time.Duration) {
	st := w.status(ctx)
	if st == nil || !st.Alive {
		return
	}
	var wg sync.WaitGroup
	for _, c := range st.Containers {
		if c.State == runtime.Exited {
			continue
		}
		wg.Go(func() {
			err := w.m.runtime.StopContainer(ctx, w.uid, c.Name, grace)
			if err != nil && ctx.Err() == nil && !errors.Is(err, runtime.ErrNotFound) {
				w.m.logger.Warn("container not stopped", "pod", pod.Namespace+"/"+pod.Name, "container", c.Name, "error", err)
			}
		})
	}
	wg.Wait()
}

// publish computes the pod's status and has it reported.
func (w *podWorker) publish(ctx context.Context, pod *corev1.Pod) {
	w.mu.Lock()
	if w.pod != nil && newer(w.pod, pod) {
		pod = w.pod // a report's answer, perhaps
	}
	w.mu.Unlock()
	w.m.reporter.set(pod, w.report(ctx, pod))
}

func (w *podWorker) report(ctx context.Context, pod *corev1.Pod) corev1.PodStatus {
	st := w.status(ctx)
	r := podReport{
		pod: pod, containers: map[string]containerReport{}, plan: planPod(pod, w.views()),
		podIP: w.podIP(pod), hostIP: w.m.machine.ip.String(), startTime: w.startTime, now: time.Now(),
		failReason: w.failReason, failMessage: w.failText, sandbox: st != nil && st.Alive,
	}
	for name, c := range w.containers {
		r.containers[name] = c.report(w.uid)
	}
	return r.status()
}

func (w *podWorker) podIP(pod *corev1.Pod) string {
	if pod.Spec.HostNetwork {
		return w.m.machine.ip.String()
	}
	if ip, ok := w.m.network.PodIP(w.uid); ok {
		return ip.String()
	}
	return ""
}
