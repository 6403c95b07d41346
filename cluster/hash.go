package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

// Replicas that have applied the same entry have the same state; one whose disk
// or memory lied to it has another, and nothing in Raft notices. So each server
// asks the others now and then for the digest of their state at the index that
// it has reached itself, and judges itself:
//
//	a majority of the voters agrees on another digest, or somebody has a later
//	restore epoch at that index: this server stops serving, for good;
//	the digests differ and no majority agrees: all who see that say so.
//
// A server that differs stays a voter that follows, for its log is still that of
// the others, but it does not lead, read, write or acknowledge heartbeats. That
// is kept in its data directory: a restart makes no state right.

// keyDiffers is where a server keeps why it must not serve any more.
var keyDiffers = []byte("ShepherdDiffers")

// trust is whether a server may rely on its own state. Safe for concurrent use.
type trust struct {
	lost chan struct{} // kicks watchLeadership when wrong is set

	mu    sync.Mutex
	wrong error // why it must not
	doubt error // what was found that does not say who is wrong
}

// problem is why this server must not serve, or nil.
func (t *trust) problem() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.wrong
}

func (t *trust) doubted() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.doubt
}

// finding is what a comparison gave.
type finding string

const (
	findEqual      finding = "equal"
	findOther      finding = "other"
	findUndecided  finding = "undecided"
	findDiffers    finding = "differs"
	findUnanswered finding = "unanswered"
)

// judgeDigests compares a server's digest with those that others have at the
// same index. against are the names of those that it differs from.
func judgeDigests(self string, mine fsm.Digest, others map[string]fsm.Digest, voters []string) (found finding, against []string) {
	count := make(map[fsm.Digest]int) // voters
	if slices.Contains(voters, self) {
		count[mine] = 1
	}
	later := false
	for id, d := range others {
		later = later || d.Epoch > mine.Epoch
		if slices.Contains(voters, id) {
			count[d]++
		}
		if d != mine {
			against = append(against, ServerName(id))
		}
	}
	slices.Sort(against)
	need := majority(len(voters))
	switch {
	case len(others) == 0:
		return findUnanswered, nil
	case len(against) == 0:
		return findEqual, nil
	case later:
		return findDiffers, against
	case count[mine] >= need:
		return findOther, against
	}
	for d, n := range count {
		if d != mine && d.Epoch == mine.Epoch && n >= need {
			return findDiffers, against
		}
	}
	return findUndecided, against
}

// keepComparing compares until the node stops, or has found itself wrong.
func (n *Node) keepComparing() {
	tick := time.NewTicker(n.timing.Compare)
	defer tick.Stop()
	for n.trust.problem() == nil {
		select {
		case <-tick.C:
			n.compare()
		case <-n.ctx.Done():
			return
		}
	}
	n.resign()
}

// resign gives leadership away for as long as this server has it.
func (n *Node) resign() {
	for n.ctx.Err() == nil {
		changed := n.level.Load().changed
		if n.raft.State() == raft.Leader {
			ctx, cancel := context.WithTimeout(n.ctx, 4*n.disk.pace.stretch(n.timing.Election))
			if err := n.transferHere(ctx, ""); err != nil {
				n.logger.Error("leadership of a server with a wrong state was not handed over; it is tried again", "error", err)
			}
			cancel()
		}
		n.pause(changed, n.timing.Round)
	}
}

