package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/fsm"
)

// claimGrace is how long a node's name stays reserved for a machine that
// joined and never registered a Node.
const claimGrace = 2 * time.Minute

// ErrNodeName is wrapped when a node's name is another machine's.
var ErrNodeName = errors.New("the node name is in use by another machine")

func newUID() string { return string(uuid.NewUUID()) }

// nodeClaim asks for a node's name.
type nodeClaim struct {
	Node    string `json:"node"`
	KeyHash string `json:"keyHash"`
}

// nodeHolder is the data of a node name's reservation: who may be that node.
type nodeHolder struct {
	Version int       `json:"version"`
	KeyHash string    `json:"keyHash"`
	Time    time.Time `json:"time"`
}

func nodeReservation(node string) fsm.Key {
	return fsm.Key{Resource: fsm.ReservationResource, Name: "nodename/" + node}
}

func readHolder(view *fsm.View, node string) (*fsm.Object, nodeHolder, error) {
	o := view.Get(nodeReservation(node))
	if o == nil {
		return nil, nodeHolder{}, nil
	}
	var h nodeHolder
	if err := json.Unmarshal(o.Data, &h); err != nil {
		return o, h, fmt.Errorf("read the reservation of node name %q: %w", node, err)
	}
	return o, h, nil
}

// CheckNodeKey refuses a certificate whose node name has passed to another
// machine: its error wraps ErrNodeName then. A name without a reservation is
// not refused, because this replica may be behind.
func CheckNodeKey(view *fsm.View, node, keyHash string) error {
	o, h, err := readHolder(view, node)
	if err != nil {
		return err
	}
	if o != nil && h.KeyHash != keyHash {
		return fmt.Errorf("%w: %q has joined again with another key", ErrNodeName, node)
	}
	return nil
}

// Handles reports whether a forwarded request is for a gate.
func (g *Gate) Handles(req *wire.Request) bool {
	return strings.HasPrefix(req.Path, wire.PathPrefix+"gate/")
}

// HandleForwarded is the leader's half of the gate. Every request may be sent
// again: each asks for a state, not for a change.
func (g *Gate) HandleForwarded(ctx context.Context, req *wire.Request) *wire.Response {
	switch req.Path {
	case pathClaim:
		return g.claimNode(ctx, req.Body)
	case pathMember:
		return g.addMember(ctx, req.Body)
	case pathTokens:
		return g.keepToken(ctx, req.Body)
	case pathRemove:
		return g.removeMember(ctx, req.Body)
	case pathPromote:
		return g.promoteMember(ctx, req.Body)
	default:
		return refusal(http.StatusNotFound, "no such request between servers: "+req.Path)
	}
}

// ask sends a question to the leader's gate and turns a refusal into an error.
func (g *Gate) ask(ctx context.Context, path string, question any) error {
	_, err := g.askFor(ctx, path, question)
	return err
}

// askFor is ask for questions that have an answer.
func (g *Gate) askFor(ctx context.Context, path string, question any) ([]byte, error) {
	body, err := json.Marshal(question)
	if err != nil {
		return nil, fmt.Errorf("ask the leader: %w", err)
	}
	id := fsm.NewRequestID(g.cfg.Store.View().Revision())
	res, err := g.cfg.Cluster.Forward(ctx, &wire.Request{Nonce: id.Nonce, Birth: id.Birth, Method: http.MethodPost, Path: path, Body: body})
	if err != nil {
		return nil, fmt.Errorf("ask the leader: %w", err)
	}
	if res.NotLeader {
		return nil, errors.New("ask the leader: there is none now")
	}
	if res.Status != http.StatusOK {
		var e wire.Error
		if err := json.Unmarshal(res.Body, &e); err != nil || e.Message == "" {
			e.Message = fmt.Sprintf("the leader answered with status %d", res.Status)
		}
		return nil, &refused{res.Status, e.Message}
	}
	return res.Body, nil
}

func refusal(status int, message string) *wire.Response {
	body, err := json.Marshal(wire.Error{Message: message})
	if err != nil { // strings always encode
		body = nil
	}
	return &wire.Response{Status: status, Header: map[string][]string{"Content-Type": {"application/json"}}, Body: body}
}

// plan is what a decision wants to change; nothing, where all is as asked.
type plan struct {
	pre []fsm.Precondition
	ops []fsm.Op
}

// maxReplans bounds how often a decision is made again after a conflict.
const maxReplans = 16

// decide plans and proposes until the plan fits the state.
func (g *Gate) decide(ctx context.Context, planner func(*fsm.View) (plan, error)) *wire.Response {
	for range maxReplans {
		term, leading := g.cfg.Cluster.Leadership()
		if !leading {
			return &wire.Response{NotLeader: true}
		}
		p, err := planner(g.cfg.Store.View())
		if err != nil {
			return g.failure(err)
		}
		if len(p.ops) == 0 {
			return &wire.Response{Status: http.StatusOK}
		}
		res, err := g.cfg.Cluster.Propose(ctx, fsm.Command{Term: term, Pre: p.pre, Ops: p.ops})
		if err != nil {
			if ctx.Err() != nil {
				return refusal(http.StatusServiceUnavailable, "the cluster did not decide in time")
			}
			return &wire.Response{NotLeader: true} // asked again, it finds what happened
		}
		switch res.Code {
		case fsm.OK:
			return &wire.Response{Status: http.StatusOK, Committed: true}
		case fsm.StaleTerm:
			return &wire.Response{NotLeader: true}
		case fsm.Conflict:
			continue
		default:
			return refusal(http.StatusInternalServerError, fmt.Sprintf("the command was refused: %s %s", res.Code, res.Detail))
		}
	}
	return refusal(http.StatusServiceUnavailable, "the state kept changing; try again")
}

