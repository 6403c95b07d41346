package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/seal"
	"github.com/shepherd-project/shepherd/fsm"
)

// sealedCluster is a simulated cluster whose servers have keys: those of a new
// cluster, or none, as after an upgrade.
type sealedCluster struct {
	*simCluster
	rings map[string]*seal.Ring // by name; they outlive the nodes
}

func newSealedCluster(t *testing.T, seed int64, keys seal.Keys, tune func(*Config)) *sealedCluster {
	t.Helper()
	s := &sealedCluster{rings: map[string]*seal.Ring{}}
	for i := 1; i <= 3; i++ {
		s.rings[fmt.Sprintf("s%d", i)] = seal.NewRing(keys, nil)
	}
	s.simCluster = newSimCluster(t, seed, 3, func(cfg *Config) {
		cfg.Keys = s.rings[cfg.Name]
		if tune != nil {
			tune(cfg)
		}
	})
	return s
}

// rotate asks a server to rotate, as its API does.
func (s *sealedCluster) rotate(h *simHost) (res wire.RotateKeyResponse, err error) {
	n, store := h.current()
	if n == nil {
		return res, ErrStopped
	}
	id := fsm.NewRequestID(store.View().Revision())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	resp, err := n.Forward(ctx, &wire.Request{Nonce: id.Nonce, Birth: id.Birth, Method: "POST", Path: wire.PathRotateKey})
	if err != nil {
		return res, err
	}
	if resp.Status != http.StatusOK {
		return res, errors.New(string(resp.Body))
	}
	return res, json.Unmarshal(resp.Body, &res)
}

// awaitSealed waits until the state of every server names a key.
func (s *sealedCluster) awaitSealed() (key uint32) {
	s.t.Helper()
	poll(s.t, "wait for a key", func() error {
		for _, h := range s.hosts {
			n, store := h.current()
			id, err := n.keys.recorded(store.View())
			if err != nil || id == 0 {
				return fmt.Errorf("%s: key %d, %v", h.name, id, err)
			}
			key = id
		}
		return nil
	})
	return key
}

// keysInLog counts the command entries of a server's log by their key.
func (s *sealedCluster) keysInLog(h *simHost) map[uint32]int {
	s.t.Helper()
	count := map[uint32]int{}
	first, err := h.log.FirstIndex()
	if err != nil {
		s.t.Fatal(err)
	}
	last, err := h.log.LastIndex()
	if err != nil {
		s.t.Fatal(err)
	}
	for i := first; i <= last; i++ {
		var l raft.Log
		if err := h.log.GetLog(i, &l); err != nil {
			s.t.Fatal(err)
		}
		if l.Type == raft.LogCommand {
			count[seal.KeyOf(l.Data)]++
		}
	}
	return count
}

func (s *sealedCluster) put(h *simHost, key, value string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if status, _, err := s.write(ctx, h, "PUT", key, value); err != nil || status != 200 {
		s.t.Fatalf("write %s: %d %v", key, status, err)
	}
}

// TestSealedCluster: a new cluster seals from its first entry, a rotation changes
// the key of all that follows, and all survives restarts from logs and snapshots.
func TestSealedCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSealedCluster(t, 1, seal.Begin(time.Now()), func(cfg *Config) {
			cfg.SnapshotThreshold, cfg.TrailingLogs, cfg.Timing.Snapshot = 64, 1000, time.Second
		})
		defer c.stop()
		first := c.awaitSealed()
		c.put(c.hosts[1], "/r", "one")
		for _, h := range c.hosts {
			if n := c.keysInLog(h); n[0] != 0 || n[first] == 0 || len(n) != 1 {
				t.Errorf("%s: entries by key %v, want all under %d", h.name, n, first)
			}
		}
		res, err := c.rotate(c.hosts[2])
		if err != nil || res.Previous != first || res.Key == first {
			t.Fatalf("rotation: %+v, %v", res, err)
		}
		for i := range 200 {
			c.put(c.hosts[i%3], fmt.Sprintf("/r%d", i), "two")
		}
		if n := c.keysInLog(c.hosts[0]); n[res.Key] < 200 || n[0] != 0 {
			t.Errorf("entries by key %v, want 200 under %d", n, res.Key)
		}
		time.Sleep(5 * time.Second) // snapshots are taken
		for _, h := range c.hosts {
			c.crash(h)
		}
		c.converge()
		for _, h := range c.hosts {
			metas, err := h.snapshots.List()
			if err != nil || len(metas) == 0 {
				t.Fatalf("%s has no snapshot: %v", h.name, err)
			}
			if _, store := h.current(); string(store.View().Get(registerKey("r199")).Data) != "two" {
				t.Errorf("%s lost a write", h.name)
			}
		}
		// Twice as quickly as anybody would: each gets its own key.
		again, err := c.rotate(c.hosts[0])
		if err != nil || again.Previous != res.Key || again.Key == res.Key || again.Key == first {
			t.Errorf("the second rotation: %+v, %v", again, err)
		}
	})
}

