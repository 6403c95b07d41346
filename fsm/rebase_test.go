package fsm

import (
	"errors"
	"testing"
)

// A new epoch keeps the objects, exceeds every earlier revision, ends old
// cursors and refuses old requests; a snapshot carries all of it.
func TestRebase(t *testing.T) {
	m := newMachine(t, DefaultConfig())
	id := requestID(1, 0)
	m.must(Command{ID: id, Ops: []Op{create(pod("a"), "u1", "x")}})
	before := m.store.View()
	cursor, err := m.store.Cursor(before.Revision())
	if err != nil {
		t.Fatal(err)
	}
	for _, epoch := range []uint64{0, 1 << 40} {
		if err := m.store.Rebase(epoch); err == nil || m.store.View() != before {
			t.Fatalf("epoch %d: %v, and the view may have changed", epoch, err)
		}
	}
	if err := m.store.Rebase(1); err != nil {
		t.Fatal(err)
	}
	copied := newMachine(t, DefaultConfig())
	if err := copied.store.Restore(reader(m.snapshot())); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{m.store, copied.store} {
		v := s.View()
		if v.Epoch() != 1 || v.Revision() != before.Revision()+1<<EpochBits || v.Hash() == before.Hash() || v.Hash() != m.store.View().Hash() {
			t.Errorf("epoch %d, revision %d, hash %v", v.Epoch(), v.Revision(), v.Hash())
		}
		if o := v.Get(pod("a")); o == nil || o.Modified != 1+1<<EpochBits || o.Created != o.Modified || string(o.Data) != "x" {
			t.Errorf("object %+v", o)
		}
		if _, err := s.Cursor(before.Revision()); !errors.Is(err, ErrCompacted) {
			t.Errorf("an old revision: %v", err)
		}
	}
	if _, err := cursor.Next(1); !errors.Is(err, ErrCompacted) {
		t.Errorf("an old cursor: %v", err)
	}
	if r := m.one(Command{ID: id, Ops: []Op{create(pod("b"), "u2", "y")}}); r.Code != Expired {
		t.Errorf("an old request: %v", r.Code)
	}
	if r := m.must(Command{Ops: []Op{update(pod("a"), "u1", "z")}}); r.Revision != before.Revision()+1<<EpochBits+1 {
		t.Errorf("the next revision is %d", r.Revision)
	}
}
