package cluster

import (
	"sync"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

// minLatest is how many requests that came more than once are kept before any
// of them is looked at again.
const minLatest = 1024

// flightOf names a flight. One of an earlier term can change nothing any more,
// so the same request may have another.
type flightOf struct {
	id   fsm.RequestID
	term uint64
}

// flight is one request in the hands of the handler.
type flight struct {
	of   flightOf
	done chan struct{}
	resp *wire.Response         // set before done is closed
	then []func(*wire.Response) // guarded by flights.mu
}

// flights keeps what wire.Request promises of a request's copies on the leader:
// a copy joins the handler that is already at work, and one that comes after a
// later copy has none. It is safe for concurrent use.
type flights struct {
	view func() *fsm.View

	mu      sync.Mutex
	running map[flightOf]*flight // guarded by mu, as what follows
	term    uint64               // the latest that a copy was sent to
	// latest is the last attempt of each request that came more than once in
	// term. Refusals are recorded nowhere else, so it holds them as long as
	// they can matter: until the request itself is refused for its age.
	latest map[fsm.RequestID]uint64
	prune  int // the size of latest at which it is looked through
}

func newFlights(view func() *fsm.View) *flights {
	return &flights{view: view, running: make(map[flightOf]*flight), latest: make(map[fsm.RequestID]uint64), prune: minLatest}
}

// join returns the flight of a copy and whether the caller has to fly it; nil
// if nobody waits for this copy any more.
func (f *flights) join(req *wire.Request) (fl *flight, first bool) {
	of := flightOf{id: fsm.RequestID{Nonce: req.Nonce, Birth: req.Birth}, term: req.Term}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case of.term < f.term || of.term == f.term && req.Attempt < f.latest[of.id]:
		return nil, false
	case of.term > f.term:
		f.term = of.term
		clear(f.latest)
	}
	if req.Attempt > 1 {
		f.latest[of.id] = req.Attempt
		f.pruneLocked()
	}
	if running := f.running[of]; running != nil {
		return running, false
	}
	fl = &flight{of: of, done: make(chan struct{})}
	f.running[of] = fl
	return fl, true
}

// pruneLocked forgets the requests that are refused for their age.
func (f *flights) pruneLocked() {
	if len(f.latest) < f.prune {
		return
	}
	view := f.view()
	for id := range f.latest {
		if view.Expired(id) {
			delete(f.latest, id)
		}
	}
	f.prune = max(minLatest, 2*len(f.latest))
}

// whenLanded has do called with the answer, at once if there is one. It must not
// wait for anything.
func (f *flights) whenLanded(fl *flight, do func(*wire.Response)) {
	f.mu.Lock()
	if f.running[fl.of] == fl {
		fl.then = append(fl.then, do)
		f.mu.Unlock()
		return
	}
	f.mu.Unlock()
	do(fl.resp)
}

// land ends a flight; all its copies have that answer.
func (f *flights) land(fl *flight, resp *wire.Response) {
	fl.resp = resp
	f.mu.Lock()
	delete(f.running, fl.of)
	then := fl.then
	f.mu.Unlock()
	close(fl.done)
	for _, do := range then {
		do(resp)
	}
}
