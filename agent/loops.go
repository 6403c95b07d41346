package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/shepherd-project/shepherd/agent/upstream"
	"github.com/shepherd-project/shepherd/api/wire"
)

const (
	// serverListInterval is how often the list of servers is asked for.
	serverListInterval = time.Minute
	// followLimit is the longest pause between two attempts at a list.
	followLimit = 5 * time.Second
)

// loops wires the agent's parts to each other and starts them.
func (a *Agent) loops(ctx context.Context, m *machine) (*loops, error) {
	l := &loops{ctx: ctx, logger: a.logger}
	events, err := newRecorder(a.client, a.cfg.NodeName, a.logger.Named("events"))
	if err != nil {
		return nil, err
	}
	nodes := newNodeWatch(a.cfg.NodeName, a.network, a.revisions, a.logger.Named("nodes"))
	source := newPodSource(a.revisions)
	pods := &podManager{
		cfg: &a.cfg, client: a.client, source: source, runtime: a.runtime, images: a.images, network: a.network,
		volumes: a.volumes, objects: objects{a.client}, reporter: newStatusReporter(a.client, a.logger.Named("status")),
		events: events, revisions: a.revisions, machine: m, logger: a.logger.Named("pods"), workers: map[string]*podWorker{},
		puller: newPuller(ctx, a.images, a.cfg.MaxParallelPulls, a.logger.Named("image")),
	}
	pods.reporter.sent = pods.reported
	rec := &recovery{}
	node := &nodeReporter{cfg: &a.cfg, client: a.client.Nodes(), machine: m, logger: a.logger.Named("node"), kick: nodes.report,
		problem: rec.problem}

	l.spawn("heartbeat", a.heartbeat.run)
	l.spawn("node", node.run)
	l.spawn("server list", a.learnServers)
	l.spawn("node watch", func(ctx context.Context) { a.follow(ctx, "node watch", nodes, nodes.follow(a.client.Nodes())) })
	l.spawn("routes", func(ctx context.Context) {
		every(ctx, a.logger, "routes", routeInterval, nodes.kick, nodes.apply)
	})
	l.spawn("pod watch", func(ctx context.Context) { a.follow(ctx, "pod watch", nodes, source.follow(a.client, a.cfg.NodeName)) })
	l.spawn("pod addresses", func(ctx context.Context) { forward(ctx, nodes.pods, source.changed) })
	l.wg.Go(func() {
		// Only what touches pods waits until the old ones are found again.
		if !rec.run(ctx, a, nodes.report) {
			return
		}
		l.spawn("runtime watch", pods.watchRuntime)
		l.spawn("pod sync", func(ctx context.Context) {
			every(ctx, a.logger, "pod sync", a.cfg.SyncInterval, source.changed, pods.sync)
		})
	})
	l.spawn("status", pods.reporter.run)
	l.spawn("events", events.run)
	l.spawn("images", func(context.Context) { pods.puller.importLocal(); <-ctx.Done() })
	logs := &logServer{runtime: a.runtime, find: pods.find, logger: a.logger.Named("logs")}
	s := &streams{pool: a.pool, handler: logs.handler(), logger: a.logger.Named("streams")}
	l.spawn("streams", s.run)
	l.after = append(l.after, pods.wait, pods.puller.wg.Wait)
	return l, nil
}

// recovery finds the pods of an earlier agent again. Its failure is the
// node's problem, which its status shows, and is tried again.
type recovery struct{ failed atomic.Pointer[error] }

// problem returns the error of the last attempt.
func (r *recovery) problem() error {
	if err := r.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// run reports false when ctx ended first.
func (r *recovery) run(ctx context.Context, a *Agent, report chan struct{}) bool {
	again := retry{base: time.Second, limit: 30 * time.Second}
	for {
		err := errors.New("panic")
		guard(a.logger, "recovery", func() { err = a.runtime.Recover(ctx) })
		if err == nil {
			if r.failed.Swap(nil) != nil {
				kick(report)
			}
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		a.logger.Error("pods of an earlier run not recovered, trying again", "error", err)
		err = fmt.Errorf("recover pods: %w", err)
		r.failed.Store(&err)
		kick(report)
		if !pause(ctx, again.next()) {
			return false
		}
	}
}

// follow keeps a follower running. A watch that ended in good order is
// replaced at once, a broken one after a pause with jitter: all the agents of
// a server that died have lost theirs at the same moment.
func (a *Agent) follow(ctx context.Context, name string, nodes *nodeWatch, f *follower) {
	persist(ctx, a.logger, name, followLimit, func(ctx context.Context) error {
		for {
			if err := f.run(ctx); !errors.Is(err, errWatchEnded) {
				pause(ctx, upstream.Spread(nodes.count()))
				return err
			}
		}
	})
}

// forward passes kicks from one channel to another.
func forward(ctx context.Context, from <-chan struct{}, to chan struct{}) {
	for {
		select {
		case <-from:
			kick(to)
		case <-ctx.Done():
			return
		}
	}
}

// learnServers asks for the list of servers, now and then, and soon again
// after a failure.
func (a *Agent) learnServers(ctx context.Context) {
	again := retry{base: time.Second, limit: serverListInterval}
	for ctx.Err() == nil {
		wait := serverListInterval
		if err := a.askServers(ctx); err == nil {
			again.reset()
		} else if ctx.Err() == nil {
			a.logger.Warn("server list not learned", "error", err)
			wait = again.next()
		}
		pause(ctx, wait)
	}
}

func (a *Agent) askServers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var list wire.ServerList
	if err := call(ctx, a.transport, http.MethodGet, wire.PathServers, nil, &list); err != nil {
		return err
	}
	var addrs []string
	for _, s := range list.Servers {
		addrs = append(addrs, s.Address)
	}
	return a.pool.Update(addrs)
}
