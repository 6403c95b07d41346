package probe

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Kind is what a probe decides about.
type Kind string

// The kinds of probes.
const (
	Startup   Kind = "Startup"
	Liveness  Kind = "Liveness"
	Readiness Kind = "Readiness"
)

// State is what the probes of one container say. Without a probe a container
// has started, lives and is ready as soon as it runs.
type State struct {
	Started, Ready bool
	// Failed is set once, by the first startup or liveness probe that reaches
	// its threshold: the container is to be restarted.
	Failed bool
	// Kind and Message say which probe failed last and why.
	Kind    Kind
	Message string
}

// Runner runs the probes of one attempt of one container, each in a goroutine
// of its own. Make it with Start; Stop ends it.
type Runner struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	notify func()
	target Target
	// readiness: there is a readiness probe; without one, started is ready.
	readiness bool

	mu      sync.Mutex
	state   State
	started chan struct{} // closed when the container counts as started
}

// Start begins to probe a container that runs since startedAt. ready is what
// was last known about it, for a container that is adopted. notify is called
// after every change of State and every failure; it must not block.
func Start(ctx context.Context, c *corev1.Container, t Target, startedAt time.Time, ready bool, notify func()) *Runner {
	ctx, cancel := context.WithCancel(ctx)
	r := &Runner{cancel: cancel, notify: notify, target: t, readiness: c.ReadinessProbe != nil, started: make(chan struct{})}
	r.state.Started = c.StartupProbe == nil || ready
	r.state.Ready = c.ReadinessProbe == nil && r.state.Started || ready
	if r.state.Started {
		close(r.started)
	} else {
		r.wg.Go(func() { r.loop(ctx, Startup, c.StartupProbe, startedAt) })
	}
	if c.LivenessProbe != nil {
		r.wg.Go(func() { r.loop(ctx, Liveness, c.LivenessProbe, startedAt) })
	}
	if c.ReadinessProbe != nil {
		r.wg.Go(func() { r.loop(ctx, Readiness, c.ReadinessProbe, startedAt) })
	}
	return r
}

// State returns what the probes say now.
func (r *Runner) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// Stop ends the probes and waits for those under way.
func (r *Runner) Stop() {
	r.cancel()
	r.wg.Wait()
}

func (r *Runner) loop(ctx context.Context, kind Kind, p *corev1.Probe, startedAt time.Time) {
	if kind != Startup {
		select {
		case <-r.started:
		case <-ctx.Done():
			return
		}
	}
	var c counter
	timer := time.NewTimer(time.Until(startedAt.Add(time.Duration(p.InitialDelaySeconds) * time.Second)))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		err := Check(ctx, p, r.target)
		if ctx.Err() != nil {
			return
		}
		verdict := c.add(err == nil, p)
		if r.apply(kind, verdict, err) {
			return
		}
		timer.Reset(max(seconds(p.PeriodSeconds, 1)-time.Since(began), 0))
	}
}

// counter turns results in a row into a verdict.
type counter struct {
	last bool
	run  int32
}

type verdict int

const (
	undecided verdict = iota
	passed
	failed
)

func (c *counter) add(ok bool, p *corev1.Probe) verdict {
	if ok != c.last {
		c.run = 0
	}
	c.last = ok
	if c.run < 1<<30 { // a probe may run for years
		c.run++
	}
	switch {
	case ok && c.run >= max(p.SuccessThreshold, 1):
		return passed
	case !ok && c.run >= max(p.FailureThreshold, 1):
		return failed
	}
	return undecided
}

// apply puts a verdict into the state and reports whether the probe is done.
func (r *Runner) apply(kind Kind, v verdict, err error) (done bool) {
	r.mu.Lock()
	before := r.state
	if err != nil {
		r.state.Kind, r.state.Message = kind, err.Error()
	}
	switch {
	case kind == Readiness && v != undecided:
		r.state.Ready = v == passed
	case kind == Startup && v == passed:
		r.state.Started = true
		r.state.Ready = r.state.Ready || !r.readiness
		close(r.started)
		done = true
	case kind != Readiness && v == failed:
		r.state.Failed = true
		r.state.Ready = false
		done = true
	}
	changed := r.state != before
	r.mu.Unlock()
	if changed || err != nil {
		r.notify()
	}
	return done
}
