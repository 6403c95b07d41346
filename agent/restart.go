package agent

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shepherd-project/shepherd/agent/runtime"
)

const (
	restartBase  = 10 * time.Second
	restartLimit = 300 * time.Second
	// restartReset is how long a container must run for its failures to be
	// forgotten.
	restartReset = 10 * time.Minute
)

// backoff counts the restarts of one container. The first restart comes at
// once, the second after 10 s, then twice as long each time up to 5 minutes.
type backoff struct{ restarts int }

// delay is how long the next restart waits after the container's end.
func (b *backoff) delay() time.Duration {
	if b.restarts == 0 {
		return 0
	}
	return min(restartBase<<min(b.restarts-1, 10), restartLimit)
}

// ended is told of each end before the delay is asked for.
func (b *backoff) ended(ran time.Duration) {
	if ran >= restartReset {
		b.restarts = 0
	}
}

func (b *backoff) restarted() { b.restarts++ }

// containerView is all that decides what happens to a container next.
type containerView struct {
	attempt  int                    // the latest; -1 when there was none
	state    runtime.ContainerState // of the latest attempt; "" when there was none
	exitCode int
	finished time.Time
	delay    time.Duration // before a restart
	started  bool          // its startup probe has passed
	earlier  bool          // all this was in a sandbox that is gone
}

func (v *containerView) ended() bool { return v.state == runtime.Exited }

// restarts says whether a container that ended is to be run again.
func restarts(policy corev1.RestartPolicy, exitCode int) bool {
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return exitCode != 0
	}
	return true
}

// restartPolicy is the container's own, where it has one, or the pod's. An
// ordinary init container of a pod that always restarts is repeated only when
// it fails.
func restartPolicy(pod *corev1.Pod, c *corev1.Container, init bool) corev1.RestartPolicy {
	if c.RestartPolicy != nil {
		return corev1.RestartPolicy(*c.RestartPolicy)
	}
	if init && pod.Spec.RestartPolicy != corev1.RestartPolicyNever {
		return corev1.RestartPolicyOnFailure
	}
	if pod.Spec.RestartPolicy == "" {
		return corev1.RestartPolicyAlways
	}
	return pod.Spec.RestartPolicy
}

// isSidecar: an init container that goes on running beside the others.
func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// start is one container to be started.
type start struct {
	container *corev1.Container
	attempt   int
	at        time.Time // not before; zero means now
}

// plan is what a pod needs next.
type plan struct {
	starts []start
	// initialized: all init containers have done their part.
	initialized bool
	// done: nothing of this pod will ever run again.
	done bool
	// failed: it ended badly. Only meaningful with done.
	failed bool
}

// planPod decides which containers of a pod are to be started. It is a pure
// function of what is known. views holds a view for each container.
func planPod(pod *corev1.Pod, views map[string]containerView) plan {
	p := plan{}
	failed := p.init(pod, views)
	if failed {
		p.done, p.failed = true, true
		return p
	}
	if !p.initialized {
		return p
	}
	ended := 0
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		v := views[c.Name]
		switch {
		case v.state == "":
			p.starts = append(p.starts, start{container: c, attempt: v.attempt + 1})
		case v.ended() && restarts(restartPolicy(pod, c, false), v.exitCode):
			p.starts = append(p.starts, restart(c, v))
		case v.ended():
			ended++
			p.failed = p.failed || v.exitCode != 0
		}
	}
	if p.done = ended == len(pod.Spec.Containers); p.done {
		p.starts = nil // sidecars end with the pod
	}
	return p
}

func restart(c *corev1.Container, v containerView) start {
	return start{container: c, attempt: v.attempt + 1, at: v.finished.Add(v.delay)}
}

// init plans the init containers, one after the other, and reports whether one
// has failed for good. Once an app container has run in this sandbox they are not looked at
// again, except for sidecars.
func (p *plan) init(pod *corev1.Pod, views map[string]containerView) (failed bool) {
	past := false
	for i := range pod.Spec.Containers {
		v := views[pod.Spec.Containers[i].Name]
		past = past || v.state != "" && !v.earlier
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		v := views[c.Name]
		sidecar := isSidecar(c)
		if past && !sidecar {
			continue
		}
		switch {
		case v.state == "":
			p.starts = append(p.starts, start{container: c, attempt: v.attempt + 1})
		case v.ended() && !sidecar && v.exitCode == 0:
			continue
		case v.ended() && !restarts(restartPolicy(pod, c, true), v.exitCode):
			return true
		case v.ended():
			p.starts = append(p.starts, restart(c, v))
		case sidecar && v.state == runtime.Running && v.started:
			continue
		}
		if !past {
			return false // this one first
		}
	}
	p.initialized = true
	return false
}
