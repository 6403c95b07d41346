package cluster

import (
	"time"

	"github.com/hashicorp/raft"
)

// level is who leads, as this server knows it. It is immutable; changed is
// closed when another level has taken its place.
type level struct {
	term    uint64
	raft    bool // Raft's leader is this server, its state perhaps incomplete
	leading bool // and everything of earlier terms has been applied
	leader  raft.ServerID
	address raft.ServerAddress
	changed chan struct{}
}

func (l *level) same(o *level) bool {
	return l.term == o.term && l.raft == o.raft && l.leading == o.leading && l.leader == o.leader && l.address == o.address
}

// Leadership reports the current term and whether this server leads in it with
// its state complete: all entries of earlier terms are applied. It is a hint
// until something is committed or confirmed in that term; every command
// carries the term it was planned in for that reason.
func (n *Node) Leadership() (term uint64, leading bool) {
	l := n.level.Load()
	return l.term, l.leading
}

// LeadershipChanged returns a channel that is closed when Leadership, or who
// leads, may have changed. Take it before reading the level, so that no change
// is missed; several changes may show as one.
func (n *Node) LeadershipChanged() <-chan struct{} { return n.level.Load().changed }

// Leader returns the ID and address of the leader that this server follows,
// empty if it knows none.
func (n *Node) Leader() (id, address string) {
	l := n.level.Load()
	return string(l.leader), string(l.address)
}

// watchLeadership keeps the level. Raft's notifications drop events, so each is
// only a kick to read Raft's state again; that is always set before the event.
func (n *Node) watchLeadership() {
	kicks := make(chan raft.Observation, 1)
	observer := raft.NewObserver(kicks, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.LeaderObservation, raft.RaftState:
			return true
		}
		return false
	})
	n.raft.RegisterObserver(observer)
	defer n.raft.DeregisterObserver(observer)

	ready := make(chan uint64, 1) // the term whose barrier was applied
	asking := uint64(0)           // the term a barrier runs for, 0 for none
	tick := time.NewTicker(n.timing.Heartbeat)
	defer tick.Stop()
	completed := uint64(0)
	for {
		l := n.observe(completed)
		if l.raft && !l.leading && asking == 0 {
			asking = l.term
			term := l.term
			if !n.tasks.run(func() { ready <- n.barrier(term) }) {
				asking = 0
			}
		}
		select {
		case <-kicks:
		case <-tick.C:
		case <-n.trust.lost:
		case completed = <-ready:
			asking = 0
		case <-n.ctx.Done():
			// A barrier that still runs has room in the channel.
			n.publish(&level{term: l.term})
			return
		}
	}
}

// observe reads Raft's state, publishes it as the level and returns it.
// completed is the last term whose barrier was applied.
func (n *Node) observe(completed uint64) *level {
	for {
		term := n.raft.CurrentTerm()
		address, id := n.raft.LeaderWithID()
		leads := n.raft.State() == raft.Leader
		if n.raft.CurrentTerm() != term {
			continue // read in the middle of an election
		}
		l := &level{term: term, raft: leads, leading: leads && completed == term && n.trust.problem() == nil, leader: id, address: address}
		if leads {
			l.leader, l.address = raft.ServerID(n.cfg.ID), raft.ServerAddress(n.cfg.Address)
		} else if id == raft.ServerID(n.cfg.ID) {
			l.leader, l.address = "", "" // about to step down, or up
		}
		n.publish(l)
		return l
	}
}

// publish is called by watchLeadership alone.
func (n *Node) publish(l *level) {
	old := n.level.Load()
	if old.same(l) {
		return
	}
	l.changed = make(chan struct{})
	n.level.Store(l)
	close(old.changed)
	if old.leader != l.leader {
		n.metrics.leaderChanges.Inc()
		n.logger.Info("leader changed", "leader", string(l.leader), "term", l.term)
	}
	if old.leading != l.leading || l.leading && old.term != l.term {
		n.logger.Info("leadership", "leading", l.leading, "term", l.term)
	}
	if l.leading {
		n.kickPromotion()
	}
}

// barrier waits until everything of earlier terms is applied here, and returns
// the term if this server still leads in it, else 0.
func (n *Node) barrier(term uint64) uint64 {
	if err := n.raft.Barrier(n.timing.Transport).Error(); err != nil {
		n.logger.Debug("barrier", "term", term, "error", err)
		// Raft may fail it while a hand-over is tried; do not ask in a loop.
		n.pause(nil, n.timing.Commit)
		return 0
	}
	// Terms only grow: with the term unchanged now, the barrier was of this one.
	if n.raft.CurrentTerm() != term || n.raft.State() != raft.Leader {
		return 0
	}
	if !n.startClock(term) {
		return 0
	}
	return term
}
