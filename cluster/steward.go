package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
)

// minVoters is how many voters are left by removals that nobody asked for.
const minVoters = 3

// absences is since when each other member has not answered this server, by its
// own clock and since its own start: a new leader knows it already, and a server
// that has just started thinks of nobody as gone.
type absences struct {
	since map[raft.ServerID]time.Time
	last  time.Time // when it was last looked
}

// tendMembers looks after members that are gone, while this server leads: it
// finishes removals that failed half-way, lets go of joiners that never finished
// and of servers that have been dead for long. Removing a dead voter never
// brings the cluster nearer to losing its quorum: of n voters, n/2 rounded down
// may fail, and one that is dead has done so already.
func (n *Node) tendMembers() {
	every := 10 * time.Second
	for _, grace := range []time.Duration{n.cfg.DeadJoinerGrace, n.cfg.DeadServerGrace} {
		if grace > 0 {
			every = min(every, grace/4)
		}
	}
	a := &absences{since: make(map[raft.ServerID]time.Time), last: time.Now()}
	for n.ctx.Err() == nil {
		n.pause(nil, every)
		if time.Since(a.last) > 2*every+n.timing.Round {
			clear(a.since) // this process stood still
		}
		a.last = time.Now()
		n.lookForAbsent(a)
		if _, leading := n.Leadership(); leading {
			n.removeOneAbsent(a)
		}
	}
}

// lookForAbsent asks all other members whether they are there.
func (n *Node) lookForAbsent(a *absences) {
	ctx, cancel := context.WithTimeout(n.ctx, n.timing.Round)
	defer cancel()
	others := n.others(n.servers())
	missing := make(map[raft.ServerID]bool, len(others))
	for _, s := range others {
		missing[s.ID] = true
	}
	err := gather(ctx, &n.tasks, others, n.askStatus, func(s raft.Server, st *wire.ServerStatus, err error) bool {
		missing[s.ID] = err != nil || st.ID != string(s.ID)
		return false
	})
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return // this server is stopping
	}
	for id := range a.since {
		if !missing[id] {
			delete(a.since, id)
		}
	}
	for id, gone := range missing {
		if _, known := a.since[id]; gone && !known {
			a.since[id] = a.last
		}
	}
}

// removeOneAbsent removes at most one server, as each removal must be judged on
// what the one before has left.
func (n *Node) removeOneAbsent(a *absences) {
	servers := n.servers()
	for _, s := range servers {
		since, absent := a.since[s.ID]
		grace, why := n.cfg.DeadServerGrace, "it has been dead for longer than --dead-server-grace"
		if s.Suffrage != raft.Voter {
			grace, why = n.cfg.DeadJoinerGrace, "it never finished joining, and has been dead for longer than --dead-joiner-grace"
		}
		begun := isRetired(n.store.View(), string(s.ID))
		switch {
		case begun && string(s.ID) == n.cfg.ID:
			if err := n.Transfer(n.ctx, ""); err != nil {
				n.logger.Warn("cannot hand over leadership in order to be removed", "error", err)
			}
			return
		case begun:
			why = "its removal was begun"
		case !absent || grace <= 0 || time.Since(since) < grace || n.detector.heardByAnyone(s.ID):
			continue
		case s.Suffrage == raft.Voter && len(voters(servers)) <= minVoters:
			continue
		}
		if _, err := n.RemoveServer(n.ctx, string(s.ID)); err != nil {
			n.logger.Warn("cannot remove a server", "server", string(s.ID), "reason", why, "error", err)
			continue
		}
		n.logger.Warn("a server was removed by itself", "server", string(s.ID), "address", string(s.Address), "reason", why)
		return
	}
}

// heardByAnyone reports whether this server or a peer hears the server now.
func (d *detector) heardByAnyone(id raft.ServerID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.peers[id]; p != nil && p.state == peerUp {
		return true
	}
	for _, p := range d.peers {
		if p.report == nil || time.Since(p.reported) > d.node.timing.Silence {
			continue
		}
		for _, view := range p.report.Peers {
			if view.ID == string(id) && view.Heard {
				return true
			}
		}
	}
	return false
}
