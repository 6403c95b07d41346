package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

// upgrade restarts a server with a build that can apply the level.
func (c *simCluster) upgrade(h *simHost, level uint32) {
	c.t.Helper()
	c.crash(h)
	h.level.Store(level)
	c.start(h, false)
	c.converge()
}

// lead moves leadership to a server.
func (c *simCluster) lead(h *simHost) *Node {
	c.t.Helper()
	n, _ := h.current()
	poll(c.t, "move leadership to "+h.name, func() error {
		if _, leading := n.Leadership(); leading {
			return nil
		}
		return errors.Join(n.Transfer(c.t.Context(), h.name), errors.New("it does not lead yet"))
	})
	return n
}

// newer proposes a command of a level on a leader.
func newer(n *Node, name string, level uint8) (fsm.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	term, _ := n.Leadership()
	return n.Propose(ctx, fsm.Command{Term: term, Level: level,
		Ops: []fsm.Op{{Verb: fsm.Create, Key: registerKey(name), UID: "u" + name, Data: []byte("x")}}})
}

// entryLevels counts the command entries of a server's log by their level.
func entryLevels(t *testing.T, h *simHost) map[byte]int {
	t.Helper()
	count := map[byte]int{}
	first, err := h.log.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	last, err := h.log.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	for i := first; i <= last; i++ {
		var l raft.Log
		if err := h.log.GetLog(i, &l); err != nil {
			t.Fatal(err)
		}
		if l.Type == raft.LogCommand {
			count[l.Data[0]]++
		}
	}
	return count
}

func (c *simCluster) awaitLevel(level uint8) {
	c.t.Helper()
	poll(c.t, fmt.Sprintf("wait for level %d", level), func() error {
		for _, h := range c.hosts {
			if _, store := h.current(); store.View().Level() != level {
				return fmt.Errorf("%s is at level %d", h.name, store.View().Level())
			}
		}
		return nil
	})
}

// TestNewerServerLeads (nomad#14819, #26425): a newer build that leads proposes
// nothing that the others cannot apply. Once all are upgraded the level rises by
// itself, and an older build is refused on that data.
func TestNewerServerLeads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, 3, nil)
		defer c.stop()
		c.upgrade(c.hosts[0], 2)
		n := c.lead(c.hosts[0])
		refused := func(note string) {
			t.Helper()
			time.Sleep(time.Minute)
			if _, err := newer(n, "early", 2); !errors.Is(err, ErrLevel) {
				t.Fatalf("a command of level 2: %v", err)
			}
			if st := n.Status(t.Context()); st.Level != 1 || st.LevelNote != note {
				t.Errorf("level %d: %q, want %q", st.Level, st.LevelNote, note)
			}
		}
		refused("level 2 needs every server: the build of s2 can apply level 1, the build of s3 can apply level 1")
		if res, err := newer(n, "plain", 1); err != nil || res.Code != fsm.OK {
			t.Fatalf("a command of level 1: %+v %v", res, err)
		}
		c.upgrade(c.hosts[1], 2)
		n = c.lead(c.hosts[0])
		refused("level 2 needs every server: the build of s3 can apply level 1")
		c.crash(c.hosts[2])
		refused("level 2 needs every server: s3 does not answer")
		c.restart(c.hosts[2])
		c.upgrade(c.hosts[1], 1) // there is a way back
		c.upgrade(c.hosts[1], 2)
		for _, h := range c.hosts {
			if l := entryLevels(t, h); l[1] == 0 || len(l) != 1 {
				t.Fatalf("%s has entries of levels %v", h.name, l)
			}
		}

		c.upgrade(c.hosts[2], 2)
		c.awaitLevel(2)
		n = c.lead(c.hosts[1])
		if res, err := newer(n, "late", 2); err != nil || res.Code != fsm.OK {
			t.Fatalf("a command of level 2: %+v %v", res, err)
		}
		c.converge()
		if st := n.Status(t.Context()); st.Level != 2 || st.LevelNote != "" || st.Members[2].MaxLevel != 2 {
			t.Errorf("status: %+v", st)
		}
		for _, h := range c.hosts {
			if l := entryLevels(t, h); l[2] != 1 {
				t.Errorf("%s has entries of levels %v", h.name, l)
			}
		}

		old := c.hosts[2]
		c.crash(old)
		old.level.Store(1)
		if err := c.tryStart(old, false); !errors.Is(err, fsm.ErrUnknownVersion) || !strings.Contains(err.Error(), "run a build that can apply level 2") {
			t.Fatalf("the older build: %v", err)
		}
		old.level.Store(2)
		c.converge()
	})
}

