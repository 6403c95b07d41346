package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

// nodesResource is the resource whose objects are the nodes that agents run on.
const nodesResource = "nodes"

// forgetAfter is how long a node without an object is remembered.
const forgetAfter = time.Hour

// liveness is what one replica knows about the agents' heartbeats, by its own
// monotonic clock. It is in memory only: a replica that has just started knows
// nothing, and says so by its uptime.
type liveness struct {
	start time.Time

	mu   sync.Mutex
	seen map[string]time.Time
}

func newLiveness() *liveness {
	return &liveness{start: time.Now(), seen: make(map[string]time.Time)}
}

// record notes that the node was alive that long ago. It never moves back.
func (l *liveness) record(node string, age time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := time.Now().Add(-age)
	if old, ok := l.seen[node]; !ok || at.After(old) {
		l.seen[node] = at
	}
}

func (l *liveness) ages() (uptime time.Duration, ages []wire.Age) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for node, at := range l.seen {
		ages = append(ages, wire.Age{Node: node, Age: now.Sub(at)})
	}
	return now.Sub(l.start), ages
}

// prune forgets nodes that are long gone.
func (l *liveness) prune(known func(node string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for node, at := range l.seen {
		if time.Since(at) > forgetAfter && !known(node) {
			delete(l.seen, node)
		}
	}
}

func (n *Node) knownNode(name string) bool {
	return n.store.View().Get(fsm.Key{Resource: nodesResource, Name: name}) != nil
}

// Heartbeat records that a node's agent is alive, here and on the other
// replicas, and returns how many have recorded it once that is a majority of
// the voters: from then on no new leader will think the node dead. It fails
// with ErrNoQuorum, after Timing.Round at the latest.
func (n *Node) Heartbeat(ctx context.Context, node string) (replicas int, err error) {
	if err := n.trust.problem(); err != nil {
		return 0, err
	}
	received := time.Now()
	n.live.record(node, 0)
	servers := n.servers()
	all := voters(servers)
	need, got := majority(len(all)), 0
	if len(n.others(all)) < len(all) {
		got = 1
	}
	if len(all) == 0 {
		return 0, fmt.Errorf("%w: there are no voters", ErrNoQuorum)
	}
	var failed []error
	wait, cancel := context.WithTimeout(ctx, n.timing.Round)
	defer cancel()
	err = gather(wait, &n.tasks, n.others(servers), func(_ context.Context, s raft.Server) (*wire.HeartbeatRecorded, error) {
		// Not given up with the wait: the more replicas know, the better.
		ctx, cancel := context.WithTimeout(n.ctx, n.timing.Round)
		defer cancel()
		record := wire.EncodeHeartbeatRecord(&wire.HeartbeatRecord{From: n.cfg.ID, Ages: []wire.Age{{Node: node, Age: time.Since(received)}}})
		return call(ctx, n, s.Address, wire.LinkHeartbeat, record, wire.DecodeHeartbeatRecorded)
	}, func(s raft.Server, r *wire.HeartbeatRecorded, err error) bool {
		switch {
		case err != nil:
			failed = append(failed, err)
		case r.ID == string(s.ID) && s.Suffrage == raft.Voter:
			got++
		}
		return got >= need
	})
	if got >= need {
		return got, nil
	}
	return got, fmt.Errorf("%w: %d of %d replicas recorded the heartbeat: %w", ErrNoQuorum, got, len(all), errors.Join(append(failed, err)...))
}

// Ages tells how long ago each node's agent was heard, as a majority of the
// voters knows it in the term in which this server leads; otherwise it fails
// with ErrNotLeader or ErrNoQuorum. It holds every node that has an object and
// every other one that was heard of.
//
// An acknowledged heartbeat is known to at least one of any majority, so the
// least of their ages counts. A replica that has not heard of a node since its
// own start says how long ago that was. Both errors, and the time that answers
// travel, make ages too small, never too large.
func (n *Node) Ages(ctx context.Context) (map[string]time.Duration, error) {
	l := n.level.Load()
	if !l.leading {
		return nil, ErrNotLeader
	}
	ctx, cancel := context.WithTimeout(ctx, n.timing.Round)
	defer cancel()
	defer n.cancelOn(l.changed, cancel)()
	all := voters(n.servers())
	need := majority(len(all))
	var replies []*wire.AgesReply
	var failed []error
	later := n.raft.CurrentTerm()
	if len(n.others(all)) < len(all) {
		replies = append(replies, n.agesReply())
	}
	err := gather(ctx, &n.tasks, n.detector.answering(n.others(all), need-len(replies)), func(ctx context.Context, s raft.Server) (*wire.AgesReply, error) {
		return call(ctx, n, s.Address, wire.LinkAges, nil, wire.DecodeAgesReply)
	}, func(s raft.Server, r *wire.AgesReply, err error) bool {
		switch {
		case err != nil:
			failed = append(failed, err)
		case r.ID != string(s.ID):
			failed = append(failed, fmt.Errorf("%s answers at the address of %s", r.ID, s.ID))
		case r.Term > l.term:
			later = r.Term
			return true
		default:
			replies = append(replies, r)
		}
		return false // ask all: the more answer, the smaller the ages
	})
	switch {
	case later > l.term:
		return nil, fmt.Errorf("%w: term %d has begun", ErrNotLeader, later)
	case len(replies) < need:
		return nil, fmt.Errorf("%w: ages from %d of %d voters: %w", ErrNoQuorum, len(replies), len(all), errors.Join(append(failed, err)...))
	}
	return n.mergeAges(replies), nil
}

func (n *Node) mergeAges(replies []*wire.AgesReply) map[string]time.Duration {
	nodes := make(map[string]struct{})
	for _, r := range replies {
		for _, a := range r.Ages {
			nodes[a.Node] = struct{}{}
		}
	}
	for o := range n.store.View().List(nodesResource, "") {
		nodes[o.Key.Name] = struct{}{}
	}
	lowest := make(map[string]time.Duration, len(nodes))
	for _, r := range replies {
		known := make(map[string]time.Duration, len(r.Ages))
		for _, a := range r.Ages {
			known[a.Node] = a.Age
		}
		for node := range nodes {
			age, ok := known[node]
			if !ok {
				age = r.Uptime
			}
			if old, ok := lowest[node]; !ok || age < old {
				lowest[node] = age
			}
		}
	}
	return lowest
}

func (n *Node) agesReply() *wire.AgesReply {
	uptime, ages := n.live.ages()
	return &wire.AgesReply{ID: n.cfg.ID, Term: n.raft.CurrentTerm(), Uptime: uptime, Ages: ages}
}
