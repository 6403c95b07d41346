package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
)

// Transfer moves leadership to the server with the given name or ID, or to the
// voter that is furthest ahead for "". It works on every server and returns
// once this server knows the new leader.
func (n *Node) Transfer(ctx context.Context, name string) error {
	for {
		l := n.level.Load()
		switch {
		case n.ctx.Err() != nil:
			return ErrStopped
		case ctx.Err() != nil:
			return fmt.Errorf("transfer: %w: %w", ErrNoLeader, ctx.Err())
		case l.leader == "":
			n.await(ctx, l.changed)
			continue
		case l.raft:
			return n.transferHere(ctx, name)
		}
		target, err := n.transferTarget(name, l.leader)
		if err != nil {
			return err
		}
		if target != nil && target.ID == l.leader {
			return nil
		}
		body := wire.EncodeTransferRequest(&wire.TransferRequest{Name: name})
		if _, err := n.links.post(ctx, string(l.address), wire.LinkTransfer, body); err != nil {
			return fmt.Errorf("transfer: %w", err)
		}
		_, err = n.awaitLeader(ctx, func(now *level) bool { return now.leader != l.leader || now.term > l.term })
		return err
	}
}

// transferTarget finds the server of that name, or nil for "".
func (n *Node) transferTarget(name string, leader raft.ServerID) (*raft.Server, error) {
	servers := n.servers()
	if name == "" {
		if len(voters(servers)) < 2 {
			return nil, fmt.Errorf("transfer: %w: there is no other voter", ErrNotVoter)
		}
		return nil, nil
	}
	s, ok := memberOf(servers, name)
	switch {
	case !ok:
		return nil, fmt.Errorf("transfer: %w: %s", ErrUnknownServer, name)
	case s.Suffrage != raft.Voter:
		return nil, fmt.Errorf("transfer: %w: %s", ErrNotVoter, name)
	}
	return &s, nil
}

// transferHere moves leadership away from this server, which must have it.
func (n *Node) transferHere(ctx context.Context, name string) error {
	if n.raft.State() != raft.Leader {
		return fmt.Errorf("transfer: %w", ErrNotLeader)
	}
	target, err := n.transferTarget(name, raft.ServerID(n.cfg.ID))
	if err != nil {
		return err
	}
	candidates := []raft.Server{}
	switch {
	case target == nil:
		candidates = n.successors(ctx)
	case string(target.ID) == n.cfg.ID:
		return nil
	default:
		candidates = append(candidates, *target)
	}
	err = fmt.Errorf("%w: no other voter answers", ErrNoQuorum)
	// Under load a target may miss the last entries when it calls its election:
	// it loses, and this server may win again. So each has a second chance.
	for _, c := range slices.Repeat(candidates, 2) {
		term := n.raft.CurrentTerm()
		if err = n.transferTo(ctx, c); err == nil {
			l, waitErr := n.awaitLeader(ctx, func(now *level) bool { return string(now.leader) != n.cfg.ID || now.term > term })
			if waitErr != nil || string(l.leader) != n.cfg.ID {
				return waitErr
			}
			err = fmt.Errorf("to %s: it lost the election", c.ID)
			n.logger.Warn("leadership came back after a transfer", "to", string(c.ID), "term", l.term)
		}
		if ctx.Err() != nil || n.raft.State() != raft.Leader {
			break
		}
	}
	return fmt.Errorf("transfer: %w", err)
}

// transferTo has the server call an election, once its log is as long as the
// leader's, and returns when leadership has moved or the time for an election has passed.
//
// Raft's own LeadershipTransfer is not used: interrupted by a partition, its
// goroutine can wait for ever for a replication that has ended, and its leader
// then refuses every write in all its later terms
// (https://github.com/hashicorp/raft/issues/696). Here writes wait meanwhile.
func (n *Node) transferTo(ctx context.Context, s raft.Server) error {
	ctx, cancel := context.WithTimeout(ctx, n.disk.pace.stretch(n.timing.Election))
	defer cancel()
	term := n.raft.CurrentTerm()
	resume, err := n.batch.pause(ctx)
	defer resume()
	if err == nil {
		err = n.awaitLog(ctx, s)
	}
	if err == nil {
		err = n.sendTimeoutNow(ctx, s, term)
	}
	if err == nil {
		_, err = n.awaitLeader(ctx, func(now *level) bool { return string(now.leader) != n.cfg.ID || now.term > term })
	}
	if err != nil {
		return fmt.Errorf("to %s: %w", s.ID, err)
	}
	return nil
}

