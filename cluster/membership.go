package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
)

// maxBehind is how many entries a non-voter may lack when it is made a voter:
// what it can catch up with between two heartbeats.
const maxBehind = 512

// Members lists the servers of the latest configuration that this server knows.
// Their indexes and health are not filled in; Status asks for them.
func (n *Node) Members() []wire.Member {
	leader := n.level.Load().leader
	var members []wire.Member
	for _, s := range n.servers() {
		m := wire.Member{ID: string(s.ID), Name: ServerName(string(s.ID)), Address: string(s.Address), Role: wire.RoleNonvoter}
		switch {
		case s.ID == leader:
			m.Role = wire.RoleLeader
		case s.Suffrage == raft.Voter:
			m.Role = wire.RoleVoter
		}
		members = append(members, m)
	}
	return members
}

// Servers lists the servers as agents and clients need to know them.
func (n *Node) Servers() []wire.Server {
	var list []wire.Server
	for _, s := range n.servers() {
		list = append(list, wire.Server{ID: string(s.ID), Name: ServerName(string(s.ID)), Address: string(s.Address)})
	}
	return list
}

// Approved reports whether a server with this ID may speak Raft and links with
// this one: it is in the configuration. A server that has no configuration, or
// hears no leader, lets every server of the cluster in: its configuration may
// be old, and a leader that was added since must be able to reach it.
func (n *Node) Approved(id string) bool {
	if n.level.Load().leader == "" {
		return true
	}
	self := false // a joiner hears its leader before it has the configuration
	for _, s := range n.servers() {
		if string(s.ID) == id {
			return true
		}
		self = self || string(s.ID) == n.cfg.ID
	}
	return !self
}

// AddServer makes a server a member, without a vote until it has caught up; then
// the leader gives it one. Only on the leader (ErrNotLeader). It returns once
// the change is committed. Adding a member again is no error, and with another
// address moves it there. ErrNameTaken and ErrAddressTaken say that another
// server uses them.
func (n *Node) AddServer(ctx context.Context, id, address string) error {
	if id == "" || address == "" {
		return fmt.Errorf("server %q at %q has no ID or no address", id, address)
	}
	name := ServerName(id)
	if _, leading := n.Leadership(); !leading {
		return ErrNotLeader
	}
	f := n.raft.GetConfiguration()
	for _, s := range f.Configuration().Servers {
		switch {
		case string(s.ID) == id && string(s.Address) == address:
			return nil
		case string(s.ID) == id:
		case ServerName(string(s.ID)) == name:
			return fmt.Errorf("%w: %s", ErrNameTaken, name)
		case string(s.Address) == address:
			return fmt.Errorf("%w: %s by %s", ErrAddressTaken, address, ServerName(string(s.ID)))
		}
	}
	// The index makes the checks hold: a change in between fails this one.
	err := n.change(ctx, func(timeout time.Duration) raft.IndexFuture {
		return n.raft.AddNonvoter(raft.ServerID(id), raft.ServerAddress(address), f.Index(), timeout)
	})
	if err != nil {
		return fmt.Errorf("add server %s: %w", name, err)
	}
	n.logger.Info("server added", "server", id, "address", address)
	n.kickPromotion()
	return nil
}

// RemoveServer takes a server out of the cluster for good: its ID must not come
// back. Only on the leader.
func (n *Node) RemoveServer(ctx context.Context, id string) error {
	if _, leading := n.Leadership(); !leading {
		return ErrNotLeader
	}
	if _, ok := memberOf(n.servers(), id); !ok {
		return fmt.Errorf("%w: %s", ErrUnknownServer, id)
	}
	err := n.change(ctx, func(timeout time.Duration) raft.IndexFuture {
		return n.raft.RemoveServer(raft.ServerID(id), 0, timeout)
	})
	if err != nil {
		return fmt.Errorf("remove server %s: %w", id, err)
	}
	n.logger.Info("server removed", "server", id)
	return nil
}

// change makes one change of configuration and waits for its commit.
func (n *Node) change(ctx context.Context, begin func(timeout time.Duration) raft.IndexFuture) error {
	done := make(chan error, 1)
	if !n.tasks.run(func() { done <- begin(n.timing.Propose).Error() }) {
		return ErrStopped
	}
	select {
	case err := <-done:
		if err == nil {
			return nil
		}
		if errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrEnqueueTimeout) || errors.Is(err, raft.ErrLeadershipTransferInProgress) {
			return fmt.Errorf("%w: %w", ErrNotLeader, err)
		}
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrAmbiguous, ctx.Err())
	}
}

func (n *Node) kickPromotion() {
	select {
	case n.promote <- struct{}{}:
	default: // one kick waits already
	}
}

// promoteLoop gives the vote to non-voters that have caught up, while this
// server leads. It looks often while there are any, and otherwise when kicked.
func (n *Node) promoteLoop() {
	for {
		wait := time.Hour
		if _, leading := n.Leadership(); leading && n.promoteOne() {
			wait = n.timing.Promote
		}
		n.pause(n.promote, wait)
		if n.ctx.Err() != nil {
			return
		}
	}
}

// promoteOne promotes at most one server, as each promotion must be committed
// before the next. It reports whether there may be more to do.
func (n *Node) promoteOne() bool {
	f := n.raft.GetConfiguration()
	more := false
	for _, s := range f.Configuration().Servers {
		if s.Suffrage == raft.Voter {
			continue
		}
		more = true
		if !n.hasCaughtUp(s) {
			continue
		}
		err := n.change(n.ctx, func(timeout time.Duration) raft.IndexFuture {
			return n.raft.AddVoter(s.ID, s.Address, f.Index(), timeout)
		})
		if err != nil {
			n.logger.Warn("cannot promote server", "server", string(s.ID), "error", err)
			return true
		}
		n.logger.Info("server promoted to voter", "server", string(s.ID))
		return true
	}
	return more
}

func (n *Node) hasCaughtUp(s raft.Server) bool {
	ctx, cancel := context.WithTimeout(n.ctx, n.timing.Round)
	defer cancel()
	last := n.raft.LastIndex()
	st, err := call(ctx, n, s.Address, wire.LinkStatus, nil, wire.DecodeServerStatus)
	return err == nil && st.ID == string(s.ID) && st.Leader == n.cfg.ID && st.Problem == "" &&
		st.AppliedIndex+maxBehind > last
}
