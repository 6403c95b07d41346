package histories

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/anishathalye/porcupine"
)

// moment is a place in the order of what clients did. It counts events: in a
// bubble the clock stands still between them.
type moment = int64

// recorder collects what all clients and watchers were told. It is safe for
// concurrent use.
type recorder struct {
	clock atomic.Int64

	mu       sync.Mutex
	ops      []porcupine.Operation
	stamps   []stamp
	tags     map[string]is // what became of the write that brought a value
	segments []*segment
	lists    []list
	problems []string
}

func newRecorder() *recorder { return &recorder{tags: make(map[string]is)} }

// stamp is a revision that somebody was told between two moments. Revisions are
// one order for all objects, so they say by themselves what came first.
type stamp struct {
	call, end moment
	least     uint64 // what was seen is at least that new; 0: the revision says nothing of the past
	revision  uint64
	write     bool
	what      string
}

// list is a whole state that somebody was told.
type list struct {
	revision uint64
	objects  map[string]answer
	what     string
}

func (r *recorder) now() moment { return r.clock.Add(1) }

// problem notes what no order of events can explain.
func (r *recorder) problem(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// add records an operation of a client that began at the moment call.
func (r *recorder) add(client int, op operation, a answer, call moment) {
	end := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if tag := op.tag(); tag != "" {
		r.tags[tag] = a.Is
	}
	switch {
	case a.Is == isRefused:
		return
	case a.Is == isUnknown && op.Verb == verbGet:
		return
	case a.Is == isUnknown:
		end = math.MaxInt64
	}
	r.ops = append(r.ops, porcupine.Operation{ClientId: client, Input: op, Output: a, Call: call, Return: end})
	if a.Is != isOK || a.Version == 0 {
		return
	}
	s := stamp{call: call, end: end, revision: a.Version, what: fmt.Sprintf("client %d: %s %s", client, op.Verb, op.Key)}
	if op.Verb != verbGet {
		s.write, s.least = true, a.Version
	}
	r.stamps = append(r.stamps, s)
}

// addList records a list as a get of every key and as a state of its own.
func (r *recorder) addList(client int, keys []string, l list, call moment) {
	for _, key := range keys {
		a, ok := l.objects[key]
		if !ok {
			a = answer{Is: isNotFound}
		}
		r.add(client, operation{Verb: verbGet, Key: key}, a, call)
	}
	end := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lists = append(r.lists, l)
	r.stamps = append(r.stamps, stamp{call: call, end: end, least: l.revision, revision: l.revision, what: l.what})
}

// tag is the value by which a write is known again.
func (op operation) tag() string {
	switch op.Verb {
	case verbCreate, verbUpdate:
		return op.Data.V
	case verbPatch:
		return op.Data.P
	}
	return ""
}

// acknowledged counts the operations that were answered.
func (r *recorder) acknowledged() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, op := range r.ops {
		if op.Output.(answer).Is != isUnknown {
			n++
		}
	}
	return n
}
