package fsm

// Event is one change of one object.
type Event struct {
	Revision uint64
	// Prev is the version before; nil when the object was created.
	Prev *Object
	// Object is the version after; when Deleted, the last state with the
	// revision of the deletion.
	Object  *Object
	Deleted bool
}

// rootCost is what keeping the root of an entry costs beyond its events: the
// nodes of the tree that were copied on write. An estimate, in bytes.
const rootCost = 4096

// ring holds the latest events by revision, without gaps, and the root after
// each entry. It is bounded in bytes. Its owner holds the lock.
type ring struct {
	max   int
	bytes int
	// base is the state just before the first event.
	base  *View
	slots []slot // slots[head:] are the events base.revision+1 ...
	head  int
}

// slot is an event; root is set on the last event of an entry.
type slot struct {
	event Event
	root  *View
}

func newRing(max int, base *View) ring { return ring{max: max, base: base} }

func (s *slot) cost() int {
	n := s.event.Object.cost() + 64
	if s.root != nil {
		n += rootCost
	}
	return n
}

// append adds an entry's events and the root after them, and forgets whole
// entries from the front until the bound is kept.
func (r *ring) append(events []Event, root *View) {
	if len(events) == 0 {
		if r.empty() {
			r.base = root // as new, and keeps less alive
		} else {
			r.slots[len(r.slots)-1].root = root
		}
		return
	}
	for i, e := range events {
		s := slot{event: e}
		if i == len(events)-1 {
			s.root = root
		}
		r.bytes += s.cost()
		r.slots = append(r.slots, s)
	}
	for r.bytes > r.max && !r.empty() {
		r.forget()
	}
}

func (r *ring) empty() bool { return r.head == len(r.slots) }

// forget drops the oldest entry.
func (r *ring) forget() {
	for !r.empty() {
		s := &r.slots[r.head]
		root := s.root
		r.bytes -= s.cost()
		*s = slot{}
		r.head++
		if root != nil {
			r.base = root
			break
		}
	}
	if r.head > 64 && r.head > len(r.slots)/2 {
		r.slots = append([]slot(nil), r.slots[r.head:]...)
		r.head = 0
	}
}

// last is the revision of the latest event.
func (r *ring) last() uint64 { return r.base.revision + uint64(len(r.slots)-r.head) }

// after returns up to max events with revisions above rev, copied.
func (r *ring) after(rev uint64, max int) ([]Event, error) {
	if rev < r.base.revision {
		return nil, ErrCompacted
	}
	if rev > r.last() {
		return nil, ErrFuture
	}
	from := r.head + int(rev-r.base.revision)
	n := min(len(r.slots)-from, max)
	if n <= 0 {
		return nil, nil
	}
	out := make([]Event, n)
	for i := range out {
		out[i] = r.slots[from+i].event
	}
	return out, nil
}

// rootBefore returns the latest root at or before rev, and the events from it
// up to rev: none where an entry ended there. Both may be used without the lock.
func (r *ring) rootBefore(rev uint64) (*View, []Event, error) {
	if rev < r.base.revision {
		return nil, nil, ErrCompacted
	}
	if rev > r.last() {
		return nil, nil, ErrFuture
	}
	root := r.base
	end := r.head + int(rev-r.base.revision)
	from := r.head
	for i := end - 1; i >= r.head; i-- {
		if r.slots[i].root != nil {
			root, from = r.slots[i].root, i+1
			break
		}
	}
	events := make([]Event, 0, end-from)
	for _, s := range r.slots[from:end] {
		events = append(events, s.event)
	}
	return root, events, nil
}

// after returns the view that the events turn v into. It takes time in the
// number of objects: only revisions inside an entry need it.
func (v *View) after(events []Event) *View {
	if len(events) == 0 {
		return v
	}
	next := *v
	next.objects = newObjectTree()
	v.objects.Scan(func(o *Object) bool {
		next.objects.Load(o)
		return true
	})
	for _, e := range events {
		next.replay(e)
	}
	return &next
}

// replay changes a view that nobody else has seen.
func (v *View) replay(e Event) {
	v.revision = e.Revision
	if e.Prev != nil {
		v.hash = v.hash.minus(e.Prev.hash())
	}
	if e.Deleted {
		v.objects.Delete(e.Object)
		return
	}
	v.hash = v.hash.plus(e.Object.hash())
	v.objects.Set(e.Object)
}
