package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// maxBehind is how many entries a non-voter may lack when it is made a voter:
// what it can catch up with between two heartbeats.
const maxBehind = 512

func (n *Node) kickPromotion() {
	select {
	case n.promotion <- struct{}{}:
	default: // one kick waits already
	}
}

// promoteLoop gives the vote to non-voters that have caught up, while this
// server leads. It looks often while there are any, and otherwise when kicked.
func (n *Node) promoteLoop() {
	for {
		wait := time.Hour
		if _, leading := n.Leadership(); leading && n.promoteOne() {
			wait = n.timing.Promote
		}
		n.pause(n.promotion, wait)
		if n.ctx.Err() != nil {
			return
		}
	}
}

// promoteOne promotes at most one server, as each promotion must be committed
// before the next. It reports whether there may be more to do.
func (n *Node) promoteOne() (more bool) {
	for _, s := range n.servers() {
		if s.Suffrage == raft.Voter || isRetired(n.store.View(), string(s.ID)) {
			continue
		}
		more = true
		if n.caughtUpWith(n.ctx, s) != nil {
			continue
		}
		if _, err := n.promote(n.ctx, string(s.ID)); err != nil {
			n.logger.Warn("cannot promote server", "server", string(s.ID), "error", err)
		}
		return true
	}
	return more
}

// PromoteServer gives the server with this name or ID a vote at once, if it has
// caught up; the leader does so by itself otherwise. Only on the leader
// (ErrNotLeader). It reports false, and no error, for a voter. ErrNotCaughtUp
// says what the server lacks, ErrUnknownServer that it is not a member.
func (n *Node) PromoteServer(ctx context.Context, name string) (promoted bool, err error) {
	n.kickPromotion()
	return n.promote(ctx, name)
}

func (n *Node) promote(ctx context.Context, name string) (promoted bool, err error) {
	if err := n.lockMembers(ctx); err != nil {
		return false, err
	}
	defer n.unlockMembers()
	if _, leading := n.Leadership(); !leading {
		return false, fmt.Errorf("promote server %s: %w", name, ErrNotLeader)
	}
	c, err := n.configuration()
	if err != nil {
		return false, fmt.Errorf("promote server %s: %w", name, err)
	}
	s, ok := memberOf(c.servers, name)
	switch {
	case !ok:
		return false, fmt.Errorf("promote: %w: %s", ErrUnknownServer, name)
	case s.Suffrage == raft.Voter:
		return false, nil
	case isRetired(n.store.View(), string(s.ID)):
		return false, fmt.Errorf("promote: %w", removedError(string(s.ID)))
	}
	if err := n.caughtUpWith(ctx, s); err != nil {
		return false, fmt.Errorf("promote server %s: %w: %w; it becomes a voter by itself once it has", name, ErrNotCaughtUp, err)
	}
	err = n.change(ctx, func(timeout time.Duration) raft.IndexFuture {
		return n.raft.AddVoter(s.ID, s.Address, c.index, timeout)
	})
	if err != nil {
		return false, fmt.Errorf("promote server %s: %w", name, err)
	}
	n.logger.Info("server promoted to voter", "server", string(s.ID))
	return true, nil
}

// caughtUpWith says what the server lacks for a vote, nil if nothing.
func (n *Node) caughtUpWith(ctx context.Context, s raft.Server) error {
	ctx, cancel := context.WithTimeout(ctx, n.timing.Round)
	defer cancel()
	last := n.raft.LastIndex()
	st, err := n.askStatus(ctx, s)
	if err != nil {
		return fmt.Errorf("it does not answer: %w", err)
	}
	return n.lacks(s, st, last)
}
