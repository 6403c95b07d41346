package fsm

import (
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

func newerConfig(level uint8) Config {
	cfg := DefaultConfig()
	cfg.Level = level
	return cfg
}

func levelOp(verb Verb, data string) Op {
	return Op{Verb: verb, Key: LevelKey, UID: "level", Data: []byte(data)}
}

// TestLevel: it begins at 1, is raised, survives a snapshot, and never falls.
func TestLevel(t *testing.T) {
	m := newMachine(t, newerConfig(3))
	if l := m.store.View().Level(); l != 1 {
		t.Fatalf("an empty state is at level %d", l)
	}
	for _, bad := range []string{"", "0", "02", "+2", "256", "-1", "two"} {
		if r := m.one(Command{Ops: []Op{levelOp(Create, bad)}}); r.Code != Malformed {
			t.Errorf("level %q: %v", bad, r)
		}
	}
	m.must(Command{Ops: []Op{levelOp(Create, "2")}})
	if r := m.one(Command{Ops: []Op{levelOp(Update, "1")}}); r.Code != Conflict {
		t.Errorf("the level fell: %v", r)
	}
	if r := m.one(Command{Ops: []Op{levelOp(Delete, "")}}); r.Code != Malformed {
		t.Errorf("the level was deleted: %v", r)
	}
	m.must(Command{Ops: []Op{levelOp(Update, "3")}})
	twin := New(newerConfig(3))
	if err := twin.Restore(reader(m.snapshot())); err != nil || twin.View().Level() != 3 {
		t.Fatalf("restored: level %d, %v", twin.View().Level(), err)
	}
}

// TestEntryOfALevel: an entry has the level of its highest command, and a build
// that does not know it halts and names the level.
func TestEntryOfALevel(t *testing.T) {
	cmds := []Command{{Term: 1, Ops: []Op{create(pod("a"), "u", "x")}}, {Term: 1, Level: 2, Ops: []Op{create(pod("b"), "u", "x")}}}
	entry := EncodeEntry(cmds)
	if entry[0] != 2 || EncodeEntry(cmds[:1])[0] != 1 {
		t.Fatalf("entry of version %d", entry[0])
	}
	results, ok := New(newerConfig(2)).Apply(&raft.Log{Index: 1, Term: 1, Data: entry}).([]Result)
	if !ok || len(results) != 2 || results[1].Code != OK {
		t.Errorf("a build of level 2 answered %v", results)
	}
	old := New(DefaultConfig())
	expectTooOld(t, old.Apply(&raft.Log{Index: 1, Term: 1, Data: entry}), "level 2")
	if old.View().Revision() != 0 {
		t.Error("half of the entry was applied")
	}
}

// TestOlderBuildRefusesTheState: neither from the entry that raises the level nor
// from a snapshot does an older build go on, and it shows nothing of either.
func TestOlderBuildRefusesTheState(t *testing.T) {
	raise := []Command{{Term: 1, Ops: []Op{create(pod("a"), "u", "x")}}, {Term: 1, Ops: []Op{levelOp(Create, "7")}}}
	m := newMachine(t, newerConfig(7))
	m.entry(raise...)
	old := New(newerConfig(6))
	expectTooOld(t, old.Apply(&raft.Log{Index: 1, Term: 1, Data: EncodeEntry(raise)}), "level 7")
	again := New(newerConfig(6))
	expectTooOld(t, again.Restore(reader(m.snapshot())), "level 7")
	for _, s := range []*Store{old, again} {
		if s.View().Revision() != 0 || s.Applied() != 0 || !errors.Is(s.Err(), ErrHalted) {
			t.Errorf("revision %d, index %d, %v", s.View().Revision(), s.Applied(), s.Err())
		}
	}
}

func expectTooOld(t *testing.T, answer any, names string) {
	t.Helper()
	err, ok := answer.(error)
	if !ok || !errors.Is(err, ErrUnknownVersion) || !strings.Contains(err.Error(), names) || !strings.Contains(err.Error(), "run a build") {
		t.Errorf("it answered: %v", answer)
	}
}
