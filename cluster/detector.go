package cluster

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
)

// The failure detector makes elections begin when the leader is known to be
// lost, instead of when a timer ends. Raft's safety does not depend on when
// that is: terms, votes and the comparison of logs are untouched. A wrong
// election costs writes most of a second, so the detector has to be sure:
//
//   - A peer is dead if its connection was lost and a new one is refused, or it
//     answers as another incarnation, and silent if it has answered no ping for
//     Timing.Silence. Connections go to the server's own address: the refusal of
//     a proxy in between would look like death.
//   - Nobody is told to stand for election unless a majority of the voters, this
//     server included, reports the leader lost, and nobody that is there still
//     hears it.
//   - The voter with the lowest ID among those decides: it stands itself if its
//     log is as new as any other, else it names the one with the newest log.
//     The others wait in the order of their logs, in case nothing comes of it.
//
// Each server asks each other one over a connection of its own, so that no
// large message stands before a ping. Questions and answers are the same
// wire.WatchReport; whoever notices a loss sends one at once.

// peerState is what the detector knows about a peer.
type peerState int

const (
	peerUnknown peerState = iota // never heard
	peerUp
	peerDoubted // the connection was lost, nothing else is known
	peerDead    // and a new one is refused
	peerSilent  // no answer for Timing.Silence
)

func (s peerState) String() string {
	return [...]string{"unknown", "up", "doubted", "dead", "silent"}[s]
}

// detector watches all the other servers of the configuration.
type detector struct {
	node        *Node
	logger      hclog.Logger
	incarnation string
	kick        chan struct{} // the judge should look again

	mu     sync.Mutex
	peers  map[raft.ServerID]*peer
	sent   uint64        // reports
	stall  time.Time     // when this process last began to run again
	elect  string        // the server that this one wants to lead, "" for none
	losing bool          // this server has lost its leader
	hangs  bool          // this server's disk does
	tried  time.Time     // when a write to it last succeeded that was made as a trial
	trying bool          // such a write is under way
	mute   bool          // for good: this server has given up
	change chan struct{} // closed at the next change of a peer's state
}

// peer is one other server, under detector.mu but for what never changes.
type peer struct {
	id      raft.ServerID
	address raft.ServerAddress
	cancel  context.CancelFunc
	ping    chan struct{} // a ping should be sent at once

	state       peerState
	refused     bool      // by the last dial
	heard       time.Time // the last answer, or when this process last stood still
	incarnation string    // of the last answer

	report   *wire.WatchReport // the last one from it, in either direction
	reported time.Time
}

func newDetector(n *Node) *detector {
	return &detector{
		node: n, logger: n.logger.Named("detector"), incarnation: rand.Text(),
		kick: make(chan struct{}, 1), peers: make(map[raft.ServerID]*peer), change: make(chan struct{}),
	}
}

// look makes the judge look again.
func (d *detector) look() {
	select {
	case d.kick <- struct{}{}:
	default: // it will
	}
}

// reconcile watches the servers of the configuration and no others.
func (d *detector) reconcile() {
	servers := d.node.others(d.node.servers())
	d.mu.Lock()
	defer d.mu.Unlock()
	wanted := make(map[raft.ServerID]raft.ServerAddress, len(servers))
	for _, s := range servers {
		wanted[s.ID] = s.Address
	}
	for id, p := range d.peers {
		if wanted[id] != p.address {
			p.cancel()
			delete(d.peers, id)
			d.changedLocked()
		}
	}
	for id, address := range wanted {
		if d.peers[id] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(d.node.ctx)
		p := &peer{id: id, address: address, cancel: cancel, ping: make(chan struct{}, 1)}
		if !d.node.tasks.run(func() { d.watch(ctx, p) }) {
			cancel()
			return
		}
		d.peers[id] = p
	}
}

func (d *detector) changedLocked() {
	close(d.change)
	d.change = make(chan struct{})
}

// tellAllLocked sends every peer a report at once.
func (d *detector) tellAllLocked() {
	for _, p := range d.peers {
		select {
		case p.ping <- struct{}{}:
		default: // one is about to be sent
		}
	}
}

// set changes a peer's state and lets everyone know.
func (d *detector) set(p *peer, s peerState, why string) {
	d.mu.Lock()
	old := p.state
	p.state = s
	if old != s {
		d.changedLocked()
		if old != peerUnknown || s != peerUp {
			d.tellAllLocked()
		}
	}
	d.mu.Unlock()
	if old == s {
		return
	}
	d.node.metrics.peerChanges.WithLabelValues(s.String()).Inc()
	d.logger.Info("peer changed", "peer", string(p.id), "state", s.String(), "was", old.String(), "reason", why)
	d.look()
}

