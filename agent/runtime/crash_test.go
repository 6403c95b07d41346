package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// TestAgentCrashLoop kills agents in the middle of making a pod, at ever later
// moments, and each time lets the next one recover, go on and remove it all.
func TestAgentCrashLoop(t *testing.T) {
	c := testConfig(t)
	c.Logger = nil
	conf, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	baseline := ""
	for i := range 16 {
		agent := exec.Command("/proc/self/exe")
		agent.Env = append(os.Environ(), "RUNTIME_TEST_AGENT="+string(conf), "RUNTIME_TEST_LAYER="+built.layer, "RUNTIME_TEST_OUT="+out)
		if err := agent.Start(); err != nil {
			t.Fatal(err)
		}
		killer := time.AfterFunc(time.Duration(10+4*i)*time.Millisecond, func() { _ = agent.Process.Kill() })
		_ = agent.Wait() // killed, or it refused to make a pod twice
		killer.Stop()

		r := openRuntime(t, c)
		pods := r.Pods(context.Background())
		if len(pods) > 1 {
			t.Fatalf("%+v", pods)
		}
		for _, p := range pods {
			for _, s := range p.Containers {
				if s.State == Created {
					waitFor(t, r, "the start that was under way ends", func() bool {
						s, ok := find(r, "uid-1", s.Name)
						return !ok || s.State != Created
					})
				}
			}
		}
		if len(pods) == 0 || !pods[0].Alive {
			createPod(t, r)
		}
		next := guest("next", "exit", "4")
		start(t, r, next)
		if s := waitExit(t, r, "next"); s.ExitCode != 4 {
			t.Errorf("%+v", s)
		}
		if err := r.RemovePod(testContext(t), "uid-1", 0); err != nil {
			t.Fatal(err)
		}
		r.work.Wait()
		if now := census(t, r); baseline == "" {
			baseline = now
		} else if !sameButDescriptors(now, baseline) {
			t.Fatalf("after crash %d: %s, was %s", i, now, baseline)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestManyAtOnce starts and removes pods side by side.
func TestManyAtOnce(t *testing.T) {
	r := openRuntime(t, testConfig(t))
	before := census(t, r)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			uid := fmt.Sprintf("uid-many-%d", i)
			if err := r.CreatePod(testContext(t), PodConfig{UID: uid, Namespace: "default", Name: uid}); err != nil {
				t.Error(err)
				return
			}
			for _, name := range []string{"a", "b"} {
				if err := r.StartContainer(testContext(t), uid, guest(name, "polite")); err != nil {
					t.Error(err)
				}
			}
			if err := r.RemovePod(testContext(t), uid, 100*time.Millisecond); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	r.work.Wait()
	if after := census(t, r); !sameButDescriptors(after, before) {
		t.Errorf("left: %s, was %s", after, before)
	}
}

// TestRemoveShortensStop: a removal need not wait for a long stop.
func TestRemoveShortensStop(t *testing.T) {
	r := newRuntime(t)
	start(t, r, guest("a", "stubborn"))
	awaitLine(t, r, "a", "ready")
	stopped := make(chan error, 1)
	go func() { stopped <- r.StopContainer(testContext(t), "uid-1", "a", time.Hour) }()
	if err := r.RemovePod(testContext(t), "uid-1", 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	<-stopped // nil, or that the shim is gone
}