// TestOldJoinerIsRefused: a server that cannot apply the cluster's commands does
// not become a member, and with a newer build does.
func TestOldJoinerIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 2, 3, nil)
		defer c.stop()
		for _, h := range c.hosts {
			c.upgrade(h, 2)
		}
		c.awaitLevel(2)
		n := c.waitLeader()
		joiner := &simHost{id: "s4-00000004", name: "s4", addr: "s4:9876", log: raft.NewInmemStore(), snapshots: raft.NewInmemSnapshotStore()}
		c.hosts = append(c.hosts, joiner)
		c.start(joiner, false)
		err := n.AddServer(t.Context(), joiner.id, joiner.addr)
		if !errors.Is(err, ErrOldBuild) || !strings.Contains(err.Error(), "run a build that can apply level 2") || len(n.servers()) != 3 {
			t.Fatalf("%v; %d members", err, len(n.servers()))
		}
		c.crash(joiner)
		joiner.level.Store(3)
		c.start(joiner, false)
		if err := n.AddServer(t.Context(), joiner.id, joiner.addr); err != nil {
			t.Fatal(err)
		}
		c.waitVoters(4)
		c.converge()
		c.awaitLevel(2)
	})
}

// TestPromiseComesBeforeTheLevel: a server that promised and went back to its
// older build before the level rose does not start, though nothing in its log
// says why.
func TestPromiseComesBeforeTheLevel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, 3, nil)
		defer c.stop()
		h := c.hosts[2]
		c.upgrade(h, 2)
		n := c.waitLeader()
		ask := func(level uint64) error {
			_, err := call(t.Context(), n, raft.ServerAddress(h.addr), wire.LinkLevel, wire.EncodeLevelPromise(&wire.LevelPromise{Level: level}), wire.DecodeServerStatus)
			return err
		}
		if err := ask(3); err == nil || !strings.Contains(err.Error(), "level 2 at most") {
			t.Errorf("it promised what it cannot: %v", err)
		}
		if err := errors.Join(ask(2), ask(1)); err != nil {
			t.Fatal(err)
		}
		c.crash(h)
		h.level.Store(1)
		if err := c.tryStart(h, false); !errors.Is(err, fsm.ErrUnknownVersion) {
			t.Errorf("the older build: %v", err)
		}
		h.level.Store(2)
		c.converge()
	})
}

// TestOldSnapshotReceiverHalts: a member whose build is too old, whatever let it
// in, stops by the snapshot that it is sent.
func TestOldSnapshotReceiverHalts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 4, 3, func(cfg *Config) {
			cfg.SnapshotThreshold, cfg.TrailingLogs, cfg.Timing.Snapshot = 16, 8, time.Second
		})
		defer c.stop()
		for _, h := range c.hosts {
			c.upgrade(h, 2)
		}
		c.awaitLevel(2)
		c.lead(c.hosts[0])
		victim := c.hosts[2]
		c.crash(victim)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for i := range 100 {
			if status, _, err := c.write(ctx, c.hosts[0], "PUT", fmt.Sprintf("/r%d", i), "x"); err != nil || status != 200 {
				t.Fatal(status, err)
			}
		}
		time.Sleep(5 * time.Second) // snapshots are taken
		victim.log, victim.snapshots = raft.NewInmemStore(), raft.NewInmemSnapshotStore()
		victim.level.Store(1)
		c.start(victim, false)
		n, store := victim.current()
		<-n.Done()
		if err := n.Err(); !errors.Is(err, fsm.ErrUnknownVersion) || !strings.Contains(err.Error(), "run a build that can apply level 2") {
			t.Errorf("it stopped with: %v", err)
		}
		if store.View().Revision() != 0 {
			t.Errorf("it is at revision %d", store.View().Revision())
		}
	})
}

// TestUpgradeDuringFaults: clients write, and servers are upgraded one after the
// other while others die. Everything acknowledged is there once.
func TestUpgradeDuringFaults(t *testing.T) {
	for seed := range int64(4) {
		rec := &recorder{appended: make(map[string]bool)}
		var list string
		synctest.Test(t, func(t *testing.T) {
			c := newSimCluster(t, seed, 3, nil)
			defer c.stop()
			whole := make(chan struct{})
			var clients sync.WaitGroup
			for i := range 3 {
				clients.Go(func() { rec.client(c, i, rand.New(rand.NewSource(seed*100+int64(i))), whole) })
			}
			rng := rand.New(rand.NewSource(seed))
			for _, i := range rng.Perm(3) {
				c.crash(c.hosts[i])
				c.hosts[i].level.Store(2)
				c.restart(c.hosts[i])
				faults(c, rng, 3*time.Second)
				c.heal()
			}
			c.waitLeader()
			close(whole)
			clients.Wait()
			c.converge()
			c.awaitLevel(2)
			_, store := c.hosts[0].current()
			if o := store.View().Get(registerKey("/list")); o != nil {
				list = string(o.Data)
			}
		})
		rec.check(t, list)
	}
}
