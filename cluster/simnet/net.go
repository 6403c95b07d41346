// Package simnet is a network of hosts for tests in a synctest bubble: what
// passes between the servers of a simulated cluster, and between it and its
// clients. It has no place in a program.
package simnet

import (
	"context"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// Net is a network of hosts. Like TCP it delivers what was written in order,
// late but not damaged: what a partition holds up arrives when it heals, and
// only a crash of a host that can be reached is noticed. It is safe for
// concurrent use.
type Net struct {
	mu        sync.Mutex
	rng       *rand.Rand
	listeners map[string]*listener // "protocol host"
	blocked   map[[2]string]bool   // direction from, to
	delay     map[[2]string]time.Duration
	refused   map[[3]string]bool // protocol, from, to
	down      map[string]bool    // crashed, and not listening again
	halves    map[*half]struct{}
}

// New makes a network whose latencies are drawn from the seed.
func New(seed int64) *Net {
	return &Net{
		rng: rand.New(rand.NewSource(seed)), listeners: make(map[string]*listener),
		blocked: make(map[[2]string]bool), delay: make(map[[2]string]time.Duration), refused: make(map[[3]string]bool),
		down: make(map[string]bool), halves: make(map[*half]struct{}),
	}
}

// Block blocks or unblocks one direction.
func (s *Net) Block(from, to string, blocked bool) {
	s.mu.Lock()
	s.blocked[[2]string{from, to}] = blocked
	s.mu.Unlock()
	s.wake()
}

// Isolate cuts a host off from the others, in both directions.
func (s *Net) Isolate(host string, others []string, blocked bool) {
	for _, o := range others {
		if o != host {
			s.Block(host, o, blocked)
			s.Block(o, host, blocked)
		}
	}
}

// Slow delays one direction by d on top of the usual latency.
func (s *Net) Slow(from, to string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay[[2]string{from, to}] = d
}

// Heal removes all blocks and delays.
func (s *Net) Heal() {
	s.mu.Lock()
	clear(s.blocked)
	clear(s.delay)
	clear(s.refused)
	s.mu.Unlock()
	s.wake()
}

// Refuse resets a host's connections of one protocol to another one and refuses
// new ones, as a firewall does.
func (s *Net) Refuse(protocol, from, to string) {
	s.mu.Lock()
	s.refused[[3]string{protocol, from, to}] = true
	s.mu.Unlock()
	s.resetWhere(func(h *half) bool {
		return h.protocol == protocol && (h.opener == from && h.other() == to)
	})
}

// Crash resets every connection of a host and stops its listeners. Until it
// listens again it reaches nobody.
func (s *Net) Crash(host string) {
	s.mu.Lock()
	s.down[host] = true
	for _, l := range s.listeners {
		if l.host == host {
			l.closeLocked()
		}
	}
	s.mu.Unlock()
	s.resetWhere(func(h *half) bool { return h.from == host || h.to == host })
}

func (s *Net) resetWhere(which func(*half) bool) {
	s.mu.Lock()
	var mine []*half
	for h := range s.halves {
		if which(h) {
			mine = append(mine, h)
		}
	}
	s.mu.Unlock()
	for _, h := range mine {
		h.mu.Lock()
		h.reset = true
		h.wakeLocked()
		h.mu.Unlock()
	}
}

func (s *Net) wake() {
	s.mu.Lock()
	all := make([]*half, 0, len(s.halves))
	for h := range s.halves {
		all = append(all, h)
	}
	s.mu.Unlock()
	for _, h := range all {
		h.mu.Lock()
		h.wakeLocked()
		h.mu.Unlock()
	}
}

// Blocked reports whether packets of one direction are dropped.
func (s *Net) Blocked(from, to string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blocked[[2]string{from, to}]
}

// latency draws how long a piece of data travels.
func (s *Net) latency(from, to string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return 100*time.Microsecond + time.Duration(s.rng.Int63n(int64(400*time.Microsecond))) + s.delay[[2]string{from, to}]
}

// Listen takes a host's connections of one protocol.
func (s *Net) Listen(protocol, host string) net.Listener { return s.listen(protocol, host) }

// RaftLayer takes and makes a host's connections for Raft.
func (s *Net) RaftLayer(host string) raft.StreamLayer { return raftLayer{s.listen("raft", host)} }

func (s *Net) listen(protocol, host string) *listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.down, host)
	l := &listener{net: s, host: host, conns: make(chan net.Conn, 64), done: make(chan struct{})}
	s.listeners[protocol+" "+host] = l
	return l
}

