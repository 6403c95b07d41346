package cluster

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
)

// Forward brings a request to the leader and returns its answer. When the
// leader changes, the wait ends at once and another copy of the request, under
// the same ID, goes to the next one; wire.Request tells how it takes effect
// once. If the context ends, the request may still be carried out.
//
// It fails with ErrNoLeader after Timing.Forward, or with the context's error;
// ErrAmbiguous is part of the error if a leader may have carried it out. It fails
// sooner where no majority can write to its logs. The request must not be changed
// until the last server has dropped it: never.
func (n *Node) Forward(ctx context.Context, req *wire.Request) (*wire.Response, error) {
	start := time.Now()
	resp, err := n.bring(ctx, req)
	n.metrics.forward(time.Since(start), err)
	return resp, err
}

// bring is Forward without the counting.
func (n *Node) bring(ctx context.Context, req *wire.Request) (*wire.Response, error) {
	if len(req.Body) > wire.MaxBody {
		return nil, fmt.Errorf("body of %d bytes, at most %d are allowed", len(req.Body), wire.MaxBody)
	}
	if req.Nonce == [16]byte{} {
		return nil, fmt.Errorf("request without an ID")
	}
	bound, cancel := context.WithTimeout(ctx, n.timing.Forward)
	defer cancel()
	var last error   // of the last copy
	var perhaps bool // a copy may have changed something
	sent := 0
	for again := false; ; again = true {
		l := n.destination()
		fail := func(err error) (*wire.Response, error) { return nil, forwardError(err, perhaps, last) }
		switch {
		case n.trust.problem() != nil:
			return fail(n.trust.problem())
		case n.ctx.Err() != nil:
			return fail(ErrStopped)
		case ctx.Err() != nil:
			return fail(ctx.Err())
		case bound.Err() != nil:
			return fail(fmt.Errorf("%w within %v", ErrNoLeader, n.timing.Forward))
		case again && n.unwritable() != nil:
			return fail(fmt.Errorf("%w: %w", ErrNoLeader, n.unwritable()))
		case l.leader == "":
			n.pauseUnder(bound, l.changed, n.timing.Round)
			continue
		}
		if sent++; sent > 1 {
			n.metrics.resends.Inc()
		}
		one := *req
		one.Term, one.Attempt = l.term, uint64(sent)
		resp, err := n.forwardOnce(bound, l, &one)
		switch {
		case err == nil && !resp.NotLeader:
			if perhaps && resp.Status == http.StatusServiceUnavailable {
				// An earlier leader may have carried it out: the client must
				// not be invited to send it as a new request.
				delete(resp.Header, "Retry-After")
			}
			return resp, nil
		case err == nil:
			perhaps = perhaps || !resp.Untouched
			err = fmt.Errorf("%s: %w", l.leader, ErrNotLeader)
		default:
			perhaps = true
		}
		last = err
		n.pauseUnder(bound, l.changed, n.timing.Commit)
	}
}

// destination is the level, with a leader where requests can go. Raft learns of
// one only once it has written the term down, and where the disk is full it
// waits for that; to send a request on takes no disk.
func (n *Node) destination() *level {
	l := n.level.Load()
	if l.leader != "" || n.disk.problem() == nil {
		return l
	}
	id, term := n.detector.leaderSince(l.term)
	for _, s := range n.servers() {
		if s.ID == id {
			return &level{term: term, leader: s.ID, address: s.Address, changed: l.changed}
		}
	}
	return l
}

func forwardError(err error, perhaps bool, last error) error {
	if !perhaps {
		return err
	}
	return fmt.Errorf("%w: %w: %w", err, ErrAmbiguous, last)
}

