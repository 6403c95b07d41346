package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

// TestLateSnapshotIsRefused sends a follower a snapshot that was long under
// way: the state does not go back, the log stays, and the call is read to its end.
func TestLateSnapshotIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 5, 3, nil)
		defer c.stop()
		for i := range 20 {
			mustWrite(t, c, c.hosts[0], fmt.Sprint("key-", i))
		}
		c.converge()
		leader := c.leader()
		follower := c.followersOf(leader)[0]
		n, store := follower.current()
		applied, first := n.raft.AppliedIndex(), mustFirst(t, follower)
		hash := store.View().Hash()
		late := bytes.Repeat([]byte("an old state "), 1<<16)
		req := &raft.InstallSnapshotRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(leader.id), Addr: []byte(leader.addr)},
			Term:      n.raft.CurrentTerm(), LastLogIndex: applied - 1, LastLogTerm: 1, SnapshotVersion: raft.SnapshotVersionMax,
			Configuration: raft.EncodeConfiguration(raft.Configuration{}), Size: int64(len(late)),
		}
		body := bytes.NewReader(late)
		err := leader.transport.InstallSnapshot(raft.ServerID(follower.id), raft.ServerAddress(follower.addr), req, &raft.InstallSnapshotResponse{}, body)
		if err == nil || !strings.Contains(err.Error(), errLate.Error()) {
			t.Errorf("a late snapshot: %v", err)
		}
		if body.Len() > 0 {
			t.Errorf("%d bytes of it were not read", body.Len())
		}
		if got := n.raft.AppliedIndex(); got < applied {
			t.Errorf("applied went back from %d to %d", applied, got)
		}
		if got := mustFirst(t, follower); got != first {
			t.Errorf("the log begins at %d, it did at %d", got, first)
		}
		if store.View().Hash() != hash {
			t.Error("the state changed")
		}
		if got := follower.transport.lateInstalls.Load(); got != 1 {
			t.Errorf("%d late snapshots were counted", got)
		}
		mustWrite(t, c, c.hosts[0], "afterwards")
		c.converge()
	})
}

func mustFirst(t *testing.T, h *simHost) uint64 {
	t.Helper()
	first, err := h.log.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	return first
}

// TestSnapshotThatBecomesLateInTheQueue is refused by the look that is taken
// when Raft begins to read it, which can still drain it.
func TestSnapshotThatBecomesLateInTheQueue(t *testing.T) {
	applied := uint64(10)
	read := func() uint64 { return applied }
	var transport Transport
	transport.applied.Store(&read)
	rpc := raft.RPC{Command: &raft.InstallSnapshotRequest{LastLogIndex: 10}, Reader: strings.NewReader("state")}
	if !transport.screen(&rpc) {
		t.Fatal("a snapshot of what is applied was refused")
	}
	applied = 11
	if n, err := rpc.Reader.Read(make([]byte, 8)); n != 0 || !errors.Is(err, errLate) {
		t.Errorf("read %d, %v", n, err)
	}
	if rest, err := io.ReadAll(rpc.Reader); string(rest) != "state" || err != nil {
		t.Errorf("drained %q, %v", rest, err)
	}
	if transport.installs.Load() != 0 || transport.lateInstalls.Load() != 1 {
		t.Errorf("counted %d begun, %d late", transport.installs.Load(), transport.lateInstalls.Load())
	}
}
