// Package upstream connects an agent to its servers. It knows all of them,
// prefers one that answers, and moves to another within seconds when that one
// dies, hangs or when its packets are dropped.
package upstream

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// ErrNoServer is returned when no server could be reached at all.
var ErrNoServer = errors.New("no server can be reached")

// Config says which servers to begin with and how patient to be.
type Config struct {
	// Seeds are HOST:PORT addresses to begin with and to fall back on.
	Seeds []string
	// Path is the file that keeps the learned list.
	Path string
	// TLS returns the client configuration for a dial; see agent.Config.
	TLS func() (*tls.Config, error)
	// DialTimeout bounds a TCP connect and the TLS handshake, each.
	DialTimeout time.Duration
	// PingInterval is the silence after which a connection is probed, and
	// PingTimeout how long the answer may take. Their sum is how long a
	// dropped connection stays unnoticed.
	PingInterval, PingTimeout time.Duration
	// HeaderTimeout is how long a server may think about a read before the
	// next one is asked.
	HeaderTimeout time.Duration
	// Logger may be nil.
	Logger hclog.Logger
}

// DefaultConfig moves off a silent server in less than five seconds.
func DefaultConfig() Config {
	return Config{
		DialTimeout: 2 * time.Second, PingInterval: 2 * time.Second, PingTimeout: 2500 * time.Millisecond,
		HeaderTimeout: 5 * time.Second,
	}
}

// Validate reports settings that cannot work.
func (c *Config) Validate() error {
	if len(c.Seeds) == 0 {
		return errors.New("upstream: no server to begin with")
	}
	if c.TLS == nil {
		return errors.New("upstream: no TLS configuration")
	}
	if c.DialTimeout <= 0 || c.PingInterval <= 0 || c.PingTimeout <= 0 || c.HeaderTimeout <= 0 {
		return errors.New("upstream: timeouts must be positive")
	}
	return nil
}

// Pool is the set of servers with what is known about them. It is safe for
// concurrent use.
type Pool struct {
	cfg    Config
	logger hclog.Logger
	dialer net.Dialer

	mu      sync.Mutex
	learned []string
	order   []string             // learned servers shuffled, then the other seeds
	current string               // the server that requests go to
	down    map[string]time.Time // server -> not to be tried before
	strikes map[string]int       // failures in a row
	changed chan struct{}        // closed when the list changes
}

// serverFile is what Path holds.
type serverFile struct {
	Version int      `json:"version"`
	Servers []string `json:"servers"`
}

// New makes a pool from the seeds and the list kept on disk.
func New(cfg Config) (*Pool, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	p := &Pool{cfg: cfg, logger: cfg.Logger, down: map[string]time.Time{}, strikes: map[string]int{}, changed: make(chan struct{})}
	p.dialer = net.Dialer{
		Timeout:         cfg.DialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: cfg.PingInterval, Interval: time.Second, Count: 3},
		Control:         p.control,
	}
	if cfg.Path != "" {
		learned, err := readServers(cfg.Path)
		if err != nil {
			// The seeds are as good a start; the file is written anew.
			p.logger.Warn("server list cannot be read", "path", cfg.Path, "error", err)
		}
		p.learned = learned
	}
	p.reorderLocked()
	return p, nil
}

func readServers(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var f serverFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, err
	}
	if f.Version != 1 {
		return nil, fmt.Errorf("version %d, want 1", f.Version)
	}
	return f.Servers, nil
}

// control bounds how long sent data may stay unacknowledged by the peer's
// kernel, which is what dropped packets look like.
func (p *Pool) control(_, _ string, c syscall.RawConn) error {
	var err error
	ms := int((p.cfg.PingInterval + p.cfg.PingTimeout) / time.Millisecond)
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, ms)
	}); e != nil {
		return e
	}
	return err
}