// Dial connects two hosts. While packets are dropped between them it waits,
// until the context ends.
func (s *Net) Dial(ctx context.Context, protocol, from, to string) (net.Conn, error) {
	for s.Blocked(from, to) || s.Blocked(to, from) {
		t := time.NewTimer(20 * time.Millisecond) // packets are dropped, and sent again
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		case <-t.C:
		}
	}
	t := time.NewTimer(2 * s.latency(from, to))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-t.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.listeners[protocol+" "+to]
	if l == nil || l.closed || s.down[from] || s.refused[[3]string{protocol, from, to}] {
		return nil, fmt.Errorf("dial %s: %w", to, syscall.ECONNREFUSED)
	}
	there, back := s.halfLocked(from, to), s.halfLocked(to, from)
	there.protocol, back.protocol, there.opener, back.opener = protocol, protocol, from, from
	select {
	case l.conns <- &conn{in: there, out: back, local: to, remote: from}:
		return &conn{in: back, out: there, local: from, remote: to}, nil
	default:
		return nil, fmt.Errorf("dial %s: the backlog is full", to)
	}
}

func (s *Net) halfLocked(from, to string) *half {
	h := &half{net: s, from: from, to: to, wakeup: make(chan struct{})}
	s.halves[h] = struct{}{}
	return h
}

type addr string

func (addr) Network() string  { return "sim" }
func (a addr) String() string { return string(a) }

type listener struct {
	net    *Net
	host   string
	conns  chan net.Conn
	closed bool // under net.mu
	done   chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	l.closeLocked()
	return nil
}

func (l *listener) closeLocked() {
	if !l.closed {
		l.closed = true
		close(l.done)
	}
}

func (l *listener) Addr() net.Addr { return addr(l.host) }

// raftLayer is a host's raft.StreamLayer.
type raftLayer struct{ *listener }

func (r raftLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return r.net.Dial(ctx, "raft", r.host, string(address))
}

type chunk struct {
	data []byte
	at   time.Time
}

// half is one direction of a connection.
type half struct {
	net      *Net
	from, to string
	protocol string
	opener   string // who dialled

	mu       sync.Mutex
	chunks   []chunk
	last     time.Time // when the last chunk arrives
	eof      bool      // closed by the writer
	closed   bool      // closed by the reader
	reset    bool
	deadline time.Time
	wakeup   chan struct{}
}

// other is the host that did not dial.
func (h *half) other() string {
	if h.from == h.opener {
		return h.to
	}
	return h.from
}

func (h *half) wakeLocked() {
	close(h.wakeup)
	h.wakeup = make(chan struct{})
}

func (h *half) write(p []byte) (int, error) {
	latency := h.net.latency(h.from, h.to)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.reset:
		return 0, syscall.ECONNRESET
	case h.eof:
		return 0, net.ErrClosed
	case h.closed:
		return 0, syscall.EPIPE
	}
	at := time.Now().Add(latency)
	if at.Before(h.last) {
		at = h.last
	}
	h.last = at
	h.chunks = append(h.chunks, chunk{append([]byte(nil), p...), at})
	h.wakeLocked()
	return len(p), nil
}

func (h *half) read(p []byte) (int, error) {
	for {
		h.mu.Lock()
		now := time.Now()
		open := !h.net.Blocked(h.from, h.to)
		var until time.Time
		switch {
		case h.closed:
			h.mu.Unlock()
			return 0, net.ErrClosed
		case !h.deadline.IsZero() && !now.Before(h.deadline):
			h.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case open && h.reset:
			h.mu.Unlock()
			return 0, syscall.ECONNRESET
		case open && len(h.chunks) > 0 && !h.chunks[0].at.After(now):
			n := copy(p, h.chunks[0].data)
			if h.chunks[0].data = h.chunks[0].data[n:]; len(h.chunks[0].data) == 0 {
				h.chunks = h.chunks[1:]
			}
			h.mu.Unlock()
			return n, nil
		case open && len(h.chunks) == 0 && h.eof:
			h.mu.Unlock()
			return 0, io.EOF
		case open && len(h.chunks) > 0:
			until = h.chunks[0].at
		}
		if !h.deadline.IsZero() && (until.IsZero() || h.deadline.Before(until)) {
			until = h.deadline
		}
		wakeup := h.wakeup
		h.mu.Unlock()
		if until.IsZero() {
			<-wakeup
			continue
		}
		t := time.NewTimer(until.Sub(now))
		select {
		case <-wakeup:
		case <-t.C:
		}
		t.Stop()
	}
}

// conn is one end of a connection. Writes never block.
type conn struct {
	in, out       *half
	local, remote string
}

func (c *conn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *conn) Write(p []byte) (int, error) { return c.out.write(p) }

func (c *conn) Close() error {
	c.out.mu.Lock()
	c.out.eof = true
	c.out.wakeLocked()
	c.out.mu.Unlock()
	c.in.mu.Lock()
	c.in.closed = true
	c.in.wakeLocked()
	c.in.mu.Unlock()
	c.in.net.mu.Lock()
	delete(c.in.net.halves, c.in)
	c.in.net.mu.Unlock()
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return addr(c.local) }
func (c *conn) RemoteAddr() net.Addr { return addr(c.remote) }

func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.deadline = t
	c.in.wakeLocked()
	return nil
}

func (c *conn) SetWriteDeadline(time.Time) error { return nil }
