package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shepherd-project/shepherd/agent/image"
	"github.com/shepherd-project/shepherd/agent/probe"
	"github.com/shepherd-project/shepherd/agent/runtime"
)

// containerState is what a worker knows of one container: its latest attempt,
// the end of the one before, and what keeps the next from starting.
type containerState struct {
	attempt int                    // -1 = none yet
	state   runtime.ContainerState // "" = this container has not run in this sandbox
	exit    int
	signal  int
	reason  string
	message string
	earlier bool // state is from a sandbox that is gone
	began   time.Time
	ended   time.Time
	last    *corev1.ContainerStateTerminated
	imageID string

	backoff     backoff
	waiting     string
	waitMessage string

	image   *image.Image // for the next start
	pull    *pull
	pullTry retry
	pullAt  time.Time

	probes       *probe.Runner
	probeAttempt int
	adoptReady   bool // the server's last word on a container that is adopted
	killing      bool // being stopped because of a probe
}

func newContainerState() *containerState {
	return &containerState{attempt: -1, pullTry: retry{base: pullBase, limit: pullLimit}, probeAttempt: -1}
}

func (w *podWorker) container(name string) *containerState {
	c := w.containers[name]
	if c == nil {
		c = newContainerState()
		w.containers[name] = c
	}
	return c
}

// view is what decisions are made from.
func (c *containerState) view() containerView {
	v := containerView{attempt: c.attempt, state: c.state, exitCode: c.exit, finished: c.ended, delay: c.backoff.delay(), earlier: c.earlier}
	v.started = c.state == runtime.Running && c.probes != nil && c.probes.State().Started
	return v
}

func (w *podWorker) views() map[string]containerView {
	out := map[string]containerView{}
	for name, c := range w.containers {
		out[name] = c.view()
	}
	return out
}

func (c *containerState) report(uid string) containerReport {
	r := containerReport{
		view: c.view(), startedAt: c.began, signal: c.signal, reason: c.reason, message: c.message,
		waiting: c.waiting, waitMessage: c.waitMessage, last: c.last, imageID: c.imageID,
	}
	if c.attempt >= 0 {
		r.containerID = containerID(uid, c)
	}
	r.ready = c.state == runtime.Running && c.probes != nil && c.probes.State().Ready && !c.killing
	return r
}

func containerID(uid string, c *containerState) string {
	return fmt.Sprintf("shepherd://%s-%d-%d", uid, c.attempt, c.began.Unix())
}

// end notes the end of the latest attempt.
func (c *containerState) end(exit, signal int, reason, message string, at time.Time) {
	c.state, c.exit, c.signal, c.reason, c.message, c.ended = runtime.Exited, exit, signal, reason, message, at
	c.killing = false
	c.backoff.ended(at.Sub(c.began))
}

// next notes that a new attempt has begun.
func (c *containerState) next(uid string, attempt int, began time.Time) {
	if c.state == runtime.Exited {
		r := containerReport{view: c.view(), startedAt: c.began, signal: c.signal, reason: c.reason, message: c.message, containerID: containerID(uid, c)}
		c.last = r.terminated()
	}
	c.attempt, c.began, c.earlier = attempt, began, false
	c.exit, c.signal, c.reason, c.message, c.ended = 0, 0, "", "", time.Time{}
	c.waiting, c.waitMessage = "", ""
}

// observe brings the containers' states in line with what really runs.
func (w *podWorker) observe(ctx context.Context, pod *corev1.Pod) {
	st := w.status(ctx)
	if !w.seeded {
		w.seed(pod, st != nil && st.Alive)
		w.seeded = true
	}
	listed := map[string]bool{}
	if st != nil {
		for i := range st.Containers {
			listed[st.Containers[i].Name] = true
			w.observeContainer(pod, &st.Containers[i])
		}
	}
	for name, c := range w.containers {
		alive := st != nil && st.Alive && listed[name]
		if c.state == runtime.Running && !alive {
			c.end(137, 9, "ContainerStatusUnknown", "The container could not be located when the pod was looked for", time.Now())
		}
	}
}

func (w *podWorker) observeContainer(pod *corev1.Pod, rc *runtime.ContainerStatus) {
	c := w.container(rc.Name)
	if rc.Attempt < c.attempt {
		return
	}
	if rc.Attempt > c.attempt {
		c.next(w.uid, rc.Attempt, rc.StartedAt)
	}
	if id := rc.Labels[labelImageID]; id != "" {
		c.imageID = id
	}
	switch rc.State {
	case runtime.Running:
		c.state, c.began = runtime.Running, rc.StartedAt
		c.waiting, c.waitMessage = "", ""
	case runtime.Exited:
		if c.state == runtime.Exited && c.ended.Equal(rc.FinishedAt) {
			return
		}
		c.began = rc.StartedAt
		c.end(rc.ExitCode, rc.Signal, rc.Reason, w.lastWords(pod, rc), rc.FinishedAt)
	}
}

