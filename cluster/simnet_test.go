package cluster

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

// simNet is a network of hosts for tests in a bubble. Like TCP it delivers what
// was written in order, late but not damaged: what a partition holds up arrives
// when it heals, and only a crash of a host that can be reached is noticed.
type simNet struct {
	mu        sync.Mutex
	rng       *rand.Rand
	listeners map[string]*simListener // "protocol host"
	blocked   map[[2]string]bool      // direction from, to
	delay     map[[2]string]time.Duration
	refused   map[[3]string]bool // protocol, from, to
	halves    map[*simHalf]struct{}
}

func newSimNet(seed int64) *simNet {
	return &simNet{
		rng: rand.New(rand.NewSource(seed)), listeners: make(map[string]*simListener),
		blocked: make(map[[2]string]bool), delay: make(map[[2]string]time.Duration), refused: make(map[[3]string]bool), halves: make(map[*simHalf]struct{}),
	}
}

// set blocks or unblocks one direction.
func (s *simNet) set(from, to string, blocked bool) {
	s.mu.Lock()
	s.blocked[[2]string{from, to}] = blocked
	s.mu.Unlock()
	s.wake()
}

// isolate cuts a host off from the others, in both directions.
func (s *simNet) isolate(host string, others []string, blocked bool) {
	for _, o := range others {
		if o != host {
			s.set(host, o, blocked)
			s.set(o, host, blocked)
		}
	}
}

// slow delays one direction by d on top of the usual latency.
func (s *simNet) slow(from, to string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay[[2]string{from, to}] = d
}

// heal removes all blocks and delays.
func (s *simNet) heal() {
	s.mu.Lock()
	clear(s.blocked)
	clear(s.delay)
	clear(s.refused)
	s.mu.Unlock()
	s.wake()
}

// refuse resets a host's connections of one protocol to another one and refuses
// new ones, as a firewall does.
func (s *simNet) refuse(protocol, from, to string) {
	s.mu.Lock()
	s.refused[[3]string{protocol, from, to}] = true
	s.mu.Unlock()
	s.resetWhere(func(h *simHalf) bool {
		return h.protocol == protocol && (h.opener == from && h.other() == to)
	})
}

// crash resets every connection of a host and stops its listeners.
func (s *simNet) crash(host string) {
	s.mu.Lock()
	for _, l := range s.listeners {
		if l.host == host {
			l.closeLocked()
		}
	}
	s.mu.Unlock()
	s.resetWhere(func(h *simHalf) bool { return h.from == host || h.to == host })
}

func (s *simNet) resetWhere(which func(*simHalf) bool) {
	s.mu.Lock()
	var mine []*simHalf
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

func (s *simNet) wake() {
	s.mu.Lock()
	all := make([]*simHalf, 0, len(s.halves))
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

func (s *simNet) isBlocked(from, to string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blocked[[2]string{from, to}]
}

// latency draws how long a piece of data travels.
func (s *simNet) latency(from, to string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return 100*time.Microsecond + time.Duration(s.rng.Int63n(int64(400*time.Microsecond))) + s.delay[[2]string{from, to}]
}

func (s *simNet) listen(protocol, host string) *simListener {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &simListener{net: s, host: host, conns: make(chan net.Conn, 64), done: make(chan struct{})}
	s.listeners[protocol+" "+host] = l
	return l
}

func (s *simNet) dial(ctx context.Context, protocol, from, to string) (net.Conn, error) {
	for s.isBlocked(from, to) || s.isBlocked(to, from) {
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
	if l == nil || l.closed || s.refused[[3]string{protocol, from, to}] {
		return nil, fmt.Errorf("dial %s: %w", to, syscall.ECONNREFUSED)
	}
	there, back := s.halfLocked(from, to), s.halfLocked(to, from)
	there.protocol, back.protocol, there.opener, back.opener = protocol, protocol, from, from
	select {
	case l.conns <- &simConn{in: there, out: back, local: to, remote: from}:
		return &simConn{in: back, out: there, local: from, remote: to}, nil
	default:
		return nil, fmt.Errorf("dial %s: the backlog is full", to)
	}
}

func (s *simNet) halfLocked(from, to string) *simHalf {
	h := &simHalf{net: s, from: from, to: to, wakeup: make(chan struct{})}
	s.halves[h] = struct{}{}
	return h
}

type simAddr string

func (simAddr) Network() string  { return "sim" }
func (a simAddr) String() string { return string(a) }

type simListener struct {
	net    *simNet
	host   string
	conns  chan net.Conn
	closed bool // under net.mu
	done   chan struct{}
}

func (l *simListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *simListener) Close() error {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	l.closeLocked()
	return nil
}

func (l *simListener) closeLocked() {
	if !l.closed {
		l.closed = true
		close(l.done)
	}
}

func (l *simListener) Addr() net.Addr { return simAddr(l.host) }

// simRaft is a host's raft.StreamLayer.
type simRaft struct{ *simListener }

func (r simRaft) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return r.net.dial(ctx, "raft", r.host, string(address))
}

type simChunk struct {
	data []byte
	at   time.Time
}

// simHalf is one direction of a connection.
type simHalf struct {
	net      *simNet
	from, to string
	protocol string
	opener   string // who dialled

	mu       sync.Mutex
	chunks   []simChunk
	last     time.Time // when the last chunk arrives
	eof      bool      // closed by the writer
	closed   bool      // closed by the reader
	reset    bool
	deadline time.Time
	wakeup   chan struct{}
}

// other is the host that did not dial.
func (h *simHalf) other() string {
	if h.from == h.opener {
		return h.to
	}
	return h.from
}

func (h *simHalf) wakeLocked() {
	close(h.wakeup)
	h.wakeup = make(chan struct{})
}

func (h *simHalf) write(p []byte) (int, error) {
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
	h.chunks = append(h.chunks, simChunk{append([]byte(nil), p...), at})
	h.wakeLocked()
	return len(p), nil
}

func (h *simHalf) read(p []byte) (int, error) {
	for {
		h.mu.Lock()
		now := time.Now()
		open := !h.net.isBlocked(h.from, h.to)
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

// simConn is one end of a connection. Writes never block.
type simConn struct {
	in, out       *simHalf
	local, remote string
}

func (c *simConn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *simConn) Write(p []byte) (int, error) { return c.out.write(p) }

func (c *simConn) Close() error {
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

func (c *simConn) LocalAddr() net.Addr  { return simAddr(c.local) }
func (c *simConn) RemoteAddr() net.Addr { return simAddr(c.remote) }

func (c *simConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

func (c *simConn) SetReadDeadline(t time.Time) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.deadline = t
	c.in.wakeLocked()
	return nil
}

func (c *simConn) SetWriteDeadline(time.Time) error { return nil }
