package cluster

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

// realServer is a server on the loopback interface, with everything real.
type realServer struct {
	id, addr, dir string
	cred          *credentials
	node          *Node
	store         *fsm.Store
	port          *Port
}

func (s *realServer) start(t testing.TB, bootstrap bool) {
	t.Helper()
	address := s.addr
	if address == "" {
		address = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	source, verifier := s.cred.server(s.id), s.cred.verifier()
	pc := DefaultPortConfig()
	pc.Listener, pc.Source, pc.Verifier = l, source, verifier
	if s.port, err = NewPort(pc); err != nil {
		t.Fatal(err)
	}
	dialer := &Dialer{Source: source, Verifier: verifier}
	s.store = fsm.New(fsm.DefaultConfig())
	app := &register{store: s.store}
	cfg := DefaultConfig()
	cfg.ID, cfg.Name, cfg.Address, cfg.DataDir, cfg.Bootstrap = s.id, ServerName(s.id), s.addr, s.dir, bootstrap
	cfg.Store, cfg.Handler = s.store, app.handle
	cfg.Logger = testLogger().With("server", cfg.Name)
	cfg.Transport = NewTransport(NewRaftLayer(s.port, dialer, s.addr), cfg.Timing.Transport, cfg.Logger)
	cfg.LinkListener, cfg.DialLink = s.port.Link(), dialer.Link
	if s.node, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	app.node.Store(s.node)
}

func (s *realServer) stop(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.node.Shutdown(ctx); err != nil {
		t.Errorf("%s: %v", s.id, err)
	}
	if err := s.port.Close(); err != nil {
		t.Errorf("%s: %v", s.id, err)
	}
}

func (s *realServer) put(ctx context.Context, key, value string) error {
	id := fsm.NewRequestID(s.store.View().Revision())
	resp, err := s.node.Forward(ctx, &wire.Request{Nonce: id.Nonce, Birth: id.Birth, Method: "PUT", Path: key, Body: []byte(value)})
	switch {
	case err != nil:
		return err
	case resp.Status != 200:
		return errors.New(string(resp.Body))
	}
	return nil
}

// eventually polls with the levels' own events; it never sleeps for long.
func eventually(t testing.TB, what string, n *Node, f func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-n.LeadershipChanged():
		case <-tick.C:
		case <-deadline:
			t.Fatal(what)
		}
	}
}

// TestRealServers runs three servers with TLS, sockets and files: the leader
// stops and writes go on; all stop and everything is there after their restart.
func TestRealServers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cred := newCredentials(t)
	begin := time.Now()
	servers := make([]*realServer, 3)
	for i, id := range []string{"s1-00000001", "s2-00000002", "s3-00000003"} {
		servers[i] = &realServer{id: id, cred: cred, dir: t.TempDir()}
		servers[i].start(t, i == 0)
	}
	first := servers[0].node
	eventually(t, "nobody leads", first, func() bool { _, leading := first.Leadership(); return leading })
	for _, s := range servers[1:] {
		if err := first.AddServer(ctx, s.id, s.addr); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "not all are voters", first, func() bool { return len(voters(first.servers())) == 3 })
	for _, s := range servers {
		eventually(t, "not ready", s.node, func() bool { return s.node.Ready() == nil })
		if err := s.put(ctx, "/"+s.id, "1"); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("three servers were ready after %v", time.Since(begin).Round(time.Millisecond))

	gap := time.Now()
	servers[0].stop(t)
	for _, s := range servers[1:] {
		if err := s.put(ctx, "/"+s.id, "2"); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("stop of the leader and two writes took %v", time.Since(gap).Round(time.Millisecond))
	servers[0].start(t, false)
	eventually(t, "not ready", servers[0].node, func() bool { return servers[0].node.Ready() == nil })
	if o := servers[0].store.View().Get(registerKey("s3-00000003")); o == nil || string(o.Data) != "2" {
		t.Fatalf("ready without what was written meanwhile: %+v", o)
	}
	for _, s := range servers {
		s.stop(t)
	}
	for _, s := range servers {
		s.start(t, true) // --bootstrap stays in the unit file, and is ignored
	}
	defer func() {
		for _, s := range servers {
			s.stop(t)
		}
	}()
	for _, s := range servers {
		if err := s.node.ReadIndex(ctx); err != nil {
			t.Fatal(err)
		}
		if o := s.store.View().Get(registerKey("s2-00000002")); o == nil || string(o.Data) != "2" {
			t.Fatalf("lost: %+v", o)
		}
	}
}
