package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
)

// maxChanges bounds how often a change of the members is decided again because
// the configuration was another one by then.
const maxChanges = 4

// RemoveServer takes the server with this name or ID out of the cluster for
// good: its ID never comes back. Only on the leader (ErrNotLeader). It reports
// false, and no error, for a server that is not a member (any more). The
// remaining voters are asked first: ErrLosesQuorum says that too few of them
// answer to decide anything without this one, ErrRemoveLeader that leadership
// must be moved before. A removal that fails half-way is finished by the leader.
func (n *Node) RemoveServer(ctx context.Context, name string) (removed bool, err error) {
	if err := n.lockMembers(ctx); err != nil {
		return false, err
	}
	defer n.unlockMembers()
	return n.removeLocked(ctx, name)
}

func (n *Node) removeLocked(ctx context.Context, name string) (removed bool, err error) {
	fresh := false // the reservation is of this call
	for range maxChanges {
		term, leading := n.Leadership()
		if !leading {
			return false, fmt.Errorf("remove server %s: %w", name, ErrNotLeader)
		}
		c, err := n.configuration()
		if err != nil {
			return false, fmt.Errorf("remove server %s: %w", name, err)
		}
		s, ok := memberOf(c.servers, name)
		if !ok {
			return false, nil
		}
		if err := n.mayRemove(ctx, c, s); err != nil {
			if fresh {
				err = errors.Join(err, n.reprieve(ctx, term, s.ID))
			}
			return false, fmt.Errorf("remove server %s: %w", name, err)
		}
		first, err := n.retire(ctx, term, s)
		if err != nil {
			return false, fmt.Errorf("remove server %s: %w", name, err)
		}
		fresh = fresh || first
		err = n.change(ctx, func(timeout time.Duration) raft.IndexFuture {
			return n.raft.RemoveServer(s.ID, c.index, timeout)
		})
		switch {
		case err == nil:
			n.logger.Info("server removed", "server", string(s.ID), "address", string(s.Address))
			return true, nil
		case !errors.Is(err, errChanged):
			return false, fmt.Errorf("remove server %s: %w", name, err)
		}
	}
	return false, fmt.Errorf("remove server %s: %w", name, errChanged)
}

// mayRemove asks whether the cluster can go on without the server.
func (n *Node) mayRemove(ctx context.Context, c configuration, s raft.Server) error {
	var rest []raft.Server
	for _, v := range voters(c.servers) {
		if v.ID != s.ID {
			rest = append(rest, v)
		}
	}
	switch {
	case s.Suffrage != raft.Voter:
		return nil
	case len(rest) == 0:
		return fmt.Errorf("%w: it is the only voter", ErrLosesQuorum)
	case string(s.ID) == n.cfg.ID:
		return fmt.Errorf("%w; move leadership first: sheepctl cluster transfer", ErrRemoveLeader)
	}
	able, missing, err := n.able(ctx, rest)
	if err != nil {
		return err
	}
	if need := majority(len(rest)); len(able) < need {
		return fmt.Errorf("%w: %d of the %d remaining voters must answer, and %d do (%s); missing: %s; bring them back or remove those first that are gone for good",
			ErrLosesQuorum, need, len(rest), len(able), strings.Join(able, ", "), strings.Join(missing, ", "))
	}
	return nil
}

// able asks the servers for their state, and tells the names of those that
// follow this leader closely, and of the others with the reason.
func (n *Node) able(ctx context.Context, servers []raft.Server) (able, missing []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, n.timing.Round)
	defer cancel()
	reasons := make(map[raft.ServerID]error)
	for _, s := range servers {
		reasons[s.ID] = errors.New("does not answer")
	}
	last := n.raft.LastIndex()
	if _, here := reasons[raft.ServerID(n.cfg.ID)]; here {
		reasons[raft.ServerID(n.cfg.ID)] = nil
	}
	err = gather(ctx, &n.tasks, n.others(servers), n.askStatus, func(s raft.Server, st *wire.ServerStatus, err error) bool {
		if err == nil {
			err = n.lacks(s, st, last)
		}
		reasons[s.ID] = err
		return false
	})
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, nil, fmt.Errorf("ask the other servers: %w", err)
	}
	for _, s := range servers {
		name := ServerName(string(s.ID))
		if reason := reasons[s.ID]; reason != nil {
			missing = append(missing, fmt.Sprintf("%s at %s (%v)", name, s.Address, reason))
		} else {
			able = append(able, name)
		}
	}
	return able, missing, nil
}

// lacks says what a server that answered lacks for being counted on, by the
// leader whose log ended at the index when it was asked.
func (n *Node) lacks(s raft.Server, st *wire.ServerStatus, last uint64) error {
	switch {
	case st.ID != string(s.ID):
		return fmt.Errorf("%s answers at its address", st.ID)
	case st.Problem != "":
		return errors.New(st.Problem)
	case st.Leader != n.cfg.ID:
		return errors.New("does not follow the leader")
	case st.AppliedIndex+maxBehind <= last:
		return fmt.Errorf("lacks %d of %d entries; it must come within %d", last-st.AppliedIndex, last, maxBehind)
	}
	return nil
}
