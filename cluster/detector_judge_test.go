package cluster

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
)

// A scene in which a and b have lost the leader c, seen by a, changed by each case.
func sceneOfThree() *scene {
	return &scene{
		leader: lostLeader{"c", 7, "c1"}, voters: []string{"a", "b", "c"},
		self: "a", term: 7, state: raft.Follower, log: logEnd{7, 100},
		others: map[string]testimony{"b": {lost: true, term: 7, log: logEnd{7, 100}}},
		now:    time.Unix(1000, 0), standby: 60 * time.Millisecond, patience: 500 * time.Millisecond,
	}
}

// asB shows the same scene to b.
func (s *scene) asB() {
	b := s.others["b"]
	s.others = map[string]testimony{"a": {lost: true, term: s.term, log: s.log, state: s.state}}
	s.self, s.log, s.term, s.state = "b", b.log, b.term, b.state
}

func (s *scene) b(change func(*testimony)) {
	t := s.others["b"]
	change(&t)
	s.others["b"] = t
}

// says makes another one want a leader.
func (s *scene) says(id, elect string) {
	t := s.others[id]
	t.elect = elect
	s.others[id] = t
}

// behindA makes a one that has to catch up, as b sees it.
func (s *scene) behindA() {
	t := s.others["a"]
	t.behind = true
	s.others["a"] = t
}

// later lets time pass since a majority agreed.
func (s *scene) later(d time.Duration) {
	s.agreed = s.now
	s.now = s.now.Add(d)
}

func TestJudge(t *testing.T) {
	ms := time.Millisecond
	for _, c := range []struct {
		name   string
		change func(*scene)
		want   decision
		elect  string
		wait   time.Duration
	}{
		{"the lowest ID stands", func(*scene) {}, decideStand, "", 0},
		{"the next waits", func(s *scene) { s.asB() }, decideWait, "", 60 * ms},
		{"and stands if nothing comes of it", func(s *scene) { s.asB(); s.later(60 * ms) }, decideStand, "", 0},
		{"the other one hears it", func(s *scene) { s.b(func(t *testimony) { t.lost, t.hears = false, true }) }, decideVeto, "", 0},
		{"the other one does not know", func(s *scene) { s.b(func(t *testimony) { t.lost = false }) }, decideAlone, "", 0},
		{"the other one is gone", func(s *scene) { delete(s.others, "b") }, decideAlone, "", 0},
		{"the leader's own word is not asked", func(s *scene) {
			delete(s.others, "b")
			s.others["c"] = testimony{lost: true, term: 7}
		}, decideAlone, "", 0},
		{"no vote", func(s *scene) { s.voters = []string{"b", "c", "d"} }, decideNothing, "", 0},
		{"a witness without a vote does not count", func(s *scene) { s.voters = []string{"a", "c", "d"} }, decideAlone, "", 0},
		{"a candidate already", func(s *scene) { s.state = raft.Candidate }, decideNothing, "", 0},
		{"a leader already", func(s *scene) { s.state = raft.Leader }, decideNothing, "", 0},
		{"shut down", func(s *scene) { s.state = raft.Shutdown }, decideNothing, "", 0},
		{"it stood already", func(s *scene) { s.fired = true }, decideNothing, "", 0},
		{"the other log is longer", func(s *scene) { s.b(func(t *testimony) { t.log.index++ }) }, decideName, "b", 500 * ms},
		{"the other log is newer", func(s *scene) { s.b(func(t *testimony) { t.log = logEnd{8, 1} }) }, decideName, "b", 500 * ms},
		{"the one with the longer log waits to be asked", func(s *scene) { s.b(func(t *testimony) { t.log.index++ }); s.asB() }, decideWait, "", 60 * ms},
		{"and stands when it is", func(s *scene) {
			s.b(func(t *testimony) { t.log.index++ })
			s.asB()
			s.says("a", "b")
		}, decideStand, "", 0},
		{"this one has to catch up", func(s *scene) { s.behind = true }, decideName, "b", 500 * ms},
		{"and the other one waits to be asked", func(s *scene) { s.asB(); s.behindA() }, decideWait, "", 60 * ms},
		{"and stands when it is asked", func(s *scene) { s.asB(); s.behindA(); s.says("a", "b") }, decideStand, "", 0},
		{"the other one has to catch up", func(s *scene) { s.b(func(t *testimony) { t.behind = true }) }, decideStand, "", 0},
		{"both have to", func(s *scene) { s.behind = true; s.b(func(t *testimony) { t.behind = true }) }, decideStand, "", 0},
		{"this one has to, with the longer log", func(s *scene) { s.behind = true; s.log.index++ }, decideStand, "", 0},
		{"the one with the shorter log waits long", func(s *scene) { s.b(func(t *testimony) { t.log.index-- }); s.asB() }, decideWait, "", 560 * ms},
		{"the first is a candidate", func(s *scene) { s.state, s.term = raft.Candidate, 8; s.asB() }, decideWait, "", 560 * ms},
		{"it still is", func(s *scene) { s.state, s.term = raft.Candidate, 8; s.asB(); s.later(300 * ms) }, decideWait, "", 260 * ms},
		{"and does not win", func(s *scene) { s.state, s.term = raft.Candidate, 8; s.asB(); s.later(560 * ms) }, decideStand, "", 0},
		{"it is one with a shorter log", func(s *scene) {
			s.state, s.term, s.log.index = raft.Candidate, 8, 99
			s.asB()
		}, decideStand, "", 0},
		{"the first is about to stand", func(s *scene) { s.asB(); s.says("a", "a"); s.later(60 * ms) }, decideWait, "", 500 * ms},
		{"it is about to stand with a shorter log", func(s *scene) { s.log.index = 99; s.asB(); s.says("a", "a") }, decideStand, "", 0},
		{"the next is about to stand", func(s *scene) { s.says("b", "b") }, decideWait, "", 560 * ms},
		{"the term has moved here", func(s *scene) { s.term = 8 }, decideWait, "", 560 * ms},
		{"the term has moved there", func(s *scene) { s.b(func(t *testimony) { t.term = 8 }) }, decideWait, "", 560 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sceneOfThree()
			c.change(s)
			v := judge(s)
			wait := time.Duration(0)
			if !v.until.IsZero() {
				wait = v.until.Sub(s.now)
			}
			if v.decision != c.want || v.elect != c.elect || wait != c.wait {
				t.Errorf("%s %q (%s), wait %v; want %s %q, wait %v", v.decision, v.elect, v.reason, wait, c.want, c.elect, c.wait)
			}
			if v.reason == "" {
				t.Error("no reason")
			}
		})
	}
}

