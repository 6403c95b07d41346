package cluster

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// watched is a simulated cluster whose detectors' decisions are counted.
type watched struct {
	*simCluster
	counts map[string]*prometheus.Registry // by server name
}

func newWatched(t *testing.T, seed int64, size int, tune func(*Config)) *watched {
	w := &watched{counts: make(map[string]*prometheus.Registry)}
	w.simCluster = newSimCluster(t, seed, size, func(cfg *Config) {
		r := prometheus.NewRegistry()
		w.counts[cfg.Name], cfg.Registerer = r, r
		if tune != nil {
			tune(cfg)
		}
	})
	time.Sleep(time.Second) // everybody hears everybody
	return w
}

// count is one counter of a server, by its label.
func (w *watched) count(h *simHost, name, label string) (n float64) {
	families, err := w.counts[h.name].Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); len(l) == 0 && label == "" || len(l) == 1 && l[0].GetValue() == label {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

func (w *watched) decided(d decision) (n float64) {
	for _, h := range w.hosts {
		n += w.count(h, "shepherd_detector_decisions_total", string(d))
	}
	return n
}

// split tells the leader from the others.
func (w *watched) split() (leader *simHost, others []*simHost) {
	leader = w.leader()
	for _, h := range w.hosts {
		if h != leader {
			others = append(others, h)
		}
	}
	return leader, others
}

// term is the highest that any server knows.
func (w *watched) term() (term uint64) {
	for _, h := range w.hosts {
		if n, _ := h.current(); n != nil {
			term = max(term, n.raft.CurrentTerm())
		}
	}
	return term
}

// mustWrite writes through each of the servers and returns how long the slowest took.
func (w *watched) mustWrite(hosts []*simHost) (slowest time.Duration) {
	w.t.Helper()
	for _, h := range hosts {
		begun := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if status, _, err := w.write(ctx, h, "PUT", "/r", fmt.Sprint(h.name, begun)); err != nil || status != 200 {
			w.t.Fatalf("write at %s: %d, %v", h.name, status, err)
		}
		cancel()
		slowest = max(slowest, time.Since(begun))
	}
	return slowest
}

// TestDeadLeaderIsReplacedAtOnce: with 3 and 5 voters, and whoever leads.
func TestDeadLeaderIsReplacedAtOnce(t *testing.T) {
	for _, size := range []int{3, 5} {
		for seed := range int64(8) {
			synctest.Test(t, func(t *testing.T) {
				w := newWatched(t, seed, size, nil)
				defer w.stop()
				for range size {
					old, others := w.split()
					w.crash(old)
					if took := w.mustWrite(others); took > 100*time.Millisecond {
						t.Errorf("%d servers, seed %d: %s was killed; a write took %v", size, seed, old.name, took)
					}
					w.restart(old)
					w.converge()
					time.Sleep(time.Second)
				}
			})
		}
	}
}

// TestMutePeersAreReplaced: a leader that is there but silent, as one that is
// stopped, or whose packets are dropped in either direction or both.
func TestMutePeersAreReplaced(t *testing.T) {
	for _, size := range []int{3, 5} {
		for _, way := range []string{"both", "in", "out"} {
			t.Run(fmt.Sprintf("%s of %d", way, size), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newWatched(t, 1, size, nil)
					defer w.stop()
					for range 3 {
						old, others := w.split()
						for _, o := range others {
							w.net.set(old.addr, o.addr, way != "in")
							w.net.set(o.addr, old.addr, way != "out")
						}
						if took := w.mustWrite(others); took > 500*time.Millisecond {
							t.Errorf("a write took %v", took)
						}
						w.converge()
						time.Sleep(time.Second)
					}
				})
			})
		}
	}
}

// TestRestartedLeaderIsReplaced: the leader comes back before anybody could
// find it dead, and has forgotten that it led.
func TestRestartedLeaderIsReplaced(t *testing.T) {
	for seed := range int64(5) {
		synctest.Test(t, func(t *testing.T) {
			w := newWatched(t, seed, 3, nil)
			defer w.stop()
			old, _ := w.split()
			w.crash(old)
			w.restart(old)
			if took := w.mustWrite(w.hosts); took > 150*time.Millisecond {
				t.Errorf("seed %d: a write took %v", seed, took)
			}
			w.converge()
		})
	}
}

