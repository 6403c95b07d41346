package cluster

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// voteTries bounds how often a request for a vote is sent: the pool may hold
// maxPool connections that the peer has long closed, and each of them fails once.
const voteTries = maxPool + 3

// votePause is the wait before a try after those.
const votePause = 5 * time.Millisecond

// Consumer returns the calls for the local Raft: those from the network and
// those of Elect.
func (t *Transport) Consumer() <-chan raft.RPC { return t.calls }

// forward hands calls from the network to Raft until the transport is closed.
func (t *Transport) forward() {
	for {
		select {
		case rpc := <-t.NetworkTransport.Consumer():
			if !t.screen(&rpc) {
				continue
			}
			select {
			case t.calls <- rpc:
			case <-t.closed:
				return
			}
		case <-t.closed:
			return
		}
	}
}

// errNotNow is returned by Elect when allowed has said no.
var errNotNow = errors.New("the server must not stand for election now")

// Elect makes the local Raft stand for election at once, by the same call that
// a transfer of leadership sends. Raft obeys in any state, even as a leader, so
// allowed is asked until the moment at which Raft takes the call. It is an error
// if that does not happen before the context ends, as when Raft has shut down.
func (t *Transport) Elect(ctx context.Context, id raft.ServerID, address raft.ServerAddress, allowed func() bool) error {
	answers := make(chan raft.RPCResponse, 1)
	rpc := raft.RPC{
		Command: &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{
			ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: t.EncodePeer(id, address),
		}},
		RespChan: answers,
	}
	again := time.NewTicker(votePause)
	defer again.Stop()
	for taken := false; !taken; {
		if !allowed() {
			return errNotNow
		}
		select {
		case t.calls <- rpc:
			taken = true
		case <-again.C: // Raft is busy, and may have changed its mind
		case <-t.closed:
			return raft.ErrTransportShutdown
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case answer := <-answers:
		return answer.Error
	case <-t.closed:
		return raft.ErrTransportShutdown
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unfit returns an error while this server should not become the leader.
func (t *Transport) unfit() error {
	if d := t.disk.Load(); d != nil {
		return d.fit()
	}
	return nil
}

// RequestVote asks a peer for its vote.
func (t *Transport) RequestVote(id raft.ServerID, target raft.ServerAddress, req *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if err := t.unfit(); err != nil {
		return err
	}
	return t.retryVote(func() error {
		begun := time.Now()
		err := t.NetworkTransport.RequestVote(id, target, req, resp)
		if d := t.disk.Load(); d != nil && err == nil {
			d.pace.voted(time.Since(begun))
		}
		return err
	})
}

// RequestPreVote asks a peer whether it would vote.
func (t *Transport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, req *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if err := t.unfit(); err != nil {
		return err
	}
	return t.retryVote(func() error { return t.NetworkTransport.RequestPreVote(id, target, req, resp) })
}

// retryVote sends again what failed on a stale connection: Raft itself would
// ask only in its next election. A peer that refuses connections is down, and
// one that let a whole timeout pass does not answer.
func (t *Transport) retryVote(send func() error) error {
	deadline := time.Now().Add(t.timeout)
	for try := 1; ; try++ {
		err := send()
		if err == nil || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, raft.ErrTransportShutdown) ||
			try >= voteTries || !time.Now().Before(deadline) {
			return err
		}
		if try > maxPool {
			pause := time.NewTimer(votePause)
			select {
			case <-pause.C:
			case <-t.closed:
				pause.Stop()
				return err
			}
		}
		t.voteRetries.Add(1)
	}
}
