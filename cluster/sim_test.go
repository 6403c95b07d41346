package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/fsm"
)

// simHost is one server of a simulated cluster. Its disk outlives its node.
type simHost struct {
	id, name, addr string

	wrong     atomic.Int64 // how far its wall clock is from the right time, in nanoseconds
	log       *raft.InmemStore
	snapshots raft.SnapshotStore
	level     atomic.Uint32 // the command level of its build; 0 is this build's

	mu        sync.Mutex
	node      *Node // nil while it is down
	store     *fsm.Store
	app       *register
	transport *Transport
}

func (h *simHost) current() (*Node, *fsm.Store) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.node, h.store
}

// simCluster is a whole cluster in a bubble.
type simCluster struct {
	t     testing.TB
	net   *simNet
	hosts []*simHost
	tune  func(*Config)
}

func testLogger() hclog.Logger {
	level := hclog.LevelFromString(os.Getenv("SHEPHERD_TEST_LOG"))
	if level == hclog.NoLevel {
		return hclog.NewNullLogger()
	}
	return hclog.New(&hclog.LoggerOptions{Level: level, Output: os.Stderr, TimeFormat: "05.000000"})
}

// newSimCluster starts the given number of servers: the first bootstraps, the
// others are added and become voters.
func newSimCluster(t testing.TB, seed int64, size int, tune func(*Config)) *simCluster {
	t.Helper()
	c := &simCluster{t: t, net: newSimNet(seed), tune: tune}
	for i := range size {
		name := fmt.Sprintf("s%d", i+1)
		h := &simHost{id: name + "-0000000" + name[1:], name: name, addr: name + ":9876", log: raft.NewInmemStore(), snapshots: raft.NewInmemSnapshotStore()}
		c.hosts = append(c.hosts, h)
		c.start(h, i == 0)
	}
	first := c.waitLeader()
	for _, h := range c.hosts[1:] {
		if err := first.AddServer(t.Context(), h.id, h.addr); err != nil {
			t.Fatal(err)
		}
	}
	c.waitVoters(size)
	poll(t, "every server knows every voter", func() error {
		for _, h := range c.hosts {
			if n, _ := h.current(); len(voters(n.servers())) != size {
				return fmt.Errorf("%s does not", h.name)
			}
		}
		return nil
	})
	return c
}

func (c *simCluster) addrs() (list []string) {
	for _, h := range c.hosts {
		list = append(list, h.addr)
	}
	return list
}

func (c *simCluster) start(h *simHost, bootstrap bool) {
	c.t.Helper()
	if err := c.tryStart(h, bootstrap); err != nil {
		c.t.Fatalf("start %s: %v", h.name, err)
	}
}

func (c *simCluster) tryStart(h *simHost, bootstrap bool) error {
	bounds := fsm.DefaultConfig()
	bounds.Level = uint8(h.level.Load())
	store := fsm.New(bounds)
	app := &register{store: store}
	cfg := DefaultConfig()
	cfg.ID, cfg.Name, cfg.Address, cfg.Bootstrap, cfg.Store = h.id, h.name, h.addr, bootstrap, store
	cfg.Log, cfg.Stable, cfg.Snapshots = h.log, h.log, h.snapshots
	cfg.Logger = testLogger().With("server", h.name)
	transport := NewTransport(c.net.RaftLayer(h.addr), cfg.Timing.Transport, cfg.Logger)
	cfg.Transport = transport
	cfg.LinkListener = c.net.listen("link", h.addr)
	cfg.DialLink = func(ctx context.Context, to string) (netConn, error) { return c.net.dial(ctx, "link", h.addr, to) }
	cfg.Handler = app.handle
	cfg.Wall = func() time.Time { return time.Now().Add(time.Duration(h.wrong.Load())) }
	if c.tune != nil {
		c.tune(&cfg)
	}
	node, err := New(cfg)
	if err != nil {
		return err
	}
	app.node.Store(node)
	h.mu.Lock()
	h.node, h.store, h.app, h.transport = node, store, app, transport
	h.mu.Unlock()
	return nil
}

// crash stops a server as a kill does: nobody hears of it but by the network.
func (c *simCluster) crash(h *simHost) {
	h.mu.Lock()
	n := h.node
	h.node = nil
	h.mu.Unlock()
	if n == nil {
		return
	}
	c.net.crash(h.addr)
	n.stopOnce.Do(func() { go n.stop() })
	<-n.done
}

func (c *simCluster) restart(h *simHost) {
	if n, _ := h.current(); n == nil {
		c.start(h, false)
	}
}