// lastWords is what the container has left as its termination message.
func (w *podWorker) lastWords(pod *corev1.Pod, rc *runtime.ContainerStatus) string {
	return readTerminationLog(w.terminationDir(pod), rc.Name, rc.Attempt)
}

// terminationDir lies beside the volumes, which are never named like it.
func (w *podWorker) terminationDir(pod *corev1.Pod) string {
	return filepath.Join(w.m.cfg.RunDir, "volumes", string(pod.UID), ".termination")
}

// seed takes over from the server's status what an earlier agent has known.
// What it calls running but is not here was lost with the machine.
func (w *podWorker) seed(pod *corev1.Pod, alive bool) {
	w.startTime = time.Now()
	if pod.Status.StartTime != nil {
		w.startTime = pod.Status.StartTime.Time
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			w.seedContainer(&list[i], alive)
		}
	}
}

func (w *podWorker) seedContainer(s *corev1.ContainerStatus, alive bool) {
	c := w.container(s.Name)
	c.imageID, c.adoptReady = s.ImageID, s.Ready
	ran := s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil || s.RestartCount > 0
	if !ran {
		return
	}
	c.attempt = int(s.RestartCount)
	c.last = s.LastTerminationState.Terminated
	ended := s.State.Terminated
	if s.State.Waiting != nil && c.last != nil { // between two attempts
		ended, c.last = c.last, nil
	}
	switch {
	case ended != nil:
		c.began = ended.StartedAt.Time
		c.end(int(ended.ExitCode), int(ended.Signal), ended.Reason, ended.Message, ended.FinishedAt.Time)
	case s.State.Running != nil && !alive:
		c.began = s.State.Running.StartedAt.Time
		c.end(137, 9, "ContainerStatusUnknown", "The machine was restarted or lost its pods", time.Now())
	case s.State.Running != nil:
		c.state, c.began = runtime.Running, s.State.Running.StartedAt.Time
	}
}

// probe starts and stops probes as containers come and go, and restarts those
// whose probes have failed.
func (w *podWorker) probe(pod *corev1.Pod) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			spec := &list[i]
			c := w.container(spec.Name)
			if c.state != runtime.Running {
				c.stopProbes()
				continue
			}
			if c.probes == nil || c.probeAttempt != c.attempt {
				c.stopProbes()
				c.probeAttempt = c.attempt
				c.probes = probe.Start(w.life, spec, w.probeTarget(pod, spec), c.began, c.adoptReady, func() { kick(w.wake) })
			}
			c.adoptReady = false
			if s := c.probes.State(); s.Failed && !c.killing {
				w.killUnhealthy(pod, spec, c, s)
			}
		}
	}
}

func (c *containerState) stopProbes() {
	if c.probes != nil {
		c.probes.Stop()
		c.probes = nil
	}
}

func (w *podWorker) stopProbes() {
	for _, c := range w.containers {
		c.stopProbes()
	}
}

func (w *podWorker) probeTarget(pod *corev1.Pod, spec *corev1.Container) probe.Target {
	return probe.Target{IP: w.podIP(pod), Ports: spec.Ports, Exec: func(ctx context.Context, args []string) (int, string, error) {
		out := &bounded{limit: 4096}
		code, err := w.m.runtime.Exec(ctx, w.uid, spec.Name, runtime.ExecConfig{Args: args, Stdout: out, Stderr: out})
		return code, out.String(), err
	}}
}

// killUnhealthy stops a container whose startup or liveness probe has failed.
// What becomes of it then is decided by its restart policy. The grace period
// does not hold up the worker.
func (w *podWorker) killUnhealthy(pod *corev1.Pod, spec *corev1.Container, c *containerState, s probe.State) {
	c.killing = true
	w.m.events.event(pod, spec.Name, corev1.EventTypeWarning, "Unhealthy", "%s probe failed: %s", s.Kind, s.Message)
	w.m.events.event(pod, spec.Name, corev1.EventTypeNormal, "Killing", "Container %s failed %s probe, will be restarted", spec.Name, s.Kind)
	wait := grace(pod)
	for _, p := range []*corev1.Probe{spec.LivenessProbe, spec.StartupProbe} {
		if p != nil && p.TerminationGracePeriodSeconds != nil {
			wait = time.Duration(*p.TerminationGracePeriodSeconds) * time.Second
		}
	}
	w.wg.Go(func() {
		defer kick(w.wake)
		guard(w.m.logger, "stop unhealthy container", func() {
			err := w.m.runtime.StopContainer(w.life, w.uid, spec.Name, wait)
			if err != nil && w.life.Err() == nil {
				w.m.logger.Warn("unhealthy container not stopped", "pod", pod.Namespace+"/"+pod.Name, "container", spec.Name, "error", err)
			}
		})
	})
}
