package agent

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shepherd-project/shepherd/agent/runtime"
)

func TestBackoff(t *testing.T) {
	var b backoff
	var got []time.Duration
	for range 8 {
		b.ended(time.Second)
		got = append(got, b.delay())
		b.restarted()
	}
	want := []time.Duration{0, 10, 20, 40, 80, 160, 300, 300}
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(got, want) {
		t.Fatalf("delays %v, want %v", got, want)
	}
	b.ended(restartReset)
	if b.delay() != 0 {
		t.Fatalf("after a long run the delay is %v", b.delay())
	}
	for range 1000 {
		b.restarted()
	}
	if b.delay() != restartLimit {
		t.Fatalf("after 1000 restarts the delay is %v", b.delay())
	}
}

var (
	ended     = time.Unix(1000, 0)
	absent    = containerView{attempt: -1}
	running   = containerView{state: runtime.Running, started: true}
	succeeded = containerView{state: runtime.Exited, finished: ended, delay: time.Minute}
	crashed   = containerView{state: runtime.Exited, exitCode: 1, finished: ended, delay: time.Minute}
)

func TestPlanPod(t *testing.T) {
	always, onFailure, never := corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	type views = map[string]containerView
	for name, c := range map[string]struct {
		policy       corev1.RestartPolicy
		inits        []string
		views        views
		starts       []string
		later        bool // the starts wait for the back-off
		done, failed bool
	}{
		"all are started together":         {always, nil, views{"a": absent, "b": absent}, []string{"a", "b"}, false, false, false},
		"what runs is left alone":          {always, nil, views{"a": running, "b": running}, nil, false, false, false},
		"always repeats a success":         {always, nil, views{"a": succeeded, "b": running}, []string{"a"}, true, false, false},
		"on failure repeats a failure":     {onFailure, nil, views{"a": crashed, "b": running}, []string{"a"}, true, false, false},
		"on failure keeps a success":       {onFailure, nil, views{"a": succeeded, "b": running}, nil, false, false, false},
		"never repeats nothing":            {never, nil, views{"a": crashed, "b": running}, nil, false, false, false},
		"done well":                        {onFailure, nil, views{"a": succeeded, "b": succeeded}, nil, false, true, false},
		"done badly":                       {never, nil, views{"a": succeeded, "b": crashed}, nil, false, true, true},
		"init containers come first":       {always, []string{"i", "j"}, views{"i": absent, "j": absent, "a": absent, "b": absent}, []string{"i"}, false, false, false},
		"one init container after another": {always, []string{"i", "j"}, views{"i": succeeded, "j": absent, "a": absent, "b": absent}, []string{"j"}, false, false, false},
		"then the others":                  {always, []string{"i"}, views{"i": succeeded, "a": absent, "b": absent}, []string{"a", "b"}, false, false, false},
		"a failed init is repeated":        {always, []string{"i"}, views{"i": crashed, "a": absent, "b": absent}, []string{"i"}, true, false, false},
		"unless the policy is never":       {never, []string{"i"}, views{"i": crashed, "a": absent, "b": absent}, nil, false, true, true},
		"init is not looked at again":      {always, []string{"i"}, views{"i": absent, "a": running, "b": running}, nil, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: c.policy, Containers: []corev1.Container{{Name: "a"}, {Name: "b"}}}}
			for _, i := range c.inits {
				pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Name: i})
			}
			p := planPod(pod, c.views)
			var starts []string
			for _, s := range p.starts {
				starts = append(starts, s.container.Name)
				if s.attempt != c.views[s.container.Name].attempt+1 {
					t.Errorf("%s gets attempt %d after %d", s.container.Name, s.attempt, c.views[s.container.Name].attempt)
				}
				if at := ended.Add(time.Minute); c.later != s.at.Equal(at) {
					t.Errorf("%s starts at %v", s.container.Name, s.at)
				}
			}
			if !slices.Equal(starts, c.starts) || p.done != c.done || (p.done && p.failed != c.failed) {
				t.Fatalf("starts %v done %v failed %v", starts, p.done, p.failed)
			}
		})
	}
}

func TestExpand(t *testing.T) {
	lookup := func(name string) (string, bool) {
		v, ok := map[string]string{"A": "1", "EMPTY": "", "NEST": "$(A)"}[name]
		return v, ok
	}
	for in, want := range map[string]string{
		"plain": "plain", "$(A)": "1", "x$(A)y$(A)": "x1y1", "$(NONE)": "$(NONE)", "$$(A)": "$(A)", "$(EMPTY)": "",
		"$(A": "$(A", "$": "$", "$x": "$x", "$(NEST)": "$(A)", "$$$(A)": "$1",
	} {
		if got := expand(in, lookup); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
