package runtime

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// BenchmarkStart measures a container's life in a pod that runs: start to
// executed, and start to the exit being known.
func BenchmarkStart(b *testing.B) {
	r := newRuntime(b)
	var started, ended []time.Duration
	attempt := 0
	for b.Loop() {
		c := guest("a", "exit", "0")
		c.Attempt = attempt
		attempt++
		t := time.Now()
		if err := r.StartContainer(context.Background(), "uid-1", c); err != nil {
			b.Fatal(err)
		}
		started = append(started, time.Since(t))
		waitFor(b, r, "exit", func() bool { s, _ := find(r, "uid-1", "a"); return s.Attempt == c.Attempt && s.State == Exited })
		ended = append(ended, time.Since(t))
	}
	report(b, "start", started)
	report(b, "exit", ended)
}

// BenchmarkPod measures a pod from nothing to its container running, and its removal.
func BenchmarkPod(b *testing.B) {
	r := openRuntime(b, testConfig(b))
	var up, down []time.Duration
	n := 0
	for b.Loop() {
		uid := fmt.Sprintf("uid-%d", n)
		n++
		t := time.Now()
		if err := r.CreatePod(context.Background(), PodConfig{UID: uid, Namespace: "default", Name: "web"}); err != nil {
			b.Fatal(err)
		}
		if err := r.StartContainer(context.Background(), uid, guest("a", "sleep")); err != nil {
			b.Fatal(err)
		}
		up = append(up, time.Since(t))
		t = time.Now()
		if err := r.RemovePod(context.Background(), uid, 0); err != nil {
			b.Fatal(err)
		}
		down = append(down, time.Since(t))
	}
	report(b, "up", up)
	report(b, "down", down)
}

func report(b *testing.B, what string, d []time.Duration) {
	slices.Sort(d)
	b.ReportMetric(float64(d[len(d)/2].Microseconds())/1000, what+"-p50-ms")
	b.ReportMetric(float64(d[len(d)*99/100].Microseconds())/1000, what+"-p99-ms")
}
