package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
)

// newLinkServer serves the links of other servers. Whoever has a link is a
// server of this cluster: the listener has checked it.
func (n *Node) newLinkServer() *http.Server {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP1(true) // for what upgrades
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+wire.LinkForward, n.linkForward)
	mux.HandleFunc("POST "+wire.LinkForwards, n.linkForwards)
	mux.HandleFunc("POST "+wire.LinkReadIndex, n.linkReadIndex)
	mux.HandleFunc("POST "+wire.LinkTerm, n.linkTerm)
	mux.HandleFunc("POST "+wire.LinkHeartbeat, n.linkHeartbeat)
	mux.HandleFunc("POST "+wire.LinkAges, n.linkAges)
	mux.HandleFunc("POST "+wire.LinkStatus, n.linkStatus)
	mux.HandleFunc("POST "+wire.LinkTransfer, n.linkTransfer)
	mux.HandleFunc("POST "+wire.LinkKeys, n.linkKeys)
	mux.HandleFunc("POST "+wire.LinkLevel, n.linkLevel)
	mux.HandleFunc("POST "+wire.LinkDigest, n.linkDigest)
	mux.HandleFunc("GET "+wire.LinkWatch, n.linkWatch)
	if n.cfg.LinkHandler != nil {
		mux.Handle("/", n.cfg.LinkHandler)
	}
	return &http.Server{
		Handler:     mux,
		Protocols:   &protocols,
		BaseContext: func(net.Listener) context.Context { return n.ctx },
		ErrorLog:    n.logger.Named("link").StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          n.cfg.MaxForwards + 1024,
			SendPingTimeout:               linkPing,
			PingTimeout:                   linkPing,
			WriteByteTimeout:              2 * linkPing,
			MaxReceiveBufferPerConnection: 4<<20 - 1,
			MaxReceiveBufferPerStream:     4<<20 - 1,
		},
	}
}

func (n *Node) serveLinks() {
	l := &hidingListener{Listener: n.cfg.LinkListener, open: newConnSet()}
	defer l.open.closeAll()
	err := n.linkSrv.Serve(l)
	if err != nil && !errors.Is(err, http.ErrServerClosed) && n.ctx.Err() == nil {
		n.logger.Error("links are not served any more", "error", err)
	}
	<-n.ctx.Done()
}

// hidingListener hands out connections that are nothing but connections: HTTP
// would look into a TLS one for a protocol that it knows.
type hidingListener struct {
	net.Listener
	open *connSet
}

// Accept waits for a peer's connection.
func (l *hidingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.open.track(conn)
}

// readLink reads a request's body, or answers why it cannot.
func readLink[R any](w http.ResponseWriter, r *http.Request, limit int64, decode func([]byte) (*R, error)) (*R, bool) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		http.Error(w, "read request: "+err.Error(), http.StatusBadRequest)
		return nil, false
	}
	msg, err := decode(data)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil, false
	}
	return msg, true
}

// writeLink sends an answer. When that fails the connection is gone, and the
// other side knows it.
func (n *Node) writeLink(w http.ResponseWriter, data []byte) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	if _, err := w.Write(data); err != nil {
		n.logger.Debug("answer on link", "error", err)
	}
}

// linkBudget is how long the sender still waits, at most d.
func linkBudget(r *http.Request, d time.Duration) time.Duration {
	ms, err := strconv.ParseInt(r.Header.Get(wire.HeaderTimeout), 10, 64)
	if err != nil || ms <= 0 || ms > d.Milliseconds() {
		return d
	}
	return time.Duration(ms) * time.Millisecond
}

func (n *Node) linkTerm(w http.ResponseWriter, r *http.Request) {
	if _, ok := readLink(w, r, wire.MaxSmall, wire.DecodeTermQuery); !ok {
		return
	}
	n.writeLink(w, wire.EncodeTermReply(n.termReply()))
}

func (n *Node) linkReadIndex(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), linkBudget(r, n.timing.Read))
	defer cancel()
	index, err := n.confirms.join(ctx)
	switch {
	case errors.Is(err, ErrNotLeader), errors.Is(err, ErrStopped):
		n.writeLink(w, wire.EncodeReadIndexReply(&wire.ReadIndexReply{NotLeader: true}))
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		n.writeLink(w, wire.EncodeReadIndexReply(&wire.ReadIndexReply{Term: n.level.Load().term, Index: index}))
	}
}

func (n *Node) linkForward(w http.ResponseWriter, r *http.Request) {
	req, ok := readLink(w, r, wire.MaxMessage, wire.DecodeRequest)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), linkBudget(r, n.timing.Forward))
	defer cancel()
	n.writeLink(w, wire.EncodeResponse(n.lead(ctx, req)))
}

func (n *Node) linkStatus(w http.ResponseWriter, _ *http.Request) {
	n.writeLink(w, wire.EncodeServerStatus(n.serverStatus()))
}

func (n *Node) linkTransfer(w http.ResponseWriter, r *http.Request) {
	req, ok := readLink(w, r, wire.MaxSmall, wire.DecodeTransferRequest)
	if !ok {
		return
	}
	if err := n.transferHere(r.Context(), req.Name); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	n.writeLink(w, nil)
}

// memberOf finds a server by ID or name.
func memberOf(servers []raft.Server, name string) (raft.Server, bool) {
	for _, s := range servers {
		if string(s.ID) == name || ServerName(string(s.ID)) == name {
			return s, true
		}
	}
	return raft.Server{}, false
}
func (n *Node) linkHeartbeat(w http.ResponseWriter, r *http.Request) {
	rec, ok := readLink(w, r, wire.MaxSmall, wire.DecodeHeartbeatRecord)
	if !ok {
		return
	}
	if err := n.trust.problem(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	for _, a := range rec.Ages {
		n.live.record(a.Node, a.Age)
	}
	n.writeLink(w, wire.EncodeHeartbeatRecorded(&wire.HeartbeatRecorded{ID: n.cfg.ID}))
}

func (n *Node) linkAges(w http.ResponseWriter, _ *http.Request) {
	n.writeLink(w, wire.EncodeAgesReply(n.agesReply()))
}
