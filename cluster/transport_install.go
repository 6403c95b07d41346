package cluster

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"
)

// errLate is the answer to a snapshot that this server is already past.
var errLate = errors.New("the snapshot is late: this server has applied more than it holds")

// late returns an error if a leader's snapshot ends before what this server has
// applied, as one that was long under way does. Raft would install it: the state
// would go back, and entries that were acknowledged would leave the log.
func (t *Transport) late(req *raft.InstallSnapshotRequest) error {
	f := t.applied.Load()
	if f == nil {
		return nil
	}
	if applied := (*f)(); req.LastLogIndex < applied {
		return fmt.Errorf("%w: it ends at entry %d, and entry %d is applied", errLate, req.LastLogIndex, applied)
	}
	return nil
}

// screen refuses a late snapshot, and reports whether Raft should see the call.
// An accepted one is looked at again when Raft begins to read it, for entries
// may have been applied while it waited for its turn.
func (t *Transport) screen(rpc *raft.RPC) bool {
	req, ok := rpc.Command.(*raft.InstallSnapshotRequest)
	if !ok {
		return true
	}
	err := t.late(req)
	if err == nil {
		rpc.Reader = &screenedReader{Reader: rpc.Reader, late: func() error { return t.late(req) }, count: t.countInstall}
		return true
	}
	t.countInstall(err)
	refused := *rpc
	t.wg.Go(func() { // a transfer may be slow, and other calls must not wait for it
		// What is left on the connection would be taken for the next call
		// (https://github.com/hashicorp/raft/issues/212).
		_, cut := io.Copy(io.Discard, refused.Reader)
		refused.Respond(&raft.InstallSnapshotResponse{RPCHeader: req.RPCHeader, Term: req.Term}, errors.Join(err, cut))
	})
	return false
}

func (t *Transport) countInstall(err error) {
	if err != nil {
		t.lateInstalls.Add(1)
		return
	}
	t.installs.Add(1)
}

// screenedReader is a snapshot on its way to Raft, which reads it on the
// goroutine that also moves on what is applied: between the look at that and
// the installation nothing changes. After the error Raft reads on, to drain it.
type screenedReader struct {
	io.Reader
	late  func() error
	count func(error)
	begun bool
}

// Read reads, unless this is the first time and the snapshot is late.
func (r *screenedReader) Read(p []byte) (int, error) {
	if !r.begun {
		r.begun = true
		err := r.late()
		r.count(err)
		if err != nil {
			return 0, err
		}
	}
	return r.Reader.Read(p)
}
