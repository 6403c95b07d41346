package controllers

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shepherd-project/shepherd/fsm"
)

// memorySink keeps a snapshot in memory.
type memorySink struct{ bytes.Buffer }

func (*memorySink) ID() string    { return "test" }
func (*memorySink) Cancel() error { return nil }
func (*memorySink) Close() error  { return nil }

func snapshotOf(t testing.TB, s *fsm.Store) io.ReadCloser {
	t.Helper()
	snap, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	sink := &memorySink{}
	if err := snap.Persist(sink); err != nil {
		t.Fatal(err)
	}
	return io.NopCloser(sink)
}

// generations records which terms' loops are at work.
type generations struct {
	t     *testing.T
	mu    sync.Mutex
	terms map[uint64]int
	begun []uint64
}

func (g *generations) enter(term uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.terms[term] == 0 {
		g.begun = append(g.begun, term)
	}
	g.terms[term]++
	for other, n := range g.terms {
		if other != term && n > 0 {
			g.t.Errorf("loops of terms %d and %d at the same time", other, term)
		}
	}
}

func (g *generations) leave(term uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.terms[term]--
}

func (g *generations) working() (term uint64, loops int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for t, n := range g.terms {
		if n > 0 {
			term, loops = t, loops+n
		}
	}
	return term, loops
}

func newTestManager(t *testing.T, c *testCluster) (*Manager, *generations) {
	t.Helper()
	m, err := NewManager(c, c.deps())
	if err != nil {
		t.Fatal(err)
	}
	g := &generations{t: t, terms: map[uint64]int{}}
	m.loops = func(gen generation) []*Loop {
		var loops []*Loop
		for i := range 3 {
			l := testLoop(t, func(ctx context.Context) (outcome, error) {
				g.enter(gen.term)
				defer g.leave(gen.term)
				<-ctx.Done()
				time.Sleep(time.Duration(i) * 50 * time.Millisecond) // they do not stop at once
				return outcome{}, ctx.Err()
			})
			loops = append(loops, l)
		}
		return loops
	}
	return m, g
}

func TestManagerFollowsTheLevelOfLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t, 1)
		c.leading = false
		m, g := newTestManager(t, c)
		stopCh, done := make(chan struct{}), make(chan struct{})
		go func() { defer close(done); m.Run(stopCh) }()
		expect := func(term uint64, loops int) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if gotTerm, got := g.working(); gotTerm != term || got != loops {
				t.Errorf("%d loops of term %d at work, want %d of term %d", got, gotTerm, loops, term)
			}
		}
		expect(0, 0)
		c.lead(2, true)
		expect(2, 3)
		c.lead(2, true) // a notification without a change
		expect(2, 3)
		c.lead(3, true) // lost and gained between two looks
		expect(3, 3)
		c.lead(4, false)
		expect(0, 0)
		c.lead(5, true)
		expect(5, 3)
		close(stopCh)
		<-done
		if _, n := g.working(); n != 0 {
			t.Errorf("%d loops at work after Run has returned", n)
		}
	})
}

func TestManagerNeverRunsTwoGenerations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t, 1)
		m, g := newTestManager(t, c)
		stopCh, done := make(chan struct{}), make(chan struct{})
		go func() { defer close(done); m.Run(stopCh) }()
		random := rand.New(rand.NewPCG(3, 4))
		term := uint64(1)
		for range 500 {
			term += random.Uint64N(2)
			c.lead(term, random.IntN(2) == 0)
			time.Sleep(time.Duration(random.IntN(120)) * time.Millisecond)
		}
		c.lead(term+1, true)
		time.Sleep(time.Second)
		synctest.Wait()
		if gotTerm, n := g.working(); gotTerm != term+1 || n != 3 {
			t.Errorf("after flapping %d loops of term %d, want 3 of term %d", n, gotTerm, term+1)
		}
		close(stopCh)
		<-done
		if len(g.begun) < 50 {
			t.Errorf("only %d generations: the test does not test", len(g.begun))
		}
	})
}

func TestNewManagerRefusesWhatCannotWork(t *testing.T) {
	c := newTestCluster(t, 1)
	for name, break_ := range map[string]func(*Deps){
		"store":   func(d *Deps) { d.Store = nil },
		"decoder": func(d *Deps) { d.Decoder = nil },
		"propose": func(d *Deps) { d.Propose = nil },
		"rand":    func(d *Deps) { d.Rand = nil },
		"period":  func(d *Deps) { d.Config.GCPeriod = 0 },
		"overlap": func(d *Deps) { d.Config.ServiceCIDR = d.Config.ClusterCIDR },
		"mask":    func(d *Deps) { d.Config.NodeMask = 8 },
	} {
		d := c.deps()
		break_(&d)
		if _, err := NewManager(c, d); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
