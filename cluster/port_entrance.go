package cluster

import (
	"container/list"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shepherd-project/shepherd/api/wire"
)

const (
	// Descriptors that clients never get: a quarter of all, within these. Raft
	// and links take some ten for each peer, the files of a server a dozen; an
	// agent in the same process takes a few for each pod.
	minReserve, maxReserve = 64, 1024
	// refusalInterval is how often refused connections are told about.
	refusalInterval = 10 * time.Second
)

var (
	errTooManyClients = errors.New("too many connections of clients and agents are open")
	errSaidNothing    = errors.New("others connected, and it had not said yet what it is")
)

// FitDescriptors lowers MaxClients and MaxPending so that both together leave
// descriptors for servers and files, in a process that may have limit of them.
// It fails if that is too few for a server.
func (c *PortConfig) FitDescriptors(limit uint64) error {
	reserve := min(max(limit/4, minReserve), maxReserve)
	if limit < 2*reserve {
		return fmt.Errorf("this process may have %d files open and a server needs %d at least: raise its limit (ulimit -n, or LimitNOFILE= of the systemd unit)", limit, 2*reserve)
	}
	left := int(min(limit-reserve, math.MaxInt32))
	c.MaxPending = min(c.MaxPending, left/4)
	c.MaxClients = min(c.MaxClients, left-c.MaxPending)
	return nil
}

// entrance counts a port's connections, so that clients, however many there are,
// leave descriptors for Raft, the links and the files:
//
//	unknown  accepted, and has not said yet what it is. When there are too many
//	         the one that has waited longest goes: a peer says it at once.
//	peer     in the handshake of a server. It counts with the unknown ones.
//	client   of the API, or an agent's stream, until it is closed. When there are
//	         too many a new one is refused.
//
// Safe for concurrent use.
type entrance struct {
	maxPending, maxClients int
	logger                 hclog.Logger
	refusals               *prometheus.CounterVec

	mu      sync.Mutex
	unknown list.List // of *guest, the one that has waited longest first
	peers   int
	clients int
	told    time.Time // when refusals were last told about
	untold  int       // and how many there were since
}

// guest is a connection that counts until it is closed.
type guest struct {
	net.Conn
	entrance *entrance

	stage stage         // guarded by entrance.mu
	place *list.Element // while unknown
}

type stage int

const (
	stageUnknown stage = iota
	stagePeer
	stageClient
	stageGone // it does not count: known as a peer, closed, or to be closed
)

func newEntrance(cfg *PortConfig, logger hclog.Logger) (*entrance, error) {
	e := &entrance{maxPending: cfg.MaxPending, maxClients: cfg.MaxClients, logger: logger}
	e.refusals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "shepherd_port_refused_connections_total",
		Help: "Connections that were closed because too many were open: of clients and agents (clients), or before they had said what they are (pending).",
	}, []string{"reason"})
	if cfg.Registerer == nil {
		return e, nil
	}
	for _, c := range []prometheus.Collector{
		e.refusals,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "shepherd_port_clients", Help: "Open connections of clients and agents."}, func() float64 {
			e.mu.Lock()
			defer e.mu.Unlock()
			return float64(e.clients)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "shepherd_port_max_clients", Help: "How many connections of clients and agents may be open."},
			func() float64 { return float64(e.maxClients) }),
	} {
		if err := cfg.Registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return e, nil
}

// enter takes in a new connection. Another one, or the new one itself, may have
// to go for it: the caller closes that.
func (e *entrance) enter(conn net.Conn) (g, goes *guest) {
	g = &guest{Conn: conn, entrance: e}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.unknown.Len()+e.peers >= e.maxPending {
		goes = g
		if first := e.unknown.Front(); first != nil {
			goes = first.Value.(*guest)
		}
		e.moveLocked(goes, stageGone)
		e.refuseLocked("pending", goes)
	}
	if goes != g {
		g.place = e.unknown.PushBack(g)
	}
	return g, goes
}

// hear notes what a connection says it is. It returns an error if the connection
// has to be closed.
func (e *entrance) hear(g *guest, client bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case g.stage != stageUnknown:
		return errSaidNothing
	case !client:
		e.moveLocked(g, stagePeer)
	case e.clients >= e.maxClients:
		e.moveLocked(g, stageGone)
		e.refuseLocked("clients", g)
		return errTooManyClients
	default:
		e.moveLocked(g, stageClient)
	}
	return nil
}

// shaken notes the end of a handshake that succeeded.
func (e *entrance) shaken(g *guest) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if g.stage == stagePeer {
		e.moveLocked(g, stageGone)
	}
}

func (e *entrance) moveLocked(g *guest, to stage) {
	switch g.stage {
	case stageUnknown:
		if g.place != nil {
			e.unknown.Remove(g.place)
			g.place = nil
		}
	case stagePeer:
		e.peers--
	case stageClient:
		e.clients--
	}
	g.stage = to
	switch to {
	case stagePeer:
		e.peers++
	case stageClient:
		e.clients++
	}
}

// refuseLocked counts a refusal, and tells about it and those before it now and
// then: a herd of clients must not fill the log.
func (e *entrance) refuseLocked(reason string, g *guest) {
	e.refusals.WithLabelValues(reason).Inc()
	e.untold++
	if !e.told.IsZero() && time.Since(e.told) < refusalInterval {
		return
	}
	e.logger.Warn("too many connections: some were closed to keep file descriptors for the other servers and the log; close idle clients, or raise the limit of open files and --max-clients",
		"closed", e.untold, "clients", e.clients, "max-clients", e.maxClients, "pending", e.unknown.Len()+e.peers, "max-pending", e.maxPending, "remote", g.RemoteAddr())
	e.told, e.untold = time.Now(), 0
}

// Close closes the connection, which does not count any more then.
func (g *guest) Close() error {
	err := g.Conn.Close()
	g.entrance.mu.Lock()
	defer g.entrance.mu.Unlock()
	g.entrance.moveLocked(g, stageGone)
	return err
}

// slot is what a handshake holds while it runs.
type slot struct {
	held  chan struct{}
	turn  *turnConn
	guest *guest
}

func (s *slot) release() {
	if s.held != nil {
		<-s.held
		s.held = nil
	}
}

type slotKey struct{}

// admit runs when a ClientHello was read, before anything costly: it waits
// for a slot of the kind that the hello asks for.
func (p *Port) admit(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	slots, client := p.clients, true
	if slices.Contains(hello.SupportedProtos, wire.ProtoRaft) || slices.Contains(hello.SupportedProtos, wire.ProtoLink) {
		slots, client = p.peers, false
	}
	s, ok := hello.Context().Value(slotKey{}).(*slot)
	if !ok {
		return nil, errors.New("handshake outside of the port")
	}
	if err := p.entrance.hear(s.guest, client); err != nil {
		return nil, err
	}
	select {
	case slots <- struct{}{}:
		s.held = slots
		if client {
			s.turn.begin()
		}
		return nil, nil
	case <-hello.Context().Done():
		return nil, fmt.Errorf("wait for a handshake slot: %w", hello.Context().Err())
	}
}
