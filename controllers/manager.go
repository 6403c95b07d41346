package controllers

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Manager runs the controllers while this server leads. It follows the level
// of leadership and its term, never a count of notifications, and it never
// runs two generations at once: the old one has stopped, whole, before
// anything else is looked at.
type Manager struct {
	leadership Leadership
	deps       Deps
	metrics    *metrics
	// loops makes the controllers of one generation.
	loops func(generation) []*Loop
}

// generation is one unbroken leadership.
type generation struct {
	Deps
	term uint64
	// leading reports whether this server still leads in this term.
	leading func() bool
	metrics *metrics
}

// running is a generation whose loops are at work.
type running struct {
	term   uint64
	stopCh chan struct{}
	loops  sync.WaitGroup
}

// NewManager checks the dependencies and registers the metrics. It starts
// nothing: see Run.
func NewManager(leadership Leadership, deps Deps) (*Manager, error) {
	if leadership == nil {
		return nil, fmt.Errorf("controllers: no leadership")
	}
	if err := deps.validate(); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = hclog.NewNullLogger()
	}
	if deps.Fatal == nil {
		deps.Fatal = exit
	}
	m, err := newMetrics(deps.Registerer)
	if err != nil {
		return nil, err
	}
	return &Manager{leadership: leadership, deps: deps, metrics: m, loops: newLoops}, nil
}

// Run follows the leadership until stopCh is closed. It returns only when every
// loop has returned. It is called once.
func (m *Manager) Run(stopCh <-chan struct{}) {
	var current *running
	for {
		changed := m.leadership.LeadershipChanged()
		term, leading := m.leadership.Leadership()
		if current != nil && (!leading || term != current.term) {
			m.stop(current)
			current = nil
			continue // the level may have changed while the loops were stopping
		}
		if current == nil && leading && !stopped(stopCh) {
			current = m.start(term)
		}
		select {
		case <-changed:
		case <-stopCh:
			if current != nil {
				m.stop(current)
			}
			return
		}
	}
}

func stopped(stopCh <-chan struct{}) bool {
	select {
	case <-stopCh:
		return true
	default:
		return false
	}
}

// start runs a fresh set of loops for the term.
func (m *Manager) start(term uint64) *running {
	m.deps.Logger.Info("controllers start", "term", term)
	r := &running{term: term, stopCh: make(chan struct{})}
	g := generation{Deps: m.deps, term: term, metrics: m.metrics, leading: func() bool {
		now, leading := m.leadership.Leadership()
		return leading && now == term
	}}
	loops, begun := m.loops(g), time.Now()
	first := make(chan struct{}, len(loops))
	for _, loop := range loops {
		loop.first = func() { first <- struct{}{} }
		r.loops.Go(func() { loop.Run(r.stopCh) })
	}
	r.loops.Go(func() { m.awaitFirst(r, first, len(loops), begun) })
	return r
}

// awaitFirst notes when every loop has done its first complete reconcile: from
// then on everything that went undone without a leader has been looked at.
func (m *Manager) awaitFirst(r *running, first <-chan struct{}, loops int, begun time.Time) {
	for range loops {
		select {
		case <-first:
		case <-r.stopCh:
			return
		}
	}
	took := time.Since(begun)
	m.metrics.first.Set(took.Seconds())
	m.deps.Logger.Info("every controller has reconciled once", "term", r.term, "after", took)
}

// stop ends the loops and waits for all of them.
func (m *Manager) stop(r *running) {
	close(r.stopCh)
	r.loops.Wait()
	m.deps.Logger.Info("controllers stopped", "term", r.term)
}

// derive makes an independent random source from another.
func derive(parent *rand.Rand) *rand.Rand {
	var seed [32]byte
	for i := 0; i < len(seed); i += 8 {
		binary.LittleEndian.PutUint64(seed[i:], parent.Uint64())
	}
	return rand.New(rand.NewChaCha8(seed))
}
