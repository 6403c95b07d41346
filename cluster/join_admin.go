package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
)

// administer passes an administrator's question about a member on to the
// leader's gate.
func (g *Gate) administer(path string) func(*http.Request, []byte) (any, error) {
	return func(r *http.Request, body []byte) (any, error) {
		if _, err := g.caller(r, pki.RoleAdmin); err != nil {
			return nil, err
		}
		var req wire.MemberRequest
		if err := json.Unmarshal(body, &req); err != nil || req.Name == "" {
			return nil, refuse(http.StatusBadRequest, "malformed request: the name of a server is needed")
		}
		answer, err := g.askFor(r.Context(), path, req)
		return json.RawMessage(answer), err
	}
}

func (g *Gate) isMember(id string) bool {
	return slices.ContainsFunc(g.cfg.Cluster.Servers(), func(s wire.Server) bool { return s.ID == id })
}

// removeMember takes a server out of the cluster for good.
func (g *Gate) removeMember(ctx context.Context, body []byte) *wire.Response {
	return g.changeMember(body, func(name string) (bool, string, error) {
		removed, err := g.cfg.Cluster.RemoveServer(ctx, name)
		if err != nil || removed {
			return removed, fmt.Sprintf("server %s was removed; its data directory is of no more use", name), err
		}
		r, found, err := lastRetired(g.cfg.Store.View(), name)
		if !found {
			return false, fmt.Sprintf("there is no server %s; nothing was changed", name), err
		}
		return false, fmt.Sprintf("server %s is not a member any more: %s was removed at %s; nothing was changed", name, r.ID, r.Time.Format(time.RFC3339)), err
	})
}

// promoteMember gives a server a vote.
func (g *Gate) promoteMember(ctx context.Context, body []byte) *wire.Response {
	return g.changeMember(body, func(name string) (bool, string, error) {
		promoted, err := g.cfg.Cluster.PromoteServer(ctx, name)
		if err != nil || promoted {
			return promoted, fmt.Sprintf("server %s has a vote now", name), err
		}
		return false, fmt.Sprintf("server %s has a vote already; nothing was changed", name), nil
	})
}

func (g *Gate) changeMember(body []byte, change func(name string) (bool, string, error)) *wire.Response {
	var req wire.MemberRequest
	if err := json.Unmarshal(body, &req); err != nil || req.Name == "" {
		return refusal(http.StatusBadRequest, "malformed request: the name of a server is needed")
	}
	changed, message, err := change(req.Name)
	if err != nil {
		status := http.StatusServiceUnavailable
		switch {
		case errors.Is(err, ErrNotLeader):
			return &wire.Response{NotLeader: true} // asked again, it finds what happened
		case errors.Is(err, ErrUnknownServer):
			status = http.StatusNotFound
		case errors.Is(err, ErrLosesQuorum), errors.Is(err, ErrRemoveLeader), errors.Is(err, ErrNotCaughtUp), errors.Is(err, ErrRemoved):
			status = http.StatusConflict
		}
		return refusal(status, err.Error())
	}
	answer, err := json.Marshal(wire.MemberResponse{Changed: changed, Message: message})
	if err != nil {
		return g.failure(err)
	}
	return &wire.Response{Status: http.StatusOK, Committed: changed, Body: answer}
}