// reorderLocked shuffles, so that many agents spread over the servers.
func (p *Pool) reorderLocked() {
	p.order = slices.Clone(p.learned)
	rand.Shuffle(len(p.order), func(i, j int) { p.order[i], p.order[j] = p.order[j], p.order[i] })
	for _, s := range p.cfg.Seeds {
		if !slices.Contains(p.order, s) {
			p.order = append(p.order, s)
		}
	}
	if !slices.Contains(p.order, p.current) {
		p.current = p.order[0]
	}
}

// Update replaces the learned list and keeps it on disk. An empty list is
// ignored: it cannot be what the cluster means.
func (p *Pool) Update(servers []string) error {
	servers = slices.Compact(slices.Sorted(slices.Values(servers)))
	if len(servers) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Equal(servers, p.learned) {
		return nil
	}
	if len(p.learned) == 0 {
		p.current = "" // all agents may have begun with the same seed
	}
	p.learned = servers
	p.reorderLocked()
	close(p.changed)
	p.changed = make(chan struct{})
	p.logger.Info("server list changed", "servers", servers)
	if p.cfg.Path == "" {
		return nil
	}
	return writeServers(p.cfg.Path, servers)
}

func writeServers(path string, servers []string) error {
	data, err := json.Marshal(serverFile{Version: 1, Servers: servers})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("keep server list: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".servers-")
	if err != nil {
		return fmt.Errorf("keep server list: %w", err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("keep server list: %w", err), os.Remove(f.Name()))
	}
	return nil
}

// Servers returns the cluster's servers as learned, or the seeds while nothing
// was learned, and a channel that is closed at the next change.
func (p *Pool) Servers() ([]string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.learned) == 0 {
		return slices.Clone(p.cfg.Seeds), p.changed
	}
	return slices.Clone(p.learned), p.changed
}

// Current returns the server that requests go to now.
func (p *Pool) Current() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// candidates returns every server once: the current one first if it is not
// known to be down, then those that are not, then the rest, longest down first.
func (p *Pool) candidates() []string {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	at := max(slices.Index(p.order, p.current), 0)
	list := slices.Concat(p.order[at:], p.order[:at])
	slices.SortStableFunc(list, func(a, b string) int {
		downA, downB := p.down[a], p.down[b]
		if !downA.After(now) {
			downA = time.Time{}
		}
		if !downB.After(now) {
			downB = time.Time{}
		}
		return downA.Compare(downB)
	})
	return list
}

// succeed makes the server that answered the current one.
func (p *Pool) succeed(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.down, addr)
	delete(p.strikes, addr)
	if p.current != addr && slices.Contains(p.order, addr) {
		p.logger.Info("now talking to another server", "server", addr, "before", p.current)
		p.current = addr
	}
}

// fail puts a server off for a time that grows with its failures.
func (p *Pool) fail(addr string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.strikes[addr]++
	wait := min(time.Second<<min(p.strikes[addr]-1, 4), 10*time.Second)
	p.down[addr] = time.Now().Add(wait/2 + rand.N(wait/2))
	if p.strikes[addr] == 1 {
		p.logger.Warn("server does not answer", "server", addr, "error", err)
	}
	if p.current == addr { // the next in order; requests correct it
		at := slices.Index(p.order, addr)
		p.current = p.order[(at+1)%len(p.order)]
	}
}

// DialAny opens a plain TCP connection to any live server.
func (p *Pool) DialAny(ctx context.Context) (net.Conn, error) {
	errs := []error{ErrNoServer}
	for _, addr := range p.candidates() {
		conn, err := p.dialer.DialContext(ctx, "tcp", addr)
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		p.fail(addr, err)
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// DialTLS opens a TLS connection to one server that speaks one of protos.
func (p *Pool) DialTLS(ctx context.Context, addr string, protos ...string) (*tls.Conn, error) {
	cfg, err := p.cfg.TLS()
	if err != nil {
		return nil, fmt.Errorf("TLS configuration: %w", err)
	}
	cfg = cfg.Clone()
	cfg.NextProtos = protos
	if cfg.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, fmt.Errorf("server address: %w", err)
		}
		cfg.ServerName = host
	}
	raw, err := p.dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout)
	defer cancel()
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("TLS with %s: %w", addr, err), raw.Close())
	}
	return conn, nil
}
