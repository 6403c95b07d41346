package fsm

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

func TestOutcomeIsReplayed(t *testing.T) {
	m := newMachine(t, DefaultConfig())
	c := Command{ID: requestID(1, 0), Ops: []Op{create(pod("a"), "u1", "one")}}
	first := m.must(c)
	m.must(Command{Ops: []Op{update(pod("a"), "u1", "two")}})
	m.term++ // the resend is planned again, by the next leader
	again := m.must(c)
	if !again.Duplicate || again.Objects[0] != first.Objects[0] || again.Revision != first.Revision {
		t.Fatalf("resend gave %+v, first was %+v", again, first)
	}
	if o, ok := m.store.View().Outcome(c.ID); !ok || o.Objects[0] != first.Objects[0] {
		t.Fatalf("view remembers %+v", o)
	}
	if got := string(m.store.View().Get(pod("a")).Data); got != "two" {
		t.Fatalf("object is %q", got)
	}
	part := m.must(Command{ID: c.ID.WithSub("delete/u1"), Ops: []Op{remove(pod("a"), "u1")}})
	if part.Duplicate {
		t.Fatal("a part of the request was taken for the request")
	}
}

// A refused request is not remembered: planned again, it can still succeed.
func TestConflictIsNotRecorded(t *testing.T) {
	m := newMachine(t, DefaultConfig())
	c := Command{ID: requestID(1, 0), Ops: []Op{update(pod("a"), "u1", "two")}}
	if r := m.one(c); r.Code != Conflict || r.FailedKey != pod("a") {
		t.Fatalf("update of nothing: %+v", r)
	}
	m.must(Command{Ops: []Op{create(pod("a"), "u1", "one")}})
	if r := m.must(c); r.Duplicate {
		t.Fatalf("retry: %+v", r)
	}
}

func TestForgottenRequestIsRefused(t *testing.T) {
	m := newMachine(t, Config{RingBytes: 1 << 20, MaxOutcomes: 3, MaxOutcomeBytes: 1 << 20})
	first := Command{ID: requestID(1, 0), Ops: []Op{create(pod("a"), "u1", "one")}}
	m.must(first)
	for n := uint64(2); n < 6; n++ {
		m.must(Command{ID: requestID(n, m.store.View().Revision()), Ops: []Op{update(pod("a"), "u1", string(rune('a'+n)))}})
	}
	if !m.store.View().Expired(first.ID) {
		t.Fatal("the view does not know that the ID expired")
	}
	if r := m.one(first); r.Code != Expired {
		t.Fatalf("resend after the table's horizon: %+v", r)
	}
	fresh := Command{ID: requestID(9, m.store.View().Revision()), Ops: []Op{update(pod("a"), "u1", "z")}}
	if r := m.must(fresh); r.Duplicate {
		t.Fatalf("fresh request: %+v", r)
	}
}

func TestOutcomeTableIsBoundedInBytes(t *testing.T) {
	m := newMachine(t, Config{RingBytes: 1 << 20, MaxOutcomes: 1 << 20, MaxOutcomeBytes: 1 << 14})
	big := string(make([]byte, 3000))
	m.must(Command{ID: requestID(1, 0), Ops: []Op{create(pod("a"), "u1", big)}})
	for n := uint64(2); n < 50; n++ {
		m.must(Command{ID: requestID(n, m.store.View().Revision()), Ops: []Op{update(pod("a"), "u1", big+string(rune(n)))}})
	}
	if n := m.store.outcomes.tree.Len(); n > 5 || n != len(m.store.outcomes.live()) {
		t.Fatalf("table holds %d outcomes of 3 KB under a bound of 16 KB", n)
	}
}

func TestListOrderAndRange(t *testing.T) {
	m := newMachine(t, DefaultConfig())
	for _, k := range []Key{{"pods", "b", "x"}, {"pods", "a", "z"}, {"pods", "a", "b"}, {"pods", "ab", "c"},
		{"nodes", "", "n1"}, {"podsets.x", "a", "q"}} {
		m.must(Command{Ops: []Op{create(k, "u", "")}})
	}
	v := m.store.View()
	names := func(resource, namespace string, after Key) (out []string) {
		for o := range v.ListAfter(resource, namespace, after) {
			out = append(out, o.Key.Namespace+"/"+o.Key.Name)
		}
		return out
	}
	for _, c := range []struct {
		resource, namespace string
		after               Key
		want                []string
	}{
		{"pods", "", Key{}, []string{"a/b", "a/z", "ab/c", "b/x"}},
		{"pods", "a", Key{}, []string{"a/b", "a/z"}},
		{"pods", "", Key{"pods", "a", "z"}, []string{"ab/c", "b/x"}},
		{"pods", "", Key{"pods", "a", "nothere"}, []string{"a/z", "ab/c", "b/x"}},
		{"pods", "a", Key{"pods", "a", "z"}, nil},
		{"nodes", "", Key{}, []string{"/n1"}},
		{"none", "", Key{}, nil},
	} {
		if got := names(c.resource, c.namespace, c.after); !slices.Equal(got, c.want) {
			t.Errorf("list %s/%s after %v: %v, want %v", c.resource, c.namespace, c.after, got, c.want)
		}
	}
	if n := v.Count("pods", "a"); n != 2 {
		t.Errorf("count is %d", n)
	}
}

