package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
)

// serverStatus is this server's own view.
func (n *Node) serverStatus() *wire.ServerStatus {
	l := n.level.Load()
	st := &wire.ServerStatus{
		ID:           n.cfg.ID,
		Name:         n.cfg.Name,
		Term:         n.raft.CurrentTerm(),
		Leader:       string(l.leader),
		LastIndex:    n.raft.LastIndex(),
		AppliedIndex: n.raft.AppliedIndex(),
		MaxLevel:     uint64(n.store.MaxLevel()),
	}
	switch err := n.store.Err(); {
	case err != nil:
		st.Problem = err.Error()
	case n.disk.problem() != nil:
		st.Problem = n.disk.problem().Error()
	case n.trust.doubted() != nil:
		st.Notice = n.trust.doubted().Error()
	case n.draining.Load():
		st.Problem = ErrStopped.Error()
	}
	return st
}

// Status asks all members for their state, for at most Timing.Status, and says
// what this server sees; also without a leader.
func (n *Node) Status(ctx context.Context) wire.ClusterStatus {
	ctx, cancel := context.WithTimeout(ctx, n.timing.Status)
	defer cancel()
	servers := n.servers()
	answers := map[raft.ServerID]*wire.ServerStatus{raft.ServerID(n.cfg.ID): n.serverStatus()}
	problems := make(map[raft.ServerID]string)
	err := gather(ctx, &n.tasks, n.others(servers), n.askStatus, func(s raft.Server, st *wire.ServerStatus, err error) bool {
		switch {
		case err != nil:
			problems[s.ID] = err.Error()
		case st.ID != string(s.ID):
			problems[s.ID] = fmt.Sprintf("%s answers at its address", st.ID)
		default:
			answers[s.ID] = st
		}
		return false
	})
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		n.logger.Debug("status", "error", err)
	}
	status := wire.ClusterStatus{Server: n.cfg.Name, Members: []wire.Member{}}
	var leader raft.ServerID
	for _, st := range answers {
		status.Term = max(status.Term, st.Term)
	}
	for id, st := range answers {
		// The leader's word counts, and only in the latest term.
		if st.Leader == string(id) && st.Term == status.Term {
			leader = id
		}
	}
	for _, s := range servers {
		m := wire.Member{ID: string(s.ID), Name: ServerName(string(s.ID)), Address: string(s.Address), Role: wire.RoleNonvoter}
		if s.Suffrage == raft.Voter {
			m.Role = wire.RoleVoter
		}
		if s.ID == leader {
			m.Role, status.Leader = wire.RoleLeader, m.Name
		}
		describeMember(&m, answers[s.ID], problems[s.ID], leader)
		m.LastContact = n.lastContact(s.ID, answers[s.ID] != nil)
		status.Members = append(status.Members, m)
	}
	slices.SortFunc(status.Members, func(a, b wire.Member) int { return cmp.Compare(a.Name, b.Name) })
	status.Level = uint64(n.store.View().Level())
	status.LevelNote = levelNote(status.Level, status.Members)
	status.Message = n.statusMessage(servers, answers, leader)
	return status
}

// lastContact is how many milliseconds ago this server heard the other one, as
// far as its failure detector knows; nil if never.
func (n *Node) lastContact(id raft.ServerID, now bool) *int64 {
	n.detector.mu.Lock()
	defer n.detector.mu.Unlock()
	age := new(int64)
	if now {
		return age
	}
	p := n.detector.peers[id]
	if p == nil || p.heard.IsZero() {
		return nil
	}
	*age = time.Since(p.heard).Milliseconds()
	return age
}

func describeMember(m *wire.Member, st *wire.ServerStatus, problem string, leader raft.ServerID) {
	if st == nil {
		m.Detail = cmp.Or(problem, "does not answer")
		return
	}
	m.LastIndex, m.AppliedIndex, m.MaxLevel = st.LastIndex, st.AppliedIndex, max(st.MaxLevel, 1)
	switch {
	case st.Problem != "":
		m.Detail = st.Problem
	case st.Notice != "":
		m.Detail = st.Notice
	case leader == "":
		m.Detail = "has no leader"
	case st.Leader != string(leader):
		m.Detail = "does not follow the leader"
	default:
		m.Healthy = true
	}
}

// statusMessage says in words what stands in the way of a leader.
func (n *Node) statusMessage(servers []raft.Server, answers map[raft.ServerID]*wire.ServerStatus, leader raft.ServerID) string {
	switch {
	case len(servers) == 0:
		return "this server has not joined a cluster yet"
	case leader != "":
		return ""
	}
	var heard, silent []string
	all := voters(servers)
	for _, s := range all {
		name := fmt.Sprintf("%s (%s)", ServerName(string(s.ID)), s.Address)
		if answers[s.ID] != nil {
			heard = append(heard, name)
		} else {
			silent = append(silent, name)
		}
	}
	need := majority(len(all))
	if len(heard) >= need {
		return fmt.Sprintf("no leader; %d of %d voters answer, enough to elect one: wait for the election", len(heard), len(all))
	}
	message := fmt.Sprintf("no leader; %d of %d voters answer: %s; %d more needed to elect one of: %s",
		len(heard), len(all), strings.Join(heard, ", "), need-len(heard), strings.Join(silent, ", "))
	return message + n.remedy(all, answers, need-len(heard))
}

// remedy says what to do about missing votes. Of the servers that answer, the
// one with the longest log would lose least by going on alone.
func (n *Node) remedy(all []raft.Server, answers map[raft.ServerID]*wire.ServerStatus, missing int) string {
	best := answers[raft.ServerID(n.cfg.ID)]
	for _, s := range all {
		if st := answers[s.ID]; st != nil && (best == nil || st.LastIndex > best.LastIndex) {
			best = st
		}
	}
	dir := n.cfg.DataDir
	if best.ID != n.cfg.ID {
		dir = "DATA" // where that server has it
	}
	what := "one of those servers"
	if missing > 1 {
		what = fmt.Sprintf("%d of those servers", missing)
	}
	return fmt.Sprintf(". Start %s. Only if that many are lost for good: stop Shepherd on %s, whose log is the longest, and run there: shepherd recover --data-dir %s",
		what, best.Name, dir)
}
