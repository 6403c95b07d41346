package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

// HandleForwarded is the leader's half of a write: it authorises, decides and
// proposes, and answers a request that was applied before with what it did
// then. On a replica that does not lead in the copy's term, the answer is
// Response.NotLeader. There must be one call for a request at a time, and none
// for an earlier copy once a later one was answered.
//
// A context that ends does not take a proposal back.
func (s *Server) HandleForwarded(ctx context.Context, req *wire.Request) (resp *wire.Response) {
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > s.cfg.Write.DecisionTimeout {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.cfg.Write.DecisionTimeout)
		defer cancel()
	}
	defer func() {
		if p := recover(); p != nil {
			s.metrics.panics.Inc()
			s.logger.Error("panic in a write", "method", req.Method, "path", req.Path, "panic", p, "stack", string(debug.Stack()))
			resp = s.errorResponse(req, apierrors.NewInternalError(fmt.Errorf("panic: %v", p)))
		}
	}()
	return s.handleWrite(ctx, fsm.RequestID{Nonce: req.Nonce, Birth: req.Birth}, req)
}

// handleWrite takes a request apart and runs its decision to an outcome.
func (s *Server) handleWrite(ctx context.Context, id fsm.RequestID, req *wire.Request) *wire.Response {
	w, err := s.newWrite(id, req)
	if err != nil {
		return s.errorResponse(req, err)
	}
	if _, ok := negotiate(w.header("Accept"), shapesObject); !ok {
		return s.errorResponse(req, errNotAcceptable(acceptedTypes))
	}
	if w.info.Verb == "deletecollection" {
		return s.runCollection(ctx, w)
	}
	return s.runWrite(ctx, w)
}

// runWrite decides and proposes until there is an outcome. Each round looks up
// the request's own outcome in the view that the decision reads: a proposal of
// an earlier round, or of an earlier leader, counts once.
func (s *Server) runWrite(ctx context.Context, w *write) *wire.Response {
	for round := 0; round < s.cfg.Write.MaxPlans; round++ {
		term, leading := s.cfg.Consensus.Leadership()
		if !leading || term != w.req.Term {
			return &wire.Response{NotLeader: true, Untouched: true}
		}
		v := s.cfg.Store.View()
		if outcome, ok := v.Outcome(w.id); ok {
			return w.replay(v, outcome.Objects)
		}
		if v.Expired(w.id) {
			return s.errorResponse(w.req, errOutcomeForgotten(w))
		}
		p, err := w.plan(v)
		if err != nil {
			return s.errorResponse(w.req, err)
		}
		if len(p.ops) == 0 || w.options.dryRun {
			return w.respond(w.preview(p), false)
		}
		result, err := s.cfg.Consensus.Propose(ctx, fsm.Command{ID: w.id, Term: term, Pre: p.pre, Ops: p.ops})
		switch {
		case err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)):
			// It may yet be applied in this term, where no other copy can find
			// out in time.
			return s.errorResponse(w.req, apierrors.NewTimeoutError("the change was proposed but not confirmed in time, it may or may not have been made", 0))
		case err != nil:
			// If it may have been applied, the resend finds out.
			s.logger.Debug("proposal failed", "method", w.req.Method, "path", w.req.Path, "error", err)
			return &wire.Response{NotLeader: true, Untouched: !errors.Is(err, wire.ErrAmbiguous)}
		}
		switch result.Code {
		case fsm.OK:
			if result.Duplicate {
				return w.replay(s.cfg.Store.View(), result.Objects)
			}
			verb := p.ops[0].Verb
			return w.respond(outcome{objects: result.Objects, gone: verb == fsm.Delete, created: verb == fsm.Create}, true)
		case fsm.StaleTerm:
			return &wire.Response{NotLeader: true, Untouched: true}
		case fsm.Expired:
			return s.errorResponse(w.req, errOutcomeForgotten(w))
		case fsm.Conflict:
			s.logger.Debug("planning again", "method", w.req.Method, "path", w.req.Path, "key", result.FailedKey, "detail", result.Detail)
		default:
			return s.errorResponse(w.req, apierrors.NewInternalError(fmt.Errorf("the command was refused as %s: %s %s", result.Code, result.FailedKey, result.Detail)))
		}
	}
	return s.errorResponse(w.req, apierrors.NewConflict(w.info.groupResource(), w.info.Name,
		fmt.Errorf("it, or what the change depends on, was changed by others %d times in a row", s.cfg.Write.MaxPlans)))
}

// errOutcomeForgotten answers a request that waited so long that the table of
// outcomes no longer tells whether it was applied.
func errOutcomeForgotten(w *write) error {
	return apierrors.NewTimeoutError(fmt.Sprintf("%s %s: the request is too old to tell whether it was applied; read the object before you try again", w.info.Verb, w.info.Path), 0)
}

// errorResponse is err as the answer to a forwarded request.
func (s *Server) errorResponse(req *wire.Request, err error) *wire.Response {
	status := toStatus(err)
	if status.Code >= 500 {
		s.logger.Warn("write failed", "method", req.Method, "path", req.Path, "code", status.Code, "error", err)
	}
	header := http.Header{}
	setErrorHeaders(header, status)
	contentType, body := encodeStatus(headerOf(req, "Accept"), status)
	header.Set("Content-Type", contentType)
	return &wire.Response{Status: int(status.Code), Header: header, Body: body}
}

// headerOf joins the values of a forwarded header, as a list-valued header may
// be spread over several lines.
func headerOf(req *wire.Request, name string) string {
	values := req.Header[name]
	switch len(values) {
	case 0:
		return ""
	case 1:
		return values[0]
	}
	joined := values[0]
	for _, v := range values[1:] {
		joined += "," + v
	}
	return joined
}

// addWarnings puts warnings into a header, as kubectl prints them.
func addWarnings(header http.Header, warnings []string) {
	for _, text := range warnings {
		value, err := utilnet.NewWarningHeader(299, "-", text)
		if err != nil { // text that no header can carry
			value = "299 - " + strconv.QuoteToASCII("a field of the object is unknown or given twice")
		}
		header.Add("Warning", value)
	}
}
