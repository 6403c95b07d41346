package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/fsm"
)

// Node is one server of the cluster. All methods are safe for concurrent use.
// Shutdown must be called, also after the node has stopped by itself.
type Node struct {
	cfg    Config
	timing Timing // scaled
	logger hclog.Logger
	store  *fsm.Store
	files  *storage
	disk   *disk // what Raft sees of files
	raft   *raft.Raft

	level     atomic.Pointer[level]
	clock     *clock
	batch     *batcher
	keys      *keychain // nil if nothing is sealed
	reads     *rounds   // of this replica, whoever leads
	confirms  *rounds   // of the leader
	links     *links
	detector  *detector
	linkSrv   *http.Server
	live      *liveness
	trust     trust
	promised  sync.Mutex // held while what keyPromised holds is changed
	metrics   *metrics
	machine   *machine               // what Raft sees of store
	admitting atomic.Pointer[string] // the ID of a server that takes a dead one's place
	members   chan struct{}          // capacity one: full while somebody looks at the configuration and changes it
	promotion chan struct{}          // kicks the promotion loop
	forwards  chan struct{}          // slots of requests being handled
	flights   *flights               // those requests
	crew      *crew                  // which handles them

	caughtUp atomic.Bool
	draining atomic.Bool

	ctx    context.Context // ends when the node stops
	cancel context.CancelFunc
	tasks  tasks

	stopOnce sync.Once
	done     chan struct{} // closed when everything has stopped
	errMu    sync.Mutex
	err      error
}

// New opens the storage and starts the node. The node owns the transport and
// the link listener from then on, also when New fails.
func New(cfg Config) (*Node, error) {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.Wall == nil {
		cfg.Wall = time.Now
	}
	n := &Node{cfg: cfg, done: make(chan struct{}), promotion: make(chan struct{}, 1), members: make(chan struct{}, 1)}
	if err := n.start(); err != nil {
		return nil, errors.Join(err, n.abandon())
	}
	return n, nil
}

