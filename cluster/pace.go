package cluster

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// voteWrites is how many writes a vote takes: the term, and the two parts
	// of the vote, one after the other.
	voteWrites = 3
	// maxPace bounds how much longer than configured an election may take.
	maxPace = 10
)

// pace gives elections the time that the disks need. A candidate writes its own
// vote, and so does each voter: where a sync takes 100 ms that is longer than
// the election timeout, and candidates that begin again before they are
// answered would never elect anybody. Heartbeats need no disk and keep their
// timeout: a dead leader is found as fast as ever.
//
// It goes by the slower of the writes to this server's disk and of the votes
// that it got from others. One long write is a hiccup and does not count, two
// in a row do; fast ones make it forget in a dozen.
//
// Safe for concurrent use.
type pace struct {
	timing Timing // scaled
	logger hclog.Logger
	raft   atomic.Pointer[raft.Raft] // nil until it has started

	mu       sync.Mutex
	writes   steady
	votes    steady
	election time.Duration // the timeout in use
}

func newPace(t Timing, logger hclog.Logger) *pace {
	return &pace{timing: t, logger: logger.Named("pace"), election: t.Election}
}

// steady is how long something takes lately, at least twice in a row.
type steady struct{ last, worst time.Duration }

func (s *steady) note(took time.Duration) {
	s.worst = max(min(took, s.last), s.worst-s.worst/4)
	s.last = took
}

// wrote notes how long a write to the disk took.
func (p *pace) wrote(took time.Duration) { p.note(&p.writes, took) }

// voted notes how long a peer took to answer a request for its vote.
func (p *pace) voted(took time.Duration) { p.note(&p.votes, took) }

func (p *pace) note(what *steady, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	what.note(took)
	// Three votes: the candidate's, the voter's, and one that the voter may be
	// busy with when it is asked.
	want := 3 * max(voteWrites*p.writes.worst, p.votes.worst)
	want = min(max(want, p.timing.Election), maxPace*p.timing.Election)
	if r := p.raft.Load(); r != nil && (want > p.election+p.election/8 || want < p.election-p.election/8 || want == p.timing.Election) {
		p.useLocked(r, want)
	}
}

func (p *pace) useLocked(r *raft.Raft, want time.Duration) {
	if want == p.election {
		return
	}
	rc := r.ReloadableConfig()
	rc.ElectionTimeout = want
	if err := r.ReloadConfig(rc); err != nil {
		p.logger.Error("cannot change the election timeout", "to", want, "error", err)
		return
	}
	if p.election == p.timing.Election {
		p.logger.Warn("the disks are slow: elections get more time", "timeout", want.Round(time.Millisecond),
			"write", fmt.Sprint(p.writes.worst.Round(time.Millisecond)), "vote", fmt.Sprint(p.votes.worst.Round(time.Millisecond)))
	} else if want == p.timing.Election {
		p.logger.Info("the disks are fast again: elections get the configured time", "timeout", want)
	}
	p.election = want
}

// stretch is a time for an election, or for a part of one, at this pace.
func (p *pace) stretch(d time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(float64(d) * float64(p.election) / float64(p.timing.Election))
}
