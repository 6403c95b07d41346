package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
)

func TestFitDescriptors(t *testing.T) {
	for _, c := range []struct {
		limit            uint64
		pending, clients int // 0: the limit is refused
	}{
		{64, 0, 0},
		{127, 0, 0},
		{128, 16, 48},
		{256, 48, 144},
		{1024, 192, 576},
		{65536, 4096, 60416},
		{1 << 20, 4096, 65536},
		{1<<64 - 1, 4096, 65536}, // without a limit
	} {
		cfg := DefaultPortConfig()
		err := cfg.FitDescriptors(c.limit)
		if c.clients == 0 {
			if err == nil || !strings.Contains(err.Error(), "128") || cfg.MaxClients != DefaultPortConfig().MaxClients {
				t.Errorf("%d descriptors: %v, %d clients", c.limit, err, cfg.MaxClients)
			}
			continue
		}
		if err != nil || cfg.MaxPending != c.pending || cfg.MaxClients != c.clients {
			t.Errorf("%d descriptors: %d pending and %d clients, want %d and %d: %v", c.limit, cfg.MaxPending, cfg.MaxClients, c.pending, c.clients, err)
		}
		if cfg.MaxPending+cfg.MaxClients+64 > int(min(c.limit, 1<<30)) {
			t.Errorf("%d descriptors: %d pending and %d clients leave less than 64", c.limit, cfg.MaxPending, cfg.MaxClients)
		}
	}
	few := DefaultPortConfig()
	few.MaxClients, few.MaxPending = 5, 3
	if err := few.FitDescriptors(1024); err != nil || few.MaxClients != 5 || few.MaxPending != 3 {
		t.Errorf("bounds that were low enough became %d and %d: %v", few.MaxClients, few.MaxPending, err)
	}
}

// lockedBuffer is a bytes.Buffer for concurrent use.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// hold keeps each connection of l open until the other side closes it, and
// sends it one byte for a greeting.
func hold(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			if _, err := c.Write([]byte("+")); err == nil {
				_, _ = io.Copy(io.Discard, c) // ends when the other side closes it
			}
		}()
	}
}

// TestPortBoundsClients: clients are refused beyond their bound, peers are not,
// and one who leaves makes room. The log tells it once.
func TestPortBoundsClients(t *testing.T) {
	c := newCredentials(t)
	var log lockedBuffer
	registry := prometheus.NewRegistry()
	port := c.port(func(cfg *PortConfig) {
		cfg.MaxClients, cfg.Registerer = 3, registry
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: &log})
	})
	go hold(port.Agents())
	go hold(port.Link())
	dial := func(source *pki.Source, protocol string) (io.Closer, error) {
		d := Dialer{Source: source, Verifier: pki.NewVerifier(c.ca, c.now)}
		conn, err := d.Dial(t.Context(), port.Addr().String(), protocol)
		if err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		t.Cleanup(func() { conn.Close() })
		return conn, nil
	}
	agent, server := c.source(pki.RoleAgent, "w1", 0, c.now()), c.server("b-00000002")
	var first io.Closer
	for i := range 3 {
		conn, err := dial(agent, wire.ProtoAgent)
		if err != nil {
			t.Fatalf("client %d: %v", i, err)
		}
		if i == 0 {
			first = conn
		}
	}
	for range 5 {
		if _, err := dial(agent, wire.ProtoAgent); err == nil {
			t.Fatal("a client too many was let in")
		}
	}
	for i := range 5 {
		if _, err := dial(server, wire.ProtoLink); err != nil {
			t.Fatalf("link %d of a peer: %v", i, err)
		}
	}
	if n := strings.Count(log.String(), "too many connections"); n != 1 || !strings.Contains(log.String(), "--max-clients") {
		t.Errorf("the log told it %d times: %s", n, log.String())
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	if want := map[string]float64{
		"shepherd_port_refused_connections_total": 5, "shepherd_port_clients": 3, "shepherd_port_max_clients": 3,
	}; !maps.Equal(got, want) {
		t.Errorf("metrics %v, want %v", got, want)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	poll(t, "a client gets the place of one that left", func() error {
		_, err := dial(agent, wire.ProtoAgent)
		return err
	})
}

// TestPortClosesTheSilent: connections on which nothing is said make way for
// those on which something is, the oldest first.
func TestPortClosesTheSilent(t *testing.T) {
	c := newCredentials(t)
	port := c.port(func(cfg *PortConfig) { cfg.MaxPending, cfg.HandshakeTimeout = 3, time.Hour })
	go echo(port.Raft())
	silent := make([]net.Conn, 10)
	for i := range silent {
		conn, err := net.Dial("tcp", port.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		silent[i] = conn
	}
	for range 3 {
		if got, err := c.talk(c.server("b-00000002"), port.Addr().String(), wire.ProtoRaft); err != nil || got != "hello b-00000002" {
			t.Fatalf("a peer behind silent connections: %q %v", got, err)
		}
	}
	for i, conn := range silent[:7] { // and one more for each peer, which may be one of them
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("silent connection %d of 10 is still open: %v", i, err)
		}
	}
	last := silent[len(silent)-1]
	if err := last.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := last.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the last silent connection has ended: %v", err)
	}
}

// TestEntranceCounts goes through every way in and out.
func TestEntranceCounts(t *testing.T) {
	cfg := PortConfig{MaxPending: 2, MaxClients: 1}
	d, err := newEntrance(&cfg, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	enter := func() (*guest, *guest) {
		conn, other := net.Pipe()
		t.Cleanup(func() { conn.Close(); other.Close() })
		return d.enter(conn)
	}
	check := func(step string, unknown, peers, clients int) {
		t.Helper()
		if got := fmt.Sprint(d.unknown.Len(), d.peers, d.clients); got != fmt.Sprint(unknown, peers, clients) {
			t.Errorf("%s: %s unknown, peers and clients, want %d %d %d", step, got, unknown, peers, clients)
		}
	}
	peer, _ := enter()
	client, _ := enter()
	check("two come", 2, 0, 0)
	third, goes := enter()
	if goes != peer {
		t.Error("not the oldest goes")
	}
	if err := d.hear(peer, false); !errors.Is(err, errSaidNothing) {
		t.Errorf("one that had to go says something: %v", err)
	}
	check("a third comes", 2, 0, 0)
	if err := errors.Join(d.hear(third, false), d.hear(client, true)); err != nil {
		t.Fatal(err)
	}
	check("both say what they are", 0, 1, 1)
	fourth, _ := enter()
	check("a fourth comes", 1, 1, 1)
	if err := d.hear(fourth, true); !errors.Is(err, errTooManyClients) {
		t.Errorf("a client too many: %v", err)
	}
	check("it is one too many", 0, 1, 1)
	second, _ := enter()
	if err := d.hear(second, false); err != nil {
		t.Fatal(err)
	}
	if self, goes := enter(); goes != self {
		t.Error("a server's handshake was broken off for somebody unknown")
	}
	check("two servers shake hands", 0, 2, 1)
	d.shaken(third)
	d.shaken(client)
	check("one is done", 0, 1, 1)
	for _, g := range []*guest{peer, client, third, fourth, second, second} {
		_ = g.Close() // some have been
	}
	check("all have gone", 0, 0, 0)
}
