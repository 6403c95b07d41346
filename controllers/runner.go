package controllers

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shepherd-project/shepherd/fsm"
)

const (
	// proposals is how many commands of one controller are under way at once;
	// the log groups them into few writes.
	proposals = 16
	// conflictWait is when a controller plans again after a refused command
	// if no kick comes first.
	conflictWait = 100 * time.Millisecond
)

// controller is an entry of the list: a planner and when to run it.
type controller struct {
	name   string
	period time.Duration
	// steady: the period never stretches, because what the planner looks at
	// passes with time and not with events.
	steady bool
	// kinds are the resources whose changes kick; kicks, if set, narrows that.
	kinds []string
	kicks func(fsm.Event) bool
	// gather, if set, adds to the world what is not in the view.
	gather func(context.Context, *generation, *world)
	plan   func(*world) (*plan, error)
}

// controllers is the one list of everything that runs on the leader.
func controllers(c *Config) []controller {
	return []controller{
		{name: "bootstrap", period: c.NamespacePeriod, plan: planBootstrap, gather: gatherServers,
			kinds: []string{resNamespaces, resServiceAccounts, resServices, resEndpointSlices}},
		{name: "scheduler", period: c.SchedulerPeriod, plan: planScheduling,
			kinds: []string{resPods, resNodes}},
		{name: "replication", period: c.ReplicationPeriod, plan: planReplication,
			kinds: []string{resDeployments, resReplicaSets, resPods}},
		{name: "service", period: c.ServicePeriod, plan: planServices,
			kinds: []string{resServices, resEndpointSlices, resPods}},
		{name: "node", period: c.NodePeriod, plan: planNodes, gather: gatherAges, steady: true,
			kinds: []string{resNodes}},
		{name: "garbage", period: c.GCPeriod, plan: planGarbage, kicks: kicksGarbage},
		{name: "namespace", period: c.NamespacePeriod, plan: planNamespaces, kicks: kicksNamespaces},
	}
}

// newLoops makes fresh instances of all controllers.
func newLoops(g generation) []*Loop {
	var loops []*Loop
	for _, c := range controllers(&g.Config) {
		loops = append(loops, newRunner(&g, c).loop())
	}
	return loops
}

// runner turns a planner into the reconcile of a Loop.
type runner struct {
	controller
	g     *generation
	world world // the parts that stay the same for the generation
}

func newRunner(g *generation, c controller) *runner {
	return &runner{controller: c, g: g, world: world{
		decoder: g.Decoder, rand: derive(g.Rand), config: &g.Config, since: g.Now(),
	}}
}

func (r *runner) loop() *Loop {
	return &Loop{
		name: r.name, period: r.period, reconcile: r.reconcile,
		store: r.g.Store, watches: r.watches,
		stopTimeout: r.g.Config.StopTimeout, fatal: r.g.Fatal, metrics: r.g.metrics, logger: r.g.Logger,
	}
}

func (r *runner) watches(e fsm.Event) bool {
	if r.kinds != nil && !slices.Contains(r.kinds, e.Object.Key.Resource) {
		return false
	}
	return r.kicks == nil || r.kicks(e)
}

// reconcile plans from the present state and proposes what was planned. The
// term was captured before the view is taken, so the state machine refuses
// whatever a deposed leader still proposes.
func (r *runner) reconcile(ctx context.Context) (outcome, error) {
	w := r.world
	if r.gather != nil {
		r.gather(ctx, r.g, &w)
	}
	w.now, w.view = r.g.Now(), r.g.Store.View()
	p, err := r.plan(&w)
	if err != nil {
		return outcome{}, fmt.Errorf("plan: %w", err)
	}
	for _, problem := range p.problems {
		r.g.Logger.Warn("cannot plan for an object", "name", r.name, "error", problem)
	}
	out, err := r.propose(ctx, p)
	if p.after > 0 && (out.after == 0 || p.after < out.after) {
		out.after = p.after
	}
	if r.steady && (out.after == 0 || out.after > r.period) {
		out.after = r.period
	}
	return out, err
}

// propose sends the chains, several at once.
func (r *runner) propose(ctx context.Context, p *plan) (outcome, error) {
	var (
		mu    sync.Mutex
		out   outcome
		first error
		next  int
	)
	take := func() []fsm.Command {
		mu.Lock()
		defer mu.Unlock()
		if first != nil || next == len(p.chains) {
			return nil
		}
		next++
		return p.chains[next-1]
	}
	var workers sync.WaitGroup
	for range min(proposals, len(p.chains)) {
		workers.Go(func() {
			for chain := take(); chain != nil; chain = take() {
				applied, complete, err := r.run(ctx, chain)
				mu.Lock()
				out.changes += applied
				if !complete {
					out.after = conflictWait
				}
				if err != nil && first == nil {
					first = err
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return out, first
}

// run proposes the commands of a chain in order. complete is false when one
// was overtaken; an error ends the whole pass.
func (r *runner) run(ctx context.Context, chain []fsm.Command) (applied int, complete bool, err error) {
	for _, command := range chain {
		command.Term = r.g.term
		result, err := r.g.Propose(ctx, command)
		switch {
		case err != nil && (ctx.Err() != nil || !r.g.leading()):
			return applied, false, errDeposed
		case err != nil:
			return applied, false, fmt.Errorf("propose: %w", err)
		case result.Code == fsm.OK:
			applied++
		case result.Code == fsm.StaleTerm:
			return applied, false, errDeposed
		case result.Code == fsm.Conflict:
			r.g.metrics.conflicts.WithLabelValues(r.name).Inc()
			r.g.Logger.Debug("overtaken, planning again", "name", r.name, "object", result.FailedKey, "reason", result.Detail)
			return applied, false, nil
		default:
			return applied, false, fmt.Errorf("propose: %s about %s: %s", result.Code, result.FailedKey, result.Detail)
		}
	}
	return applied, true, nil
}

// gatherServers reads the addresses of the API servers.
func gatherServers(_ context.Context, g *generation, w *world) {
	if g.Servers != nil {
		w.servers = g.Servers()
	}
}

// gatherAges asks a majority how long ago each node was heard of. Without an
// answer no node is judged in this pass.
func gatherAges(ctx context.Context, g *generation, w *world) {
	ages, err := g.Ages(ctx)
	if err != nil {
		if ctx.Err() == nil && g.leading() {
			g.Logger.Warn("liveness of nodes is not known, judging none", "error", err)
		}
		return
	}
	if ages == nil {
		ages = map[string]time.Duration{}
	}
	w.ages = ages
}
