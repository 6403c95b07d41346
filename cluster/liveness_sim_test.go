package cluster

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/fsm"
)

// What agents and the node controller do by default.
const (
	beatEvery = 10 * time.Second
	beatMoves = 4500 * time.Millisecond // upstream: ping interval and timeout
	nodeGrace = 40 * time.Second        // controllers: from that age on a node is dead
)

// simAgents are agents that heartbeat to any server, as far as the network lets
// them. Of an answer that does not arrive they know nothing, and ask the next.
type simAgents struct {
	c    *simCluster
	stop chan struct{}
	wg   sync.WaitGroup

	mu    sync.Mutex
	died  map[string]time.Time
	acked map[string]time.Time // when the last acknowledged heartbeat was sent
}

// rarePings saves time where minutes are simulated.
func rarePings(cfg *Config) { cfg.Timing.Ping = cfg.Timing.Silence / 4 }

func startAgents(c *simCluster, count int) *simAgents {
	s := &simAgents{c: c, stop: make(chan struct{}), died: make(map[string]time.Time), acked: make(map[string]time.Time)}
	for i := range count {
		s.wg.Go(func() { s.run(fmt.Sprintf("w%d", i), i) })
	}
	return s
}

func (s *simAgents) run(node string, current int) {
	pause := func(d time.Duration) bool {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-s.stop:
			return false
		case <-t.C:
			return true
		}
	}
	for !s.dead(node) {
		sent := time.Now()
		acked := false
		for range s.c.hosts {
			if acked = s.beat(node, s.c.hosts[current%len(s.c.hosts)], pause); acked {
				break
			}
			current++
		}
		wait := beatEvery
		if acked {
			s.mu.Lock()
			s.acked[node] = sent
			s.mu.Unlock()
		} else {
			wait = time.Second
		}
		if !pause(wait) {
			return
		}
	}
}

// beat sends one heartbeat to one server and reports whether the answer came.
func (s *simAgents) beat(node string, h *simHost, pause func(time.Duration) bool) bool {
	n, _ := h.current()
	if n == nil {
		return false // connection refused
	}
	if s.c.net.isBlocked(node, h.addr) {
		pause(beatMoves)
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), beatMoves)
	defer cancel()
	_, err := n.Heartbeat(ctx, node)
	if s.c.net.isBlocked(h.addr, node) {
		pause(beatMoves)
		return false
	}
	return err == nil
}

func (s *simAgents) dead(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, dead := s.died[node]
	return dead
}

// kill ends an agent for good.
func (s *simAgents) kill(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.died[node] = time.Now()
}

func (s *simAgents) end() {
	close(s.stop)
	s.wg.Wait()
}

// check asks every server that thinks it leads, as its node controller does: no
// living node is dead to it, and no dead one younger than its death. It reports
// whether anybody answered.
func (s *simAgents) check(t *testing.T) (answered bool) {
	t.Helper()
	for _, h := range s.c.hosts {
		n, _ := h.current()
		if n == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		asked := time.Now()
		ages, err := n.Ages(ctx)
		cancel()
		if err != nil {
			continue
		}
		answered = true
		s.mu.Lock()
		for node, age := range ages {
			died, dead := s.died[node]
			switch {
			case !dead && age >= nodeGrace:
				t.Errorf("%s thinks %s dead: its age is %v, its last acknowledged heartbeat was sent %v ago", h.name, node, age, time.Since(s.acked[node]))
			case dead && asked.Sub(died) > beatMoves && age < asked.Sub(died)-beatMoves:
				t.Errorf("%s thinks that %s lived %v ago, it died %v ago", h.name, node, age, asked.Sub(died))
			}
		}
		s.mu.Unlock()
	}
	return answered
}

// TestOneWayPartitionsKillNoLiveNode: in turn each server loses one direction,
// or both, to some of the others and of the agents, for up to a minute. No live
// node is ever declared dead, and dead ones are within the bound.
func TestOneWayPartitionsKillNoLiveNode(t *testing.T) {
	const count = 9
	for seed := range int64(2) {
		synctest.Test(t, func(t *testing.T) {
			c := newSimCluster(t, seed, 3, rarePings)
			defer c.stop()
			rng := rand.New(rand.NewSource(seed))
			agents := startAgents(c, count)
			defer agents.end()
			time.Sleep(2 * beatEvery)
			for round := range 6 {
				sick := c.hosts[rng.Intn(len(c.hosts))]
				others := c.addrs()
				for i := range count {
					others = append(others, fmt.Sprintf("w%d", i))
				}
				for _, o := range others {
					if o != sick.addr && rng.Intn(2) == 0 {
						c.net.set(sick.addr, o, rng.Intn(2) == 0)
						c.net.set(o, sick.addr, rng.Intn(2) == 0)
					}
				}
				if round%3 == 2 {
					agents.kill(fmt.Sprintf("w%d", round/3))
				}
				answers := 0
				for end := time.Now().Add(time.Duration(5+rng.Intn(55)) * time.Second); time.Now().Before(end); {
					time.Sleep(3 * time.Second)
					if agents.check(t) {
						answers++
					}
				}
				if answers == 0 {
					t.Errorf("seed %d, round %d: nobody could tell the ages", seed, round)
				}
				c.net.heal()
				time.Sleep(time.Duration(rng.Intn(20)) * time.Second)
			}
		})
	}
}

