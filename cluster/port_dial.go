package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
)

// Dialer opens connections to other servers' ports, with this server's
// certificate. Safe for concurrent use.
type Dialer struct {
	// Source is this server's certificate.
	Source *pki.Source
	// Verifier knows the cluster's CA.
	Verifier *pki.Verifier
	// Approved is as in PortConfig: it keeps a server that was removed from
	// the cluster from answering in its old place.
	Approved func(serverID string) bool
	// DialContext opens the TCP connection; nil means net.Dialer's, with TCP
	// keep-alive.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// Dial connects to a server and agrees on the protocol. The server must show
// a server's certificate of this cluster. Whether it accepts ours shows at
// the first read.
func (d *Dialer) Dial(ctx context.Context, address, protocol string) (*Conn, error) {
	dial := d.DialContext
	if dial == nil {
		dial = (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}}).DialContext
	}
	raw, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("dial %s of %s: %w", protocol, address, err)
	}
	conn, err := d.secure(ctx, raw, protocol)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("dial %s of %s: %w", protocol, address, err), raw.Close())
	}
	return conn, nil
}

func (d *Dialer) secure(ctx context.Context, raw net.Conn, protocol string) (*Conn, error) {
	cfg := d.Verifier.ClientConfig(d.Source)
	cfg.NextProtos = []string{protocol}
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	cs := conn.ConnectionState()
	if cs.NegotiatedProtocol != protocol {
		return nil, fmt.Errorf("the server does not speak it")
	}
	id, err := d.Verifier.Verify(cs.PeerCertificates, pki.RoleServer)
	if err != nil {
		return nil, err
	}
	if d.Approved != nil && !d.Approved(id.Name) {
		return nil, fmt.Errorf("%w: %s answered there", ErrNotMember, id)
	}
	return &Conn{Conn: conn, Peer: id}, nil
}

// Raft is the Dialer as Raft's stream layer wants it.
func (d *Dialer) Raft(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return asNetConn(d.Dial(ctx, string(address), wire.ProtoRaft))
}

// Link opens a server link.
func (d *Dialer) Link(ctx context.Context, address string) (net.Conn, error) {
	return asNetConn(d.Dial(ctx, address, wire.ProtoLink))
}

// asNetConn keeps a nil *Conn from becoming a non-nil interface.
func asNetConn(c *Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// RaftLayer is a raft.StreamLayer on the port.
type RaftLayer struct {
	net.Listener
	dialer    *Dialer
	advertise string
}

// NewRaftLayer joins the port's Raft listener and a dialer. advertise is the
// address that other servers reach this one at.
func NewRaftLayer(port *Port, dialer *Dialer, advertise string) *RaftLayer {
	return &RaftLayer{Listener: port.Raft(), dialer: dialer, advertise: advertise}
}

// Dial opens a connection to a peer's Raft.
func (l *RaftLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return l.dialer.Raft(address, timeout)
}

// Addr is the advertised address, which the transport tells its peers.
func (l *RaftLayer) Addr() net.Addr { return advertised(l.advertise) }

type advertised string

func (advertised) Network() string  { return "tcp" }
func (a advertised) String() string { return string(a) }