// TestOneFollowerAloneDoesNotElect: it has lost its connections to the leader,
// which everybody else hears.
func TestOneFollowerAloneDoesNotElect(t *testing.T) {
	for _, size := range []int{3, 5} {
		for _, protocols := range [][]string{{"link"}, {"link", "raft"}, {}} {
			t.Run(fmt.Sprint(size, protocols), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newWatched(t, 2, size, nil)
					defer w.stop()
					leader, others := w.split()
					alone, term := others[0], w.term()
					for _, p := range protocols {
						w.net.refuse(p, alone.addr, leader.addr)
						w.net.refuse(p, leader.addr, alone.addr)
					}
					if len(protocols) == 0 { // no refusal: nothing goes through
						w.net.set(alone.addr, leader.addr, true)
						w.net.set(leader.addr, alone.addr, true)
					}
					time.Sleep(20 * time.Second)
					if w.term() != term || w.leader() != leader {
						t.Errorf("term %d instead of %d: somebody held an election", w.term(), term)
					}
					if n := w.decided(decideStand); n != 0 {
						t.Errorf("%v servers stood for election", n)
					}
					if len(protocols) != 1 && w.count(alone, "shepherd_detector_decisions_total", string(decideVeto)) == 0 {
						t.Error("nobody had to veto: the test shows nothing")
					}
					w.mustWrite(others[1:])
					w.converge()
				})
			})
		}
	}
}

// TestMinorityDoesNotElect: servers that hear only each other.
func TestMinorityDoesNotElect(t *testing.T) {
	for _, size := range []int{3, 5} {
		synctest.Test(t, func(t *testing.T) {
			w := newWatched(t, 3, size, nil)
			defer w.stop()
			leader, others := w.split()
			minority, term := others[:size/2], w.term()
			for _, m := range minority {
				for _, h := range append([]*simHost{leader}, others[size/2:]...) {
					w.net.set(m.addr, h.addr, true)
					w.net.set(h.addr, m.addr, true)
				}
			}
			time.Sleep(20 * time.Second)
			if n := w.decided(decideStand); n != 0 || w.term() != term {
				t.Errorf("%v servers stood for election, term %d, was %d", n, w.term(), term)
			}
			if w.decided(decideAlone) == 0 {
				t.Error("nobody missed a majority: the test shows nothing")
			}
			w.mustWrite(others[size/2:])
			w.converge()
			if w.term() != term {
				t.Errorf("term %d after healing, was %d", w.term(), term)
			}
		})
	}
}

// TestTwoOfFiveDieAtOnce: the last words of the other dead one are no veto.
func TestTwoOfFiveDieAtOnce(t *testing.T) {
	for seed := range int64(5) {
		synctest.Test(t, func(t *testing.T) {
			w := newWatched(t, seed, 5, nil)
			defer w.stop()
			leader, others := w.split()
			w.crash(others[0])
			w.crash(leader)
			if took := w.mustWrite(others[1:]); took > 200*time.Millisecond {
				t.Errorf("seed %d: a write took %v", seed, took)
			}
			w.converge()
		})
	}
}

// TestDetectorCanBeTurnedOff: then Raft's timers do it.
func TestDetectorCanBeTurnedOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, 4, 3, func(cfg *Config) { cfg.FailureDetector = false })
		defer w.stop()
		old, others := w.split()
		w.crash(old)
		if took := w.mustWrite(others); took < 400*time.Millisecond {
			t.Errorf("a write took only %v", took)
		}
		if n := w.decided(decideStand); n != 0 {
			t.Errorf("%v servers stood for election", n)
		}
		w.converge()
	})
}

// TestReturningPeerIsServedAtOnce: a follower was away for so long that Raft
// would wait for seconds before it tries again. It is needed right after.
func TestReturningPeerIsServedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, 5, 3, nil)
		defer w.stop()
		leader, others := w.split()
		w.crash(others[0])
		w.mustWrite([]*simHost{leader})
		time.Sleep(25 * time.Second)
		w.mustWrite([]*simHost{leader})
		w.restart(others[0])
		time.Sleep(150 * time.Millisecond)
		w.crash(others[1])
		if took := w.mustWrite([]*simHost{leader}); took > 300*time.Millisecond {
			t.Errorf("a write took %v", took)
		}
		if w.count(leader, "shepherd_entries_held_total", "") == 0 {
			t.Error("nothing was held back")
		}
		if n, _ := leader.current(); n.raft.State() != raft.Leader {
			t.Error("it does not lead any more")
		}
		w.converge()
	})
}
