package cluster

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestCrew runs more tasks at once than may idle afterwards: all run, each on
// its own, and those who idle take the next ones and end with the node.
func TestCrew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var all tasks
		done := make(chan struct{})
		c := newCrew(&all, done)
		for range 3 {
			var running atomic.Int64
			hold := make(chan struct{})
			for range 2 * maxIdle {
				if !c.run(func() {
					running.Add(1)
					<-hold
				}) {
					t.Fatal("a task was refused")
				}
			}
			synctest.Wait()
			if n := running.Load(); n != 2*maxIdle {
				t.Fatalf("%d of %d tasks run", n, 2*maxIdle)
			}
			close(hold)
			synctest.Wait()
			if n := c.idle.Load(); n != maxIdle {
				t.Errorf("%d goroutines idle, want %d", n, maxIdle)
			}
		}
		close(done)
		all.wait()
		if n := c.idle.Load(); n != 0 {
			t.Errorf("%d goroutines are left", n)
		}
		if c.run(func() { t.Error("run after the end") }) {
			t.Error("a task was taken after the end")
		}
	})
}
