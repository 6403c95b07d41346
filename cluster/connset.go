package cluster

import (
	"errors"
	"net"
	"sync"
)

// connSet knows open connections, so that all of them can be ended at once.
type connSet struct {
	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
}

func newConnSet() *connSet { return &connSet{conns: make(map[net.Conn]struct{})} }

// track returns the connection wrapped, so that closing it forgets it. It hides
// what else the connection is.
func (s *connSet) track(conn net.Conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	s.conns[conn] = struct{}{}
	return &trackedConn{Conn: conn, set: s}, nil
}

// closeAll closes every connection, and those that are still to come.
func (s *connSet) closeAll() {
	s.mu.Lock()
	s.closed = true
	conns := s.conns
	s.conns = make(map[net.Conn]struct{})
	s.mu.Unlock()
	for conn := range conns {
		_ = conn.Close() // it is being thrown away
	}
}

type trackedConn struct {
	net.Conn
	set *connSet
}

// Close closes the connection and forgets it.
func (c *trackedConn) Close() error {
	c.set.mu.Lock()
	delete(c.set.conns, c.Conn)
	c.set.mu.Unlock()
	return c.Conn.Close()
}
