package agent

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shepherd-project/shepherd/agent/runtime"
)

// containerReport is what is known of one container for the pod's status.
type containerReport struct {
	view        containerView
	startedAt   time.Time
	signal      int
	reason      string // of an end
	message     string
	waiting     string // reason why it does not run
	waitMessage string
	last        *corev1.ContainerStateTerminated // of the attempt before
	image       string
	imageID     string
	containerID string
	ready       bool
}

// podReport is what is known of a pod for its status.
type podReport struct {
	pod         *corev1.Pod // with the status last seen
	containers  map[string]containerReport
	plan        plan
	podIP       string
	hostIP      string
	startTime   time.Time
	now         time.Time
	failReason  string // set when the pod failed as a whole
	failMessage string
	sandbox     bool // the pod's namespaces and network exist
}

// status computes the pod's status. It is a pure function of the report and
// keeps what others have written, and the times of what has not changed.
func (r *podReport) status() corev1.PodStatus {
	old := &r.pod.Status
	out := *old.DeepCopy()
	out.ContainerStatuses = r.containerStatuses(r.pod.Spec.Containers, old.ContainerStatuses, false)
	out.InitContainerStatuses = r.containerStatuses(r.pod.Spec.InitContainers, old.InitContainerStatuses, true)
	out.Phase, out.Reason, out.Message = r.phase()
	out.HostIP, out.HostIPs = r.hostIP, nil
	if r.hostIP != "" {
		out.HostIPs = []corev1.HostIP{{IP: r.hostIP}}
	}
	if r.podIP != "" {
		out.PodIP, out.PodIPs = r.podIP, []corev1.PodIP{{IP: r.podIP}}
	}
	if out.QOSClass == "" {
		out.QOSClass = qosClass(r.pod)
	}
	if out.StartTime == nil {
		t := metav1.NewTime(r.startTime.Truncate(time.Second))
		out.StartTime = &t
	}
	if r.pod.Generation > 0 {
		out.ObservedGeneration = r.pod.Generation
	}
	r.conditions(&out)
	return out
}

// phase follows from the containers. A phase that is final stays.
func (r *podReport) phase() (corev1.PodPhase, string, string) {
	old := &r.pod.Status
	switch {
	case old.Phase == corev1.PodSucceeded, old.Phase == corev1.PodFailed:
		return old.Phase, old.Reason, old.Message
	case r.failReason != "":
		return corev1.PodFailed, r.failReason, r.failMessage
	case r.plan.done && r.plan.failed:
		return corev1.PodFailed, "", ""
	case r.plan.done:
		return corev1.PodSucceeded, "", ""
	}
	for i := range r.pod.Spec.Containers {
		if r.containers[r.pod.Spec.Containers[i].Name].view.state == "" {
			return corev1.PodPending, "", ""
		}
	}
	return corev1.PodRunning, "", ""
}

func (r *podReport) containerStatuses(specs []corev1.Container, old []corev1.ContainerStatus, init bool) []corev1.ContainerStatus {
	out := make([]corev1.ContainerStatus, 0, len(specs))
	for i := range specs {
		c := &specs[i]
		at := slices.IndexFunc(old, func(s corev1.ContainerStatus) bool { return s.Name == c.Name })
		var before *corev1.ContainerStatus
		if at >= 0 {
			before = &old[at]
		}
		out = append(out, r.containerStatus(c, before, init))
	}
	return out
}

func (r *podReport) containerStatus(c *corev1.Container, before *corev1.ContainerStatus, init bool) corev1.ContainerStatus {
	rep := r.containers[c.Name]
	started := rep.view.state == runtime.Running && rep.view.started
	s := corev1.ContainerStatus{
		Name: c.Name, Image: c.Image, ImageID: rep.imageID, ContainerID: rep.containerID,
		RestartCount: int32(max(rep.view.attempt, 0)),
		Started:      &started,
		Ready:        rep.ready && started,
	}
	if rep.image != "" {
		s.Image = rep.image
	}
	if s.ImageID == "" && before != nil {
		s.ImageID = before.ImageID
	}
	if rep.last != nil {
		s.LastTerminationState.Terminated = rep.last
	}
	done := r.plan.done || r.final()
	switch {
	case rep.view.state == runtime.Running:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(rep.startedAt.Truncate(time.Second))}
	case rep.view.ended() && (rep.waiting == "" || done):
		s.State.Terminated = rep.terminated()
		s.Ready = init && rep.view.exitCode == 0
	case rep.view.ended():
		// It waits for its next start: the end that it waits after is the last state.
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: rep.waiting, Message: rep.waitMessage}
		s.LastTerminationState.Terminated = rep.terminated()
	default:
		w := &corev1.ContainerStateWaiting{Reason: rep.waiting, Message: rep.waitMessage}
		if w.Reason == "" {
			w.Reason = "ContainerCreating"
			if !init && len(r.pod.Spec.InitContainers) > 0 && !r.plan.initialized || init && rep.view.attempt < 0 {
				w.Reason = "PodInitializing"
			}
		}
		s.State.Waiting = w
	}
	return s
}