// A snapshot that is cut short anywhere, or has any byte changed, is refused,
// and the store stays as it was.
func TestDamagedSnapshotIsRefused(t *testing.T) {
	m := newMachine(t, DefaultConfig())
	g := newGenerator(3)
	for range 40 {
		m.entry(g.command(m.store.View(), m.term))
	}
	good := m.snapshot()
	victim := newMachine(t, DefaultConfig())
	victim.must(Command{Ops: []Op{create(pod("kept"), "u", "x")}})
	before := victim.store.View()
	try := func(b []byte, what string, at int) {
		t.Helper()
		err := victim.store.Restore(reader(b))
		if err == nil {
			t.Fatalf("%s at %d was accepted", what, at)
		}
		if !errors.Is(err, ErrCorruptSnapshot) && !errors.Is(err, ErrUnknownVersion) {
			t.Fatalf("%s at %d: unexpected error %v", what, at, err)
		}
		if victim.store.View() != before {
			t.Fatalf("%s at %d changed the store", what, at)
		}
	}
	for n := range good {
		try(good[:n], "cut", n)
		bad := bytes.Clone(good)
		bad[n] ^= 0x41
		try(bad, "flip", n)
	}
	if err := victim.store.Restore(reader(good)); err != nil {
		t.Fatal(err)
	}
	requireEqualState(t, m.store.View(), victim.store.View())
}

func TestSnapshotEndsCursorsAndHistory(t *testing.T) {
	m := newMachine(t, DefaultConfig())
	m.must(Command{Ops: []Op{create(pod("a"), "u1", "one")}})
	snap := m.snapshot()
	other := newMachine(t, DefaultConfig())
	cursor, err := other.store.Cursor(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.store.Restore(reader(snap)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-cursor.Ready():
	default:
		t.Fatal("the cursor is not woken by a snapshot")
	}
	if _, err := cursor.Next(10); err != ErrCompacted {
		t.Fatalf("cursor over a snapshot: %v", err)
	}
	if _, err := other.store.ViewAt(0); err != ErrCompacted {
		t.Fatalf("view before the snapshot: %v", err)
	}
	if v, err := other.store.ViewAt(1); err != nil || v.Revision() != 1 {
		t.Fatalf("view at the snapshot: %v", err)
	}
}

// An entry of an unknown version stops the replica: nothing after it is applied.
func TestUnknownVersionHalts(t *testing.T) {
	m := newMachine(t, DefaultConfig())
	m.must(Command{Ops: []Op{create(pod("a"), "u1", "one")}})
	data := EncodeEntry([]Command{{Term: 1, Ops: []Op{remove(pod("a"), "u1")}}})
	data[0] = 200
	for range 2 {
		out := m.store.Apply(&raft.Log{Index: 2, Term: 1, Data: data})
		if err, ok := out.(error); !ok || !errors.Is(err, ErrHalted) || !errors.Is(err, ErrUnknownVersion) {
			t.Fatalf("Apply answered %v", out)
		}
		data[0] = 1 // the second one would be fine, but comes after
	}
	select {
	case <-m.store.Halted():
	default:
		t.Fatal("Halted is not closed")
	}
	if m.store.Applied() != 1 || m.store.View().Get(pod("a")) == nil {
		t.Fatal("state moved after the halt")
	}
	if err := m.store.WaitApplied(context.Background(), 5); !errors.Is(err, ErrHalted) {
		t.Fatalf("a waiter got %v", err)
	}
}

func TestMalformedEntryIsADeterministicError(t *testing.T) {
	m := newMachine(t, DefaultConfig())
	out := m.store.Apply(&raft.Log{Index: 1, Term: 1, Data: []byte{1, 0, 0, 0, 0, 0x7f}})
	results, ok := out.([]Result)
	if !ok || len(results) != 1 || results[0].Code != Malformed {
		t.Fatalf("Apply answered %v", out)
	}
	if m.store.Applied() != 1 || m.store.View().Revision() != 0 {
		t.Fatal("a malformed entry must count as applied and change nothing")
	}
}

func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, DefaultConfig())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cursor, err := m.store.Cursor(0)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 3)
		go func() { done <- m.store.WaitApplied(ctx, 2) }()
		go func() { done <- m.store.WaitRevision(ctx, 2) }()
		go func() { done <- cursor.Wait(ctx) }()
		synctest.Wait()
		m.must(Command{Ops: []Op{create(pod("a"), "u1", "one")}})
		synctest.Wait()
		if err := <-done; err != nil || len(done) != 0 {
			t.Fatalf("after the first entry only the cursor should be done: %v, %d more", err, len(done))
		}
		m.store.StoreConfiguration(2, raft.Configuration{}) // an index without a revision
		synctest.Wait()
		if err := <-done; err != nil || len(done) != 0 {
			t.Fatalf("after the second: %v, %d more", err, len(done))
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled wait gave %v", err)
		}
	})
}

func BenchmarkApply(b *testing.B) {
	m := newMachine(b, DefaultConfig())
	data := string(make([]byte, 1024))
	for b.Loop() {
		cmds := make([]Command, 64)
		for i := range cmds {
			k := pod(string(rune('a'+m.index%1000)) + string(rune('a'+i)))
			cmds[i] = Command{Term: 1, Ops: []Op{create(k, "u", data)}}
		}
		m.entry(cmds...)
	}
	b.ReportMetric(float64(b.N*64)/b.Elapsed().Seconds(), "commands/s")
}
