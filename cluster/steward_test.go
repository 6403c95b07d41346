package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// addHost gives the cluster another host, that does not run yet.
func (c *simCluster) addHost(name, id string) *simHost {
	h := &simHost{id: id, name: name, addr: name + ":9876", log: raft.NewInmemStore(), snapshots: raft.NewInmemSnapshotStore()}
	c.hosts = append(c.hosts, h)
	return h
}

// drop crashes a host and forgets it.
func (c *simCluster) drop(h *simHost) {
	c.crash(h)
	var rest []*simHost
	for _, o := range c.hosts {
		if o != h {
			rest = append(rest, o)
		}
	}
	c.hosts = rest
}

// TestRebuiltServerTakesItsPlace: a server that lost its disk comes back under
// its name and address without a change of leader; one that still answers there
// is never replaced.
func TestRebuiltServerTakesItsPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, 3, nil)
		defer c.stop()
		leader := c.leader()
		n, store := leader.current()
		term, _ := n.Leadership()
		old := c.followersOf(leader)[0]
		id := old.name + "-0000000f"
		if err := n.AddServer(t.Context(), id, old.addr); !errors.Is(err, ErrNameTaken) {
			t.Errorf("in the place of a server that answers: %v", err)
		}
		c.drop(old)
		if err := n.AddServer(t.Context(), id, old.addr); !errors.Is(err, ErrNotProven) || len(n.servers()) != 3 || isRetired(store.View(), old.id) {
			t.Errorf("in the place of a server that may come back: %v", err)
		}
		c.start(c.addHost(old.name, id), false)
		if err := n.AddServer(t.Context(), id, old.addr); err != nil {
			t.Fatal(err)
		}
		c.waitVoters(3)
		if _, member := memberOf(n.servers(), old.id); member || !isRetired(store.View(), old.id) {
			t.Errorf("the old one is still a member: %v", n.servers())
		}
		if now, leading := n.Leadership(); !leading || now != term {
			t.Errorf("the leader changed: term %d became %d", term, now)
		}
		c.converge()
	})
}

// TestDeadMembersExpire: joiners that never came and servers that are long dead
// go by themselves, but never below three voters.
func TestDeadMembersExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, 5, func(cfg *Config) {
			cfg.DeadServerGrace, cfg.DeadJoinerGrace = time.Minute, 20*time.Second
		})
		defer c.stop()
		n := c.waitLeader()
		if err := n.AddServer(t.Context(), "s9-00000009", "s9:9876"); err != nil {
			t.Fatal(err)
		}
		poll(t, "the joiner goes", func() error {
			if _, member := memberOf(n.servers(), "s9"); member {
				return errors.New("it is a member")
			}
			return nil
		})
		for range 2 {
			c.drop(c.followersOf(c.leader())[0])
		}
		time.Sleep(30 * time.Second)
		if got := len(voters(n.servers())); got != 5 {
			t.Fatalf("%d voters before the grace has passed", got)
		}
		c.waitVoters(3)
		dead := c.followersOf(c.leader())[0]
		c.crash(dead)
		time.Sleep(3 * time.Minute)
		if got := len(voters(n.servers())); got != 3 {
			t.Errorf("%d voters: the last three must stay", got)
		}
		c.converge()
	})
}

// TestHalfDoneRemovalIsFinished: the next leader finishes what the last one has
// only announced.
func TestHalfDoneRemovalIsFinished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, 5, nil)
		defer c.stop()
		leader := c.leader()
		n, _ := leader.current()
		victim := c.followersOf(leader)[0]
		term, _ := n.Leadership()
		if _, err := n.retire(t.Context(), term, raft.Server{ID: raft.ServerID(victim.id), Address: raft.ServerAddress(victim.addr)}); err != nil {
			t.Fatal(err)
		}
		c.crash(leader)
		c.waitVoters(4)
		c.drop(victim)
		c.converge()
	})
}

// TestGrowAndShrinkUnderWrites: 1, 3, 5 and 3 servers again while writers write,
// the joiners of each step at once, and the leader dies while two are joining.
// Nothing that was acknowledged is lost or there twice.
func TestGrowAndShrinkUnderWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, 1, nil)
		defer c.stop()
		first := c.hosts[0]
		var stop atomic.Bool
		var writers sync.WaitGroup
		acked := make([]int, 4)
		for w := range acked {
			writers.Go(func() {
				for !stop.Load() {
					ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
					status, _, err := c.write(ctx, first, "APPEND", fmt.Sprintf("/w%d", w), fmt.Sprint(acked[w]))
					cancel()
					if err != nil || status != 200 {
						t.Errorf("writer %d: %d, %v", w, status, err)
						return
					}
					acked[w]++
					time.Sleep(5 * time.Millisecond)
				}
			})
		}
		join := func(hosts ...*simHost) (wait func()) {
			var joins sync.WaitGroup
			for _, h := range hosts {
				c.start(h, false)
				joins.Go(func() { // as a joiner does: it asks until somebody has done it
					poll(t, "join "+h.name, func() error {
						leader := c.leader()
						if leader == nil {
							return errors.New("no leader")
						}
						n, _ := leader.current()
						if n == nil {
							return errors.New("the leader has died")
						}
						return n.AddServer(t.Context(), h.id, h.addr)
					})
				})
			}
			return joins.Wait
		}
		time.Sleep(time.Second)
		join(c.addHost("s2", "s2-00000002"), c.addHost("s3", "s3-00000003"))()
		c.waitVoters(3)
		n, _ := first.current()
		if err := n.Transfer(t.Context(), "s2"); err != nil {
			t.Fatal(err)
		}
		leader := c.hosts[1]
		poll(t, "s2 leads", func() error {
			if c.leader() != leader {
				return errors.New("it does not")
			}
			return nil
		})
		wait := join(c.addHost("s4", "s4-00000004"), c.addHost("s5", "s5-00000005"))
		time.Sleep(3 * time.Millisecond)
		c.crash(leader)
		wait()
		c.waitVoters(5)
		time.Sleep(time.Second)
		c.restart(leader)
		for _, h := range []*simHost{c.hosts[4], c.hosts[1]} {
			poll(t, "remove "+h.name, func() error {
				l := c.leader()
				if l == nil {
					return errors.New("no leader")
				}
				ln, _ := l.current()
				if l == h {
					return ln.Transfer(t.Context(), first.name)
				}
				_, err := ln.RemoveServer(t.Context(), h.name)
				return err
			})
			c.drop(h)
		}
		c.waitVoters(3)
		time.Sleep(time.Second)
		stop.Store(true)
		writers.Wait()
		c.converge()
		_, store := first.current()
		for w, count := range acked {
			words := splitWords(store.View().Get(registerKey(fmt.Sprintf("/w%d", w))).Data)
			if count < 10 || len(words) != count {
				t.Errorf("writer %d: %d acknowledged, %d there", w, count, len(words))
			}
			for i, word := range words {
				if word != fmt.Sprint(i) {
					t.Errorf("writer %d: word %d is %s", w, i, word)
					break
				}
			}
		}
	})
}
