package controllers

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// counted reads a counter.
func counted(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// testLoop is a loop over what a test wants to happen.
func testLoop(t *testing.T, reconcile func(context.Context) (outcome, error)) *Loop {
	t.Helper()
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &Loop{name: "test", period: time.Second, reconcile: reconcile, stopTimeout: 10 * time.Second,
		fatal: func(err error) { t.Errorf("fatal: %v", err) }, metrics: m, logger: quiet()}
}

// running starts a loop and returns how to stop it and wait.
func startLoop(l *Loop) (stop func()) {
	stopCh, done := make(chan struct{}), make(chan struct{})
	go func() { defer close(done); l.Run(stopCh) }()
	return func() { close(stopCh); <-done }
}

func TestLoopStretchesWhenIdleAndSnapsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t, 1)
		start := time.Now()
		var at []time.Duration
		var mu sync.Mutex
		l := testLoop(t, func(context.Context) (outcome, error) {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Since(start))
			return outcome{}, nil
		})
		l.store, l.watches = c.store, (&runner{controller: controller{kinds: []string{resPods}}}).watches
		stop := startLoop(l)
		time.Sleep(12 * time.Second) // at 0, 1, 3, 7 and 11 s
		synctest.Wait()
		create(c, testNamespace("default")) // not watched
		synctest.Wait()
		create(c, testPod("web", nil)) // at 12 s, and then after one period
		time.Sleep(1500 * time.Millisecond)
		stop()
		want := []time.Duration{0, 1 * time.Second, 3 * time.Second, 7 * time.Second, 11 * time.Second, 12 * time.Second, 13 * time.Second}
		if !slices.Equal(at, want) {
			t.Errorf("reconciled at %v, want %v", at, want)
		}
	})
}

func TestLoopKeepsItsPeriodWhileThereIsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		stop := startLoop(testLoop(t, func(context.Context) (outcome, error) {
			runs.Add(1)
			return outcome{changes: 1}, nil
		}))
		time.Sleep(10500 * time.Millisecond)
		stop()
		if runs.Load() != 11 {
			t.Errorf("%d reconciles in 10.5 s, want 11", runs.Load())
		}
	})
}

func TestLoopKeepsADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		stop := startLoop(testLoop(t, func(context.Context) (outcome, error) {
			runs.Add(1)
			return outcome{after: 200 * time.Millisecond}, nil
		}))
		time.Sleep(1900 * time.Millisecond)
		stop()
		if runs.Load() != 10 {
			t.Errorf("%d reconciles in 1.9 s, want 10", runs.Load())
		}
	})
}

func TestLoopSurvivesPanicsAndErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		l := testLoop(t, func(context.Context) (outcome, error) {
			switch runs.Add(1) {
			case 1:
				panic("boom")
			case 2:
				return outcome{}, errors.New("no luck")
			}
			return outcome{}, nil
		})
		stop := startLoop(l)
		time.Sleep(2500 * time.Millisecond)
		stop()
		if runs.Load() != 3 {
			t.Errorf("%d reconciles, want 3", runs.Load())
		}
		if n := counted(t, l.metrics.panics.WithLabelValues("test")); n != 1 {
			t.Errorf("%v panics counted, want 1", n)
		}
		if n := counted(t, l.metrics.reconciles.WithLabelValues("test", "error")); n != 1 {
			t.Errorf("%v errors counted, want 1", n)
		}
	})
}

func TestLoopStopReachesTheReconcileAndWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		stop := startLoop(testLoop(t, func(ctx context.Context) (outcome, error) {
			<-ctx.Done()
			time.Sleep(3 * time.Second) // what cannot be broken off
			ended = true
			return outcome{}, ctx.Err()
		}))
		synctest.Wait()
		start := time.Now()
		stop()
		if !ended || time.Since(start) != 3*time.Second {
			t.Errorf("stopped after %v, last reconcile returned: %v", time.Since(start), ended)
		}
	})
}

func TestLoopThatDoesNotStopEndsTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		l := testLoop(t, func(context.Context) (outcome, error) { <-release; return outcome{}, nil })
		var at time.Time
		var reason error
		l.fatal = func(err error) { at, reason = time.Now(), err; close(release) }
		stop := startLoop(l)
		synctest.Wait()
		start := time.Now()
		stop()
		if !errors.Is(reason, errNotStopped) || at.Sub(start) != 10*time.Second {
			t.Errorf("ended after %v with %v, want 10 s and %v", at.Sub(start), reason, errNotStopped)
		}
	})
}

func TestLoopFollowsOverAnInstalledSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t, 1)
		var runs atomic.Int32
		l := testLoop(t, func(context.Context) (outcome, error) { runs.Add(1); return outcome{}, nil })
		l.period = time.Hour
		l.store, l.watches = c.store, (&runner{controller: controller{kinds: []string{resPods}}}).watches
		stop := startLoop(l)
		synctest.Wait()
		if err := c.store.Restore(snapshotOf(t, c.store)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if runs.Load() != 2 {
			t.Errorf("%d reconciles after a snapshot, want 2", runs.Load())
		}
		create(c, testPod("web", nil))
		synctest.Wait()
		if runs.Load() != 3 {
			t.Errorf("%d reconciles after a change, want 3", runs.Load())
		}
		stop()
	})
}
