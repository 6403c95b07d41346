package cluster

import (
	"bytes"
	"errors"
	"math/rand"
	"slices"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// mustBound measures a log in memory before which there are no snapshots.
func mustBound(t *testing.T, store raft.LogStore, entries, bytes uint64) *boundedLog {
	t.Helper()
	kept, err := newSnapshots(raft.NewInmemSnapshotStore())
	if err != nil {
		t.Fatal(err)
	}
	l, err := newBoundedLog(store, &Config{TrailingLogs: entries, TrailingBytes: bytes, SnapshotBytes: 1 << 40}, kept)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func logOf(from, to uint64, size int) (entries []*raft.Log) {
	for i := from; i <= to; i++ {
		entries = append(entries, &raft.Log{Index: i, Term: 1, Data: bytes.Repeat([]byte{byte(i)}, size)})
	}
	return entries
}

// indexes are the entries that a store holds.
func indexes(t *testing.T, store raft.LogStore, upTo uint64) (have []uint64, size uint64) {
	t.Helper()
	for i := uint64(1); i <= upTo; i++ {
		var e raft.Log
		switch err := store.GetLog(i, &e); {
		case err == nil:
			have, size = append(have, i), size+entrySize(&e)
		case !errors.Is(err, raft.ErrLogNotFound):
			t.Fatal(err)
		}
	}
	return have, size
}

// TestBoundedLogAgreesWithItsStore appends, truncates, compacts, installs and
// reopens at random: what is measured is what is stored, there is no gap, and a
// compaction leaves all that the bounds allow and no more.
func TestBoundedLogAgreesWithItsStore(t *testing.T) {
	for seed := range int64(50) {
		rng := rand.New(rand.NewSource(seed))
		store := raft.NewInmemStore()
		keepEntries, keepBytes := uint64(1+rng.Intn(40)), uint64(1+rng.Intn(8000))
		l := mustBound(t, store, keepEntries, keepBytes)
		var last, committed uint64
		for range 200 {
			var err error
			switch rng.Intn(8) {
			case 0: // a snapshot of what is committed
				before, _ := indexes(t, store, last)
				if n := len(before); n > 1 {
					to := min(committed, before[n-1]-1)
					if to < before[0] {
						continue
					}
					err = l.DeleteRange(before[0], to)
					checkCompaction(t, store, before, to, keepEntries, keepBytes)
				}
			case 1: // another leader's entries
				if last > committed {
					from := committed + 1 + uint64(rng.Intn(int(last-committed)))
					err, last = l.DeleteRange(from, last), from-1
				}
			case 2: // a leader's snapshot, whose log is removed now or by what follows
				if rng.Intn(4) == 0 {
					if have, _ := indexes(t, store, last); len(have) > 0 && rng.Intn(2) == 0 {
						err = l.DeleteRange(have[0], last)
					}
					last += uint64(2 + rng.Intn(50))
					committed = last
				}
			case 3: // restart
				l = mustBound(t, store, keepEntries, keepBytes)
			default:
				n := uint64(1 + rng.Intn(20))
				err = l.StoreLogs(logOf(last+1, last+n, rng.Intn(1000)))
				last += n
				committed += uint64(rng.Intn(int(last - committed + 1)))
			}
			if err != nil {
				t.Fatal(err)
			}
			have, size := indexes(t, store, last)
			if len(have) > 0 && have[len(have)-1]-have[0]+1 != uint64(len(have)) {
				t.Fatalf("seed %d: there is a gap in %v", seed, have)
			}
			if l.size() != size {
				t.Fatalf("seed %d: %d bytes are measured, there are %d", seed, l.size(), size)
			}
		}
	}
}

func checkCompaction(t *testing.T, store raft.LogStore, before []uint64, to, keepEntries, keepBytes uint64) {
	t.Helper()
	behind, size := indexes(t, store, to)
	if len(behind) == 0 {
		t.Fatalf("nothing is left up to %d, not even the entry that the next one is compared with", to)
	}
	if len(behind) > 1 && (uint64(len(behind)) > keepEntries || size > keepBytes) {
		t.Fatalf("%d entries of %d bytes are left behind the snapshot, of %d and %d", len(behind), size, keepEntries, keepBytes)
	}
	if before[0] < behind[0] && uint64(len(behind)) < keepEntries && size+1000+entryOverhead <= keepBytes {
		t.Fatalf("%d entries of %d bytes are left behind the snapshot, of %d and %d: more could be", len(behind), size, keepEntries, keepBytes)
	}
}

// TestLogIsKeptWhileASnapshotIsSent keeps what follows a snapshot until its
// reader has had the time to ask for that: one compaction after its end.
func TestLogIsKeptWhileASnapshotIsSent(t *testing.T) {
	store := raft.NewInmemStore()
	l := mustBound(t, store, 10, 1<<20)
	if err := l.StoreLogs(logOf(1, 500, 10)); err != nil {
		t.Fatal(err)
	}
	sink, err := l.snapshots.Create(raft.SnapshotVersionMax, 100, 1, raft.Configuration{}, 1, nil)
	if err == nil {
		err = sink.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if index, _ := l.snapshots.latest(); index != 100 {
		t.Fatalf("the last snapshot ends at %d", index)
	}
	_, body, err := l.snapshots.Open(sink.ID())
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint64{100, 100, 100, 490} {
		if i == 2 {
			if err := errors.Join(body.Close(), body.Close()); err != nil {
				t.Fatal(err)
			}
		}
		first, err := l.FirstIndex()
		if err == nil {
			err = l.DeleteRange(first, 499)
		}
		if err != nil {
			t.Fatal(err)
		}
		if first, err = l.FirstIndex(); err != nil || first != want {
			t.Errorf("compaction %d: the log begins at %d, want %d: %v", i, first, want, err)
		}
	}
}

// piecemeal counts the deletions of a log, and how large they are.
type piecemeal struct {
	raft.LogStore
	pieces []uint64
}

func (p *piecemeal) DeleteRange(from, to uint64) error {
	p.pieces = append(p.pieces, to-from+1)
	return p.LogStore.DeleteRange(from, to)
}

// TestCompactionComesInPieces lets new entries in between.
func TestCompactionComesInPieces(t *testing.T) {
	store := &piecemeal{LogStore: raft.NewInmemStore()}
	l := mustBound(t, store, 100, 1<<20)
	if err := l.StoreLogs(logOf(1, 3000, 1)); err != nil {
		t.Fatal(err)
	}
	if err := l.DeleteRange(1, 2999); err != nil {
		t.Fatal(err)
	}
	if want := []uint64{1024, 1024, 2899 - 2048}; !slices.Equal(store.pieces, want) {
		t.Errorf("pieces of %v entries, want %v", store.pieces, want)
	}
}

// TestSnapshotIsDue tells when the log after a snapshot is large, for itself and
// beside the snapshot.
func TestSnapshotIsDue(t *testing.T) {
	l := mustBound(t, raft.NewInmemStore(), 10, 1<<20)
	l.snapshotBytes = 10_000
	due := func() bool {
		select {
		case <-l.due:
			return true
		default:
			return false
		}
	}
	for i, c := range []struct {
		entries int
		want    bool
	}{{9, false}, {2, true}} {
		last, _ := l.LastIndex()
		if err := l.StoreLogs(logOf(last+1, last+uint64(c.entries), 1000-entryOverhead)); err != nil {
			t.Fatal(err)
		}
		if due() != c.want {
			t.Errorf("step %d: due is not %v", i, c.want)
		}
	}
	l.snapshots.index, l.snapshots.size = 11, 8_000
	if err := l.StoreLogs(logOf(12, 27, 1000-entryOverhead)); err != nil || due() {
		t.Errorf("a snapshot is due after twice the size of the last one: %v", err)
	}
	if err := l.StoreLogs(logOf(28, 28, 1000-entryOverhead)); err != nil || !due() {
		t.Errorf("no snapshot is due after more than twice the size of the last one: %v", err)
	}
}

// TestStorageRemovesWhatASnapshotReplaced opens what a crash in the middle of
// the installation of a snapshot leaves, and nothing that lost entries.
func TestStorageRemovesWhatASnapshotReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		log      [][2]uint64
		snapshot uint64
		want     []uint64
		fails    bool
	}{
		"before the old log was removed": {log: [][2]uint64{{1, 20}}, snapshot: 30},
		"entries after the gap":          {log: [][2]uint64{{1, 20}, {31, 33}}, snapshot: 30, want: []uint64{31, 32, 33}},
		"a gap before the snapshot":      {log: [][2]uint64{{1, 20}, {28, 31}}, snapshot: 30, want: []uint64{28, 29, 30, 31}},
		"a log as it should be":          {log: [][2]uint64{{28, 31}}, snapshot: 30, want: []uint64{28, 29, 30, 31}},
		"a log that lost entries":        {log: [][2]uint64{{28, 31}, {33, 34}}, snapshot: 30, fails: true},
	} {
		cfg := DefaultConfig()
		cfg.ID, cfg.DataDir = "s1-00000001", t.TempDir()
		var files storage
		err := files.openFiles(&cfg, hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(files.claim(cfg.ID), files.stable.SetUint64([]byte("CurrentTerm"), 1))
		for _, part := range c.log {
			err = errors.Join(err, files.log.StoreLogs(logOf(part[0], part[1], 10)))
		}
		address, transport := raft.NewInmemTransport("s1:1")
		one := raft.Configuration{Servers: []raft.Server{{ID: "s1-00000001", Address: address}}}
		sink, createErr := files.snapshots.Create(raft.SnapshotVersionMax, c.snapshot, 1, one, 1, transport)
		if createErr != nil {
			t.Fatal(createErr)
		}
		if err := errors.Join(err, sink.Close(), files.Close(), transport.Close()); err != nil {
			t.Fatal(err)
		}
		opened, err := openStorage(&cfg, hclog.NewNullLogger())
		if c.fails {
			if err == nil {
				t.Errorf("%s: it was opened", name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		have, size := indexes(t, opened.log, 40)
		if !slices.Equal(have, c.want) || opened.bounded.size() != size {
			t.Errorf("%s: the log holds %v of %d bytes, want %v of %d", name, have, opened.bounded.size(), c.want, size)
		}
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	}
}
