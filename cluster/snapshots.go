package cluster

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// snapshots knows the last snapshot, which ones are being read, and how long
// things take. Safe for concurrent use.
type snapshots struct {
	raft.SnapshotStore
	seconds *prometheus.HistogramVec

	mu    sync.Mutex
	index uint64 // last entry in the last one
	size  uint64 // of that, in bytes
	open  map[*reading]struct{}
	ended []uint64 // last entries in those that were read since the last compaction
}

// newSnapshots looks for the last snapshot.
func newSnapshots(store raft.SnapshotStore) (*snapshots, error) {
	s := &snapshots{SnapshotStore: store, open: make(map[*reading]struct{}), seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "shepherd_raft_snapshot_seconds", Help: "Times of snapshots of the state: stop (no entry is applied while one begins), write (to the disk, from this server's state or a leader's) and restore.",
		Buckets: prometheus.ExponentialBuckets(0.00001, 4, 12),
	}, []string{"step"})}
	list, err := store.List()
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	for _, meta := range list {
		if meta.Index >= s.index {
			s.index, s.size = meta.Index, uint64(max(meta.Size, 0))
		}
	}
	return s, nil
}

// timed notes how long a step takes; the function that it returns notes its
// end. Nothing is noted for nil.
func (s *snapshots) timed(step string) (end func()) {
	if s == nil {
		return func() {}
	}
	begun := time.Now()
	return func() { s.seconds.WithLabelValues(step).Observe(time.Since(begun).Seconds()) }
}

// latest is the last entry in the last snapshot, zero if there is none, and its
// size in bytes.
func (s *snapshots) latest() (index, size uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index, s.size
}

// held returns the oldest snapshot that is being sent, or has been since held
// was last asked: its reader has yet to ask for the first entry after it.
func (s *snapshots) held() (index uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.ended {
		if !ok || i < index {
			index, ok = i, true
		}
	}
	for r := range s.open {
		if !ok || r.index < index {
			index, ok = r.index, true
		}
	}
	s.ended = nil
	return index, ok
}

// Open opens a snapshot to be read.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, body, err := s.SnapshotStore.Open(id)
	if err != nil {
		return nil, nil, err
	}
	r := &reading{ReadCloser: body, of: s, index: meta.Index}
	s.mu.Lock()
	s.open[r] = struct{}{}
	s.mu.Unlock()
	return meta, r, nil
}

// reading is a snapshot that is being read.
type reading struct {
	io.ReadCloser
	of    *snapshots
	index uint64
}

// Close ends it. It may be called again.
func (r *reading) Close() error {
	r.of.mu.Lock()
	if _, ok := r.of.open[r]; ok {
		delete(r.of.open, r)
		r.of.ended = append(r.of.ended, r.index)
	}
	r.of.mu.Unlock()
	return r.ReadCloser.Close()
}

// Create begins a snapshot, of this server's state or to install a leader's.
func (s *snapshots) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, at uint64, t raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(v, index, term, c, at, t)
	if err != nil {
		return nil, err
	}
	return &writing{SnapshotSink: sink, of: s, index: index, end: s.timed("write")}, nil
}

// writing is a snapshot that is being written. One goroutine uses it.
type writing struct {
	raft.SnapshotSink
	of    *snapshots
	index uint64
	size  uint64
	end   func()
	done  bool
}

// Write appends to the snapshot.
func (w *writing) Write(p []byte) (int, error) {
	n, err := w.SnapshotSink.Write(p)
	w.size += uint64(n)
	return n, err
}

// Close makes the snapshot the last one. It may be called again, and after
// Cancel, when it does nothing.
func (w *writing) Close() error {
	if err := w.SnapshotSink.Close(); err != nil || w.done {
		return err
	}
	w.done = true
	w.end()
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	if w.index >= w.of.index {
		w.of.index, w.of.size = w.index, w.size
	}
	return nil
}

// Cancel drops the snapshot.
func (w *writing) Cancel() error {
	w.done = true
	return w.SnapshotSink.Cancel()
}