// TestUpgradedClusterSeals: what an earlier version wrote stays readable, and
// sealing begins by itself once every server can open it.
func TestUpgradedClusterSeals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var old sync.Map // names of the servers of the earlier version
		c := newSealedCluster(t, 2, seal.Keys{}, func(cfg *Config) {
			if _, is := old.LoadOrStore(cfg.Name, true); !is {
				cfg.Keys = nil
			}
		})
		defer c.stop()
		c.put(c.hosts[0], "/r", "plain")
		for _, h := range c.hosts[:2] {
			c.crash(h)
			c.restart(h) // upgraded
		}
		c.converge()
		leader, _ := c.hosts[0].current()
		poll(t, "move leadership", func() error { return leader.Transfer(t.Context(), c.hosts[0].name) })
		time.Sleep(time.Minute)
		c.put(c.hosts[1], "/r", "still plain")
		for _, h := range c.hosts {
			if n := c.keysInLog(h); n[0] == 0 || len(n) != 1 {
				t.Fatalf("%s sealed while a server could not open it: %v", h.name, n)
			}
		}
		c.crash(c.hosts[2])
		c.restart(c.hosts[2])
		key := c.awaitSealed()
		c.put(c.hosts[1], "/r", "sealed")
		c.converge()
		if n := c.keysInLog(c.hosts[2]); n[key] == 0 {
			t.Errorf("nothing was sealed after the upgrade: %v", n)
		}
	})
}

// TestRotationNeedsEveryMember: with one down it is refused by name and nothing
// changes; once that is back it goes through, with the key made the first time.
func TestRotationNeedsEveryMember(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSealedCluster(t, 3, seal.Begin(time.Now()), nil)
		defer c.stop()
		first := c.awaitSealed()
		down := c.hosts[2]
		if c.leader() == down {
			down = c.hosts[1]
		}
		c.crash(down)
		for range 3 {
			if _, err := c.rotate(c.leader()); err == nil || !strings.Contains(err.Error(), down.name+" ("+down.addr) || !strings.Contains(err.Error(), "stays as it is") {
				t.Fatalf("rotation without %s: %v", down.name, err)
			}
		}
		if key := c.rings[c.leader().name].Keys(); key.Len() != 2 {
			t.Errorf("%d keys after three refused rotations", key.Len())
		}
		c.put(c.leader(), "/r", "x")
		if n := c.keysInLog(c.leader()); len(n) != 1 || n[first] == 0 {
			t.Errorf("entries by key %v, want all under %d", n, first)
		}
		c.restart(down)
		c.converge()
		res, err := c.rotate(down)
		if err != nil || res.Previous != first {
			t.Fatalf("rotation: %+v, %v", res, err)
		}
		if n := c.rings[down.name].Keys().Len(); n != 2 {
			t.Errorf("%d keys", n)
		}
	})
}

// TestMissingKeyIsFetched: a server that lost its keys has them from the others,
// from its snapshot on as well as for an entry.
func TestMissingKeyIsFetched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSealedCluster(t, 4, seal.Begin(time.Now()), func(cfg *Config) {
			cfg.SnapshotThreshold, cfg.TrailingLogs, cfg.Timing.Snapshot = 16, 8, time.Second
		})
		defer c.stop()
		c.awaitSealed()
		for i := range 100 {
			c.put(c.hosts[0], fmt.Sprintf("/r%d", i), "x")
		}
		time.Sleep(5 * time.Second)
		for _, h := range c.hosts[1:] {
			c.crash(h)
			c.rings[h.name] = seal.NewRing(seal.Keys{}, nil)
			c.restart(h)
			c.converge()
			if c.rings[h.name].Keys().Len() != 1 {
				t.Errorf("%s did not get the key", h.name)
			}
		}
	})
}