// TestJudgeOfFive: at one moment, at most one of the survivors stands, whatever
// their logs; the leader and one more may be dead.
func TestJudgeOfFive(t *testing.T) {
	voters := []string{"a", "b", "c", "d", "e"}
	for mask := range 81 * 5 * 16 {
		logs := map[string]logEnd{}
		behind := map[string]bool{}
		for i := range 4 {
			behind[voters[i]] = mask/(81*5)>>i&1 == 1
		}
		for i, id, m := 0, "", mask; i < 4; i, m = i+1, m/3 {
			id = voters[i]
			logs[id] = logEnd{7, uint64(m % 3)}
		}
		gone := ""
		if g := mask / 81 % 5; g < 4 {
			gone = voters[g]
		}
		var stand, named []string
		for _, self := range voters[:4] {
			if self == gone {
				continue
			}
			s := &scene{
				leader: lostLeader{"e", 7, "e1"}, voters: voters, self: self, term: 7, log: logs[self], behind: behind[self], now: time.Unix(1, 0),
				others: map[string]testimony{}, standby: time.Millisecond, patience: 10 * time.Millisecond,
			}
			for _, id := range voters[:4] {
				if id != self && id != gone {
					s.others[id] = testimony{lost: true, term: 7, log: logs[id], behind: behind[id]}
				}
			}
			switch v := judge(s); v.decision {
			case decideStand:
				stand = append(stand, self)
			case decideName:
				named = append(named, v.elect)
			case decideWait:
			default:
				t.Errorf("%v without %q: %s decides %s, %s", logs, gone, self, v.decision, v.reason)
			}
		}
		if len(stand)+len(named) != 1 {
			t.Errorf("%v without %q: %v stand, %v are named", logs, gone, stand, named)
		}
		for _, first := range append(stand, named...) {
			for id, l := range logs {
				switch c := l.compare(logs[first]); {
				case id == gone:
				case c > 0:
					t.Errorf("%v without %q: %s is first, %s has a longer log", logs, gone, first, id)
				case c == 0 && behind[first] && !behind[id]:
					t.Errorf("%v without %q: %s is first, %s need not catch up", logs, gone, first, id)
				}
			}
		}
	}
}

func TestTestimony(t *testing.T) {
	leader := lostLeader{"c", 7, "c1"}
	for name, c := range map[string]struct {
		peers       []wire.PeerView
		lost, hears bool
	}{
		"hears it":              {[]wire.PeerView{{ID: "c", Incarnation: "c1", Heard: true}}, false, true},
		"does not":              {[]wire.PeerView{{ID: "c", Incarnation: "c1"}}, true, false},
		"hears the next one":    {[]wire.PeerView{{ID: "c", Incarnation: "c2", Heard: true}}, true, false},
		"has never heard it":    {[]wire.PeerView{{ID: "b", Incarnation: "b1", Heard: true}}, false, false},
		"knows nothing at all":  {nil, false, false},
		"lost the next one too": {[]wire.PeerView{{ID: "c", Incarnation: "c2"}}, true, false},
	} {
		got := testify(&wire.WatchReport{ID: "b", Term: 7, Elect: "a", Peers: c.peers}, leader)
		if got.lost != c.lost || got.hears != c.hears || got.elect != "a" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := testify(&wire.WatchReport{ID: "b", Term: 8, Elect: "a"}, leader); got.elect != "" {
		t.Errorf("who shall lead in term 8 was meant for another leader: %+v", got)
	}
}
