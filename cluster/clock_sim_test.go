package cluster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

const day = 24 * time.Hour

// jump moves a host's wall clock.
func (h *simHost) jump(d time.Duration) { h.wrong.Add(int64(d)) }

// TestClockJumpsElectNobodyAndKillNoNode: every host's wall clock in turn jumps
// by a day, forth and back, alone and together with all others. Nobody holds an
// election, the ages of nodes do not move, and cluster time goes on as time does.
func TestClockJumpsElectNobodyAndKillNoNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, 1, 3, nil)
		defer w.stop()
		leader, _ := w.split()
		node, _ := leader.current()
		w.mustWrite(w.hosts)
		if _, err := node.Heartbeat(t.Context(), "w1"); err != nil {
			t.Fatal(err)
		}
		term, begun, clock := w.term(), time.Now(), node.Now()
		jumps := [][]*simHost{{w.hosts[0]}, {w.hosts[1]}, {w.hosts[2]}, w.hosts[:2], w.hosts}
		for _, hosts := range jumps {
			for _, d := range []time.Duration{day, -2 * day, day} {
				for _, h := range hosts {
					h.jump(d)
				}
				time.Sleep(time.Second)
				w.mustWrite(w.hosts)
				passed := time.Since(begun)
				if age := mustAges(t, node)["w1"]; !isAbout(age, passed) {
					t.Fatalf("the node's age is %v after %v", age, passed)
				}
				if got := node.Now().Sub(clock); !isAbout(got, passed) {
					t.Fatalf("cluster time went on by %v in %v", got, passed)
				}
			}
		}
		if w.term() != term || w.leader() != leader {
			t.Errorf("term %d instead of %d: somebody held an election", w.term(), term)
		}
		w.converge()
	})
}

// TestOneWrongClockDoesNotMoveClusterTime: whatever one server's wall clock
// says, a new leader's time goes on as time does, and never back. Over a time in
// which the whole cluster was down it never goes on by more than that.
func TestOneWrongClockDoesNotMoveClusterTime(t *testing.T) {
	const down = 3 * time.Hour
	for _, wrong := range []time.Duration{day, -day} {
		for liar := range 3 {
			synctest.Test(t, func(t *testing.T) {
				w := newWatched(t, int64(liar), 3, nil)
				defer w.stop()
				w.mustWrite(w.hosts)
				w.hosts[liar].jump(wrong)
				last := w.waitLeader().store.View().Time()
				check := func(when string, up []*simHost, late time.Duration) {
					t.Helper()
					w.mustWrite(up)
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					n := w.waitLeader()
					if err := n.ReadIndex(ctx); err != nil {
						t.Fatal(err)
					}
					now := n.Now()
					if off := time.Until(now); off > 2*time.Second || off < -late-2*time.Second {
						t.Errorf("%s, with server %d wrong by %v, cluster time is off by %v", when, liar, wrong, off)
					}
					if now = n.store.View().Time(); now.Before(last) {
						t.Errorf("%s, committed time went back from %v to %v", when, last, now)
					}
					last = now
				}
				for range w.hosts {
					old, others := w.split()
					w.crash(old)
					check("after the loss of "+old.name, others, 0)
					w.restart(old)
					w.converge()
				}
				for _, h := range w.hosts {
					w.crash(h)
				}
				time.Sleep(down)
				for _, h := range w.hosts {
					w.restart(h)
				}
				w.converge()
				time.Sleep(time.Second)
				late := time.Duration(0)
				if wrong < 0 {
					late = down // the earliest clock of a majority counts: late is safe, early is not
				}
				check("after three hours without power", w.hosts, late)
			})
		}
	}
}