// stop ends all servers in the orderly way.
func (c *simCluster) stop() {
	c.t.Helper()
	for _, h := range c.hosts {
		h.mu.Lock()
		n := h.node
		h.node = nil
		h.mu.Unlock()
		if n == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		if err := n.Shutdown(ctx); err != nil {
			c.t.Errorf("%s: %v", h.name, err)
		}
		cancel()
	}
}

// poll waits until f returns nil, in simulated time.
func poll(t testing.TB, what string, f func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		if err = f(); err == nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%s: %v", what, err)
}

// leader returns the server that leads in the highest term, or nil.
func (c *simCluster) leader() *simHost {
	var best *simHost
	var bestTerm uint64
	for _, h := range c.hosts {
		if n, _ := h.current(); n != nil {
			if term, leading := n.Leadership(); leading && term > bestTerm {
				best, bestTerm = h, term
			}
		}
	}
	return best
}

func (c *simCluster) waitLeader() *Node {
	c.t.Helper()
	var node *Node
	poll(c.t, "wait for a leader", func() error {
		if h := c.leader(); h != nil {
			node, _ = h.current()
		}
		if node == nil {
			return errors.New("there is none")
		}
		return nil
	})
	return node
}

func (c *simCluster) waitVoters(count int) {
	c.t.Helper()
	poll(c.t, "wait for voters", func() error {
		h := c.leader()
		if h == nil {
			return errors.New("no leader")
		}
		n, _ := h.current()
		if n == nil || len(voters(n.servers())) != count {
			return fmt.Errorf("not %d voters", count)
		}
		return nil
	})
}

// heal makes the network and all servers whole.
func (c *simCluster) heal() {
	c.t.Helper()
	c.net.heal()
	for _, h := range c.hosts {
		c.restart(h)
	}
}

// converge heals everything and checks that all replicas agree.
func (c *simCluster) converge() {
	c.t.Helper()
	c.heal()
	poll(c.t, "converge", func() error {
		for _, h := range c.hosts {
			n, _ := h.current()
			if err := n.Ready(); err != nil {
				return fmt.Errorf("%s: %w", h.name, err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			err := n.ReadIndex(ctx)
			cancel()
			if err != nil {
				return err
			}
		}
		_, first := c.hosts[0].current()
		index, sum := first.Hash()
		for _, h := range c.hosts[1:] {
			_, s := h.current()
			i, other := s.Hash()
			if i != index {
				return fmt.Errorf("%s is at %d, not %d", h.name, i, index)
			}
			if other != sum {
				c.t.Fatalf("%s differs from %s at index %d", h.name, c.hosts[0].name, i)
			}
		}
		return nil
	})
}

// forceElection tells a follower to call an election at once, as a failure
// detector does.
func (c *simCluster) forceElection(target *simHost) {
	n, _ := target.current()
	if n == nil || n.raft.State() != raft.Follower {
		return
	}
	for _, h := range c.hosts {
		h.mu.Lock()
		transport, up := h.transport, h.node != nil
		h.mu.Unlock()
		if h == target || !up || c.net.isBlocked(h.addr, target.addr) || c.net.isBlocked(target.addr, h.addr) {
			continue
		}
		req := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(h.id), Addr: []byte(h.addr)}}
		var resp raft.TimeoutNowResponse
		if err := transport.TimeoutNow(raft.ServerID(target.id), raft.ServerAddress(target.addr), req, &resp); err == nil {
			return
		}
	}
}

// write puts a value through a server and returns the answer's status.
func (c *simCluster) write(ctx context.Context, h *simHost, method, key, value string) (int, string, error) {
	n, store := h.current()
	if n == nil {
		return 0, "", ErrStopped
	}
	id := fsm.NewRequestID(store.View().Revision())
	resp, err := n.Forward(ctx, &wire.Request{Nonce: id.Nonce, Birth: id.Birth, Method: method, Path: key, Body: []byte(value)})
	if err != nil {
		return 0, "", err
	}
	return resp.Status, string(resp.Body), nil
}

// read is a linearizable read at a server.
func (c *simCluster) read(ctx context.Context, h *simHost, key string) (string, error) {
	n, store := h.current()
	if n == nil {
		return "", ErrStopped
	}
	if err := n.ReadIndex(ctx); err != nil {
		return "", err
	}
	if o := store.View().Get(registerKey(key)); o != nil {
		return string(o.Data), nil
	}
	return "", nil
}

func registerKey(name string) fsm.Key {
	return fsm.Key{Resource: "registers.test", Name: strings.TrimPrefix(name, "/")}
}

// verifier knows the test's CA.
func (c *credentials) verifier() *pki.Verifier { return pki.NewVerifier(c.ca, c.now) }
