package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/shepherd-project/shepherd/api/wire"
)

// maxSmallBody bounds the bodies on Shepherd's own paths, in bytes.
const maxSmallBody = 64 << 10

// Handler serves the cluster's own paths on the API port: heartbeat, status,
// transfer and the server list. Who may use them is decided by Config.Agent,
// Config.Admin and Config.Member.
func (n *Node) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+wire.PathHeartbeat, n.serveHeartbeat)
	mux.HandleFunc("GET "+wire.PathStatus, n.serveStatus)
	mux.HandleFunc("POST "+wire.PathTransfer, n.serveTransfer)
	mux.HandleFunc("POST "+wire.PathRotateKey, n.serveRotateKey)
	mux.HandleFunc("GET "+wire.PathServers, n.serveServers)
	return mux
}

func (n *Node) isAdmin(r *http.Request) bool { return n.cfg.Admin != nil && n.cfg.Admin(r) }

func (n *Node) agentOf(r *http.Request) (string, bool) {
	if n.cfg.Agent == nil {
		return "", false
	}
	node, ok := n.cfg.Agent(r)
	return node, ok && node != ""
}

func (n *Node) isMember(r *http.Request) bool {
	if n.cfg.Member != nil {
		return n.cfg.Member(r)
	}
	_, agent := n.agentOf(r)
	return agent || n.isAdmin(r)
}

// deny answers a request without the right credential.
func (n *Node) deny(w http.ResponseWriter, what string) {
	n.writeJSON(w, http.StatusUnauthorized, wire.Error{Message: what})
}

func (n *Node) writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		n.logger.Debug("answer", "error", err)
	}
}

// readJSON reads a small body; it answers and returns false if there is none.
func (n *Node) readJSON(w http.ResponseWriter, r *http.Request, v any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSmallBody)).Decode(v); err != nil {
		n.writeJSON(w, http.StatusBadRequest, wire.Error{Message: "read request: " + err.Error()})
		return false
	}
	return true
}

func (n *Node) serveHeartbeat(w http.ResponseWriter, r *http.Request) {
	node, ok := n.agentOf(r)
	if !ok {
		n.deny(w, "an agent's certificate is needed")
		return
	}
	var beat wire.Heartbeat
	if !n.readJSON(w, r, &beat) {
		return
	}
	replicas, err := n.Heartbeat(r.Context(), node)
	if err != nil {
		n.metrics.heartbeats.WithLabelValues("unrecorded").Inc()
		n.writeJSON(w, http.StatusServiceUnavailable, wire.Error{Message: err.Error()})
		return
	}
	n.metrics.heartbeats.WithLabelValues("recorded").Inc()
	n.writeJSON(w, http.StatusOK, wire.HeartbeatAck{Sequence: beat.Sequence, Replicas: replicas})
}

func (n *Node) serveStatus(w http.ResponseWriter, r *http.Request) {
	if !n.isAdmin(r) {
		n.deny(w, "an administrator's certificate is needed")
		return
	}
	n.writeJSON(w, http.StatusOK, n.Status(r.Context()))
}

func (n *Node) serveServers(w http.ResponseWriter, r *http.Request) {
	if !n.isMember(r) {
		n.deny(w, "an agent's or administrator's certificate is needed")
		return
	}
	n.writeJSON(w, http.StatusOK, wire.ServerList{Servers: n.Servers()})
}

func (n *Node) serveTransfer(w http.ResponseWriter, r *http.Request) {
	if !n.isAdmin(r) {
		n.deny(w, "an administrator's certificate is needed")
		return
	}
	var req wire.TransferRequest
	if !n.readJSON(w, r, &req) {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), n.timing.Read)
	defer cancel()
	if err := n.Transfer(ctx, req.Name); err != nil {
		code := http.StatusConflict
		switch {
		case errors.Is(err, ErrUnknownServer):
			code = http.StatusNotFound
		case errors.Is(err, ErrNoLeader), errors.Is(err, ErrStopped):
			code = http.StatusServiceUnavailable
		}
		n.writeJSON(w, code, wire.Error{Message: err.Error()})
		return
	}
	l := n.level.Load()
	n.writeJSON(w, http.StatusOK, wire.TransferResponse{Leader: ServerName(string(l.leader)), Term: l.term})
}
