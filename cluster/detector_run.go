package cluster

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/raft"
)

// matter is a lost leader under judgement, from the moment this server lost it
// until another one leads, or it is back.
type matter struct {
	lostLeader
	since   time.Time
	agreed  time.Time // when a majority first had lost it, or the last election since has begun
	highest uint64    // the highest term that anybody has reported since
	fired   bool
	last    verdict
}

// run judges whenever something has changed.
func (d *detector) run(elect func(context.Context, raft.ServerID, raft.ServerAddress, func() bool) error) {
	n := d.node
	var led lostLeader // whom this server follows
	var m *matter
	for n.ctx.Err() == nil {
		d.reconcile()
		l := n.level.Load()
		if led.id != string(l.leader) || led.term != l.term || led.incarnation == "" {
			if l.leader != "" {
				led = lostLeader{string(l.leader), l.term, d.incarnationOf(l.leader)}
			}
		}
		m = d.open(m, l, led)
		again := n.timing.Heartbeat
		if m != nil {
			if until := d.consider(m, elect); !until.IsZero() {
				again = min(again, max(time.Until(until), time.Millisecond))
			}
			if time.Since(m.since) < 4*d.forElection() {
				again = min(again, n.timing.Ping) // nothing says that this server's own log has grown
			}
		} else if d.doubts(l.leader) {
			again = min(again, n.timing.Ping) // Raft hears it, and nobody would say when it no longer does
		}
		timer := time.NewTimer(again)
		select {
		case <-d.kick:
		case <-l.changed:
		case <-timer.C:
		case <-n.ctx.Done():
		}
		timer.Stop()
	}
}

// doubts reports whether a peer that was heard does not answer pings now.
func (d *detector) doubts(id raft.ServerID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peers[id]
	return p != nil && (p.state == peerDoubted || p.state == peerSilent)
}

// incarnationOf is the peer's incarnation if it is there, else "".
func (d *detector) incarnationOf(id raft.ServerID) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.peers[id]; p != nil && p.state == peerUp {
		return p.incarnation
	}
	return ""
}

// open returns the matter to be judged now: the one at hand, a new one, or none.
func (d *detector) open(m *matter, l *level, led lostLeader) *matter {
	now := time.Now()
	if m != nil {
		reason := d.loss(m.lostLeader, now)
		switch {
		case l.leader != "" && l.term > m.term:
			d.close(m, "server "+string(l.leader)+" leads")
		case reason == "" && string(l.leader) == m.id && l.term == m.term:
			d.close(m, "it is back")
		case now.Sub(m.since) > 4*d.forElection():
			if l.leader == "" {
				d.close(m, "left to Raft's timers")
				break
			}
			return m // Raft still hears it, or its timers are very long
		default:
			return m
		}
		m = nil
	}
	if l.raft || l.leader == "" || string(l.leader) == d.node.cfg.ID || led.id != string(l.leader) || led.term != l.term {
		return nil
	}
	reason := d.loss(led, now)
	if reason == "" {
		return nil
	}
	m = &matter{lostLeader: led, since: now}
	d.node.metrics.leaderLosses.WithLabelValues(reason).Inc()
	d.logger.Warn("the leader is lost", "leader", led.id, "term", led.term, "reason", reason)
	d.tell("", true)
	return m
}

func (d *detector) close(m *matter, why string) {
	d.logger.Info("the matter of the lost leader is closed", "leader", m.id, "term", m.term, "reason", why,
		"after", time.Since(m.since).Round(time.Millisecond))
	d.tell("", false)
}

// loss says why the leader is lost to this server, "" if it is not.
func (d *detector) loss(l lostLeader, now time.Time) string {
	contact := d.node.raft.LastContact()
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peers[raft.ServerID(l.id)]
	switch {
	case p == nil || p.state == peerUnknown:
		return ""
	case l.incarnation != "" && p.incarnation != l.incarnation:
		return "restarted"
	case p.hears(now, d.node.timing.Silence, true, contact):
		return ""
	case p.state == peerDead:
		return "dead"
	default:
		return "silent"
	}
}

// tell sets what this server's reports say, and sends them at once.
func (d *detector) tell(elect string, losing bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.elect, d.losing = elect, losing
	d.tellAllLocked()
}

