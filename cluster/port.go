package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
)

// PortConfig is what a Port needs.
type PortConfig struct {
	// Listener is the bound TCP listener. The port owns it from then on.
	Listener net.Listener
	// Source is this server's certificate.
	Source *pki.Source
	// Verifier knows the cluster's CA.
	Verifier *pki.Verifier
	// Approved reports whether the server with this Raft ID may speak Raft
	// and links: it is in the configuration, or its join was approved. Nil
	// trusts every server certificate of the cluster. It is called in every
	// handshake, concurrently, and must be quick.
	Approved func(serverID string) bool
	// HandshakeTimeout bounds a connection from its acceptance to the end of
	// its handshake.
	HandshakeTimeout time.Duration
	// MaxHandshakes bounds those of clients and agents that run at once, so
	// that a herd of them cannot starve the servers' own. More wait.
	MaxHandshakes int
	// PeerHandshakes is the same for Raft and links, on top.
	PeerHandshakes int
	// MaxPending bounds connections that have not said yet what they are, and
	// those of servers in their handshake. For one more the oldest is closed.
	MaxPending int
	// MaxClients bounds the connections of clients and agents. More are closed.
	MaxClients int
	// Logger hears of refused connections. Nil discards.
	Logger hclog.Logger
	// Registerer takes the port's metrics. Nil: they are not registered.
	Registerer prometheus.Registerer
}

// DefaultPortConfig returns the bounds that a port has unless told otherwise.
func DefaultPortConfig() PortConfig {
	return PortConfig{HandshakeTimeout: 10 * time.Second, MaxHandshakes: 256, PeerHandshakes: 64, MaxPending: 4096, MaxClients: 65536}
}

// Validate reports what cannot work.
func (c *PortConfig) Validate() error {
	var errs []error
	if c.Listener == nil || c.Source == nil || c.Verifier == nil {
		errs = append(errs, errors.New("port: listener, certificate source and verifier are needed"))
	}
	if c.HandshakeTimeout <= 0 {
		errs = append(errs, fmt.Errorf("port: handshake timeout %v must be positive", c.HandshakeTimeout))
	}
	for name, n := range map[string]int{"handshakes": c.MaxHandshakes, "peer handshakes": c.PeerHandshakes, "pending connections": c.MaxPending, "clients": c.MaxClients} {
		if n <= 0 {
			errs = append(errs, fmt.Errorf("port: %s %d must be positive", name, n))
		}
	}
	return errors.Join(errs...)
}

// Port is everything of a server on one TLS listener. ALPN tells the
// protocols apart, and each asks for its own role in the handshake:
//
//	h2, http/1.1, none   API       any; who it is, the API decides per request
//	shepherd-raft/1      Raft      server, in the configuration or approved
//	shepherd-link/1      links     server, in the configuration or approved
//	shepherd-agent/1     streams   agent
//
// Each protocol is handed out as a net.Listener. Close ends all of them.
type Port struct {
	cfg    PortConfig
	logger hclog.Logger
	tls    *tls.Config

	clients, peers chan struct{} // slots of running handshakes
	turns          chan struct{} // of those of clients that compute
	entrance       *entrance

	api, raft, link, agents *portListener

	done   chan struct{}
	once   sync.Once
	err    error // of closing the listener; set before done is closed
	wg     sync.WaitGroup
	mu     sync.Mutex
	active map[net.Conn]struct{} // in their handshake
}

// Conn is a connection of a protocol other than the API's: its peer is known.
type Conn struct {
	*tls.Conn
	// Peer is who the certificate stood for when the connection began.
	Peer pki.Identity
}

// NewPort checks the configuration and begins to accept connections.
func NewPort(cfg PortConfig) (*Port, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	logger := cfg.Logger.Named("port")
	entrance, err := newEntrance(&cfg, logger)
	if err != nil {
		return nil, err
	}
	p := &Port{
		cfg: cfg, logger: logger, entrance: entrance,
		clients: make(chan struct{}, cfg.MaxHandshakes), peers: make(chan struct{}, cfg.PeerHandshakes),
		turns: make(chan struct{}, runtime.GOMAXPROCS(0)),
		done:  make(chan struct{}), active: map[net.Conn]struct{}{},
	}
	for _, l := range []**portListener{&p.api, &p.raft, &p.link, &p.agents} {
		*l = &portListener{port: p, conns: make(chan net.Conn), done: make(chan struct{})}
	}
	p.tls = &tls.Config{
		MinVersion:         tls.VersionTLS12, // old kubectl; peers and agents are ours and speak 1.3
		NextProtos:         []string{"h2", "http/1.1", wire.ProtoRaft, wire.ProtoLink, wire.ProtoAgent},
		GetCertificate:     cfg.Source.GetCertificate,
		ClientAuth:         tls.RequestClientCert,
		ClientCAs:          cfg.Verifier.Pool(),
		GetConfigForClient: p.admit,
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := p.identify(cs)
			return err
		},
	}
	p.wg.Add(1)
	go p.accept()
	return p, nil
}

// API is the listener of the HTTP server. Its connections are *tls.Conn with
// a finished handshake, so that net/http serves HTTP/2 on them.
func (p *Port) API() net.Listener { return p.api }

// Raft is the listener of Raft's transport. Its connections are *Conn.
func (p *Port) Raft() net.Listener { return p.raft }

// Link is the listener of server links. Its connections are *Conn.
func (p *Port) Link() net.Listener { return p.link }

// Agents is the listener of agents' streams. Its connections are *Conn.
func (p *Port) Agents() net.Listener { return p.agents }

