package cluster

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// The disk watchdog. A leader whose disk hangs goes on heartbeating and commits
// nothing, for ever: Raft writes to its own log before it sends, and its main
// loop waits for that. Raft can not be told to step down then, so the server
// ends. That is only better if others can go on, and they must prove it:
//
//   - a server says that its disk hangs once a call has not returned for half of
//     Timing.DiskStall;
//   - whoever hears that writes to its own log as a trial, and says when it has
//     succeeded, with the end of its log;
//   - a leader whose call hangs for all of Timing.DiskStall gives up if as many
//     others as can elect one of them say so, and have what it has committed.
//
// So nobody ends for a lost quorum, nor when all disks are slow. The
// connections are closed before the process is told to end: one that waits for
// a disk keeps its sockets until the disk answers.

// ErrDiskHangs is what a leader gives up with.
var ErrDiskHangs = errors.New("the disk hangs")

// keyTrial is written to see whether the disk works.
var keyTrial = []byte("ShepherdDiskTrial")

// watchDisk looks at the calls to the log until the node stops.
func (d *detector) watchDisk() {
	n := d.node
	tick := time.NewTicker(n.timing.DiskStall / 16)
	defer tick.Stop()
	var noticed uint64 // the call that was last said to hang
	var last string    // what was last decided about it
	for {
		select {
		case <-tick.C:
		case <-n.ctx.Done():
			return
		}
		call, id, ok := n.files.calls.oldest()
		age := time.Since(call.begun)
		hangs := ok && age >= n.timing.DiskStall/2
		d.setHangs(hangs)
		if !hangs {
			if noticed != 0 {
				n.logger.Info("the disk works again")
			}
			noticed, last = 0, ""
			continue
		}
		if noticed != id {
			noticed = id
			n.metrics.diskStalls.Inc()
			n.logger.Warn("the disk hangs", "call", call.what, "for", age.Round(time.Millisecond))
		}
		if age < n.timing.DiskStall || n.raft.State() != raft.Leader {
			continue
		}
		stay := d.whyStay()
		if stay == "" {
			d.giveUp(fmt.Errorf("%w: a write to the log in %s has not returned for %v, and the other servers can go on without this one; check the disk, then start the server again",
				ErrDiskHangs, n.cfg.DataDir, age.Round(time.Millisecond)))
			return
		}
		if stay != last {
			last = stay
			n.metrics.diskDecisions.WithLabelValues("stay").Inc()
			n.logger.Warn("the disk hangs, and this server goes on leading", "reason", stay)
		}
	}
}

// whyStay says why this leader is no worse than any other, "" if it is.
func (d *detector) whyStay() string {
	n := d.node
	if n.cfg.GiveUp == nil {
		return "it is not told what to do"
	}
	all := voters(n.servers())
	committed := n.raft.CommitIndex()
	term := n.raft.CurrentTerm()
	well, need := 0, majority(len(all))
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range n.others(all) {
		p := d.peers[s.ID]
		if p == nil || p.state != peerUp || p.report == nil || time.Since(p.reported) >= n.timing.Silence {
			continue
		}
		r := p.report
		// Entries of this term came from this leader: the same index is the
		// same log. A log that ends in an earlier term holds nothing of it.
		if r.DiskWorks && r.Term == term && r.LastTerm == term && r.LastIndex >= committed {
			well++
		}
	}
	if well < need {
		return fmt.Sprintf("%d other voters of %d have working disks and its log, %d needed", well, len(all), need)
	}
	return ""
}

// giveUp makes this server dead to the others, and ends it.
func (d *detector) giveUp(err error) {
	n := d.node
	n.metrics.diskDecisions.WithLabelValues("give up").Inc()
	n.logger.Error("giving up leadership with this process", "reason", err)
	d.mu.Lock()
	d.mute = true
	d.tellAllLocked() // wakes whoever pings
	d.mu.Unlock()
	n.fail(err)
	// Not its Close: that waits for what may hang.
	if t, ok := n.cfg.Transport.(*Transport); ok {
		t.layer.open.closeAll()
	}
	n.links.open.closeAll()
	n.cfg.GiveUp(err)
}

func (d *detector) muted() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mute
}

func (d *detector) setHangs(hangs bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hangs != hangs {
		d.hangs = hangs
		d.tellAllLocked()
	}
}

// diskHangs is whether the peer says so of its own.
func (d *detector) diskHangs(id raft.ServerID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peers[id]
	return p != nil && p.report != nil && p.report.DiskHangs
}

// diskFailures is what the peers that are there say about theirs.
func (d *detector) diskFailures() map[raft.ServerID]string {
	reasons := make(map[raft.ServerID]string)
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, p := range d.peers {
		if p.report != nil && p.report.DiskFails != "" && time.Since(p.reported) < d.node.timing.Silence {
			reasons[id] = p.report.DiskFails
		}
	}
	return reasons
}

// tryDisk writes to this server's log, unless it has just done that or is at it.
func (d *detector) tryDisk() {
	n := d.node
	d.mu.Lock()
	due := !d.trying && time.Since(d.tried) >= n.timing.DiskStall/8
	d.trying = d.trying || due
	d.mu.Unlock()
	if !due {
		return
	}
	if !n.tasks.run(func() {
		begun := time.Now()
		err := n.files.stable.SetUint64(keyTrial, uint64(begun.UnixNano()))
		d.mu.Lock()
		defer d.mu.Unlock()
		d.trying = false
		switch {
		case err != nil:
			n.logger.Error("a peer's disk hangs, and this one cannot be written", "error", err)
		case time.Since(begun) < n.timing.DiskStall/4:
			d.tried = time.Now()
			d.tellAllLocked()
		}
	}) {
		d.mu.Lock()
		d.trying = false
		d.mu.Unlock()
	}
}