// TestNobodyHasTheKey: such a server does not serve, and says which key it lacks.
func TestNobodyHasTheKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSealedCluster(t, 5, seal.Begin(time.Now()), nil)
		defer c.stop()
		key := c.awaitSealed()
		victim := c.hosts[0]
		for _, h := range c.hosts {
			c.crash(h)
			c.rings[h.name] = seal.NewRing(seal.Keys{}, nil)
		}
		for _, h := range c.hosts {
			c.restart(h)
		}
		n, store := victim.current()
		<-n.Done()
		if err := n.Err(); !errors.Is(err, seal.ErrNoKey) || !errors.Is(err, fsm.ErrHalted) || !strings.Contains(err.Error(), fmt.Sprintf("key %d", key)) {
			t.Errorf("it stopped with: %v", err)
		}
		if store.View().Revision() != 0 {
			t.Errorf("it skipped entries, and is at revision %d", store.View().Revision())
		}
	})
}

// TestDamagedEntryHalts: a bit that flips on one server's disk stops that server
// before it differs from the others.
func TestDamagedEntryHalts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSealedCluster(t, 6, seal.Begin(time.Now()), nil)
		defer c.stop()
		c.awaitSealed()
		c.put(c.hosts[0], "/r", "value")
		victim := c.hosts[2]
		if c.leader() == victim {
			victim = c.hosts[1]
		}
		c.crash(victim)
		last, err := victim.log.LastIndex()
		if err != nil {
			t.Fatal(err)
		}
		var l raft.Log
		for ; l.Type != raft.LogCommand || len(l.Data) == 0; last-- {
			if err := victim.log.GetLog(last, &l); err != nil {
				t.Fatal(err)
			}
		}
		l.Data = bytes.Clone(l.Data) // the memory is shared with the other servers
		l.Data[len(l.Data)/2] ^= 4
		if err := victim.log.StoreLog(&l); err != nil {
			t.Fatal(err)
		}
		c.restart(victim)
		n, _ := victim.current()
		<-n.Done()
		if err := n.Err(); !errors.Is(err, seal.ErrDamaged) || !strings.Contains(err.Error(), fmt.Sprintf("entry %d", l.Index)) {
			t.Errorf("it stopped with: %v", err)
		}
	})
}

// TestRotationDuringFaults: clients write, servers die, and somebody rotates all
// the time. Everything acknowledged is there once, and every replica agrees.
func TestRotationDuringFaults(t *testing.T) {
	for seed := range int64(4) {
		rec := &recorder{appended: make(map[string]bool)}
		var list string
		rotations := 0
		synctest.Test(t, func(t *testing.T) {
			c := newSealedCluster(t, seed, seal.Begin(time.Now()), func(cfg *Config) {
				cfg.SnapshotThreshold, cfg.TrailingLogs = 64, 32
				cfg.Timing.Snapshot = 2 * time.Second
			})
			defer c.stop()
			whole := make(chan struct{})
			var clients sync.WaitGroup
			for i := range 3 {
				clients.Go(func() { rec.client(c.simCluster, i, rand.New(rand.NewSource(seed*100+int64(i))), whole) })
			}
			clients.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-whole:
						return
					default:
					}
					if _, err := c.rotate(c.hosts[i%3]); err == nil {
						rotations++
					}
					time.Sleep(50 * time.Millisecond)
				}
			})
			for range 12 { // the leader dies, most times in the middle of a rotation
				time.Sleep(time.Duration(300+37*seed) * time.Millisecond)
				if h := c.leader(); h != nil {
					c.crash(h)
					time.Sleep(300 * time.Millisecond)
					c.restart(h)
				}
			}
			faults(c.simCluster, rand.New(rand.NewSource(seed)), 5*time.Second)
			c.heal()
			c.waitLeader()
			close(whole)
			clients.Wait()
			c.converge()
			if _, err := c.rotate(c.hosts[0]); err != nil {
				t.Errorf("a rotation after it all: %v", err)
			}
			c.converge()
			_, store := c.hosts[0].current()
			if o := store.View().Get(registerKey("/list")); o != nil {
				list = string(o.Data)
			}
		})
		if rotations == 0 {
			t.Errorf("seed %d: no rotation succeeded before everything was healed", seed)
		}
		rec.check(t, list)
		t.Logf("seed %d: %d rotations, %d operations", seed, rotations, len(rec.ops))
	}
}