// Addr is the bound address.
func (p *Port) Addr() net.Addr { return p.cfg.Listener.Addr() }

// Close stops accepting, ends the handshakes that run and waits for them.
// Connections that were handed out stay with their owners.
func (p *Port) Close() error {
	p.once.Do(func() {
		close(p.done)
		p.err = p.cfg.Listener.Close()
		p.mu.Lock()
		for c := range p.active {
			_ = c.Close() // its handshake reports the error
		}
		p.mu.Unlock()
	})
	p.wg.Wait()
	return p.err
}

func (p *Port) accept() {
	defer p.wg.Done()
	failing := false // said once, not twenty times a second
	for {
		conn, err := p.cfg.Listener.Accept()
		if err != nil {
			select {
			case <-p.done:
				return
			default:
			}
			if errors.Is(err, net.ErrClosed) {
				p.logger.Error("the listener was closed by somebody else", "error", err)
				return
			}
			if !failing {
				p.logger.Error("no connection can be accepted; it is tried again until one can", "error", err) // out of descriptors, most likely
			}
			failing = true
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-p.done:
				return
			}
		}
		if failing {
			failing = false
			p.logger.Info("connections are accepted again")
		}
		guest, goes := p.entrance.enter(conn)
		if goes != nil {
			_ = goes.Close() // nothing was sent on it
		}
		if goes == guest {
			continue
		}
		p.wg.Add(1)
		go func() {
			defer p.wg.Done()
			p.handle(guest)
		}()
	}
}

// handle owns the connection until it is handed to a listener.
func (p *Port) handle(raw *guest) {
	p.mu.Lock()
	p.active[raw] = struct{}{}
	p.mu.Unlock()
	conn, to, err := p.handshake(raw)
	p.mu.Lock()
	delete(p.active, raw)
	p.mu.Unlock()
	if err != nil {
		p.logger.Debug("connection refused", "remote", raw.RemoteAddr(), "reason", err)
		_ = raw.Close() // the handshake's error is what counts
		return
	}
	patience := time.NewTimer(p.cfg.HandshakeTimeout)
	defer patience.Stop()
	select {
	case to.conns <- conn:
	case <-to.done:
		_ = raw.Close() // nobody listens any more
	case <-p.done:
		_ = raw.Close()
	case <-patience.C:
		p.logger.Warn("nobody took a connection", "remote", raw.RemoteAddr())
		_ = raw.Close()
	}
}

func (p *Port) handshake(raw *guest) (net.Conn, *portListener, error) {
	if err := raw.SetDeadline(time.Now().Add(p.cfg.HandshakeTimeout)); err != nil {
		return nil, nil, err
	}
	s := &slot{guest: raw}
	defer s.release()
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), slotKey{}, s), p.cfg.HandshakeTimeout)
	defer cancel()
	turn := &turnConn{Conn: raw, turns: p.turns}
	defer turn.end()
	s.turn = turn
	conn := tls.Server(turn, p.tls)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	if err := raw.SetDeadline(time.Time{}); err != nil {
		return nil, nil, err
	}
	p.entrance.shaken(raw)
	cs := conn.ConnectionState()
	to := p.listenerOf(cs.NegotiatedProtocol)
	if to == p.api {
		return conn, to, nil
	}
	id, err := p.identify(cs)
	if err != nil {
		return nil, nil, err
	}
	return &Conn{Conn: conn, Peer: id}, to, nil
}

func (p *Port) listenerOf(protocol string) *portListener {
	switch protocol {
	case wire.ProtoRaft:
		return p.raft
	case wire.ProtoLink:
		return p.link
	case wire.ProtoAgent:
		return p.agents
	default:
		return p.api
	}
}

// identify asks for the role that the protocol needs. It is nothing for the
// API, which answers a bad certificate with 401 and its reason.
func (p *Port) identify(cs tls.ConnectionState) (pki.Identity, error) {
	switch cs.NegotiatedProtocol {
	case wire.ProtoRaft, wire.ProtoLink:
		return p.identifyServer(cs.PeerCertificates)
	case wire.ProtoAgent:
		id, err := p.cfg.Verifier.Verify(cs.PeerCertificates, pki.RoleAgent)
		if err != nil {
			return id, p.refused(cs.NegotiatedProtocol, err)
		}
		return id, nil
	default:
		return pki.Identity{}, nil
	}
}

func (p *Port) identifyServer(chain []*x509.Certificate) (pki.Identity, error) {
	id, err := p.cfg.Verifier.Verify(chain, pki.RoleServer)
	if err != nil {
		return id, p.refused("server protocols", err)
	}
	if p.cfg.Approved != nil && !p.cfg.Approved(id.Name) {
		return id, p.refused("server protocols", fmt.Errorf("%w: %s is not a member of the cluster", ErrNotMember, id))
	}
	return id, nil
}

// ErrNotMember is wrapped when a server's certificate is good but the server
// is not in the cluster's configuration (any more, or yet).
var ErrNotMember = errors.New("not a member")

func (p *Port) refused(protocol string, err error) error {
	p.logger.Warn("peer refused", "protocol", protocol, "reason", err)
	return fmt.Errorf("%s: %w", protocol, err)
}

// portListener hands out the connections of one protocol.
type portListener struct {
	port  *Port
	conns chan net.Conn
	once  sync.Once
	done  chan struct{} // closed by Close
}

func (l *portListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
	case <-l.port.done:
	}
	return nil, fmt.Errorf("accept on %s: %w", l.Addr(), net.ErrClosed)
}

// Close ends this protocol alone; the port goes on for the others.
func (l *portListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *portListener) Addr() net.Addr { return l.port.Addr() }
