package cluster

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"
)

// errHeld is returned for entries that were held back until they made no sense
// any more.
var errHeld = errors.New("entries for a server that is down were held back")

// appendGate holds back entries for a peer that is down. Raft waits longer and
// longer after each failure, up to 10 s, and would go on waiting when the peer
// has come back; what was held back arrives the moment it has.
type appendGate struct {
	down   func(raft.ServerID) (down bool, changed <-chan struct{}) // changed closes when down may have changed
	hangs  func(raft.ServerID) bool                                 // its disk does: heartbeats arrive, and prove nothing
	leads  func(term uint64) bool
	closed <-chan struct{}
	look   time.Duration // how often to ask leads
}

// failing is a peer whose last entries did not arrive.
type failing struct{ reached chan struct{} } // closed when something did

// AppendEntries sends entries or a heartbeat to a peer. Heartbeats are never
// held back, nor is anything before a first failure: what the gate believes can
// not cut off a follower that Raft still reaches.
func (t *Transport) AppendEntries(id raft.ServerID, target raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	heartbeat := isHeartbeat(req)
	if !heartbeat {
		if err := t.hold(id, req.Term); err != nil {
			return err
		}
	}
	err := t.NetworkTransport.AppendEntries(id, target, req, resp)
	switch {
	case err == nil && heartbeat && t.diskHangs(id):
	case err == nil:
		t.reached(id)
	case !heartbeat:
		t.failed(id)
	}
	return err
}

// isHeartbeat is how raft.NetworkTransport itself tells them apart.
func isHeartbeat(req *raft.AppendEntriesRequest) bool {
	return req.PrevLogEntry == 0 && req.PrevLogTerm == 0 && len(req.Entries) == 0 && req.LeaderCommitIndex == 0
}

func (t *Transport) diskHangs(id raft.ServerID) bool {
	g := t.gate.Load()
	return g != nil && g.hangs(id)
}

func (t *Transport) failed(id raft.ServerID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failures[id] == nil {
		t.failures[id] = &failing{reached: make(chan struct{})}
	}
}

func (t *Transport) reached(id raft.ServerID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.failures[id]; f != nil {
		close(f.reached)
		delete(t.failures, id)
	}
}

// hold waits while the peer is known to be down and this server leads in the term.
func (t *Transport) hold(id raft.ServerID, term uint64) error {
	g := t.gate.Load()
	t.mu.Lock()
	f := t.failures[id]
	t.mu.Unlock()
	if g == nil || f == nil {
		return nil
	}
	for held := false; ; held = true {
		down, changed := g.down(id)
		if !down {
			return nil
		}
		if !g.leads(term) {
			return errHeld
		}
		if !held {
			t.holds.Add(1)
		}
		again := time.NewTimer(g.look)
		select {
		case <-f.reached:
			again.Stop()
			return nil
		case <-changed:
		case <-again.C:
		case <-g.closed:
			again.Stop()
			return errHeld
		case <-t.closed:
			again.Stop()
			return errHeld
		}
		again.Stop()
	}
}
