package cluster

import (
	"context"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
)

// ReadIndex returns once the local store holds everything that was
// acknowledged anywhere before the call, and everything that any read after a
// ReadIndex has returned before the call: reading the store then is
// linearizable. It works on every replica, asks again after a change of
// leader, and is bounded by Timing.Read. A replica whose disk cannot be written
// gives up sooner, with ErrNotReady if others have gone on, and every one does,
// with ErrNoLeader, where no majority can write.
//
// Raft's VerifyLeader would not do: it counts answers to messages that were
// sent before the read began, and with forced elections another leader may
// have written in between.
func (n *Node) ReadIndex(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.timing.Read)
	defer cancel()
	var last error
	for {
		if err := n.trust.problem(); err != nil {
			return err
		}
		changed := n.level.Load().changed
		index, err := n.reads.join(ctx)
		if err == nil {
			return n.waitApplied(ctx, index)
		}
		if ctx.Err() == nil {
			last = err
			n.pause(changed, n.timing.Commit)
			if disk := n.unwritable(); disk != nil {
				return fmt.Errorf("%w: %w", ErrNoLeader, disk)
			}
		}
		switch {
		case n.ctx.Err() != nil:
			return ErrStopped
		case ctx.Err() != nil && last != nil:
			return fmt.Errorf("read index: %w: %w", ctx.Err(), last)
		case ctx.Err() != nil:
			return fmt.Errorf("read index: %w", ctx.Err())
		}
	}
}

// waitApplied waits for an entry, unless this server cannot write it down: it
// cannot have it before somebody frees space.
func (n *Node) waitApplied(ctx context.Context, index uint64) error {
	for {
		step, cancel := context.WithTimeout(ctx, n.timing.Round)
		err := n.store.WaitApplied(step, index)
		late := err != nil && step.Err() != nil && ctx.Err() == nil
		cancel()
		if disk := n.disk.problem(); late && disk != nil {
			return fmt.Errorf("%w: %w; it has applied %d entries of %d: ask another server", ErrNotReady, disk, n.store.Applied(), index)
		}
		if err != nil && !late {
			return fmt.Errorf("wait for index %d: %w", index, err)
		}
		if err == nil {
			return nil
		}
	}
}

// readRound is one round for this replica's reads: here if it leads, else one
// question to the leader. It is given up as soon as the leader changes.
func (n *Node) readRound() (uint64, error) {
	l := n.destination()
	ctx, cancel := context.WithTimeout(n.ctx, 2*n.timing.Round)
	defer cancel()
	defer n.cancelOn(l.changed, cancel)()
	switch {
	case l.leading:
		return n.confirms.join(ctx)
	case l.leader == "" || l.raft:
		return 0, ErrNoLeader
	}
	reply, err := call(ctx, n, l.address, wire.LinkReadIndex, nil, wire.DecodeReadIndexReply)
	if err != nil {
		return 0, err
	}
	if reply.NotLeader {
		return 0, ErrNotLeader
	}
	return reply.Index, nil
}

// leaderRound is one round on the leader: the commit index, then the proof that
// no later leader existed when it was taken.
func (n *Node) leaderRound() (uint64, error) {
	l := n.level.Load()
	if !l.leading {
		return 0, ErrNotLeader
	}
	ctx, cancel := context.WithTimeout(n.ctx, n.timing.Round)
	defer cancel()
	defer n.cancelOn(l.changed, cancel)()
	commit := n.raft.CommitIndex()
	if err := n.confirmTerm(ctx, l.term, nil); err != nil {
		return 0, err
	}
	return n.visibleIndex(commit)
}

// visibleIndex is the last index up to the given one that a store can be seen
// to have applied: Raft does not show it no-ops and barriers. Nearly always the
// first step finds it.
func (n *Node) visibleIndex(index uint64) (uint64, error) {
	applied := n.store.Applied()
	if index <= applied {
		return index, nil
	}
	for ; index > applied; index-- {
		var entry raft.Log
		if err := n.files.log.GetLog(index, &entry); err != nil {
			return 0, fmt.Errorf("read entry %d: %w", index, err)
		}
		if entry.Type == raft.LogCommand || entry.Type == raft.LogConfiguration {
			return index, nil
		}
	}
	return applied, nil
}

// cancelOn calls cancel when the channel is closed, until the returned function
// has been called.
func (n *Node) cancelOn(c <-chan struct{}, cancel context.CancelFunc) (release func()) {
	stop := make(chan struct{})
	go func() {
		select {
		case <-c:
			cancel()
		case <-stop:
		}
	}()
	return func() { close(stop) }
}
