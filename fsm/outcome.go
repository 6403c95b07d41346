package fsm

import (
	"bytes"
	"cmp"
	"strings"

	"github.com/tidwall/btree"
)

// Outcome is what an applied request did.
type Outcome struct {
	// Revision of the store after the request.
	Revision uint64
	// Objects as in Result.
	Objects []*Object
}

type outcomeEntry struct {
	id      RequestID
	outcome Outcome
}

type outcomeTree = btree.BTreeG[*outcomeEntry]

func newOutcomeTree() *outcomeTree {
	return btree.NewBTreeGOptions(func(a, b *outcomeEntry) bool { return a.id.compare(&b.id) < 0 },
		btree.Options{NoLocks: true, Degree: 16})
}

// compare orders IDs by their birth first: what is recorded and what is
// forgotten then is at either end of the tree, and few of its nodes are copied
// for each entry.
func (id *RequestID) compare(o *RequestID) int {
	if c := cmp.Compare(id.Birth, o.Birth); c != 0 {
		return c
	}
	if c := bytes.Compare(id.Nonce[:], o.Nonce[:]); c != 0 {
		return c
	}
	return strings.Compare(id.Sub, o.Sub)
}

// cost is what the entry counts against the table's bound, in bytes.
func (e *outcomeEntry) cost() int {
	n := 128 + len(e.id.Sub)
	for _, o := range e.outcome.Objects {
		n += o.cost()
	}
	return n
}

func (o *Object) cost() int {
	return 128 + len(o.Key.Resource) + len(o.Key.Namespace) + len(o.Key.Name) + len(o.UID) + len(o.Data)
}

// outcomes is the table of applied requests in the order of the log. It is
// part of the state: which entries it has forgotten decides which requests
// are refused, so its bounds are the same on every replica.
type outcomes struct {
	tree  *outcomeTree
	queue []*outcomeEntry // oldest first, from head on
	head  int
	bytes int
	probe outcomeEntry // what get looks for
}

func (t *outcomes) get(id RequestID) (*outcomeEntry, bool) {
	t.probe.id = id
	return t.tree.Get(&t.probe)
}

// record remembers an outcome and forgets the oldest ones beyond the bounds.
// It returns the horizon: an ID born before it may have been forgotten.
func (t *outcomes) record(e *outcomeEntry, horizon uint64, maxEntries, maxBytes int) uint64 {
	t.tree.Set(e)
	t.queue = append(t.queue, e)
	t.bytes += e.cost()
	for len(t.queue)-t.head > maxEntries || (t.bytes > maxBytes && len(t.queue)-t.head > 1) {
		old := t.queue[t.head]
		t.queue[t.head] = nil
		t.head++
		t.tree.Delete(old)
		t.bytes -= old.cost()
		// A request applied at revision R was born at R or before. Once it is
		// forgotten, no ID born up to R can be told from it.
		horizon = max(horizon, old.outcome.Revision+1)
	}
	if t.head > len(t.queue)/2 {
		t.queue = append([]*outcomeEntry(nil), t.queue[t.head:]...)
		t.head = 0
	}
	return horizon
}
