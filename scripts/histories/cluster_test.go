package histories

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api"
	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster"
	"github.com/shepherd-project/shepherd/cluster/simnet"
	"github.com/shepherd-project/shepherd/fsm"
)

// host is one server of a simulated cluster, wired as the daemon wires it but
// for certificates and, mostly, controllers. Its disk outlives it.
type host struct {
	name, id, addr string
	starts         uint64

	log       *raft.InmemStore
	snapshots raft.SnapshotStore

	up  atomic.Pointer[server] // nil while it is down
	off atomic.Int64           // by how much its wall clock is wrong, in nanoseconds
}

// server is a running host.
type server struct {
	store     *fsm.Store
	node      *cluster.Node
	transport *cluster.Transport
	api       *api.Server
	http      *http.Server
	served    chan struct{} // closed when http.Serve has returned
	stopCh    chan struct{} // closed when it is to end
	beside    sync.WaitGroup
	// arrival, if set, is called with every request that comes to the handler.
	arrival atomic.Pointer[func(*wire.Request)]
	// between, if set, is called before every proposal of the API.
	between atomic.Pointer[func(fsm.Command)]
	// after, if set, sees every result before the API does.
	after atomic.Pointer[func(fsm.Result)]
}

// simulation is a cluster in a bubble.
type simulation struct {
	t     testing.TB
	net   *simnet.Net
	seed  int64
	hosts []*host
	tune  func(*fsm.Config, *cluster.Config, *api.Config)
	// with, if set, runs beside each server until its stopCh is closed.
	with func(*server)
}

func logger() hclog.Logger {
	level := hclog.LevelFromString(os.Getenv("SHEPHERD_TEST_LOG"))
	if level == hclog.NoLevel {
		return hclog.NewNullLogger()
	}
	return hclog.New(&hclog.LoggerOptions{Level: level, Output: os.Stderr, TimeFormat: "05.000000"})
}

// simulate starts a cluster of that many voters. tune, which may be nil,
// changes what is configured.
func simulate(t testing.TB, seed int64, size int, tune func(*fsm.Config, *cluster.Config, *api.Config)) *simulation {
	t.Helper()
	s := &simulation{t: t, net: simnet.New(seed), seed: seed, tune: tune}
	for i := range size {
		name := fmt.Sprintf("s%d", i+1)
		h := &host{name: name, id: name + "-0000000" + name[1:], addr: name + ":9876", log: raft.NewInmemStore(), snapshots: raft.NewInmemSnapshotStore()}
		s.hosts = append(s.hosts, h)
		s.start(h, i == 0)
	}
	first := s.awaitLeader()
	for _, h := range s.hosts[1:] {
		if err := first.up.Load().node.AddServer(t.Context(), h.id, h.addr); err != nil {
			t.Fatal(err)
		}
	}
	s.poll("all servers vote", func() error {
		members := s.awaitLeader().up.Load().node.Status(t.Context()).Members
		for _, m := range members {
			if m.Role != wire.RoleVoter && m.Role != wire.RoleLeader {
				return fmt.Errorf("%s is a %s", m.Name, m.Role)
			}
		}
		return nil
	})
	s.must(s.send(t.Context(), s.hosts[0], "POST", "/api/v1/namespaces", `{"metadata":{"name":"default"}}`), http.StatusCreated)
	return s
}

func (s *simulation) start(h *host, bootstrap bool) {
	s.t.Helper()
	bounds := fsm.DefaultConfig()
	nc, ac := cluster.DefaultConfig(), api.DefaultConfig()
	nc.ID, nc.Name, nc.Address, nc.Bootstrap = h.id, h.name, h.addr, bootstrap
	nc.Log, nc.Stable, nc.Snapshots = h.log, h.log, h.snapshots
	nc.Logger = logger().With("server", h.name)
	transport := cluster.NewTransport(s.net.RaftLayer(h.addr), nc.Timing.Transport, nc.Logger)
	nc.Transport, nc.LinkListener = transport, s.net.Listen("link", h.addr)
	nc.DialLink = func(ctx context.Context, to string) (net.Conn, error) { return s.net.Dial(ctx, "link", h.addr, to) }
	nc.Wall = func() time.Time { return time.Now().Add(time.Duration(h.off.Load())) }
	ac.BookmarkInterval = 100 * time.Millisecond
	h.starts++ // what it draws must be new, after a restart too
	ac.Write.Rand = rand.New(rand.NewPCG(uint64(s.seed), uint64(h.name[1])<<32+h.starts))
	if s.tune != nil {
		s.tune(&bounds, &nc, &ac)
	}
	up := &server{store: fsm.New(bounds), transport: transport, served: make(chan struct{}), stopCh: make(chan struct{})}
	var forwards atomic.Pointer[api.Server]
	nc.Store = up.store
	nc.Handler = func(ctx context.Context, req *wire.Request) *wire.Response {
		if arrival := up.arrival.Load(); arrival != nil {
			(*arrival)(req)
		}
		if handler := forwards.Load(); handler != nil {
			return handler.HandleForwarded(ctx, req)
		}
		return &wire.Response{NotLeader: true} // still starting
	}
	var err error
	if up.node, err = cluster.New(nc); err != nil {
		s.t.Fatalf("start %s: %v", h.name, err)
	}
	ac.Store, ac.Consensus, ac.Logger, ac.Ready = up.store, consensus{up.node, up}, nc.Logger.Named("api"), up.node.Ready
	ac.Authenticate = func(*http.Request) (api.Identity, bool) {
		return api.Identity{User: "admin", Groups: []string{"system:masters", "system:authenticated"}}, true
	}
	if up.api, err = api.New(ac); err != nil {
		s.t.Fatal(err)
	}
	forwards.Store(up.api)
	up.http = &http.Server{Handler: up.api, ErrorLog: nc.Logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug})}
	listener := s.net.Listen("api", h.addr)
	go func() {
		defer close(up.served)
		if err := up.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			s.t.Errorf("%s: %v", h.name, err)
		}
	}()
	h.up.Store(up)
	s.accompany(up)
}

