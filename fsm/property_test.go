package fsm

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
)

// Two replicas apply the same entries; one of them is thrown away and restored
// from the other's snapshot now and then. They agree on every result, every
// hash, every revision, and on what the next snapshot says.
func TestTwinsAgree(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			cfg := Config{RingBytes: 1 << 16, MaxOutcomes: 20, MaxOutcomeBytes: 1 << 14}
			a, b := newMachine(t, cfg), newMachine(t, cfg)
			g := newGenerator(seed)
			for step := range 300 {
				if g.r.IntN(20) == 0 {
					a.term++
					b.term++
				}
				var cmds []Command
				for range 1 + g.r.IntN(4) {
					cmds = append(cmds, g.command(a.store.View(), a.term))
				}
				ra, rb := a.entry(cmds...), b.entry(cmds...)
				if !reflect.DeepEqual(ra, rb) {
					t.Fatalf("step %d: results differ:\n%+v\n%+v", step, ra, rb)
				}
				if g.r.IntN(15) == 0 {
					restored := New(cfg)
					if err := restored.Restore(reader(a.snapshot())); err != nil {
						t.Fatal(err)
					}
					b.store = restored
				}
				requireEqualState(t, a.store.View(), b.store.View())
				if a.store.Digest() != b.store.Digest() {
					t.Fatalf("digests differ: %+v, %+v", a.store.Digest(), b.store.Digest())
				}
			}
			if !slices.Equal(a.snapshot(), b.snapshot()) {
				t.Fatal("the twins' snapshots differ")
			}
		})
	}
}

func requireEqualState(t *testing.T, a, b *View) {
	t.Helper()
	if a.Revision() != b.Revision() || a.Index() != b.Index() || a.Hash() != b.Hash() ||
		!a.Time().Equal(b.Time()) || a.horizon != b.horizon {
		t.Fatalf("states differ: revision %d/%d index %d/%d hash %v/%v horizon %d/%d", a.Revision(), b.Revision(),
			a.Index(), b.Index(), a.Hash(), b.Hash(), a.horizon, b.horizon)
	}
	var sum Hash
	for o := range b.All() {
		sum = sum.plus(o.hash())
	}
	if sum != b.Hash() {
		t.Fatalf("incremental hash %v, computed %v", b.Hash(), sum)
	}
}

// A model with maps says what each command must do; refused ones change nothing.
func TestRefusedCommandsChangeNothing(t *testing.T) {
	m := newMachine(t, DefaultConfig())
	g := newGenerator(99)
	refused := map[Code]int{}
	for range 3000 {
		before := m.store.View()
		c := g.command(before, m.term)
		r := m.entry(c)[0]
		after := m.store.View()
		switch {
		case r.Code != OK || r.Duplicate:
			refused[r.Code]++
			if after.Revision() != before.Revision() || after.Hash() != before.Hash() || after.Len() != before.Len() {
				t.Fatalf("%v changed the state: %+v", r.Code, c)
			}
		default:
			checkApplied(t, before, after, c, r)
		}
	}
	for _, code := range []Code{OK, StaleTerm, Conflict, Malformed} {
		if refused[code] == 0 {
			t.Errorf("no command came out as %v without a change: the test tests too little (%v)", code, refused)
		}
	}
}

func checkApplied(t *testing.T, before, after *View, c Command, r Result) {
	t.Helper()
	changes := uint64(0)
	for i, op := range c.Ops {
		prev, now := before.Get(op.Key), after.Get(op.Key)
		if (op.Verb == Create) != (prev == nil) {
			t.Fatalf("%v on %v applied with previous %v", op.Verb, op.Key, prev)
		}
		switch {
		case op.Verb == Delete:
			changes++
			if now != nil || r.Objects[i].Modified <= prev.Modified {
				t.Fatalf("delete of %v left %v, result %+v", op.Key, now, r.Objects[i])
			}
		case prev != nil && prev.Deleting == op.Deleting && string(prev.Data) == string(op.Data):
			if now != prev {
				t.Fatalf("no-op on %v made a new version", op.Key)
			}
		default:
			changes++
			if now == nil || string(now.Data) != string(op.Data) || now.UID != op.UID || now.Deleting != op.Deleting {
				t.Fatalf("%v on %v gave %+v", op.Verb, op.Key, now)
			}
		}
	}
	if after.Revision() != before.Revision()+changes {
		t.Fatalf("%d changes moved the revision from %d to %d", changes, before.Revision(), after.Revision())
	}
}

// Any kept revision can be read as it was, and the events between two
// revisions turn one state into the other.
func TestHistoryIsExact(t *testing.T) {
	m := newMachine(t, Config{RingBytes: 60_000, MaxOutcomes: 100, MaxOutcomeBytes: 1 << 20})
	g := newGenerator(5)
	cursor, err := m.store.Cursor(0)
	if err != nil {
		t.Fatal(err)
	}
	hashes := map[uint64]Hash{0: {}}
	state := map[Key]*Object{}
	for range 400 {
		var cmds []Command
		for range 3 {
			cmds = append(cmds, g.command(m.store.View(), m.term))
		}
		m.entry(cmds...)
		events, err := cursor.Next(1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			follow(t, state, e)
			var sum Hash
			for _, o := range state {
				sum = sum.plus(o.hash())
			}
			hashes[e.Revision] = sum
		}
	}
	last := m.store.View().Revision()
	kept := 0
	for rev := uint64(0); rev <= last; rev++ {
		v, err := m.store.ViewAt(rev)
		if err == ErrCompacted && kept == 0 {
			continue
		}
		if err != nil {
			t.Fatalf("revision %d of %d: %v", rev, last, err)
		}
		kept++
		if v.Revision() != rev || v.Hash() != hashes[rev] {
			t.Fatalf("view at %d has revision %d and another hash", rev, v.Revision())
		}
	}
	if kept < 3 || kept == int(last)+1 {
		t.Fatalf("%d of %d revisions kept: the bound was not tested", kept, last)
	}
	if _, err := m.store.ViewAt(last + 1); err != ErrFuture {
		t.Fatalf("a future revision gave %v", err)
	}
	if _, err := m.store.Cursor(1); err != ErrCompacted {
		t.Fatalf("a compacted cursor gave %v", err)
	}
}

func follow(t *testing.T, state map[Key]*Object, e Event) {
	t.Helper()
	if prev := state[e.Object.Key]; prev != e.Prev {
		t.Fatalf("event %d says the version before was %v, it was %v", e.Revision, e.Prev, prev)
	}
	if e.Object.Modified != e.Revision {
		t.Fatalf("event %d carries revision %d", e.Revision, e.Object.Modified)
	}
	if e.Deleted {
		delete(state, e.Object.Key)
	} else {
		state[e.Object.Key] = e.Object
	}
}