// TestNodeThatDiesWithTheLeaderIsFoundInTheSameTime: the time until some leader
// has the dead node's age at the grace period, with and without the leader's loss.
func TestNodeThatDiesWithTheLeaderIsFoundInTheSameTime(t *testing.T) {
	found := func(t *testing.T, seed int64, withLeader bool) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			c := newSimCluster(t, seed, 3, rarePings)
			defer c.stop()
			agents := startAgents(c, 6)
			defer agents.end()
			time.Sleep(2 * beatEvery)
			agents.kill("w2")
			died := time.Now()
			if withLeader {
				c.crash(c.leader())
			}
			for took == 0 && time.Since(died) < 10*time.Minute {
				time.Sleep(500 * time.Millisecond)
				h := c.leader()
				if h == nil {
					continue
				}
				n, _ := h.current()
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				ages, err := n.Ages(ctx)
				cancel()
				if err == nil && ages["w2"] >= nodeGrace {
					took = time.Since(died)
				}
			}
		})
		return took
	}
	for seed := range int64(2) {
		alone, together := found(t, seed, false), found(t, seed, true)
		if alone == 0 || together == 0 || together > alone+time.Second {
			t.Errorf("seed %d: found after %v alone, after %v together with the leader", seed, alone, together)
		}
		if together > nodeGrace+time.Second {
			t.Errorf("seed %d: found after %v, the bound is %v", seed, together, nodeGrace)
		}
	}
}

// terms are those of the log's entries with a command for each object, by name.
func (h *simHost) terms(t *testing.T) map[string][]string {
	t.Helper()
	first, err := h.log.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	last, err := h.log.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	terms := make(map[string][]string)
	for i := first; i <= last; i++ {
		var entry raft.Log
		if err := h.log.GetLog(i, &entry); err != nil {
			t.Fatal(err)
		}
		if entry.Type != raft.LogCommand {
			continue
		}
		cmds, err := fsm.DecodeEntry(entry.Data)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cmds {
			for _, op := range c.Ops {
				terms[op.Key.Name] = append(terms[op.Key.Name], fmt.Sprint(entry.Term))
			}
		}
	}
	return terms
}

// TestFlappingLeadershipAppliesNothingOfAnOldTerm: controllers of every server
// write what they planned in a term, some of it late, while leadership moves
// again and again. What was applied was planned in the term that applied it.
func TestFlappingLeadershipAppliesNothingOfAnOldTerm(t *testing.T) {
	var proposed, stale int
	for seed := range int64(4) {
		synctest.Test(t, func(t *testing.T) {
			w := newWatched(t, seed, 3, nil)
			defer w.stop()
			rng := rand.New(rand.NewSource(seed))
			var mu sync.Mutex
			var refused []string // must not be there
			stop := make(chan struct{})
			var loops sync.WaitGroup
			for i, h := range w.hosts {
				mine := rand.New(rand.NewSource(seed*10 + int64(i)))
				loops.Go(func() {
					for k := 0; ; k++ {
						select {
						case <-stop:
							return
						case <-time.After(time.Duration(1+mine.Intn(20)) * time.Millisecond):
						}
						n, _ := h.current()
						term, leading := n.Leadership()
						if !leading {
							continue
						}
						time.Sleep(time.Duration(mine.Intn(400)) * time.Millisecond) // it plans for long
						name := fmt.Sprintf("%s-%d", h.name, k)
						res, err := n.Propose(context.Background(), fsm.Command{Term: term, Ops: []fsm.Op{{
							Verb: fsm.Create, Key: registerKey(name), UID: name, Data: fmt.Append(nil, term),
						}}})
						mu.Lock()
						proposed++
						if err == nil && res.Code == fsm.StaleTerm {
							refused = append(refused, name)
						}
						mu.Unlock()
					}
				})
			}
			for range 60 {
				time.Sleep(time.Duration(20+rng.Intn(300)) * time.Millisecond)
				w.forceElection(w.hosts[rng.Intn(len(w.hosts))])
				if rng.Intn(5) == 0 {
					victim := w.hosts[rng.Intn(len(w.hosts))]
					w.net.isolate(victim.addr, w.addrs(), true)
					time.Sleep(time.Duration(rng.Intn(400)) * time.Millisecond)
					w.net.heal()
				}
			}
			close(stop)
			w.net.heal()
			loops.Wait()
			w.converge()
			_, store := w.hosts[0].current()
			terms := w.hosts[0].terms(t)
			var there []string
			for o := range store.View().List(registerKey("").Resource, "") {
				there = append(there, o.Key.Name)
				if applied := terms[o.Key.Name]; !slices.Contains(applied, string(o.Data)) {
					t.Errorf("seed %d: %s was planned in term %s and applied in one of %v", seed, o.Key.Name, o.Data, applied)
				}
			}
			stale += len(refused)
			for _, name := range refused {
				if slices.Contains(there, name) {
					t.Errorf("seed %d: %s was refused and is there", seed, name)
				}
			}
		})
	}
	if proposed < 200 || stale < 10 {
		t.Errorf("%d proposals, %d refused: the test shows little", proposed, stale)
	}
}
