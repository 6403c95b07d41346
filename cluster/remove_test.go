package cluster

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// TestRemoveKeepsQuorum: a removal after which too few voters would answer is
// refused and changes nothing; that of a dead server is not.
func TestRemoveKeepsQuorum(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, 3, nil)
		defer c.stop()
		leader := c.leader()
		n, store := leader.current()
		dead, live := c.followersOf(leader)[0], c.followersOf(leader)[1]
		c.crash(dead)
		if removed, err := n.RemoveServer(t.Context(), live.name); removed || !errors.Is(err, ErrLosesQuorum) ||
			!strings.Contains(err.Error(), "2 of the 2 remaining voters must answer, and 1 do ("+leader.name+")") || !strings.Contains(err.Error(), dead.name+" at ") {
			t.Errorf("without the last one that answers: %v, %v", removed, err)
		}
		if removed, err := n.RemoveServer(t.Context(), leader.id); removed || !errors.Is(err, ErrRemoveLeader) || !strings.Contains(err.Error(), "cluster transfer") {
			t.Errorf("the leader: %v, %v", removed, err)
		}
		if removed, err := n.RemoveServer(t.Context(), "nobody"); removed || err != nil {
			t.Errorf("nobody: %v, %v", removed, err)
		}
		follower, _ := live.current()
		if _, err := follower.RemoveServer(t.Context(), dead.name); !errors.Is(err, ErrNotLeader) {
			t.Errorf("at a follower: %v", err)
		}
		for _, h := range c.hosts {
			if isRetired(store.View(), h.id) {
				t.Errorf("a refused removal has retired %s", h.id)
			}
		}
		old, err := n.configuration()
		if err != nil || old.index == 0 {
			t.Fatalf("configuration %+v, %v", old, err)
		}
		if removed, err := n.RemoveServer(t.Context(), dead.name); !removed || err != nil {
			t.Fatalf("the dead one: %v, %v", removed, err)
		}
		if removed, err := n.RemoveServer(t.Context(), dead.id); removed || err != nil {
			t.Errorf("again: %v, %v", removed, err)
		}
		// What was decided on an older configuration is refused.
		err = n.change(t.Context(), func(timeout time.Duration) raft.IndexFuture {
			return n.raft.RemoveServer(raft.ServerID(live.id), old.index, timeout)
		})
		if !errors.Is(err, errChanged) || len(n.servers()) != 2 {
			t.Errorf("a removal decided on an old configuration: %v, servers %v", err, n.servers())
		}
		// Its ID is gone for good, its name is free.
		if err := n.AddServer(t.Context(), dead.id, dead.addr); !errors.Is(err, ErrRemoved) {
			t.Errorf("a removed ID came back: %v", err)
		}
		if r, found, err := lastRetired(store.View(), dead.name); !found || err != nil || r.ID != dead.id || r.Address != dead.addr {
			t.Errorf("retired: %+v, %v, %v", r, found, err)
		}
		if removed, err := n.RemoveServer(t.Context(), live.name); !removed || err != nil {
			t.Errorf("two become one: %v, %v", removed, err)
		}
		if removed, err := n.RemoveServer(t.Context(), leader.name); removed || !errors.Is(err, ErrLosesQuorum) {
			t.Errorf("the last one: %v, %v", removed, err)
		}
	})
}

// TestRemovedServerIsQuiet: a removed server that goes on running never disturbs
// those that are left, whether it could hear of its removal or not (https://github.com/hashicorp/raft/issues/524).
func TestRemovedServerIsQuiet(t *testing.T) {
	for _, cutOff := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newSimCluster(t, 1, 3, nil)
			defer c.stop()
			leader := c.leader()
			n, _ := leader.current()
			gone := c.followersOf(leader)[0]
			c.net.isolate(gone.addr, c.addrs(), cutOff)
			term, _ := n.Leadership()
			if removed, err := n.RemoveServer(t.Context(), gone.name); !removed || err != nil {
				t.Fatal(removed, err)
			}
			time.Sleep(5 * time.Second)
			c.net.heal()
			time.Sleep(time.Minute)
			if now, leading := n.Leadership(); now != term || !leading {
				t.Errorf("cut off %v: term %d became %d, leading %v", cutOff, term, now, leading)
			}
			c.crash(gone)
			c.hosts = slices.DeleteFunc(c.hosts, func(h *simHost) bool { return h == gone })
			c.converge()
		})
	}
}

// A half-done removal leaves a member whose ID is reserved: it gets no vote.
func TestPromoteSaysWhatIsLacking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, 3, nil)
		defer c.stop()
		n := c.waitLeader()
		if promoted, err := n.PromoteServer(t.Context(), c.followersOf(c.leader())[0].name); promoted || err != nil {
			t.Errorf("a voter: %v, %v", promoted, err)
		}
		if _, err := n.PromoteServer(t.Context(), "nobody"); !errors.Is(err, ErrUnknownServer) {
			t.Errorf("nobody: %v", err)
		}
		if err := n.AddServer(t.Context(), "s4-00000004", "s4:9876"); err != nil {
			t.Fatal(err)
		}
		if promoted, err := n.PromoteServer(t.Context(), "s4"); promoted || !errors.Is(err, ErrNotCaughtUp) || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("one that does not run: %v, %v", promoted, err)
		}
		h := &simHost{id: "s4-00000004", name: "s4", addr: "s4:9876", log: raft.NewInmemStore(), snapshots: raft.NewInmemSnapshotStore()}
		term, _ := n.Leadership()
		if _, err := n.retire(t.Context(), term, raft.Server{ID: raft.ServerID(h.id), Address: raft.ServerAddress(h.addr)}); err != nil {
			t.Fatal(err)
		}
		c.hosts = append(c.hosts, h)
		c.start(h, false)
		time.Sleep(5 * time.Second)
		if _, err := n.PromoteServer(t.Context(), "s4"); !errors.Is(err, ErrRemoved) || len(voters(n.servers())) != 3 {
			t.Errorf("one that is about to be removed: %v", err)
		}
		if err := n.reprieve(t.Context(), term, raft.ServerID(h.id)); err != nil {
			t.Fatal(err)
		}
		c.waitVoters(4)
	})
}
