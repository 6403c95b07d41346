// Package agent is what runs on every worker machine: it registers the
// machine as a Node, heartbeats to any live server, runs the pods bound to it
// and reports what they do.
//
// Each concern is a loop in a goroutine of its own, so nothing that can take
// long (an image, a container's grace period, a slow server) stands between
// two heartbeats. The agent dials out only; servers reach it over the streams
// that it holds to each of them.
//
// It never acts on a stale view: pods are listed by linearizable reads after
// every reconnect, views older than what was acted on are refused, also over
// restarts, and before a pod is killed because it is missing from a list, the
// server is asked for it by name and UID.
package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/shepherd-project/shepherd/agent/image"
	"github.com/shepherd-project/shepherd/agent/network"
	"github.com/shepherd-project/shepherd/agent/runtime"
	"github.com/shepherd-project/shepherd/agent/upstream"
	"github.com/shepherd-project/shepherd/agent/volume"
)

// Agent is one machine's agent. Make it with New, then call Run once.
type Agent struct {
	cfg       Config
	logger    hclog.Logger
	pool      *upstream.Pool
	transport *upstream.Transport // for everything but heartbeats
	beats     *upstream.Transport
	client    *client
	images    *image.Store
	network   *network.Manager
	runtime   *runtime.Runtime
	volumes   *volume.Manager
	revisions *revisions
	heartbeat *heartbeat
}

// New checks the configuration and opens what the agent keeps on disk. It
// starts nothing.
func New(cfg Config) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("agent configuration: %w", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	a := &Agent{cfg: cfg, logger: cfg.Logger.Named("agent")}
	up := upstream.DefaultConfig()
	up.Seeds, up.TLS, up.Logger = cfg.Servers, cfg.TLS, a.logger.Named("upstream")
	up.Path = filepath.Join(cfg.DataDir, "agent", "upstream.json")
	up.HeaderTimeout = cfg.HeartbeatTimeout
	var err error
	if a.pool, err = upstream.New(up); err != nil {
		return nil, err
	}
	a.transport, a.beats = a.pool.NewTransport(), a.pool.NewTransport()
	if a.client, err = newClient(a.transport); err != nil {
		return nil, err
	}
	if a.revisions, err = openRevisions(filepath.Join(cfg.DataDir, "agent", "revision")); err != nil {
		return nil, err
	}
	boot, err := readBootID()
	if err != nil {
		return nil, err
	}
	a.heartbeat = &heartbeat{transport: a.beats, interval: cfg.HeartbeatInterval, logger: a.logger.Named("heartbeat"), bootID: boot, acked: func() {}}
	return a, a.openLocal()
}

// openLocal opens the parts that deal with this machine.
func (a *Agent) openLocal() error {
	images := image.DefaultConfig(filepath.Join(a.cfg.DataDir, "images"))
	images.InsecureRegistries, images.Logger = a.cfg.InsecureRegistries, a.logger.Named("image")
	var err error
	if a.images, err = image.New(images); err != nil {
		return err
	}
	a.network, err = network.New(network.Config{RunDir: a.cfg.RunDir, NodeName: a.cfg.NodeName, Logger: a.logger.Named("network")})
	if err != nil {
		return err
	}
	rc, err := a.cfg.runtime()
	if err != nil {
		return err
	}
	if a.runtime, err = runtime.New(rc); err != nil {
		return err
	}
	a.volumes, err = volume.New(a.cfg.volumes(objects{a.client}))
	return err
}

// runtime is the configuration of the runtime that belongs to the agent's.
func (c *Config) runtime() (runtime.Config, error) {
	rc := runtime.DefaultConfig()
	rc.RunDir, rc.DataDir, rc.CgroupRoot = c.RunDir, c.DataDir, strings.Trim(c.CgroupRoot, "/")
	rc.ShimPath = c.ShimPath
	if rc.ShimPath == "" {
		self, err := os.Executable()
		if err != nil {
			return rc, fmt.Errorf("find shepherd-shim: %w", err)
		}
		rc.ShimPath = filepath.Join(filepath.Dir(self), "shepherd-shim")
	}
	if c.Logger != nil {
		rc.Logger = c.Logger.Named("runtime")
	}
	return rc, nil
}

