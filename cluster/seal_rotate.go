package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/seal"
	"github.com/shepherd-project/shepherd/fsm"
)

// A rotation, on the leader:
//
//	a new key ── link ──> every member stores it and says so
//	                          │ all of them have
//	                          v
//	a command names the key's ID; whoever applied it seals with that key
//
// Whatever dies in between leaves a key that nobody seals with yet, and the next
// rotation takes that one. So an entry never names a key that a member lacks,
// but for one that joined with the keys of a moment earlier: it asks the others.

// keepSealed makes a cluster name its key, and one that an earlier version began
// seal at all, as soon as all members can open what is sealed.
func (n *Node) keepSealed() {
	n.whileLeading(n.ensureSealed, func(err error) {
		n.keys.logger.Warn("new log entries are not sealed with a recorded key yet; it is tried again", "error", err)
	})
}

func (n *Node) ensureSealed() error {
	ctx, cancel := context.WithTimeout(n.ctx, n.timing.Propose)
	defer cancel()
	if id, err := n.keys.recorded(n.store.View()); err != nil || id != 0 {
		return err
	}
	_, err := n.rotate(ctx, fsm.RequestID{}, false)
	return err
}

// leadRotation is the leader's half of a request to rotate.
func (n *Node) leadRotation(ctx context.Context, req *wire.Request) *wire.Response {
	if n.keys == nil {
		return refusal(http.StatusNotImplemented, "this server keeps no data keys")
	}
	res, err := n.rotate(ctx, fsm.RequestID{Nonce: req.Nonce, Birth: req.Birth}, true)
	switch {
	case errors.Is(err, ErrNotLeader), errors.Is(err, ErrAmbiguous), errors.Is(err, ErrStopped):
		return &wire.Response{NotLeader: true} // sent again under the same ID, it finds what happened
	case err != nil:
		return refusal(http.StatusConflict, err.Error())
	}
	body, err := json.Marshal(res)
	if err != nil {
		return refusal(http.StatusInternalServerError, err.Error())
	}
	return &wire.Response{Status: http.StatusOK, Header: map[string][]string{"Content-Type": {"application/json"}}, Body: body, Committed: true}
}

// rotate makes another key the one to seal with: the newest, if it never was,
// else a new one. Without fresh, the one that the cluster began with will do.
func (n *Node) rotate(ctx context.Context, id fsm.RequestID, fresh bool) (wire.RotateKeyResponse, error) {
	select {
	case n.keys.turn <- struct{}{}:
		defer func() { <-n.keys.turn }()
	case <-ctx.Done():
		return wire.RotateKeyResponse{}, fmt.Errorf("another rotation has not ended: %w", ctx.Err())
	}
	term, leading := n.Leadership()
	if !leading {
		return wire.RotateKeyResponse{}, ErrNotLeader
	}
	view := n.store.View()
	previous, err := n.keys.recorded(view)
	if err != nil {
		return wire.RotateKeyResponse{}, err
	}
	if _, done := view.Outcome(id); done && !id.IsZero() {
		return wire.RotateKeyResponse{Key: previous}, nil
	}
	if _, err := n.keys.current(); err != nil { // the command is sealed with it, too
		return wire.RotateKeyResponse{}, err
	}
	inUse := previous
	if inUse == 0 && fresh {
		inUse = n.keys.ring.Keys().Initial
	}
	key, err := n.keys.next(inUse, n.clock.now())
	if err != nil {
		return wire.RotateKeyResponse{}, err
	}
	members := n.servers()
	if err := n.handOut(ctx, members); err != nil {
		return wire.RotateKeyResponse{}, fmt.Errorf("the data key stays as it is: %w", err)
	}
	if !slices.Equal(members, n.servers()) {
		return wire.RotateKeyResponse{}, errors.New("the data key stays as it is: the members changed meanwhile; try again")
	}
	if err := n.nameKey(ctx, term, id, view, key.ID); err != nil {
		return wire.RotateKeyResponse{}, err
	}
	n.keys.logger.Info("log entries and snapshots are sealed with another data key", "key", key.ID, "previous", inUse)
	return wire.RotateKeyResponse{Key: key.ID, Previous: inUse}, nil
}

// next is the newest key if it is newer than the one in use, else a new one.
func (k *keychain) next(inUse uint32, now time.Time) (seal.Key, error) {
	keys := k.ring.Keys()
	newest, ok := keys.Newest()
	if ok && newest.ID != inUse {
		return newest, nil
	}
	if ok && !now.After(newest.Created) {
		now = newest.Created.Add(1) // the order of making is what Newest goes by
	}
	key := seal.NewKey(now)
	with, err := keys.With(key)
	if err != nil {
		return seal.Key{}, err
	}
	return key, k.ring.Add(with)
}

// handOut gives all keys to all members and returns once every one has stored
// them, or an error that names those that have not.
func (n *Node) handOut(ctx context.Context, members []raft.Server) error {
	keys := n.keys.ring.Keys()
	missing, err := n.everyOther(ctx, members, func(ctx context.Context, s raft.Server) error {
		return n.keys.exchange(ctx, s, keys)
	})
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("every server must have stored the new one first, and not all have: %s; start or upgrade them, or remove them from the cluster, and try again", strings.Join(missing, "; "))
	}
	return nil
}

// nameKey commits which key is in use.
func (n *Node) nameKey(ctx context.Context, term uint64, id fsm.RequestID, view *fsm.View, key uint32) error {
	data, err := json.Marshal(sealingRecord{Version: 1, Key: key})
	if err != nil {
		return err
	}
	cmd := fsm.Command{ID: id, Term: term}
	if o := view.Get(sealingKey); o == nil {
		cmd.Pre = []fsm.Precondition{{Key: sealingKey, Absent: true}}
		cmd.Ops = []fsm.Op{{Verb: fsm.Create, Key: sealingKey, UID: newUID(), Data: data}}
	} else {
		cmd.Pre = []fsm.Precondition{{Key: sealingKey, UID: o.UID, Revision: o.Modified}}
		cmd.Ops = []fsm.Op{{Verb: fsm.Update, Key: sealingKey, UID: o.UID, Data: data}}
	}
	res, err := n.Propose(ctx, cmd)
	switch {
	case err != nil:
		return err
	case res.Code == fsm.StaleTerm:
		return ErrNotLeader
	case res.Code != fsm.OK:
		return fmt.Errorf("the data key stays as it is: %s %s", res.FailedKey, res.Detail)
	}
	return nil
}

// serveRotateKey takes an administrator's request at any server.
func (n *Node) serveRotateKey(w http.ResponseWriter, r *http.Request) {
	if !n.isAdmin(r) {
		n.deny(w, "an administrator's certificate is needed")
		return
	}
	if !n.readJSON(w, r, &struct{}{}) {
		return
	}
	id := fsm.NewRequestID(n.store.View().Revision())
	res, err := n.Forward(r.Context(), &wire.Request{Nonce: id.Nonce, Birth: id.Birth, Method: http.MethodPost, Path: wire.PathRotateKey})
	if err != nil {
		n.writeJSON(w, http.StatusServiceUnavailable, wire.Error{Message: fmt.Sprintf("rotate the data key: %v", err)})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(res.Status)
	if _, err := w.Write(res.Body); err != nil {
		n.logger.Debug("answer", "error", err)
	}
}
