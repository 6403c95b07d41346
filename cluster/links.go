package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
)

// linkPing is how long a link may be silent before it is tested, and how long
// the test may take. A link that fails it is closed, which ends every request
// on it; requests have bounds of their own besides.
const linkPing = time.Second

// links holds one HTTP/2 connection to each peer, opened when it is needed and
// opened anew when it broke.
type links struct {
	dial    func(ctx context.Context, address string) (net.Conn, error)
	timeout time.Duration
	http    *http.Transport
	open    *connSet // so that close ends them whatever state HTTP/2 thinks they are in
	ctx     context.Context
	cancel  context.CancelFunc

	mu      sync.Mutex
	closed  bool
	peers   map[string]*peerLink      // by address
	streams map[string]*forwardStream // by address
	wg      sync.WaitGroup            // dials and streams
}

// peerLink is the connection to one peer, under links.mu.
type peerLink struct {
	conn    *http.ClientConn // nil if there is none
	dialing chan struct{}    // closed when the running dial has ended; nil if none runs
	err     error            // of the last dial
}

func newLinks(dial func(context.Context, string) (net.Conn, error), timeout time.Duration) *links {
	l := &links{dial: dial, timeout: timeout, peers: make(map[string]*peerLink), streams: make(map[string]*forwardStream), open: newConnSet()}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true) // the dialer brings the encryption
	l.http = &http.Transport{
		Protocols:          &protocols,
		DisableCompression: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			conn, err := dial(ctx, address)
			if err != nil {
				return nil, err
			}
			return l.open.track(conn)
		},
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:               linkPing,
			PingTimeout:                   linkPing,
			WriteByteTimeout:              2 * linkPing,
			MaxReceiveBufferPerConnection: 4<<20 - 1,
			MaxReceiveBufferPerStream:     4<<20 - 1,
		},
	}
	return l
}

// get returns a usable connection to the address. Callers share one dial, which
// goes on when a caller gives up.
func (l *links) get(ctx context.Context, address string) (*http.ClientConn, error) {
	l.mu.Lock()
	p := l.peers[address]
	if p == nil {
		p = &peerLink{}
		l.peers[address] = p
	}
	if l.closed {
		l.mu.Unlock()
		return nil, ErrStopped
	}
	if p.conn != nil && p.conn.Err() == nil {
		conn := p.conn
		l.mu.Unlock()
		return conn, nil
	}
	if p.dialing == nil {
		p.conn, p.dialing = nil, make(chan struct{})
		l.wg.Go(func() { l.connect(p, address) })
	}
	dialing := p.dialing
	l.mu.Unlock()
	select {
	case <-dialing:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.conn == nil {
		return nil, p.err
	}
	return p.conn, nil
}

func (l *links) connect(p *peerLink, address string) {
	ctx, cancel := context.WithTimeout(l.ctx, l.timeout)
	defer cancel()
	conn, err := l.http.NewClientConn(ctx, "http", address)
	if err != nil {
		err = fmt.Errorf("link to %s: %w", address, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p.conn, p.err = conn, err
	close(p.dialing)
	p.dialing = nil
}

// RoundTrip sends a request to the server at the address in its URL.
func (l *links) RoundTrip(req *http.Request) (*http.Response, error) {
	conn, err := l.get(req.Context(), req.URL.Host)
	if err != nil {
		if req.Body != nil {
			err = errors.Join(err, req.Body.Close())
		}
		return nil, err
	}
	return conn.RoundTrip(req)
}

// close ends all connections and waits for running dials and streams.
func (l *links) close() {
	l.cancel()
	l.mu.Lock()
	l.closed = true
	var conns []*http.ClientConn
	for _, p := range l.peers {
		if p.conn != nil {
			conns = append(conns, p.conn)
		}
	}
	l.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // it is being thrown away
	}
	l.wg.Wait()
	l.open.closeAll()
}

// LinkTransport sends HTTP requests to other servers over their links, where
// Config.LinkHandler serves them: the host in the URL is the server's address,
// the scheme is "http".
func (n *Node) LinkTransport() http.RoundTripper { return n.links }

// call asks the server at an address one question over its link.
func call[R any](ctx context.Context, n *Node, address raft.ServerAddress, path string, body []byte, decode func([]byte) (*R, error)) (*R, error) {
	data, err := n.links.post(ctx, string(address), path, body)
	if err != nil {
		return nil, err
	}
	reply, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("answer of %s on %s: %w", address, path, err)
	}
	return reply, nil
}

func (l *links) post(ctx context.Context, address, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("link to %s: %w", address, err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		req.Header.Set(wire.HeaderTimeout, strconv.FormatInt(max(time.Until(deadline).Milliseconds(), 1), 10))
	}
	resp, err := l.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("link to %s: %w", address, err)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, wire.MaxMessage+1))
	if cerr := resp.Body.Close(); err == nil {
		err = cerr
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("link to %s: %w", address, err)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("link to %s: %s: %s", address, resp.Status, bytes.TrimSpace(data[:min(len(data), 512)]))
	case len(data) > wire.MaxMessage:
		return nil, fmt.Errorf("link to %s: answer is too large", address)
	}
	return data, nil
}