// forwardOnce asks the leader of one level, for hardly longer than the level lasts.
func (n *Node) forwardOnce(ctx context.Context, l *level, req *wire.Request) (*wire.Response, error) {
	if l.raft {
		// lead itself ends when this server stops leading; that its state
		// becomes complete is no reason to ask again.
		return n.lead(ctx, req), nil
	}
	encoded := wire.EncodeRequest(req)
	if len(encoded) <= maxStreamed {
		return n.links.forward(ctx, l.changed, func() time.Duration { return n.linger(l.leader) }, string(l.address), encoded)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer n.cancelOn(l.changed, func() {
		n.pauseUnder(ctx, nil, n.linger(l.leader))
		cancel()
	})()
	return call(ctx, n, l.address, wire.LinkForward, encoded, wire.DecodeResponse)
}

// linger is how long an answer is waited for when the leader has changed. Only
// the old one knows whether it has changed nothing, and if it is there it says
// so at once; of one that is gone there is nothing to wait for.
func (n *Node) linger(leader raft.ServerID) time.Duration {
	if n.detector.incarnationOf(leader) != "" {
		return 2 * n.timing.Commit
	}
	return 0
}

// await waits for the channel, the context's or the node's end.
func (n *Node) await(ctx context.Context, c <-chan struct{}) {
	select {
	case <-c:
	case <-ctx.Done():
	case <-n.ctx.Done():
	}
}

// lead is the leader's half of Forward: it waits until this server leads in
// the term that the copy was sent to, with its state complete, runs the handler
// and makes sure that the answer came from a leader. A server that does not
// lead in that term refuses and sends nothing on: what an earlier term has
// applied is in the state by now, and what it has not it never will.
func (n *Node) lead(ctx context.Context, req *wire.Request) *wire.Response {
	for {
		l := n.level.Load()
		switch {
		case l.term > req.Term || l.term == req.Term && !l.raft,
			n.trust.problem() != nil, ctx.Err() != nil, n.ctx.Err() != nil:
			return &wire.Response{NotLeader: true, Untouched: true}
		case !l.leading && n.unwritable() != nil: // it may lead and never get as far as that
			return &wire.Response{NotLeader: true, Untouched: true}
		case !l.leading || l.term < req.Term: // others hear of a new term before the level here
			n.pauseUnder(ctx, l.changed, n.timing.Round)
			continue
		}
		return n.leadIn(ctx, l.term, req)
	}
}

// leadIn waits for the request's flight, and begins it if there is none.
func (n *Node) leadIn(ctx context.Context, term uint64, req *wire.Request) *wire.Response {
	fl, first := n.flights.join(req)
	if fl == nil {
		return &wire.Response{NotLeader: true, Untouched: true}
	}
	if first {
		n.fly(fl, req)
	}
	for {
		l := n.level.Load()
		if l.term != term || !l.leading {
			return n.deposed(ctx, fl) // let the sender go on at once
		}
		select {
		case <-fl.done:
			return fl.resp
		case <-l.changed:
		case <-ctx.Done():
			return &wire.Response{NotLeader: true} // nobody reads it
		}
	}
}

// fly starts the handler. It outlives its client: what it has proposed goes on
// anyway.
func (n *Node) fly(fl *flight, req *wire.Request) {
	select {
	case n.forwards <- struct{}{}:
	default:
		resp := failure(http.StatusServiceUnavailable, "ServiceUnavailable", "too many requests are being handled")
		resp.Header["Retry-After"] = []string{"1"}
		n.flights.land(fl, resp)
		return
	}
	if !n.crew.run(func() {
		ctx, cancel := context.WithTimeout(n.ctx, n.timing.Forward)
		resp := n.handle(ctx, fl.of.term, req)
		cancel()
		<-n.forwards
		n.flights.land(fl, resp)
	}) {
		<-n.forwards
		n.flights.land(fl, &wire.Response{NotLeader: true, Untouched: true})
	}
}

// deposed is the answer of a server that leads no more: the handler's, if that
// comes at once. Raft ends all proposals as it steps down, so it mostly does, and
// only the handler knows whether it has changed nothing.
func (n *Node) deposed(ctx context.Context, fl *flight) *wire.Response {
	t := time.NewTimer(n.timing.Commit)
	defer t.Stop()
	select {
	case <-fl.done:
		return fl.resp
	case <-t.C:
	case <-ctx.Done():
	}
	return &wire.Response{NotLeader: true}
}

// handle runs the handler. What it answers without having committed anything
// (not found, conflict, unchanged) is only true if it really led when it read
// the state: another leader may have been at work since.
func (n *Node) handle(ctx context.Context, term uint64, req *wire.Request) (resp *wire.Response) {
	defer func() {
		if p := recover(); p != nil {
			n.metrics.panics.Inc()
			n.logger.Error("request handler panicked", "method", req.Method, "path", req.Path, "panic", p, "stack", string(debug.Stack()))
			resp = failure(http.StatusInternalServerError, "InternalError", "the request handler failed")
		}
	}()
	if req.Path == wire.PathRotateKey {
		resp = n.leadRotation(ctx, req)
	} else {
		resp = n.cfg.Handler(ctx, req)
	}
	switch {
	case resp == nil:
		n.logger.Error("request handler gave no answer", "method", req.Method, "path", req.Path)
		return failure(http.StatusInternalServerError, "InternalError", "the request handler gave no answer")
	case resp.NotLeader || resp.Committed:
		return resp
	}
	// A round's proof is about the term the leader is in when it begins, and
	// the handler's reads were made in this one: it must still be the same.
	if _, err := n.confirms.join(ctx); err != nil {
		return &wire.Response{NotLeader: true}
	}
	if now, leading := n.Leadership(); now != term || !leading {
		return &wire.Response{NotLeader: true}
	}
	return resp
}

// failure is an answer of the node itself, as a Kubernetes Status. It does not
// invite a retry: after a panic the change may have been made.
func failure(code int, reason, message string) *wire.Response {
	return &wire.Response{
		Status:    code,
		Committed: true,
		Header:    map[string][]string{"Content-Type": {"application/json"}},
		Body: fmt.Appendf(nil, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":%q,"reason":%q,"code":%d}`,
			message, reason, code),
	}
}
