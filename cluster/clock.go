package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

// clock is the cluster's time: the last committed time plus the monotonic time
// that has passed here since. It never goes back on one server, and no jump of
// a wall clock moves it.
type clock struct {
	store *fsm.Store

	mu   sync.Mutex
	base time.Time // cluster time
	at   time.Time // when it was that; only its monotonic reading counts
}

func newClock(store *fsm.Store) *clock {
	return &clock{store: store, base: store.View().Time(), at: time.Now()}
}

// now also takes over a committed time that is ahead.
func (c *clock) now() time.Time {
	return c.advance(c.store.View().Time())
}

// advance makes the clock at least t and returns its time.
func (c *clock) advance(t time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Now()
	now := c.base.Add(at.Sub(c.at))
	if t.After(now) {
		now = t
	}
	c.base, c.at = now, at
	return now
}

// Now is the cluster time. Before the first command of a new cluster, and
// shortly after the start of a server, it may be far in the past.
func (n *Node) Now() time.Time { return n.clock.now().UTC() }

// keepClock looks at the committed time often enough that the time between two
// commits is counted by this server's own clock.
func (n *Node) keepClock() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			n.clock.now()
			n.live.prune(n.knownNode)
		case <-n.ctx.Done():
			return
		}
	}
}

// startClock catches up with the time that passed while the whole cluster was
// down. One server's wall clock may be wrong by years, so it takes the earliest
// of a majority's. A new cluster has no time at all and waits for it; otherwise
// it must not delay the new leader. It reports whether there is a time.
func (n *Node) startClock(term uint64) bool {
	if !n.store.View().Time().IsZero() {
		n.tasks.run(func() { n.adoptWallClock(term) })
		return true
	}
	return n.adoptWallClock(term)
}

func (n *Node) adoptWallClock(term uint64) bool {
	ctx, cancel := context.WithTimeout(n.ctx, n.timing.Round)
	defer cancel()
	earliest := n.cfg.Wall().Round(0)
	err := n.confirmTerm(ctx, term, func(r *wire.TermReply) {
		if t := time.Unix(0, r.Wall); t.Before(earliest) {
			earliest = t
		}
	})
	if err != nil {
		n.logger.Debug("cluster time", "error", err)
		return false
	}
	n.clock.advance(earliest)
	return true
}
