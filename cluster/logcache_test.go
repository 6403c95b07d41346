package cluster

import (
	"bytes"
	"errors"
	"math/rand"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
)

// countedLog counts the reads that reach it.
type countedLog struct {
	raft.LogStore
	reads int
	fails error // of a write
}

func (l *countedLog) GetLog(index uint64, entry *raft.Log) error {
	l.reads++
	return l.LogStore.GetLog(index, entry)
}

func (l *countedLog) StoreLogs(entries []*raft.Log) error {
	if l.fails != nil {
		return l.fails
	}
	return l.LogStore.StoreLogs(entries)
}

// TestLogCacheAgreesWithItsLog appends, truncates, compacts, skips and fails at
// random: what is read is what is stored, and no more is held than may be.
func TestLogCacheAgreesWithItsLog(t *testing.T) {
	for seed := range int64(100) {
		rng := rand.New(rand.NewSource(seed))
		entries, bytes := 1+rng.Intn(30), uint64(200+rng.Intn(5000))
		store := &countedLog{LogStore: raft.NewInmemStore()}
		cache := newLogCache(store, entries, bytes)
		var last, term uint64
		for range 300 {
			first, err := store.FirstIndex()
			if err != nil {
				t.Fatal(err)
			}
			store.fails = nil
			switch rng.Intn(8) {
			case 0: // compaction
				if last > first && first > 0 {
					err = cache.DeleteRange(first, first+uint64(rng.Intn(int(last-first))))
				}
			case 1: // another leader's entries
				if last > first && first > 0 {
					from := first + 1 + uint64(rng.Intn(int(last-first)))
					err, last = cache.DeleteRange(from, last), from-1
				}
			case 2: // a leader's snapshot: the whole log, and a gap
				if rng.Intn(4) == 0 && first > 0 {
					err = cache.DeleteRange(first, last)
					last += uint64(rng.Intn(50))
				}
			case 3:
				store.fails = syscall.ENOSPC
				if err := cache.StoreLogs(logOf(last+1, last+2, 10)); !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("a full disk gives %v", err)
				}
			default:
				term++
				added := logOf(last+1, last+uint64(1+rng.Intn(12)), rng.Intn(900))
				for _, e := range added {
					e.Term = term
				}
				err, last = cache.StoreLogs(added), added[len(added)-1].Index
			}
			if err != nil {
				t.Fatal(err)
			}
			checkCache(t, cache, store, last)
		}
	}
}

func checkCache(t *testing.T, cache *logCache, store *countedLog, last uint64) {
	t.Helper()
	var held, size uint64
	for i := uint64(1); i <= last+2; i++ {
		var got, want raft.Log
		reads := store.reads
		gotErr := cache.GetLog(i, &got)
		if store.reads == reads {
			held++
			size += entrySize(&got)
		}
		wantErr := store.LogStore.GetLog(i, &want)
		if !errors.Is(gotErr, wantErr) || got.Term != want.Term || got.Index != want.Index || !bytes.Equal(got.Data, want.Data) {
			t.Fatalf("entry %d of %d: got %+v %v, want %+v %v", i, last, got, gotErr, want, wantErr)
		}
	}
	if held > uint64(len(cache.ring)) || size > cache.maxBytes || size != cache.bytes {
		t.Fatalf("%d entries of %d bytes are held and %d counted, at most %d of %d may be", held, size, cache.bytes, len(cache.ring), cache.maxBytes)
	}
}

// TestLogCacheIsBoundedInBytes keeps the last entries that fit, whatever their
// size, and none that is larger than all.
func TestLogCacheIsBoundedInBytes(t *testing.T) {
	store := &countedLog{LogStore: raft.NewInmemStore()}
	cache := newLogCache(store, cachedEntries, cachedBytes)
	const size = 512 << 10
	for i := uint64(1); i <= 200; i++ {
		if err := cache.StoreLogs(logOf(i, i, size)); err != nil {
			t.Fatal(err)
		}
	}
	if cache.bytes > cachedBytes || cache.bytes < cachedBytes-size-entryOverhead {
		t.Errorf("%d bytes are held, of %d", cache.bytes, cachedBytes)
	}
	var e raft.Log
	if err := cache.GetLog(200, &e); err != nil || store.reads != 0 {
		t.Errorf("the last entry was read from the log: %v", err)
	}
	if err := cache.GetLog(1, &e); err != nil || store.reads != 1 || len(e.Data) != size {
		t.Errorf("the first entry was not read from the log: %v", err)
	}
	if err := cache.StoreLogs(logOf(201, 201, cachedBytes)); err != nil || cache.bytes != 0 {
		t.Errorf("%d bytes are held after an entry that does not fit: %v", cache.bytes, err)
	}
}
