package agent

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shepherd-project/shepherd/agent/runtime"
)

var (
	statusNow  = time.Unix(1_700_000_000, 0)
	statusThen = metav1.NewTime(statusNow.Add(-time.Hour))
)

func twoContainers(policy corev1.RestartPolicy) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "u1"},
		Spec: corev1.PodSpec{RestartPolicy: policy, InitContainers: []corev1.Container{{Name: "i"}},
			Containers: []corev1.Container{{Name: "a"}, {Name: "b"}}},
	}
}

func reportOf(pod *corev1.Pod, containers map[string]containerReport) corev1.PodStatus {
	views := map[string]containerView{}
	for name, c := range containers {
		views[name] = c.view
	}
	r := podReport{pod: pod, containers: containers, plan: planPod(pod, views), podIP: "10.0.0.2", hostIP: "10.9.0.1",
		startTime: statusNow, now: statusNow, sandbox: true}
	return r.status()
}

func nowRunning(ready bool) containerReport {
	return containerReport{view: containerView{state: runtime.Running, started: true}, ready: ready, startedAt: statusNow}
}

func hasExited(code int) containerReport {
	return containerReport{view: containerView{state: runtime.Exited, exitCode: code, finished: statusNow}, reason: "Error", startedAt: statusNow}
}

func conditionOf(st corev1.PodStatus, kind corev1.PodConditionType) corev1.PodCondition {
	for _, c := range st.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.PodCondition{}
}

func TestPhaseAndReadiness(t *testing.T) {
	none := containerReport{view: containerView{attempt: -1}}
	crash := hasExited(1)
	crash.waiting = "CrashLoopBackOff"
	for name, c := range map[string]struct {
		policy corev1.RestartPolicy
		i      containerReport
		a, b   containerReport
		phase  corev1.PodPhase
		init   corev1.ConditionStatus
		ready  corev1.ConditionStatus
	}{
		"new":            {"Always", none, none, none, "Pending", "False", "False"},
		"init runs":      {"Always", nowRunning(false), none, none, "Pending", "False", "False"},
		"one started":    {"Always", hasExited(0), nowRunning(true), none, "Pending", "True", "False"},
		"both, one slow": {"Always", hasExited(0), nowRunning(true), nowRunning(false), "Running", "True", "False"},
		"ready":          {"Always", hasExited(0), nowRunning(true), nowRunning(true), "Running", "True", "True"},
		"crash loop":     {"Always", hasExited(0), nowRunning(true), crash, "Running", "True", "False"},
		"succeeded":      {"Never", hasExited(0), hasExited(0), hasExited(0), "Succeeded", "True", "False"},
		"failed":         {"Never", hasExited(0), hasExited(0), hasExited(2), "Failed", "True", "False"},
		"half failed":    {"Never", hasExited(0), nowRunning(true), hasExited(2), "Running", "True", "False"},
		"init failed":    {"Never", hasExited(1), none, none, "Failed", "False", "False"},
	} {
		t.Run(name, func(t *testing.T) {
			st := reportOf(twoContainers(c.policy), map[string]containerReport{"i": c.i, "a": c.a, "b": c.b})
			if st.Phase != c.phase || conditionOf(st, corev1.PodInitialized).Status != c.init || conditionOf(st, corev1.PodReady).Status != c.ready {
				t.Errorf("phase %s, initialized %s, ready %s", st.Phase, conditionOf(st, corev1.PodInitialized).Status, conditionOf(st, corev1.PodReady).Status)
			}
			for _, s := range st.ContainerStatuses {
				set := 0
				for _, on := range []bool{s.State.Waiting != nil, s.State.Running != nil, s.State.Terminated != nil} {
					if on {
						set++
					}
				}
				if set != 1 {
					t.Errorf("container %s is in %d states", s.Name, set)
				}
			}
		})
	}
}

func TestStatusKeepsWhatOthersWrote(t *testing.T) {
	pod := twoContainers("Always")
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x.io/gate"}}
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: "x.io/gate", Status: corev1.ConditionFalse},
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: statusThen},
	}
	all := map[string]containerReport{"i": hasExited(0), "a": nowRunning(true), "b": nowRunning(true)}
	st := reportOf(pod, all)
	if c := conditionOf(st, "x.io/gate"); c.Status != corev1.ConditionFalse {
		t.Error("somebody's condition was lost")
	}
	if c := conditionOf(st, corev1.PodInitialized); !c.LastTransitionTime.Equal(&statusThen) {
		t.Errorf("the time of an unchanged condition is %v", c.LastTransitionTime)
	}
	if c := conditionOf(st, corev1.PodReady); c.Status != corev1.ConditionFalse || c.Reason != "ReadinessGatesNotReady" {
		t.Errorf("ready is %+v with a closed gate", c)
	}
	// The server's view of a node that was away: the agent puts it right.
	pod.Spec.ReadinessGates = nil
	st.Conditions = append([]corev1.PodCondition(nil), st.Conditions...)
	pod.Status = st
	if got := conditionOf(reportOf(pod, all), corev1.PodReady); got.Status != corev1.ConditionTrue || got.Reason != "" {
		t.Errorf("ready is %+v", got)
	}
	// A final phase stays, whatever the containers say.
	pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "Evicted"
	if got := reportOf(pod, all); got.Phase != corev1.PodFailed || got.Reason != "Evicted" {
		t.Errorf("phase %s %s", got.Phase, got.Reason)
	}
}

func TestCrashLoopShowsTheLastEnd(t *testing.T) {
	c := hasExited(3)
	c.view.attempt, c.waiting, c.waitMessage = 4, "CrashLoopBackOff", "back-off"
	st := reportOf(twoContainers("Always"), map[string]containerReport{"i": hasExited(0), "a": c, "b": nowRunning(true)})
	s := st.ContainerStatuses[0]
	if s.RestartCount != 4 || s.State.Waiting == nil || s.State.Waiting.Reason != "CrashLoopBackOff" ||
		s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 3 {
		t.Errorf("status %+v", s)
	}
}

func TestStatusPatchNamesThePod(t *testing.T) {
	pod := twoContainers("Always")
	pod.Status = reportOf(pod, map[string]containerReport{"i": hasExited(0), "a": nowRunning(true), "b": nowRunning(false)})
	after := reportOf(pod, map[string]containerReport{"i": hasExited(0), "a": nowRunning(true), "b": nowRunning(true)})
	patch, err := statusPatch(pod, after)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Metadata struct{ UID string }
		Status   map[string]json.RawMessage
	}
	if err := json.Unmarshal(patch, &got); err != nil {
		t.Fatal(err)
	}
	if got.Metadata.UID != "u1" || got.Status["conditions"] == nil || got.Status["containerStatuses"] == nil || got.Status["podIP"] != nil {
		t.Errorf("patch %s", patch)
	}
}