func (c *Config) volumes(objects volume.Objects) volume.Config {
	return volume.Config{DataDir: filepath.Join(c.DataDir, "volumes"), RunDir: filepath.Join(c.RunDir, "volumes"), Objects: objects}
}

// Lease returns when, on CLOCK_BOOTTIME, the last heartbeat was sent that a
// majority of the servers has acknowledged; false if there was none in this
// run of the agent. Safe for concurrent use.
func (a *Agent) Lease() (time.Duration, bool) {
	d := time.Duration(a.heartbeat.lease.Load())
	return d, d != 0
}

// Servers are the addresses at which the cluster may be found now: those that
// it named last, then those of the configuration.
func (a *Agent) Servers() []string {
	servers, _ := a.pool.Servers()
	for _, s := range a.cfg.Servers {
		if !slices.Contains(servers, s) {
			servers = append(servers, s)
		}
	}
	return servers
}

// Run runs the agent until stopCh is closed and returns when all its loops
// have returned. Pods go on running. An error means that it could not start.
func (a *Agent) Run(stopCh <-chan struct{}) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stopped := make(chan struct{})
	defer close(stopped)
	go func() {
		select {
		case <-stopCh:
			cancel()
		case <-stopped:
		}
	}()
	defer func() { err = errors.Join(err, a.runtime.Close()) }()
	defer a.transport.CloseIdleConnections()
	defer a.beats.CloseIdleConnections()

	servers, _ := a.pool.Servers()
	machine, err := a.awaitMachine(ctx, append(servers, a.cfg.Servers...))
	if err != nil || ctx.Err() != nil {
		return nil
	}
	var local *upstream.Passthrough
	if a.cfg.LocalAddr != "" {
		if local, err = a.pool.Listen(a.cfg.LocalAddr); err != nil {
			return err
		}
	}
	l, err := a.loops(ctx, machine)
	if err != nil {
		return err
	}
	if local != nil {
		l.spawn("local pass-through", func(ctx context.Context) {
			persist(ctx, a.logger, "local pass-through", 5*time.Second, local.Run)
		})
	}
	l.wait()
	return nil
}

// awaitMachine looks at the machine. A network that is not up yet is waited
// for: machines boot in any order.
func (a *Agent) awaitMachine(ctx context.Context, peers []string) (*machine, error) {
	again := retry{base: 200 * time.Millisecond, limit: 5 * time.Second}
	for {
		m, err := readMachine(&a.cfg, peers)
		if err == nil {
			return m, nil
		}
		a.logger.Warn("cannot describe this machine yet", "error", err)
		if !pause(ctx, again.next()) {
			return nil, ctx.Err()
		}
	}
}

// Cleanup stops every pod of the machine that cfg describes and removes all
// that an agent has made on it, but for images and the node's identity. No
// agent may be running. NodeName, Servers and TLS are not needed.
func Cleanup(ctx context.Context, cfg Config) (err error) {
	rc, err := cfg.runtime()
	if err != nil {
		return err
	}
	r, err := runtime.New(rc)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := r.Cleanup(ctx); err != nil {
		return fmt.Errorf("stop pods: %w", err)
	}
	n, err := network.New(network.Config{RunDir: cfg.RunDir, NodeName: cfg.NodeName, Logger: cfg.Logger})
	if err != nil {
		return err
	}
	if err := n.Cleanup(ctx); err != nil {
		return fmt.Errorf("remove the pods' network: %w", err)
	}
	v, err := volume.New(cfg.volumes(objects{}))
	if err != nil {
		return err
	}
	if err := v.Cleanup(); err != nil {
		return fmt.Errorf("remove the pods' volumes: %w", err)
	}
	return nil
}

// loops are the agent's goroutines.
type loops struct {
	ctx    context.Context
	logger hclog.Logger
	wg     sync.WaitGroup
	after  []func() // wait for what the goroutines have started
}

func (l *loops) wait() {
	l.wg.Wait()
	for _, wait := range l.after {
		wait()
	}
}

// spawn runs fn in a goroutine. A panic that leaves fn is followed by a new
// run of it.
func (l *loops) spawn(name string, fn func(context.Context)) {
	l.wg.Go(func() {
		again := retry{base: 200 * time.Millisecond, limit: 10 * time.Second}
		for l.ctx.Err() == nil {
			guard(l.logger, name, func() { fn(l.ctx) })
			pause(l.ctx, again.next())
		}
	})
}
