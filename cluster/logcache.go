package cluster

import (
	"sync"

	"github.com/hashicorp/raft"
)

const (
	// cachedEntries and cachedBytes bound the entries that are kept in memory. An
	// entry of group commit may be large, and a few seconds of them are enough:
	// an older one is read from the file.
	cachedEntries = 4096
	cachedBytes   = 32 << 20
)

// logCache keeps the last entries of a log in memory, for those who read them
// next: the state machine, and followers that are a little behind. It returns
// the log's errors as they are.
//
// Safe for concurrent use as a log is: one goroutine appends and truncates,
// another compacts.
type logCache struct {
	raft.LogStore
	maxBytes uint64

	mu    sync.RWMutex
	ring  []raft.Log // the entry of an index is at the index modulo the length
	first uint64     // of the entries that are held, which have no gap
	next  uint64     // index after the last one
	bytes uint64     // size of all that are held
}

func newLogCache(log raft.LogStore, entries int, bytes uint64) *logCache {
	return &logCache{LogStore: log, maxBytes: bytes, ring: make([]raft.Log, entries)}
}

func (c *logCache) at(index uint64) *raft.Log { return &c.ring[index%uint64(len(c.ring))] }

// GetLog reads an entry. Its data must not be changed.
func (c *logCache) GetLog(index uint64, entry *raft.Log) error {
	c.mu.RLock()
	if c.first <= index && index < c.next {
		*entry = *c.at(index)
		c.mu.RUnlock()
		return nil
	}
	c.mu.RUnlock()
	return c.LogStore.GetLog(index, entry)
}

// StoreLog appends an entry.
func (c *logCache) StoreLog(entry *raft.Log) error { return c.StoreLogs([]*raft.Log{entry}) }

// StoreLogs appends entries. Their data must not be changed afterwards.
func (c *logCache) StoreLogs(entries []*raft.Log) error {
	if err := c.LogStore.StoreLogs(entries); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		c.addLocked(e)
	}
	return nil
}

func (c *logCache) addLocked(e *raft.Log) {
	if e.Index < c.first || e.Index > c.next {
		c.dropLocked(c.next) // it does not follow
		c.first, c.next = e.Index, e.Index
	}
	c.cutLocked(e.Index)
	if c.next-c.first == uint64(len(c.ring)) {
		c.dropLocked(c.first + 1)
	}
	*c.at(e.Index) = *e // not what surrounds it: Raft's has the results of applying it
	c.next++
	c.bytes += entrySize(e)
	for c.bytes > c.maxBytes {
		c.dropLocked(c.first + 1)
	}
}

// dropLocked forgets the entries before index.
func (c *logCache) dropLocked(index uint64) {
	for ; c.first < min(index, c.next); c.first++ {
		c.forgetLocked(c.first)
	}
}

// cutLocked forgets the entries from index on.
func (c *logCache) cutLocked(index uint64) {
	for ; c.next > max(index, c.first); c.next-- {
		c.forgetLocked(c.next - 1)
	}
}

func (c *logCache) forgetLocked(index uint64) {
	e := c.at(index)
	c.bytes -= entrySize(e)
	*e = raft.Log{}
}

// DeleteRange deletes entries, of which the log may keep some.
func (c *logCache) DeleteRange(from, to uint64) error {
	c.mu.Lock()
	if from <= c.first {
		c.dropLocked(to + 1)
	} else {
		c.cutLocked(from)
	}
	c.mu.Unlock()
	return c.LogStore.DeleteRange(from, to)
}
