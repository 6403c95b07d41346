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
//
// A server that was removed is never let in.
func (n *Node) Approved(id string) bool {
	leaderless := n.level.Load().leader == ""
	if admitting := n.admitting.Load(); admitting != nil && *admitting == id {
		return true
	}
	self := false // a joiner hears its leader before it has the configuration
	for _, s := range n.servers() {
		if string(s.ID) == id {
			return true
		}
		self = self || string(s.ID) == n.cfg.ID
	}
	return (leaderless || !self) && !isRetired(n.store.View(), id)
}

// AddServer makes a server a member, without a vote until it has caught up; then
// the leader gives it one. Only on the leader (ErrNotLeader). It returns once
// the change is committed. One that answers at the address of a member of the
// same name takes its place: that member was rebuilt, and is removed. Adding a member again is no error, and with another
// address moves it there. ErrNameTaken and ErrAddressTaken say that another
// server uses them, ErrOldBuild that it cannot apply this cluster's commands.
func (n *Node) AddServer(ctx context.Context, id, address string) error {
	if id == "" || address == "" {
		return fmt.Errorf("server %q at %q has no ID or no address", id, address)
	}
	if err := n.lockMembers(ctx); err != nil {
		return err
	}
	defer n.unlockMembers()
	for range maxChanges {
		done, err := n.addLocked(ctx, id, address)
		if done || !errors.Is(err, errChanged) {
			return err
		}
	}
	return fmt.Errorf("add server %s: %w", id, errChanged)
}

func (n *Node) addLocked(ctx context.Context, id, address string) (done bool, err error) {
	name := ServerName(id)
	if _, leading := n.Leadership(); !leading {
		return false, ErrNotLeader
	}
	if isRetired(n.store.View(), id) {
		return false, removedError(id)
	}
	c, err := n.configuration()
	if err != nil {
		return false, err
	}
	for _, s := range c.servers {
		switch {
		case string(s.ID) == id && string(s.Address) == address:
			return true, nil
		case string(s.ID) == id:
		case ServerName(string(s.ID)) == name && string(s.Address) == address:
			return false, n.replaceLocked(ctx, s, id)
		case ServerName(string(s.ID)) == name:
			return false, fmt.Errorf("%w: %s", ErrNameTaken, name)
		case string(s.Address) == address:
			return false, fmt.Errorf("%w: %s by %s", ErrAddressTaken, address, ServerName(string(s.ID)))
		}
	}
	if err := n.checkJoiner(ctx, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(address)}); err != nil {
		return false, err
	}
	// The index makes the checks hold: a change in between fails this one.
	err = n.change(ctx, func(timeout time.Duration) raft.IndexFuture {
		return n.raft.AddNonvoter(raft.ServerID(id), raft.ServerAddress(address), c.index, timeout)
	})
	if err != nil {
		return false, fmt.Errorf("add server %s: %w", name, err)
	}
	n.logger.Info("server added", "server", id, "address", address)
	n.kickPromotion()
	return true, nil
}

// replaceLocked removes the dead server in whose place, under its name and at its
// address, a new one asks to be added: a machine that was rebuilt. That the new
// one answers there proves that the old one does not run any more. It goes
// before the new one comes: the two must never be members together, for what
// Raft sends to the one would reach the other.
func (n *Node) replaceLocked(ctx context.Context, old raft.Server, id string) error {
	n.admitting.Store(&id)
	defer n.admitting.Store(nil)
	asking, cancel := context.WithTimeout(ctx, n.timing.Transport)
	defer cancel()
	st, err := n.askStatus(asking, old)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s by %s, and whether it is gone cannot be told: %w", ErrNotProven, ServerName(id), old.ID, err)
	case st.ID != id:
		return fmt.Errorf("%w: %s by %s, which answers at %s", ErrNameTaken, ServerName(id), st.ID, old.Address)
	}
	n.logger.Info("a rebuilt server takes the place of its predecessor", "old", string(old.ID), "new", id, "address", string(old.Address))
	if _, err := n.removeLocked(ctx, string(old.ID)); err != nil {
		return err
	}
	return errChanged // the configuration is another one now: look again
}

// lockMembers waits until nobody else changes the members here.
func (n *Node) lockMembers(ctx context.Context) error {
	select {
	case n.members <- struct{}{}:
		return nil
	case <-n.ctx.Done():
		return ErrStopped
	case <-ctx.Done():
		return fmt.Errorf("wait for another change of the members: %w", ctx.Err())
	}
}

func (n *Node) unlockMembers() { <-n.members }

// errChanged is returned by change when the configuration is not the one that
// the change was decided on. Nothing was changed.
var errChanged = errors.New("the configuration was changed by another one at the same time")

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
		if strings.HasPrefix(err.Error(), "configuration changed since") { // Raft has no name for it
			return fmt.Errorf("%w: %w", errChanged, err)
		}
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrAmbiguous, ctx.Err())
	}
}