func (s *simulation) accompany(up *server) {
	if s.with != nil {
		up.beside.Go(func() { s.with(up) })
	}
}

// consensus lets a test do something between a decision and its proposal.
type consensus struct {
	*cluster.Node
	server *server
}

func (c consensus) Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	if between := c.server.between.Load(); between != nil {
		(*between)(cmd)
	}
	result, err := c.Node.Propose(ctx, cmd)
	if after := c.server.after.Load(); after != nil && err == nil {
		(*after)(result)
	}
	return result, err
}

// crash ends a server as a kill does: nobody hears of it but by the network.
func (s *simulation) crash(h *host) {
	s.t.Helper()
	up := h.up.Swap(nil)
	if up == nil {
		return
	}
	s.net.Crash(h.addr)
	s.end(h, up)
}

func (s *simulation) end(h *host, up *server) {
	s.t.Helper()
	close(up.stopCh)
	up.beside.Wait()
	up.api.Close()
	if err := up.http.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		s.t.Errorf("%s: %v", h.name, err)
	}
	<-up.served
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := up.node.Shutdown(ctx); err != nil {
		s.t.Errorf("%s: %v", h.name, err)
	}
}

func (s *simulation) restart(h *host) {
	s.t.Helper()
	if h.up.Load() == nil {
		s.start(h, false)
	}
}

// stop ends all servers in the orderly way.
func (s *simulation) stop() {
	s.t.Helper()
	for _, h := range s.hosts {
		if up := h.up.Swap(nil); up != nil {
			s.end(h, up)
		}
	}
}

// heal makes the network and all hosts whole.
func (s *simulation) heal() {
	s.net.Heal()
	for _, h := range s.hosts {
		s.restart(h)
	}
}

// converge heals everything and waits until all replicas hold the same.
func (s *simulation) converge() {
	s.t.Helper()
	s.heal()
	s.poll("the replicas agree", func() error {
		var index uint64
		var sum [16]byte
		for i, h := range s.hosts {
			up := h.up.Load()
			if err := up.node.Ready(); err != nil {
				return fmt.Errorf("%s: %w", h.name, err)
			}
			at, is := up.store.Hash()
			switch {
			case i == 0:
				index, sum = at, is
			case at != index:
				return fmt.Errorf("%s is at %d, %s at %d", h.name, at, s.hosts[0].name, index)
			case is != sum:
				s.t.Fatalf("%s differs from %s at index %d", h.name, s.hosts[0].name, index)
			}
		}
		return nil
	})
}

// leader is the server that leads in the highest term, or nil.
func (s *simulation) leader() (best *host) {
	var highest uint64
	for _, h := range s.hosts {
		if up := h.up.Load(); up != nil {
			if term, leading := up.node.Leadership(); leading && term > highest {
				best, highest = h, term
			}
		}
	}
	return best
}

func (s *simulation) awaitLeader() (h *host) {
	s.t.Helper()
	s.poll("somebody leads", func() error {
		if h = s.leader(); h == nil {
			return errors.New("nobody leads")
		}
		return nil
	})
	return h
}

// others are all hosts but one.
func (s *simulation) others(h *host) (rest []*host) {
	for _, o := range s.hosts {
		if o != h {
			rest = append(rest, o)
		}
	}
	return rest
}

func (s *simulation) addrs() (list []string) {
	for _, h := range s.hosts {
		list = append(list, h.addr)
	}
	return list
}

// poll waits until f returns nil, in simulated time.
func (s *simulation) poll(what string, f func() error) {
	s.t.Helper()
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	s.t.Fatalf("%s: %v", what, err)
}

// elect makes a follower stand for election, as a failure detector does, and
// reports whether it was told.
func (s *simulation) elect(target *host) bool {
	up := target.up.Load()
	if up == nil || s.leader() == target {
		return false
	}
	for _, h := range s.others(target) {
		via := h.up.Load()
		if via == nil || s.net.Blocked(h.addr, target.addr) || s.net.Blocked(target.addr, h.addr) {
			continue
		}
		req := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(h.id), Addr: []byte(h.addr)}}
		var resp raft.TimeoutNowResponse
		if via.transport.TimeoutNow(raft.ServerID(target.id), raft.ServerAddress(target.addr), req, &resp) == nil {
			return true
		}
	}
	return false
}

// client is an HTTP client on a host of its own. A new one has no connections.
func (s *simulation) client(from string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, to string) (net.Conn, error) { return s.net.Dial(ctx, "api", from, to) },
		// An idle connection is not used again: net/http would send a request
		// twice by itself when it turns out to be broken.
		DisableKeepAlives: true,
	}}
}

// send makes one request to a server.
func (s *simulation) send(ctx context.Context, h *host, method, path, body string) reply {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+h.addr+path, strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	return readReply(s.client("client:1").Do(req))
}