// final: the status last seen says that the pod has ended.
func (r *podReport) final() bool {
	return r.pod.Status.Phase == corev1.PodSucceeded || r.pod.Status.Phase == corev1.PodFailed
}

func (c *containerReport) terminated() *corev1.ContainerStateTerminated {
	t := &corev1.ContainerStateTerminated{
		ExitCode: int32(c.view.exitCode), Signal: int32(c.signal), Reason: c.reason, Message: c.message,
		ContainerID: c.containerID,
	}
	if !c.startedAt.IsZero() {
		t.StartedAt = metav1.NewTime(c.startedAt.Truncate(time.Second))
	}
	if !c.view.finished.IsZero() {
		t.FinishedAt = metav1.NewTime(c.view.finished.Truncate(time.Second))
	}
	return t
}

func (r *podReport) conditions(out *corev1.PodStatus) {
	completed := out.Phase == corev1.PodSucceeded
	var unready, uninitialized []string
	for i := range r.pod.Spec.Containers {
		name := r.pod.Spec.Containers[i].Name
		at := slices.IndexFunc(out.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == name })
		if !out.ContainerStatuses[at].Ready {
			unready = append(unready, name)
		}
	}
	for i := range r.pod.Spec.InitContainers {
		c := &r.pod.Spec.InitContainers[i]
		s := out.InitContainerStatuses[i]
		if !s.Ready {
			uninitialized = append(uninitialized, c.Name)
			if isSidecar(c) {
				unready = append(unready, c.Name)
			}
		}
	}
	ready := condition{corev1.ContainersReady, len(unready) == 0, "ContainersNotReady", fmt.Sprintf("containers with unready status: %s", list(unready))}
	init := condition{corev1.PodInitialized, r.plan.initialized || completed, "ContainersNotInitialized", fmt.Sprintf("containers with incomplete status: %s", list(uninitialized))}
	switch {
	case completed:
		ready = condition{corev1.ContainersReady, false, "PodCompleted", ""}
		init.reason, init.message = "PodCompleted", ""
	case out.Phase == corev1.PodFailed:
		ready = condition{corev1.ContainersReady, false, "PodFailed", ""}
	}
	pod := ready
	pod.kind = corev1.PodReady
	if pod.ok {
		if missing := r.missingGates(); len(missing) > 0 {
			pod = condition{corev1.PodReady, false, "ReadinessGatesNotReady", fmt.Sprintf("the status of readiness gates is not True: %s", list(missing))}
		}
	}
	for _, c := range []condition{
		{kind: corev1.PodReadyToStartContainers, ok: r.sandbox}, init, pod, ready, {kind: corev1.PodScheduled, ok: true},
	} {
		c.set(out, r.now, r.pod.Generation)
	}
}

func (r *podReport) missingGates() []string {
	var missing []string
	for _, g := range r.pod.Spec.ReadinessGates {
		ok := slices.ContainsFunc(r.pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == g.ConditionType && c.Status == corev1.ConditionTrue
		})
		if !ok {
			missing = append(missing, string(g.ConditionType))
		}
	}
	return missing
}

func list(names []string) string { return "[" + strings.Join(names, " ") + "]" }

// condition is one of the pod's conditions; reason and message are shown only
// while it is false, or for a completed pod.
type condition struct {
	kind            corev1.PodConditionType
	ok              bool
	reason, message string
}

func (c *condition) set(out *corev1.PodStatus, now time.Time, generation int64) {
	fresh := corev1.PodCondition{Type: c.kind, Status: corev1.ConditionFalse, Reason: c.reason, Message: c.message, ObservedGeneration: generation}
	if c.ok {
		fresh.Status = corev1.ConditionTrue
		if c.reason != "PodCompleted" {
			fresh.Reason, fresh.Message = "", ""
		}
	}
	fresh.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
	for i := range out.Conditions {
		if old := &out.Conditions[i]; old.Type == c.kind {
			fresh.LastProbeTime = old.LastProbeTime
			if old.Status == fresh.Status && !old.LastTransitionTime.IsZero() {
				fresh.LastTransitionTime = old.LastTransitionTime
			}
			*old = fresh
			return
		}
	}
	out.Conditions = append(out.Conditions, fresh)
}