// awaitLog waits until the server has all entries of this one.
func (n *Node) awaitLog(ctx context.Context, s raft.Server) error {
	again := time.NewTicker(votePause)
	defer again.Stop()
	for {
		st, err := n.askStatus(ctx, s)
		switch {
		case err != nil:
			return err
		case st.ID != string(s.ID):
			return fmt.Errorf("%w: %s answers at %s", ErrUnknownServer, st.ID, s.Address)
		case st.LastIndex >= n.raft.LastIndex():
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("it lacks %d entries: %w", n.raft.LastIndex()-st.LastIndex, ctx.Err())
		}
	}
}

// sendTimeoutNow tells a follower to stand for election, if this server still
// leads in the term: Raft obeys whoever asks, even as a leader.
func (n *Node) sendTimeoutNow(ctx context.Context, s raft.Server, term uint64) error {
	if n.raft.State() != raft.Leader || n.raft.CurrentTerm() != term {
		return ErrNotLeader
	}
	transport := n.cfg.Transport
	req := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(n.cfg.ID), Addr: transport.EncodePeer(raft.ServerID(n.cfg.ID), transport.LocalAddr()),
	}}
	done := make(chan error, 1)
	if !n.tasks.run(func() { done <- transport.TimeoutNow(s.ID, s.Address, req, &raft.TimeoutNowResponse{}) }) {
		return ErrStopped
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// successors lists the other voters that answer, the one furthest ahead first.
func (n *Node) successors(ctx context.Context) []raft.Server {
	ctx, cancel := context.WithTimeout(ctx, n.timing.Round)
	defer cancel()
	type successor struct {
		server raft.Server
		last   uint64
	}
	var found []successor
	err := gather(ctx, &n.tasks, n.others(voters(n.servers())), n.askStatus, func(s raft.Server, st *wire.ServerStatus, err error) bool {
		if err == nil && st.ID == string(s.ID) && st.Problem == "" {
			found = append(found, successor{s, st.LastIndex})
		}
		return false
	})
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		n.logger.Debug("look for a successor", "error", err)
	}
	slices.SortFunc(found, func(a, b successor) int {
		return cmp.Or(cmp.Compare(b.last, a.last), cmp.Compare(a.server.ID, b.server.ID))
	})
	list := make([]raft.Server, len(found))
	for i, f := range found {
		list[i] = f.server
	}
	return list
}

func (n *Node) askStatus(ctx context.Context, s raft.Server) (*wire.ServerStatus, error) {
	return call(ctx, n, s.Address, wire.LinkStatus, nil, wire.DecodeServerStatus)
}

// awaitLeader waits until this server knows a leader and the level fits.
func (n *Node) awaitLeader(ctx context.Context, fits func(*level) bool) (*level, error) {
	for {
		l := n.level.Load()
		switch {
		case l.leader != "" && fits(l):
			return l, nil
		case n.ctx.Err() != nil:
			return nil, ErrStopped
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: %w", ErrNoLeader, ctx.Err())
		}
		n.await(ctx, l.changed)
	}
}

// handOver gives leadership away before this server stops. Failing to is no
// reason not to stop: the others will hold an election.
func (n *Node) handOver(ctx context.Context) {
	if n.raft.State() != raft.Leader || len(voters(n.servers())) < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 4*n.disk.pace.stretch(n.timing.Election))
	defer cancel()
	if err := n.transferHere(ctx, ""); err != nil {
		n.logger.Warn("leadership was not handed over", "error", err)
		return
	}
	n.logger.Info("leadership handed over", "leader", string(n.level.Load().leader))
}
