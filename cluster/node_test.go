package cluster

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

func TestConfigNamesWhatIsWrong(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Timing.LeaderLease = time.Second
	cfg.Timing.Scale = 0
	err := cfg.Validate()
	if err == nil {
		t.Fatal("an empty configuration is valid")
	}
	for _, want := range []string{"server ID", "address", "data directory", "store", "transport", "link dialer", "handler", "leaderLease", "scale"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in: %v", want, err)
		}
	}
	timing := DefaultTiming()
	timing.Scale = 3
	if scaled := timing.scaled(); scaled.Heartbeat != 1500*time.Millisecond || scaled.Status != 3*time.Second || timing.Heartbeat != 500*time.Millisecond {
		t.Errorf("scaled to %+v", scaled)
	}
}

func TestStorageSaysWhyItCannotBeOpened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // the wait for the lock is simulated
		cfg := Config{ID: "s1-00000001", DataDir: filepath.Join(t.TempDir(), "data"), SnapshotsKept: 2}
		if has, err := HasState(cfg.DataDir); has || err != nil {
			t.Fatal(has, err)
		}
		s, err := openStorage(&cfg, hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		if has, err := HasState(cfg.DataDir); !has || err != nil {
			t.Fatal(has, err)
		}
		if _, err = openStorage(&cfg, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "held by another process") {
			t.Errorf("a locked file: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		other := cfg
		other.ID = "s1-00000002"
		if _, err = openStorage(&other, hclog.NewNullLogger()); !errors.Is(err, ErrForeignData) {
			t.Errorf("another server's directory: %v", err)
		}
		if err := os.WriteFile(filepath.Join(cfg.DataDir, logFile), []byte(strings.Repeat("not a log ", 4096)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err = openStorage(&cfg, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("a damaged file: %v", err)
		}
	})
	for cause, want := range map[error]string{
		syscall.ENOSPC: "no space", syscall.EROFS: "read-only", fs.ErrPermission: "belongs to user", errors.New("odd"): "odd",
	} {
		err := describe("open", "/nonexistent/raft.db", &fs.PathError{Op: "open", Path: "x", Err: cause})
		if !strings.Contains(err.Error(), want) || !errors.Is(err, cause) {
			t.Errorf("%v: %v", cause, err)
		}
	}
}

func TestNewReleasesEverythingWhenItFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network := newSimNet(1)
		cfg := DefaultConfig()
		cfg.Transport = NewTransport(network.RaftLayer("s1:1"), time.Second, nil)
		cfg.LinkListener = network.listen("link", "s1:1")
		if _, err := New(cfg); err == nil {
			t.Fatal("a node without configuration started")
		}
		if _, err := network.dial(t.Context(), "link", "x", "s1:1"); err == nil {
			t.Error("the link listener is still open")
		}
	})
}

func TestProposeChecksTheLeaderAndTerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		c := newSimCluster(t, 1, 3, func(cfg *Config) {
			if cfg.Name == "s1" {
				cfg.Registerer = reg
			}
		})
		leader := c.leader()
		n, store := leader.current()
		term, _ := n.Leadership()
		follower, _ := c.followersOf(leader)[0].current()
		create := func(name string, term uint64) fsm.Command {
			return fsm.Command{Term: term, Ops: []fsm.Op{{Verb: fsm.Create, Key: registerKey(name), UID: "u" + name, Data: []byte("x")}}}
		}
		if _, err := follower.Propose(t.Context(), create("a", term)); !errors.Is(err, ErrNotLeader) {
			t.Errorf("propose at a follower: %v", err)
		}
		if res, err := n.Propose(t.Context(), create("a", term-1)); err != nil || res.Code != fsm.StaleTerm {
			t.Errorf("propose under an old term: %+v, %v", res, err)
		}
		before := n.Now()
		var wg sync.WaitGroup
		for i := range 300 {
			wg.Go(func() {
				if res, err := n.Propose(t.Context(), create(string(rune('a'+i%26))+string(rune('a'+i/26)), term)); err != nil || res.Code != fsm.OK || len(res.Objects) != 1 {
					t.Errorf("%+v, %v", res, err)
				}
			})
		}
		wg.Wait()
		if got := store.View().Count("registers.test", ""); got != 300 {
			t.Errorf("%d objects", got)
		}
		if now := store.View().Time(); now.Before(before) || now.After(n.Now()) {
			t.Errorf("committed at %v, not between %v and %v", now, before, n.Now())
		}
		if families, err := reg.Gather(); err != nil || len(families) < 10 {
			t.Errorf("%d metrics, %v", len(families), err)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := n.Propose(gone, create("zz9", term)); err == nil {
			t.Error("a proposal under an ended context succeeded at once")
		}
		c.stop()
		if families, err := reg.Gather(); err != nil || len(families) != 0 {
			t.Errorf("%d metrics after the end, %v", len(families), err)
		}
		if _, err := n.Propose(context.Background(), create("late", term)); !errors.Is(err, ErrNotLeader) {
			t.Errorf("propose after the end: %v", err)
		}
		if err := n.ReadIndex(context.Background()); !errors.Is(err, ErrStopped) {
			t.Errorf("read after the end: %v", err)
		}
	})
}

