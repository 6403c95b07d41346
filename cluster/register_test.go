package cluster

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

type netConn = net.Conn

// register is a small leader's half: registers with PUT (blind), CAS ("old new",
// 409 if the value is another) and APPEND (adds a word). It does what the API
// does with request IDs: look up the outcome, plan, propose, plan again on a
// conflict.
type register struct {
	node  atomic.Pointer[Node]
	store *fsm.Store
}

func (r *register) handle(ctx context.Context, req *wire.Request) *wire.Response {
	node := r.node.Load()
	if node == nil {
		return &wire.Response{NotLeader: true}
	}
	id := fsm.RequestID{Nonce: req.Nonce, Birth: req.Birth}
	for ctx.Err() == nil {
		term, leading := node.Leadership()
		if !leading || term != req.Term {
			return &wire.Response{NotLeader: true, Untouched: true}
		}
		view := r.store.View()
		if _, ok := view.Outcome(id); ok {
			return &wire.Response{Status: http.StatusOK, Committed: true}
		}
		if view.Expired(id) {
			return &wire.Response{Status: http.StatusGone}
		}
		key := registerKey(req.Path)
		old := view.Get(key)
		var before []byte
		if old != nil {
			before = old.Data
		}
		value := req.Body
		switch req.Method {
		case "CAS":
			from, to, _ := strings.Cut(string(req.Body), " ")
			if from != string(before) {
				return &wire.Response{Status: http.StatusConflict, Body: before}
			}
			value = []byte(to)
		case "APPEND":
			value = append(append(bytes.Clone(before), ' '), req.Body...)
		}
		cmd := fsm.Command{ID: id, Term: term}
		switch {
		case old == nil:
			cmd.Ops = []fsm.Op{{Verb: fsm.Create, Key: key, UID: "u" + key.Name, Data: value}}
		default:
			cmd.Ops = []fsm.Op{{Verb: fsm.Update, Key: key, UID: old.UID, Data: value}}
			if req.Method != "PUT" {
				cmd.Pre = []fsm.Precondition{{Key: key, UID: old.UID, Revision: old.Modified}}
			}
		}
		res, err := node.Propose(ctx, cmd)
		if err != nil {
			return &wire.Response{NotLeader: true, Untouched: !errors.Is(err, ErrAmbiguous)}
		}
		switch res.Code {
		case fsm.OK:
			return &wire.Response{Status: http.StatusOK, Committed: true}
		case fsm.Conflict:
		case fsm.StaleTerm:
			return &wire.Response{NotLeader: true, Untouched: true}
		default:
			return &wire.Response{Status: http.StatusInternalServerError, Body: []byte(res.Code.String() + " " + res.Detail)}
		}
	}
	return &wire.Response{NotLeader: true}
}