// compare asks all other servers once.
func (n *Node) compare() {
	mine := n.store.Digest()
	servers := n.servers()
	if mine.Index == 0 || len(n.others(servers)) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(n.ctx, n.timing.Round)
	defer cancel()
	query := wire.EncodeDigestQuery(&wire.DigestQuery{Index: mine.Index})
	answers := make(map[string]fsm.Digest)
	err := gather(ctx, &n.tasks, n.others(servers), func(ctx context.Context, s raft.Server) (*wire.DigestReply, error) {
		return call(ctx, n, s.Address, wire.LinkDigest, query, wire.DecodeDigestReply)
	}, func(s raft.Server, r *wire.DigestReply, err error) bool {
		if err == nil && r.ID == string(s.ID) && r.Version == fsm.DigestVersion && len(r.Sum) == len(mine.Sum) {
			answers[r.ID] = fsm.Digest{Index: mine.Index, Epoch: r.Epoch, Sum: [16]byte(r.Sum)}
		}
		return false
	})
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return // the node stops
	}
	var ids []string
	for _, s := range voters(servers) {
		ids = append(ids, string(s.ID))
	}
	found, against := judgeDigests(n.cfg.ID, mine, answers, ids)
	n.metrics.comparisons.WithLabelValues(string(found)).Inc()
	n.conclude(found, mine, strings.Join(against, ", "))
}

// conclude acts on a comparison.
func (n *Node) conclude(found finding, mine fsm.Digest, against string) {
	switch found {
	case findDiffers:
		err := fmt.Errorf("%w: %s at index %d; stop it, move its data directory away and join it again as a new server", ErrDiffers, against, mine.Index)
		if storeErr := n.files.stable.Set(keyDiffers, []byte(err.Error())); storeErr != nil {
			n.logger.Error("that this server's state is wrong could not be written down; do not restart it", "error", storeErr)
		}
		n.lose(err)
	case findOther:
		n.logger.Warn("another server's state differs from that of the majority; see its log", "servers", against, "index", mine.Index)
	case findUndecided:
		n.doubt(fmt.Errorf("the state of this server differs from that of %s at index %d, and no majority of the voters says which is right; make a backup of each, and see which servers' disks or memory are damaged", against, mine.Index))
	case findEqual:
		n.doubt(nil)
	}
}

// doubt keeps in mind that somebody differs, or that nobody does any more.
func (n *Node) doubt(err error) {
	n.trust.mu.Lock()
	defer n.trust.mu.Unlock()
	if err != nil && n.trust.doubt == nil {
		n.logger.Error("states differ", "error", err)
	}
	n.trust.doubt = err
}

// lose ends this server's service.
func (n *Node) lose(err error) {
	n.logger.Error("this server stops serving", "reason", err)
	n.trust.mu.Lock()
	n.trust.wrong = err
	n.trust.mu.Unlock()
	n.store.Distrust(err)
	select {
	case n.trust.lost <- struct{}{}:
	default: // somebody looks at it already
	}
}

// resumeDistrust keeps a server from serving that did not before its restart.
func (n *Node) resumeDistrust() error {
	why, err := differsAs(n.files.stable)
	if err == nil && why != "" {
		n.lose(fmt.Errorf("%w, and did before its restart: %s", ErrDiffers, why))
	}
	return err
}

// differsAs is what was found when a server's state was judged to be wrong, or
// "" if it never was.
func differsAs(stable raft.StableStore) (string, error) {
	why, err := stable.Get(keyDiffers)
	if err != nil && err.Error() != "not found" {
		return "", fmt.Errorf("read whether this server's state is right: %w", err)
	}
	return strings.TrimPrefix(string(why), ErrDiffers.Error()+": "), nil
}

// linkDigest answers once this server has applied the entry that is asked about,
// or says that it does not know it.
func (n *Node) linkDigest(w http.ResponseWriter, r *http.Request) {
	q, ok := readLink(w, r, wire.MaxSmall, wire.DecodeDigestQuery)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), linkBudget(r, n.timing.Round)/2)
	defer cancel()
	reply := &wire.DigestReply{ID: n.cfg.ID}
	if err := n.store.WaitApplied(ctx, q.Index); err == nil {
		if d, ok := n.store.DigestAt(q.Index); ok {
			reply.Version, reply.Epoch, reply.Sum = fsm.DigestVersion, d.Epoch, d.Sum[:]
		}
	}
	n.writeLink(w, wire.EncodeDigestReply(reply))
}