func (n *Node) start() (err error) {
	if err := n.cfg.Validate(); err != nil {
		return err
	}
	n.logger = n.cfg.Logger.Named("cluster")
	n.timing = n.cfg.Timing.scaled()
	n.store = n.cfg.Store
	n.machine = &machine{Store: n.store}
	if n.files, err = openStorage(&n.cfg, n.logger); err != nil {
		return err
	}
	n.machine.steps = n.files.kept
	if err := n.bootstrap(); err != nil {
		return err
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.level.Store(&level{changed: make(chan struct{})})
	n.clock = newClock(n.store)
	n.live = newLiveness()
	n.forwards = make(chan struct{}, n.cfg.MaxForwards)
	n.flights = newFlights(n.store.View)
	n.crew = newCrew(&n.tasks, n.ctx.Done())
	n.batch = newBatcher(n)
	n.links = newLinks(n.cfg.DialLink, n.timing.Transport)
	if n.metrics, err = newMetrics(n); err != nil {
		return err
	}
	n.reads = newRounds(&n.tasks, n.metrics.counted("replica", n.readRound))
	n.confirms = newRounds(&n.tasks, n.metrics.counted("leader", n.leaderRound))
	n.detector = newDetector(n)
	n.trust.lost = make(chan struct{}, 1)
	if err := n.resumeDistrust(); err != nil {
		return err
	}
	if err := n.checkBuild(); err != nil {
		return err
	}
	var machine raft.FSM = n.machine
	var sealed *sealedStore
	if n.cfg.Keys != nil {
		n.keys = newKeychain(n)
		sealed = newSealedStore(n.machine, n.keys)
		machine = sealed
	}
	rc := n.cfg.raftConfig(n.timing)
	n.disk = newDisk(n.ctx, n.files, n.timing, n.trust.problem, n.logger)
	if t, ok := n.cfg.Transport.(*Transport); ok {
		t.disk.Store(n.disk)
	}
	n.raft, err = raft.NewRaft(rc, machine, n.disk, n.disk, n.files.snapshots, n.cfg.Transport)
	if err != nil {
		switch {
		case sealed != nil && sealed.failed != nil:
			err = fmt.Errorf("%w: %w", err, sealed.failed)
		case n.store.Err() != nil:
			err = fmt.Errorf("%w: %w", err, n.store.Err())
		}
		return fmt.Errorf("start raft: %w", err)
	}
	n.disk.pace.raft.Store(n.raft)
	if t, ok := n.cfg.Transport.(*Transport); ok {
		applied := n.raft.AppliedIndex
		t.applied.Store(&applied)
	}
	if n.keys != nil {
		n.keys.raft.Store(n.raft)
		n.tasks.run(n.keepSealed)
	}
	n.tasks.run(n.keepLevel)
	n.linkSrv = n.newLinkServer()
	n.tasks.run(n.watchLeadership)
	n.tasks.run(n.serveLinks)
	n.tasks.run(n.promoteLoop)
	n.tasks.run(n.tendMembers)
	n.tasks.run(n.keepClock)
	n.tasks.run(n.catchUp)
	n.tasks.run(n.keepComparing)
	n.tasks.run(n.keepLogShort)
	n.startDetector()
	go n.watchStore() // not a task: it may stop the node, which waits for tasks
	return nil
}

// abandon releases what a failed start had taken.
func (n *Node) abandon() error {
	var errs []error
	if n.cancel != nil {
		n.cancel()
	}
	n.metrics.unregister()
	if n.cfg.LinkListener != nil {
		errs = append(errs, n.cfg.LinkListener.Close())
	}
	if t, ok := n.cfg.Transport.(raft.WithClose); ok {
		errs = append(errs, t.Close())
	}
	if n.files != nil {
		errs = append(errs, n.files.Close())
	}
	return errors.Join(errs...)
}

// bootstrap makes this server the only voter of a new cluster, if it was asked
// to and nothing is there yet.
func (n *Node) bootstrap() error {
	if !n.cfg.Bootstrap {
		return nil
	}
	exists, err := raft.HasExistingState(n.files.log, n.files.stable, n.files.snapshots)
	if err != nil {
		return fmt.Errorf("look for state: %w", err)
	}
	if exists {
		return nil
	}
	one := raft.Configuration{Servers: []raft.Server{{
		Suffrage: raft.Voter, ID: raft.ServerID(n.cfg.ID), Address: raft.ServerAddress(n.cfg.Address),
	}}}
	rc := n.cfg.raftConfig(n.timing)
	if err := raft.BootstrapCluster(rc, n.files.log, n.files.stable, n.files.snapshots, n.cfg.Transport, one); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	return nil
}

// ID is the server's Raft ID.
func (n *Node) ID() string { return n.cfg.ID }

// Name is the server's name.
func (n *Node) Name() string { return n.cfg.Name }

// Done is closed when the node has stopped, by Shutdown or because it could
// not go on; Err then says why.
func (n *Node) Done() <-chan struct{} { return n.done }

// Err is why the node stopped by itself, or nil.
func (n *Node) Err() error {
	n.errMu.Lock()
	defer n.errMu.Unlock()
	return n.err
}

func (n *Node) fail(err error) {
	n.errMu.Lock()
	defer n.errMu.Unlock()
	if n.err == nil {
		n.err = err
	}
}

// watchStore stops the node when its state machine has met an entry that it
// must not skip: going on would make the replicas differ.
func (n *Node) watchStore() {
	select {
	case <-n.ctx.Done():
	case <-n.store.Halted():
		n.fail(n.store.Err())
		n.logger.Error("state machine halted, stopping", "error", n.store.Err())
		ctx, cancel := context.WithTimeout(context.Background(), 2*n.timing.Transport)
		defer cancel()
		if err := n.Shutdown(ctx); err != nil {
			n.logger.Error("stop", "error", err)
		}
	}
}

// Ready returns nil once this server's state has caught up with the leader
// since its start, and why not before and after.
func (n *Node) Ready() error {
	switch {
	case n.store.Err() != nil:
		return n.store.Err()
	case n.draining.Load(), n.ctx.Err() != nil:
		return ErrStopped
	case !n.caughtUp.Load():
		return ErrNotReady
	}
	return nil
}

// catchUp waits until one linearizable read has succeeded: from then on the
// state is at least as new as everything acknowledged before the start.
func (n *Node) catchUp() {
	for n.ctx.Err() == nil {
		changed := n.level.Load().changed
		if err := n.ReadIndex(n.ctx); err == nil {
			n.caughtUp.Store(true)
			n.logger.Info("state has caught up", "index", n.store.Applied(), "revision", n.store.View().Revision())
			return
		}
		n.pause(changed, n.timing.Round)
	}
}

// pause waits for the channel, the node's end or at most d.
func (n *Node) pause(c <-chan struct{}, d time.Duration) { n.pauseUnder(n.ctx, c, d) }

// pauseUnder is pause that also ends with the context.
func (n *Node) pauseUnder(ctx context.Context, c <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c:
	case <-t.C:
	case <-ctx.Done():
	case <-n.ctx.Done():
	}
}

// Shutdown hands leadership over if this server has it, stops everything and
// waits for it, or until the context ends. It may be called more than once.
func (n *Node) Shutdown(ctx context.Context) error {
	first := false
	n.stopOnce.Do(func() { first = true })
	if first {
		n.draining.Store(true)
		n.handOver(ctx)
		go n.stop()
	}
	select {
	case <-n.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop server: %w", ctx.Err())
	}
}

// stop ends everything, in an order in which nothing waits for what has ended:
// Raft never answers a proposal that it had not looked at when it shut down,
// so the proposals end before Raft does.
func (n *Node) stop() {
	defer close(n.done)
	n.cancel()
	n.batch.close()
	n.links.close()
	if err := n.linkSrv.Close(); err != nil {
		n.logger.Debug("close links", "error", err)
	}
	n.tasks.wait()
	if err := n.raft.Shutdown().Error(); err != nil {
		n.logger.Error("stop raft", "error", err)
	}
	n.metrics.unregister()
	if err := n.files.Close(); err != nil {
		n.logger.Error("close storage", "error", err)
	}
	n.logger.Info("stopped", "server", n.cfg.Name)
}

// tasks are the node's goroutines. None starts after wait has begun.
type tasks struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// run starts f unless the node is stopping, and reports whether it did.
func (t *tasks) run(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.wg.Go(f)
	return true
}

func (t *tasks) wait() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.wg.Wait()
}
