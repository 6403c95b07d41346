package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/yamux"
)

// ErrNoStream is returned by Streams.Dial when the node's agent has no session
// with this server.
var ErrNoStream = errors.New("the node's agent is not connected")

// Streams holds the agents' sessions with this server: the agent dials, and
// the server opens streams back to it (so agents work behind NAT). On the
// session the server is yamux's client, the agent its server, which serves
// HTTP/1.1 on the streams. It is safe for concurrent use.
type Streams struct {
	logger hclog.Logger

	mu       sync.Mutex
	sessions map[string]*yamux.Session // by node, guarded by mu
	changed  chan struct{}             // closed when sessions has changed, guarded by mu
	closed   bool                      // guarded by mu
}

// NewStreams makes an empty set. A nil logger is silent.
func NewStreams(logger hclog.Logger) *Streams {
	if logger == nil {
		logger = hclog.NewNullLogger()
	}
	return &Streams{logger: logger, sessions: map[string]*yamux.Session{}, changed: make(chan struct{})}
}

// Serve holds the session of a node's agent on conn until it ends, and closes
// conn. The caller has verified that conn belongs to the node. A new session
// replaces the node's old one.
func (s *Streams) Serve(conn net.Conn, node string) error {
	config := yamux.DefaultConfig()
	config.KeepAliveInterval = 10 * time.Second
	config.ConnectionWriteTimeout = 10 * time.Second
	config.LogOutput = s.logger.Named("yamux").StandardWriter(&hclog.StandardLoggerOptions{InferLevels: true})
	session, err := yamux.Client(conn, config)
	if err != nil {
		return errors.Join(fmt.Errorf("session of node %s: %w", node, err), conn.Close())
	}
	old, ok := s.put(node, session)
	if !ok {
		return errors.Join(net.ErrClosed, session.Close())
	}
	if old != nil {
		s.logger.Debug("agent's session replaced", "node", node)
		if err := old.Close(); err != nil {
			s.logger.Debug("close of a replaced session", "node", node, "error", err)
		}
	}
	<-session.CloseChan()
	s.remove(node, session)
	return session.Close()
}

func (s *Streams) put(node string, session *yamux.Session) (old *yamux.Session, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false
	}
	old = s.sessions[node]
	s.sessions[node] = session
	s.wakeLocked()
	return old, true
}

func (s *Streams) remove(node string, session *yamux.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[node] == session {
		delete(s.sessions, node)
		s.wakeLocked()
	}
}

func (s *Streams) wakeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Dial opens a stream to the node's agent. Without a session it waits for one
// until ctx is done, and then returns ErrNoStream: agents come back within
// seconds after a server has restarted.
func (s *Streams) Dial(ctx context.Context, node string) (net.Conn, error) {
	for {
		s.mu.Lock()
		session, changed, closed := s.sessions[node], s.changed, s.closed
		s.mu.Unlock()
		if closed {
			return nil, fmt.Errorf("stream to node %s: %w", node, net.ErrClosed)
		}
		if session != nil {
			conn, err := open(ctx, session)
			if err == nil {
				return conn, nil
			}
			if !session.IsClosed() {
				return nil, fmt.Errorf("stream to node %s: %w", node, err)
			}
			s.remove(node, session)
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("stream to node %s: %w", node, ErrNoStream)
		}
	}
}

// open opens a stream, but does not wait longer than ctx for a session whose
// peer has stopped reading.
func open(ctx context.Context, session *yamux.Session) (net.Conn, error) {
	type result struct {
		stream *yamux.Stream
		err    error
	}
	done := make(chan result, 1)
	go func() {
		stream, err := session.OpenStream()
		done <- result{stream, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, r.err
		}
		return r.stream, nil
	case <-ctx.Done():
		go func() { // it ends with the session at the latest
			if r := <-done; r.stream != nil {
				r.stream.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// Nodes are the names of the nodes whose agents have a session, sorted.
func (s *Streams) Nodes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.sessions))
}

// Close ends all sessions and refuses new ones.
func (s *Streams) Close() error {
	s.mu.Lock()
	s.closed = true
	sessions := slices.Collect(maps.Values(s.sessions))
	s.wakeLocked()
	s.mu.Unlock()
	var errs []error
	for _, session := range sessions {
		errs = append(errs, session.Close())
	}
	return errors.Join(errs...)
}
