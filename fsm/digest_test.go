package fsm

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

func TestDigestsAreRemembered(t *testing.T) {
	m := newMachine(t, DefaultConfig())
	want := make(map[uint64]Digest)
	for i := range digestsKept + 100 {
		m.index += uint64(i % 3) // Raft's own entries are not shown
		m.must(Command{Ops: []Op{create(pod(fmt.Sprint("p", i)), "u", "x")}})
		want[m.index] = m.store.Digest()
	}
	known := 0
	for index := range m.index + 2 {
		got, ok := m.store.DigestAt(index)
		if ok {
			known++
			if got != want[index] || got.Index != index {
				t.Fatalf("at %d: %+v, want %+v", index, got, want[index])
			}
		}
	}
	if known != digestsKept {
		t.Errorf("%d digests are known, want %d", known, digestsKept)
	}
	if _, ok := m.store.DigestAt(m.index); !ok {
		t.Error("the latest is not known")
	}
}

// TestDigestCoversTheState: each thing that decides about later entries counts.
func TestDigestCoversTheState(t *testing.T) {
	with := func(data string, id RequestID, time int64) Digest {
		m := newMachine(t, DefaultConfig())
		m.must(Command{ID: id, Time: time, Ops: []Op{create(pod("a"), "u", data)}})
		return m.store.Digest()
	}
	base := with("x", requestID(1, 0), 5)
	if base != with("x", requestID(1, 0), 5) {
		t.Fatal("equal states have different digests")
	}
	for what, d := range map[string]Digest{
		"an object": with("y", requestID(1, 0), 5), "an outcome": with("x", RequestID{}, 5), "the time": with("x", requestID(1, 0), 6),
	} {
		if d.Sum == base.Sum || d.Index != base.Index {
			t.Errorf("a digest does not show %s", what)
		}
	}
}

func TestDistrustedStoreAppliesAndIsNotRead(t *testing.T) {
	m := newMachine(t, DefaultConfig())
	m.must(Command{Ops: []Op{create(pod("a"), "u", "x")}})
	c, err := m.store.Cursor(1)
	if err != nil {
		t.Fatal(err)
	}
	reason := errors.New("it differs")
	m.store.Distrust(reason)
	m.store.Distrust(errors.New("another"))
	if err := m.store.Err(); !errors.Is(err, reason) {
		t.Errorf("Err: %v", err)
	}
	if err := c.Wait(context.Background()); !errors.Is(err, reason) {
		t.Errorf("a cursor waits: %v", err)
	}
	if _, err := m.store.Cursor(1); !errors.Is(err, reason) {
		t.Errorf("a new cursor: %v", err)
	}
	if err := m.store.WaitRevision(context.Background(), 9); !errors.Is(err, reason) {
		t.Errorf("wait for a revision: %v", err)
	}
	select {
	case <-m.store.Halted():
		t.Error("it has halted")
	default:
	}
	m.must(Command{Ops: []Op{update(pod("a"), "u", "y")}})
	if s, err := m.store.Snapshot(); err != nil {
		t.Error(err)
	} else {
		s.Release()
	}
}
