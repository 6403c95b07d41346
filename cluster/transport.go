package cluster

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// maxPool is how many idle Raft connections are kept for each peer.
const maxPool = 3

// NewTransport returns a Raft transport over a stream layer, such as RaftLayer.
// timeout bounds one RPC. Closing it (the node does) closes the layer and
// every connection, in both directions, and ends all of its goroutines.
func NewTransport(layer raft.StreamLayer, timeout time.Duration, logger hclog.Logger) *Transport {
	if logger == nil {
		logger = hclog.NewNullLogger()
	}
	tracked := &trackedLayer{StreamLayer: layer, open: newConnSet()}
	t := &Transport{
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream:                  tracked,
			MaxPool:                 maxPool,
			Timeout:                 timeout,
			Logger:                  logger.Named("raft-net"),
			MsgpackUseNewTimeFormat: true,
		}),
		layer:    tracked,
		timeout:  timeout,
		calls:    make(chan raft.RPC),
		closed:   make(chan struct{}),
		failures: make(map[raft.ServerID]*failing),
	}
	t.wg.Go(t.forward)
	return t
}

// Transport is Raft's network transport, pre-vote included: whoever wraps a
// transport must keep the RequestPreVote method, or Raft turns pre-vote off
// without a word. It is the seam for what must sit between Raft and the
// network: holding back entries for a peer that is down, retrying votes,
// telling the local Raft to stand for election.
type Transport struct {
	*raft.NetworkTransport
	layer   *trackedLayer
	timeout time.Duration

	calls  chan raft.RPC // to the local Raft
	closed chan struct{}
	once   sync.Once
	wg     sync.WaitGroup

	gate        atomic.Pointer[appendGate]
	disk        atomic.Pointer[disk] // no vote is asked for while it is bad; nil: it is not known
	voteRetries atomic.Uint64
	holds       atomic.Uint64

	applied      atomic.Pointer[func() uint64] // the last entry applied here; nil: it is not known
	installs     atomic.Uint64                 // snapshots from leaders that Raft began to read
	lateInstalls atomic.Uint64                 // and that were refused as late

	mu       sync.Mutex
	failures map[raft.ServerID]*failing // peers that entries did not reach
}

var (
	_ raft.Transport   = (*Transport)(nil)
	_ raft.WithPreVote = (*Transport)(nil)
	_ raft.WithClose   = (*Transport)(nil)
)

// Close closes the transport, its layer and all connections.
func (t *Transport) Close() error {
	t.once.Do(func() { close(t.closed) })
	t.CloseStreams()
	err := t.NetworkTransport.Close()
	t.layer.open.closeAll()
	t.wg.Wait()
	if err != nil {
		return fmt.Errorf("close raft transport: %w", err)
	}
	return nil
}

// trackedLayer knows every open connection: Raft's transport leaves its
// handlers reading, and its pool open, when it is closed.
type trackedLayer struct {
	raft.StreamLayer
	open *connSet
}

// Accept waits for a peer's connection.
func (l *trackedLayer) Accept() (net.Conn, error) {
	conn, err := l.StreamLayer.Accept()
	if err != nil {
		return nil, err
	}
	return l.open.track(conn)
}

// Dial connects to a peer.
func (l *trackedLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	conn, err := l.StreamLayer.Dial(address, timeout)
	if err != nil {
		return nil, err
	}
	return l.open.track(conn)
}