func TestMembership(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, 3, nil)
		defer c.stop()
		n := c.waitLeader()
		follower, _ := c.followersOf(c.leader())[0].current()
		if err := follower.AddServer(t.Context(), "s4-00000004", "s4:9876"); !errors.Is(err, ErrNotLeader) {
			t.Errorf("add at a follower: %v", err)
		}
		if err := n.AddServer(t.Context(), "s2-0000000f", "s9:9876"); !errors.Is(err, ErrNameTaken) {
			t.Errorf("a used name: %v", err)
		}
		if err := n.AddServer(t.Context(), "s4-00000004", "s2:9876"); !errors.Is(err, ErrAddressTaken) {
			t.Errorf("a used address: %v", err)
		}
		if err := n.AddServer(t.Context(), c.hosts[1].id, c.hosts[1].addr); err != nil {
			t.Errorf("a member again: %v", err)
		}
		// One that does not run yet stays without a vote.
		if err := n.AddServer(t.Context(), "s4-00000004", "s4:9876"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if m := n.Members()[3]; m.Role != wire.RoleNonvoter || m.Name != "s4" {
			t.Errorf("member: %+v", m)
		}
		if err := n.Transfer(t.Context(), "s4"); !errors.Is(err, ErrNotVoter) {
			t.Errorf("transfer to a non-voter: %v", err)
		}
		h := &simHost{id: "s4-00000004", name: "s4", addr: "s4:9876", log: raft.NewInmemStore(), snapshots: raft.NewInmemSnapshotStore()}
		c.hosts = append(c.hosts, h)
		c.start(h, false)
		c.waitVoters(4)
		c.converge()
		if !n.Approved("s4-00000004") || n.Approved("s9-00000009") {
			t.Error("the wrong servers are approved")
		}
		if removed, err := n.RemoveServer(t.Context(), "s4-00000004"); err != nil || !removed {
			t.Fatal(removed, err)
		}
		c.waitVoters(3)
		if n.Approved("s4-00000004") {
			t.Error("a removed server is approved")
		}
		if removed, err := n.RemoveServer(t.Context(), "s4-00000004"); err != nil || removed {
			t.Errorf("remove again: %v, %v", removed, err)
		}
	})
}

// TestShutdownHandsLeadershipOver: an orderly stop of the leader costs no
// election timeout.
func TestShutdownHandsLeadershipOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, 3, nil)
		defer c.stop()
		old := c.leader()
		n, _ := old.current()
		other, _ := c.followersOf(old)[0].current()
		start := time.Now()
		if err := n.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 400*time.Millisecond {
			t.Errorf("the stop took %v", took)
		}
		if id, _ := other.Leader(); id == "" || id == old.id {
			t.Errorf("the leader is %q", id)
		}
		if err := n.Ready(); !errors.Is(err, ErrStopped) {
			t.Errorf("ready after the stop: %v", err)
		}
		select {
		case <-n.Done():
		default:
			t.Error("it is not done")
		}
	})
}

// TestUnknownEntryStopsTheReplica: going on without it would make replicas
// differ.
func TestUnknownEntryStopsTheReplica(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, 1, nil)
		defer c.stop()
		n, store := c.hosts[0].current()
		if err := n.raft.Apply([]byte{0: 250, 63: 0}, time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-n.Done():
		case <-time.After(time.Minute):
			t.Fatal("the node goes on")
		}
		if store.Err() == nil || !errors.Is(n.Err(), fsm.ErrHalted) || !errors.Is(n.Ready(), fsm.ErrHalted) {
			t.Errorf("store %v, node %v, ready %v", store.Err(), n.Err(), n.Ready())
		}
	})
}

func TestHandlerPanicIsAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, 3, func(cfg *Config) {
			inner := cfg.Handler
			cfg.Handler = func(ctx context.Context, req *wire.Request) *wire.Response {
				switch req.Method {
				case "PANIC":
					panic("as asked")
				case "NIL":
					return nil
				}
				return inner(ctx, req)
			}
		})
		defer c.stop()
		for _, method := range []string{"PANIC", "NIL"} {
			for _, h := range c.hosts {
				if status, body, err := c.write(t.Context(), h, method, "/r", ""); err != nil || status != 500 || !strings.Contains(body, `"kind":"Status"`) {
					t.Errorf("%s at %s: %d %s %v", method, h.name, status, body, err)
				}
			}
		}
	})
}