// answered notes an answer of the peer, and that it is there.
func (d *detector) answered(p *peer, r *wire.WatchReport) {
	d.mu.Lock()
	p.heard, p.refused = time.Now(), false
	restarted := p.incarnation != "" && p.incarnation != r.Incarnation
	p.incarnation = r.Incarnation
	if restarted {
		d.changedLocked()
		d.tellAllLocked()
	}
	d.mu.Unlock()
	if restarted {
		d.node.metrics.peerChanges.WithLabelValues("restarted").Inc()
		d.logger.Info("peer is another incarnation", "peer", string(p.id))
		d.look()
	}
	d.set(p, peerUp, "it answers")
	d.learn(r)
}

// learn takes over what a peer reports, as question or answer.
func (d *detector) learn(r *wire.WatchReport) {
	d.mu.Lock()
	p := d.peers[raft.ServerID(r.ID)]
	if p != nil && p.report != nil && p.report.Incarnation == r.Incarnation && r.Sequence < p.report.Sequence {
		p = nil // a newer one has overtaken it
	}
	news := p != nil && (p.report == nil || differs(p.report, r))
	if p != nil {
		if p.report != nil && p.report.DiskHangs != r.DiskHangs {
			d.changedLocked() // the gate asks for it
		}
		p.report, p.reported = r, time.Now()
	}
	d.mu.Unlock()
	if news {
		d.look()
	}
	if p != nil && r.DiskHangs {
		d.tryDisk()
	}
}

// differs reports whether the judge could come to another verdict.
func differs(a, b *wire.WatchReport) bool {
	if a.Term != b.Term || a.State != b.State || a.LastTerm != b.LastTerm || a.LastIndex != b.LastIndex ||
		a.Elect != b.Elect || a.Incarnation != b.Incarnation || a.Behind != b.Behind || len(a.Peers) != len(b.Peers) {
		return true
	}
	for i := range a.Peers {
		if a.Peers[i] != b.Peers[i] {
			return true
		}
	}
	return false
}

// report is what this server tells its peers.
func (d *detector) report() *wire.WatchReport {
	n := d.node
	r := &wire.WatchReport{ID: n.cfg.ID, Incarnation: d.incarnation, Term: n.raft.CurrentTerm(), State: uint64(n.raft.State()), Behind: !n.caughtUp.Load()}
	leader := n.level.Load().leader
	contact := n.raft.LastContact()
	now := time.Now()
	r.DiskFails = n.disk.lately()
	d.mu.Lock()
	d.sent++
	r.Sequence, r.Elect = d.sent, d.elect
	r.DiskHangs, r.DiskWorks = d.hangs, !d.hangs && now.Sub(d.tried) < n.timing.DiskStall/2
	lost := d.losing || r.DiskWorks
	for _, p := range sortedPeers(d.peers) {
		if p.state == peerUnknown {
			continue
		}
		heard := p.hears(now, n.timing.Silence, p.id == leader, contact)
		r.Peers = append(r.Peers, wire.PeerView{ID: string(p.id), Incarnation: p.incarnation, Heard: heard})
		lost = lost || !heard
	}
	d.mu.Unlock()
	if lost {
		r.LastTerm, r.LastIndex = n.lastEntry()
	}
	return r
}

// hears reports whether the peer is there as far as this server knows. A leader
// whose pings are lost but that Raft still hears is there; one that refuses
// connections is not, however short ago Raft heard it.
func (p *peer) hears(now time.Time, silence time.Duration, leads bool, contact time.Time) bool {
	switch p.state {
	case peerUp:
		return true
	case peerDead, peerUnknown:
		return false
	case peerDoubted:
		if now.Sub(p.heard) < silence {
			return true
		}
	}
	return leads && now.Sub(contact) < silence/2 // it heartbeats three times in that
}

// excuse takes back what silence would mean: this process stood still itself
// for that long, and may not have read what came.
func (d *detector) excuse(stood time.Duration) {
	now := time.Now()
	d.mu.Lock()
	again := now.Sub(d.stall) < stood/2 // each conversation notices
	d.stall = now
	for _, p := range d.peers {
		p.heard = now
	}
	d.mu.Unlock()
	if !again {
		d.node.metrics.stalls.Inc()
		d.logger.Warn("this server stood still", "for", stood.Round(time.Millisecond))
	}
}

// answering leaves out the servers that are known not to answer, as long as
// enough are left: who asks all of them should not wait for a stopped one.
func (d *detector) answering(servers []raft.Server, enough int) []raft.Server {
	d.mu.Lock()
	defer d.mu.Unlock()
	there := slices.DeleteFunc(slices.Clone(servers), func(s raft.Server) bool {
		p := d.peers[s.ID]
		return p != nil && (p.state == peerDead || p.state == peerSilent)
	})
	if len(there) < enough {
		return servers
	}
	return there
}

// down is what the gate asks: whether entries for the peer cannot arrive, or
// not be written there.
func (d *detector) down(id raft.ServerID) (down bool, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peers[id]
	return p != nil && (p.refused || p.state == peerSilent || p.report != nil && p.report.DiskHangs), d.change
}
