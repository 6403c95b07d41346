package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
)

// logEnd is the last entry of a log. A voter refuses whoever's is older.
type logEnd struct{ term, index uint64 }

func (a logEnd) compare(b logEnd) int {
	return cmp.Or(cmp.Compare(a.term, b.term), cmp.Compare(a.index, b.index))
}

// lostLeader is what has to be judged: a leader, in its term and incarnation,
// that this server has lost.
type lostLeader struct {
	id          string
	term        uint64
	incarnation string
}

// scene is everything that a verdict depends on.
type scene struct {
	leader lostLeader
	voters []string // IDs, this server's perhaps among them

	self   string
	term   uint64
	state  raft.RaftState
	log    logEnd
	behind bool // this server's state is
	fired  bool // this server has stood for election in this matter already

	others map[string]testimony // by ID; who is not in it does not answer

	now      time.Time
	agreed   time.Time // when a majority first had lost the leader; zero if it has not yet
	standby  time.Duration
	patience time.Duration
}

// testimony is what another server says.
type testimony struct {
	lost   bool // it has lost the leader
	hears  bool // it hears the leader; neither, if it does not know
	term   uint64
	state  raft.RaftState
	log    logEnd
	behind bool
	elect  string // who it wants to lead: itself, if it is about to stand
}

// testify reads a report as a testimony about the leader.
func testify(r *wire.WatchReport, leader lostLeader) testimony {
	t := testimony{term: r.Term, state: raft.RaftState(r.State), log: logEnd{r.LastTerm, r.LastIndex}, behind: r.Behind}
	if r.Term == leader.term {
		t.elect = r.Elect
	}
	for _, v := range r.Peers {
		if v.ID == leader.id {
			t.hears = v.Heard && (v.Incarnation == leader.incarnation || leader.incarnation == "")
			t.lost = !t.hears
		}
	}
	return t
}

// decision is what a server does about a lost leader. It is also a label of
// the metrics.
type decision string

const (
	decideNothing decision = "nothing"  // it is not for this server to do anything
	decideVeto    decision = "vetoed"   // somebody hears the leader
	decideAlone   decision = "minority" // too few have lost it
	decideWait    decision = "wait"     // others go first
	decideName    decision = "name"     // another one has the newest log
	decideStand   decision = "stand"    // for election, at once
)

// verdict is a decision with its reason.
type verdict struct {
	decision decision
	reason   string
	elect    string    // for decideName
	until    time.Time // for decideWait: when to judge again
	agreed   bool      // a majority has lost the leader
}

// judge decides what to do about a leader that this server has lost.
func judge(s *scene) verdict {
	switch {
	case !slices.Contains(s.voters, s.self):
		return verdict{decision: decideNothing, reason: "this server has no vote"}
	case s.state != raft.Follower:
		return verdict{decision: decideNothing, reason: "this server is " + s.state.String() + " already"}
	case s.fired:
		return verdict{decision: decideNothing, reason: "this server has stood for election already"}
	}
	witnesses := []string{s.self}
	for _, id := range s.voters {
		t, there := s.others[id]
		switch {
		case id == s.self || id == s.leader.id || !there:
		case t.hears:
			return verdict{decision: decideVeto, reason: id + " still hears it"}
		case t.lost:
			witnesses = append(witnesses, id)
		}
	}
	if need := majority(len(s.voters)); len(witnesses) < need {
		return verdict{decision: decideAlone, reason: fmt.Sprintf("%d of %d voters have lost it, %d needed", len(witnesses), len(s.voters), need)}
	}
	v := s.arbitrate(witnesses)
	v.agreed = true
	return v
}

// end is the end of a witness's log.
func (s *scene) end(id string) logEnd {
	if id == s.self {
		return s.log
	}
	return s.others[id].log
}

// fitter is positive if a is to lead rather than b: with the longer log, which
// alone can be elected, or else with a state that need not catch up first.
func (s *scene) fitter(a, b string) int {
	rank := func(id string) int {
		if id == s.self && s.behind || id != s.self && s.others[id].behind {
			return 0
		}
		return 1
	}
	return cmp.Or(s.end(a).compare(s.end(b)), cmp.Compare(rank(a), rank(b)))
}

// arbitrate decides which of the witnesses stands for election.
func (s *scene) arbitrate(witnesses []string) verdict {
	first := slices.Min(witnesses)
	arbiter := first
	for _, id := range witnesses {
		if c := s.fitter(id, first); c > 0 || c == 0 && first != arbiter && id < first {
			first = id
		}
	}
	moved := s.term > s.leader.term
	for _, id := range witnesses[1:] {
		t := s.others[id]
		stands := t.state == raft.Candidate || t.elect == id
		moved = moved || t.term > s.leader.term || stands
		if stands && t.log.compare(s.log) < 0 && first == s.self {
			return verdict{decision: decideStand, reason: "candidate " + id + " has a shorter log"}
		}
		if !moved && t.elect == s.self && id == arbiter {
			return verdict{decision: decideStand, reason: id + " asks for it"}
		}
	}
	switch {
	case moved:
		return s.wait(witnesses, first, s.patience, "an election has begun")
	case first == s.self && arbiter == s.self:
		return verdict{decision: decideStand, reason: fmt.Sprintf("first of %d that have lost it", len(witnesses))}
	case arbiter == s.self && s.now.Before(s.since().Add(s.patience)):
		return verdict{decision: decideName, elect: first, reason: "it has the newest log, or need not catch up", until: s.since().Add(s.patience)}
	case s.log.compare(s.end(first)) < 0:
		return s.wait(witnesses, first, s.patience, first+" has a newer log")
	default:
		return s.wait(witnesses, first, 0, first+" goes first")
	}
}

// since is when a majority had lost the leader.
func (s *scene) since() time.Time {
	if s.agreed.IsZero() {
		return s.now
	}
	return s.agreed
}

// wait lets the fitter ones go first for a while.
func (s *scene) wait(witnesses []string, first string, extra time.Duration, why string) verdict {
	order := slices.DeleteFunc(slices.Clone(witnesses), func(id string) bool { return id == first })
	slices.SortFunc(order, func(a, b string) int { return cmp.Or(s.fitter(b, a), cmp.Compare(a, b)) })
	rank := slices.Index(order, s.self) + 1 // 0 if this server is the first
	until := s.since().Add(extra + time.Duration(max(rank, 1))*s.standby)
	if s.now.Before(until) {
		return verdict{decision: decideWait, reason: why, until: until}
	}
	return verdict{decision: decideStand, reason: fmt.Sprintf("nobody leads although %s", why)}
}
