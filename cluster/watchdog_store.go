package cluster

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// diskCalls knows the calls to a server's log that have not returned. Its
// methods are safe for concurrent use.
type diskCalls struct {
	seconds *prometheus.HistogramVec

	mu   sync.Mutex
	next uint64
	open map[uint64]diskCall
}

type diskCall struct {
	what  string
	begun time.Time
}

func newDiskCalls() *diskCalls {
	return &diskCalls{open: make(map[uint64]diskCall), seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "shepherd_disk_seconds", Help: "Time of calls that write to this server's log.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15),
	}, []string{"call"})}
}

// begin notes a call; the function that it returns notes its end.
func (c *diskCalls) begin(what string) (end func()) {
	begun := time.Now()
	c.mu.Lock()
	c.next++
	id := c.next
	c.open[id] = diskCall{what, begun}
	c.mu.Unlock()
	return func() {
		c.mu.Lock()
		delete(c.open, id)
		c.mu.Unlock()
		c.seconds.WithLabelValues(what).Observe(time.Since(begun).Seconds())
	}
}

// oldest is the call that has not returned for the longest time.
func (c *diskCalls) oldest() (oldest diskCall, id uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, call := range c.open {
		if !ok || call.begun.Before(oldest.begun) {
			oldest, id, ok = call, i, true
		}
	}
	return oldest, id, ok
}

// timedLog notes the calls that write.
type timedLog struct {
	raft.LogStore
	calls *diskCalls
}

// StoreLog stores an entry.
func (l *timedLog) StoreLog(entry *raft.Log) error {
	defer l.calls.begin("StoreLogs")()
	return l.LogStore.StoreLog(entry)
}

// StoreLogs stores entries.
func (l *timedLog) StoreLogs(entries []*raft.Log) error {
	defer l.calls.begin("StoreLogs")()
	return l.LogStore.StoreLogs(entries)
}

// DeleteRange deletes the entries from first to last.
func (l *timedLog) DeleteRange(first, last uint64) error {
	defer l.calls.begin("DeleteRange")()
	return l.LogStore.DeleteRange(first, last)
}

// IsMonotonic is for Raft, which would not see it through the wrapper.
func (l *timedLog) IsMonotonic() bool {
	m, ok := l.LogStore.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

// timedStable notes the calls that write.
type timedStable struct {
	raft.StableStore
	calls *diskCalls
}

// Set stores a value.
func (s *timedStable) Set(key, value []byte) error {
	defer s.calls.begin("Set")()
	return s.StableStore.Set(key, value)
}

// SetUint64 stores a number.
func (s *timedStable) SetUint64(key []byte, value uint64) error {
	defer s.calls.begin("Set")()
	return s.StableStore.SetUint64(key, value)
}
