package cluster

import (
	"errors"
	"fmt"
	"sort"
	"sync"

	"github.com/hashicorp/raft"
)

const (
	// deletePiece is how many entries one transaction deletes: it holds the
	// file's only writer, for which new entries wait.
	deletePiece = 1024
	// entryOverhead is what an entry takes in the file beside its data, roughly,
	// in bytes.
	entryOverhead = 64
	// heldBytes bounds the entries that are kept for followers to which an older
	// snapshot is being sent, in bytes.
	heldBytes = 1 << 30
)

// boundedLog decides how much of the log stays behind a snapshot. Raft counts
// entries only, and one of group commit may be a thousand times as large as
// another. So Raft is told to keep one entry, and here a compaction leaves as
// many entries and bytes as are allowed, and all that a follower will need
// after the snapshot that it is being sent
// (https://github.com/hashicorp/raft/issues/212).
//
// The log has no gaps: what a snapshot has made useless and a crash or an error
// left is removed before anything follows it.
//
// Safe for concurrent use as a log is: one goroutine appends and truncates,
// another compacts.
type boundedLog struct {
	raft.LogStore
	keepEntries, keepBytes uint64 // behind a snapshot
	snapshotBytes          uint64 // after a snapshot, before the next one is due, unless the snapshots are large
	snapshots              *snapshots
	due                    chan struct{} // capacity one: full when a snapshot is due

	mu    sync.Mutex
	first uint64   // entry that ends[0] is about
	base  uint64   // bytes before that
	ends  []uint64 // bytes up to the end of each entry; empty for an empty log
}

// newBoundedLog measures a log, and removes from it what must not be there.
func newBoundedLog(log raft.LogStore, cfg *Config, s *snapshots) (*boundedLog, error) {
	l := &boundedLog{LogStore: log, keepEntries: cfg.TrailingLogs, keepBytes: cfg.TrailingBytes, snapshotBytes: cfg.SnapshotBytes,
		snapshots: s, due: make(chan struct{}, 1)}
	first, err := log.FirstIndex()
	if err != nil {
		return nil, fmt.Errorf("find the first log entry: %w", err)
	}
	last, err := log.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("find the last log entry: %w", err)
	}
	if last == 0 {
		return l, nil
	}
	snapshot, _ := s.latest()
	if last < snapshot { // the end came between installing it and removing the log that it replaced
		return l, l.delete(first, last)
	}
	sizes := make([]uint64, 0, last-first+1) // the last one first
	for index := last; index >= first; index-- {
		var entry raft.Log
		err := log.GetLog(index, &entry)
		if errors.Is(err, raft.ErrLogNotFound) && index <= snapshot {
			if err := l.delete(first, index); err != nil {
				return nil, err
			}
			first = index + 1
			break
		}
		if err != nil {
			return nil, damaged("entry %d of %d to %d: %w", index, first, last, err)
		}
		sizes = append(sizes, entrySize(&entry))
	}
	l.first = first
	for i := len(sizes) - 1; i >= 0; i-- {
		l.ends = append(l.ends, l.totalLocked()+sizes[i])
	}
	return l, nil
}

func entrySize(l *raft.Log) uint64 { return uint64(len(l.Data)+len(l.Extensions)) + entryOverhead }

func (l *boundedLog) totalLocked() uint64 {
	if len(l.ends) == 0 {
		return l.base
	}
	return l.ends[len(l.ends)-1]
}

// beforeLocked is how many bytes end with the entry.
func (l *boundedLog) beforeLocked(index uint64) uint64 {
	switch {
	case index < l.first || len(l.ends) == 0:
		return l.base
	case index-l.first >= uint64(len(l.ends)):
		return l.totalLocked()
	}
	return l.ends[index-l.first]
}

// size is the size of all entries, in bytes.
func (l *boundedLog) size() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.totalLocked() - l.base
}