// consider judges the matter, does what the verdict says and returns when to
// judge again, if nothing else happens.
func (d *detector) consider(m *matter, elect func(context.Context, raft.ServerID, raft.ServerAddress, func() bool) error) (again time.Time) {
	s := d.scene(m)
	d.restartClock(m, s)
	v := judge(s)
	if v.agreed && m.agreed.IsZero() {
		m.agreed = s.now
	}
	if v.decision != m.last.decision || v.reason != m.last.reason || v.elect != m.last.elect {
		d.node.metrics.decisions.WithLabelValues(string(v.decision)).Inc()
		d.logger.Info("decision about the lost leader", "leader", m.id, "term", m.term, "decision", string(v.decision),
			"reason", v.reason, "elect", v.elect, "after", s.now.Sub(m.since).Round(100*time.Microsecond))
		if v.decision == decideName {
			d.tell(v.elect, true)
		}
	}
	m.last = v
	if v.decision != decideStand {
		return v.until
	}
	n := d.node
	d.tell(n.cfg.ID, true) // before Raft has written its new term: or another one may begin meanwhile
	ctx, cancel := context.WithTimeout(n.ctx, d.forElection())
	defer cancel()
	err := elect(ctx, raft.ServerID(n.cfg.ID), raft.ServerAddress(n.cfg.Address), func() bool {
		_, leader := n.raft.LeaderWithID()
		return n.raft.State() == raft.Follower && n.raft.CurrentTerm() == s.term && n.isVoter() &&
			(leader == "" || string(leader) == m.id)
	})
	m.fired = !errors.Is(err, errNotNow) // else Raft may have taken it
	d.tell("", true)                     // by now its state says the rest
	if err != nil {
		d.node.metrics.decisions.WithLabelValues("failed").Inc()
		d.logger.Warn("cannot stand for election", "term", s.term, "error", err)
		return time.Now().Add(n.timing.Ping)
	}
	return time.Time{}
}

// restartClock gives an election that has just begun its time, and everybody
// if this process stood still.
func (d *detector) restartClock(m *matter, s *scene) {
	highest := s.term
	for _, t := range s.others {
		highest = max(highest, t.term)
	}
	d.mu.Lock()
	stall := d.stall
	d.mu.Unlock()
	if m.agreed.IsZero() {
		m.highest = highest
		return
	}
	if highest > m.highest {
		m.highest, m.agreed = highest, s.now
	}
	if stall.After(m.agreed) {
		m.agreed = stall
	}
	s.agreed = m.agreed
}

// forElection is how long to wait for one that has begun.
func (d *detector) forElection() time.Duration {
	return d.node.disk.pace.stretch(d.node.timing.Patience)
}

// scene collects what a verdict depends on.
func (d *detector) scene(m *matter) *scene {
	n := d.node
	s := &scene{
		leader: m.lostLeader, self: n.cfg.ID, term: n.raft.CurrentTerm(), state: n.raft.State(), fired: m.fired,
		others: make(map[string]testimony), now: time.Now(), agreed: m.agreed, standby: n.timing.Standby, patience: d.forElection(),
		behind: !n.caughtUp.Load(),
	}
	s.log.term, s.log.index = n.lastEntry()
	for _, v := range voters(n.servers()) {
		s.voters = append(s.voters, string(v.ID))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, p := range d.peers {
		// A veto counts as long as its sender would not be silent, a loss for
		// half of that. What a dead server said last does not count.
		age := s.now.Sub(p.reported)
		if p.report == nil || age >= n.timing.Silence || p.state == peerDead {
			continue
		}
		t := testify(p.report, m.lostLeader)
		t.lost = t.lost && age < n.timing.Silence/2
		s.others[string(id)] = t
	}
	return s
}

func (n *Node) isVoter() bool {
	return slices.ContainsFunc(n.servers(), func(s raft.Server) bool {
		return string(s.ID) == n.cfg.ID && s.Suffrage == raft.Voter
	})
}

// lastEntry is the end of the log, or of the snapshot if that is newer. Raft
// tells it only in words.
func (n *Node) lastEntry() (term, index uint64) {
	stats := n.raft.Stats()
	number := func(key string) uint64 {
		v, err := strconv.ParseUint(stats[key], 10, 64)
		if err != nil {
			n.logger.Error("raft's statistics cannot be read", "key", key, "error", err)
		}
		return v
	}
	term, index = number("last_log_term"), number("last_log_index")
	if snapshot := number("last_snapshot_index"); snapshot > index {
		term, index = number("last_snapshot_term"), snapshot
	}
	return term, index
}

func sortedPeers(peers map[raft.ServerID]*peer) []*peer {
	return slices.SortedFunc(maps.Values(peers), func(a, b *peer) int { return cmp.Compare(a.id, b.id) })
}

// startDetector watches the other servers, and elects if the transport can.
func (n *Node) startDetector() {
	if !n.cfg.FailureDetector {
		return
	}
	t, ok := n.cfg.Transport.(*Transport)
	if !ok {
		n.logger.Warn("no failure detector: the transport cannot call elections")
		return
	}
	t.gate.Store(&appendGate{
		down:   n.detector.down,
		hangs:  n.detector.diskHangs,
		leads:  func(term uint64) bool { return n.raft.State() == raft.Leader && n.raft.CurrentTerm() == term },
		closed: n.ctx.Done(),
		look:   n.timing.Heartbeat,
	})
	n.tasks.run(func() { n.detector.run(t.Elect) })
	n.tasks.run(n.detector.watchDisk)
}