func (g *Gate) failure(err error) *wire.Response {
	var r *refused
	if errors.As(err, &r) {
		return refusal(r.status, r.reason)
	}
	g.logger.Error("a request between servers failed", "error", err)
	return refusal(http.StatusInternalServerError, err.Error())
}

// claimNode reserves a node's name for the machine that holds a key. The
// machine itself may ask again; another one gets the name once the Node is
// deleted.
func (g *Gate) claimNode(ctx context.Context, body []byte) *wire.Response {
	var claim nodeClaim
	if err := json.Unmarshal(body, &claim); err != nil || claim.KeyHash == "" {
		return refusal(http.StatusBadRequest, "malformed claim of a node name")
	}
	// What the certificate cannot carry must not be reserved.
	if err := pki.CheckName(claim.Node); err != nil {
		return refusal(http.StatusBadRequest, fmt.Sprintf("node name %q: %v", claim.Node, err))
	}
	key, node := nodeReservation(claim.Node), fsm.Key{Resource: "nodes", Name: claim.Node}
	return g.decide(ctx, func(view *fsm.View) (plan, error) {
		now := g.cfg.Cluster.Now()
		data, err := json.Marshal(nodeHolder{Version: 1, KeyHash: claim.KeyHash, Time: now.UTC()})
		if err != nil {
			return plan{}, err
		}
		o, holder, err := readHolder(view, claim.Node)
		switch {
		case err != nil:
			return plan{}, err
		case o == nil:
			return plan{
				pre: []fsm.Precondition{{Key: key, Absent: true}},
				ops: []fsm.Op{{Verb: fsm.Create, Key: key, UID: newUID(), Data: data}},
			}, nil
		case holder.KeyHash == claim.KeyHash:
			return plan{}, nil
		case view.Get(node) != nil:
			return plan{}, refuse(http.StatusConflict, "%v: choose another --node-name for this machine, or delete the Node %q first if its machine is gone for good", ErrNodeName, claim.Node)
		case now.Before(holder.Time.Add(claimGrace)):
			return plan{}, refuse(http.StatusConflict, "%v: it joined a moment ago; choose another --node-name, or wait until %s if that machine is gone for good",
				ErrNodeName, holder.Time.Add(claimGrace).Format(time.RFC3339))
		}
		return plan{
			pre: []fsm.Precondition{{Key: node, Absent: true}, {Key: key, UID: o.UID, Revision: o.Modified}},
			ops: []fsm.Op{{Verb: fsm.Update, Key: key, UID: o.UID, Data: data}},
		}, nil
	})
}

// addMember makes a server a member, or moves it to another address.
func (g *Gate) addMember(ctx context.Context, body []byte) *wire.Response {
	var s wire.Server
	if err := json.Unmarshal(body, &s); err != nil || !serverID.MatchString(s.ID) {
		return refusal(http.StatusBadRequest, "malformed member")
	}
	// The next joiner must see this one, so that one name is not given twice.
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, leading := g.cfg.Cluster.Leadership(); !leading {
		return &wire.Response{NotLeader: true}
	}
	if Superseded(g.cfg.Store.View(), s.ID) {
		return refusal(http.StatusForbidden, fmt.Sprintf("server %s was left behind when the cluster was recovered or restored: restart it, it then sets its log aside and enters anew", s.ID))
	}
	if isRetired(g.cfg.Store.View(), s.ID) && !g.isMember(s.ID) {
		return refusal(http.StatusGone, removedError(s.ID).Error())
	}
	if err := g.checkPlace(s); err != nil {
		return g.failure(err)
	}
	for _, m := range g.cfg.Cluster.Servers() {
		if m.ID == s.ID && m.Address == s.Address {
			return &wire.Response{Status: http.StatusOK}
		}
	}
	if err := g.cfg.Cluster.AddServer(ctx, s.ID, s.Address); err != nil {
		if errors.Is(err, ErrRemoved) {
			return refusal(http.StatusGone, err.Error())
		}
		if errors.Is(err, ErrNameTaken) || errors.Is(err, ErrAddressTaken) || errors.Is(err, ErrOldBuild) {
			return refusal(http.StatusConflict, fmt.Sprintf("add server %s: %v", s.ID, err))
		}
		if _, leading := g.cfg.Cluster.Leadership(); !leading {
			return &wire.Response{NotLeader: true}
		}
		return refusal(http.StatusServiceUnavailable, fmt.Sprintf("add server %s: %v", s.ID, err))
	}
	g.logger.Info("a server was added", "id", s.ID, "address", s.Address)
	return &wire.Response{Status: http.StatusOK, Committed: true}
}