// StoreLog appends an entry.
func (l *boundedLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs appends entries.
func (l *boundedLog) StoreLogs(entries []*raft.Log) error {
	if len(entries) == 0 {
		return nil
	}
	if first, last, ok := l.bounds(); ok && entries[0].Index > last+1 {
		// Raft goes on when it could not remove the log that a snapshot replaced.
		if err := l.DeleteRange(first, last); err != nil {
			return fmt.Errorf("remove the log before the snapshot: %w", err)
		}
	}
	if err := l.LogStore.StoreLogs(entries); err != nil {
		return err
	}
	l.mu.Lock()
	for _, e := range entries {
		if len(l.ends) == 0 {
			l.first = e.Index
		}
		l.cutLocked(e.Index)
		l.ends = append(l.ends, l.totalLocked()+entrySize(e))
	}
	snapshot, size := l.snapshots.latest()
	due := l.totalLocked()-l.beforeLocked(snapshot) > max(l.snapshotBytes, 2*size)
	l.mu.Unlock()
	if due {
		select {
		case l.due <- struct{}{}:
		default:
		}
	}
	return nil
}

// cutLocked forgets the entries from index on.
func (l *boundedLog) cutLocked(index uint64) {
	if index < l.first {
		l.ends = nil
		return
	}
	l.ends = l.ends[:min(index-l.first, uint64(len(l.ends)))]
}

func (l *boundedLog) bounds() (first, last uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, l.first + uint64(len(l.ends)) - 1, len(l.ends) > 0
}

// DeleteRange deletes entries: from the front as many as the bounds allow, the
// whole log, or its end.
func (l *boundedLog) DeleteRange(from, to uint64) error {
	first, last, ok := l.bounds()
	switch {
	case !ok || from > first: // the end, in one transaction: there would be a gap
		if err := l.LogStore.DeleteRange(from, to); err != nil {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.cutLocked(from)
		return nil
	case to < last:
		to = l.compactTo(to)
	}
	return l.delete(first, to)
}

// compactTo is up to where a log is deleted that may be deleted up to an entry,
// which always stays: what follows is compared with it.
func (l *boundedLog) compactTo(to uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	cut := max(l.withinLocked(to, l.keepBytes), to-min(to, l.keepEntries))
	if held, ok := l.snapshots.held(); ok {
		cut = min(cut, max(held-1, l.withinLocked(to, heldBytes))) // the next entry is sent with the snapshot's own before it
	}
	return min(cut, to-1)
}

// withinLocked is the entry after which at most so many bytes end with the entry to.
func (l *boundedLog) withinLocked(to, bytes uint64) uint64 {
	end := l.beforeLocked(to)
	after := sort.Search(len(l.ends), func(i int) bool { return l.ends[i]+bytes >= end })
	if l.base+bytes >= end {
		return l.first - 1
	}
	return l.first + uint64(after)
}

// delete deletes from the front in pieces. After each the log has no gap.
func (l *boundedLog) delete(first, to uint64) error {
	for from := first; from <= to; {
		end := min(from+deletePiece-1, to)
		if err := l.LogStore.DeleteRange(from, end); err != nil {
			return fmt.Errorf("delete log entries %d to %d: %w", from, end, err)
		}
		l.mu.Lock()
		if n := min(end+1-min(l.first, end+1), uint64(len(l.ends))); n > 0 {
			l.base, l.first, l.ends = l.ends[n-1], l.first+n, l.ends[n:]
		}
		l.mu.Unlock()
		from = end + 1
	}
	return nil
}

// keepLogShort takes a snapshot as soon as the log after the last one is large:
// Raft itself looks every Timing.Snapshot, and counts entries.
func (n *Node) keepLogShort() {
	for n.ctx.Err() == nil {
		select {
		case <-n.files.bounded.due:
		case <-n.ctx.Done():
			return
		}
		err := n.raft.Snapshot().Error()
		if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) && !errors.Is(err, raft.ErrRaftShutdown) {
			n.logger.Warn("no snapshot could be taken of a long log; trying again with the next entries", "error", err)
		}
		n.pause(nil, n.timing.Round)
	}
}
