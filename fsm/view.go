package fsm

import (
	"iter"
	"sync"
	"time"

	"github.com/tidwall/btree"
)

type objectTree = btree.BTreeG[*Object]

func newObjectTree() *objectTree {
	return btree.NewBTreeGOptions(func(a, b *Object) bool { return a.Key.compare(&b.Key) < 0 },
		btree.Options{NoLocks: true, Degree: 16})
}

// View is the state at one revision. It is immutable and safe for concurrent
// use; holding it keeps the memory of its objects.
type View struct {
	objects  *objectTree
	outcomes *outcomeTree
	revision uint64
	index    uint64
	term     uint64
	epoch    uint64
	horizon  uint64
	time     int64
	hash     Hash
}

// Revision is that of the last change in the view.
func (v *View) Revision() uint64 { return v.revision }

// Index is the Raft index of the last entry applied.
func (v *View) Index() uint64 { return v.index }

// Epoch counts restores from backup. Revisions of different epochs do not
// continue one another.
func (v *View) Epoch() uint64 { return v.epoch }

// Time is the cluster time of the last command applied; zero before the first.
func (v *View) Time() time.Time {
	if v.time == 0 {
		return time.Time{}
	}
	return time.Unix(0, v.time).UTC()
}

// Hash is the state's hash at this view.
func (v *View) Hash() Hash { return v.hash }

// Get returns the object, or nil.
func (v *View) Get(k Key) *Object {
	probe := probes.Get().(*Object)
	probe.Key = k
	o, _ := v.objects.Get(probe)
	probe.Key = Key{}
	probes.Put(probe)
	return o
}

// probes are what the trees are asked with.
var probes = sync.Pool{New: func() any { return new(Object) }}

// List yields the objects of a resource in a namespace, or in all of them for
// "", by namespace and name.
func (v *View) List(resource, namespace string) iter.Seq[*Object] {
	return v.ListAfter(resource, namespace, Key{})
}

// ListAfter is List without the objects up to and including after, which need
// not exist.
func (v *View) ListAfter(resource, namespace string, after Key) iter.Seq[*Object] {
	pivot := Key{Resource: resource, Namespace: namespace}
	if after.Compare(pivot) > 0 {
		pivot = after
	}
	return func(yield func(*Object) bool) {
		v.objects.Ascend(&Object{Key: pivot}, func(o *Object) bool {
			if o.Key == after {
				return true
			}
			if o.Key.Resource != resource || (namespace != "" && o.Key.Namespace != namespace) {
				return false
			}
			return yield(o)
		})
	}
}

// Count returns how many objects List would yield.
func (v *View) Count(resource, namespace string) int {
	n := 0
	for range v.List(resource, namespace) {
		n++
	}
	return n
}

// Len is the number of objects of all resources.
func (v *View) Len() int { return v.objects.Len() }

// All yields every object, internal ones included, in key order.
func (v *View) All() iter.Seq[*Object] {
	return func(yield func(*Object) bool) { v.objects.Scan(yield) }
}

// Outcome returns what a request did, if it was applied at or before this
// view and is still remembered.
func (v *View) Outcome(id RequestID) (Outcome, bool) {
	e, ok := v.outcomes.Get(&outcomeEntry{id: id})
	if !ok {
		return Outcome{}, false
	}
	return e.outcome, true
}

// Outcomes yields what the parts of a request did, those named by a Sub, as
// far as they are remembered, in the order of their names.
func (v *View) Outcomes(id RequestID) iter.Seq[Outcome] {
	return func(yield func(Outcome) bool) {
		v.outcomes.Ascend(&outcomeEntry{id: id.WithSub("")}, func(e *outcomeEntry) bool {
			if e.id.Nonce != id.Nonce || e.id.Birth != id.Birth {
				return false
			}
			return e.id.Sub == "" || yield(e.outcome)
		})
	}
}

// Expired reports whether the ID is so old that its outcome may have been
// forgotten. Such a request is refused.
func (v *View) Expired(id RequestID) bool { return !id.IsZero() && id.Birth < v.horizon }
