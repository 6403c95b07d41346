package fsm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// Config bounds what the store remembers beyond the current state.
type Config struct {
	// RingBytes bounds the events, and the roots of past revisions, that
	// watchers and paged listings can still read.
	RingBytes int
	// MaxOutcomes and MaxOutcomeBytes bound the table of applied requests.
	// They are part of the state machine: all servers of a cluster must use
	// the same values.
	MaxOutcomes     int
	MaxOutcomeBytes int
	// Level is the highest command level to apply; zero is that of the build.
	Level uint8
}

// DefaultConfig returns the bounds that every cluster starts with.
func DefaultConfig() Config {
	return Config{RingBytes: 32 << 20, MaxOutcomes: 1 << 15, MaxOutcomeBytes: 16 << 20, Level: Level}
}

// Validate reports a bound that cannot work.
func (c Config) Validate() error {
	if c.RingBytes <= 0 || c.MaxOutcomes <= 0 || c.MaxOutcomeBytes <= 0 {
		return fmt.Errorf("fsm: bounds must be positive: %+v", c)
	}
	return nil
}

var (
	// ErrCompacted is returned when a revision is no longer kept. Its HTTP
	// form is 410 Gone: list again.
	ErrCompacted = errors.New("revision is compacted")
	// ErrFuture is returned for a revision that this replica has not applied.
	ErrFuture = errors.New("revision is in the future")
	// ErrHalted is wrapped by Err and by what Apply answers once the store has
	// met an entry that it must not skip.
	ErrHalted = errors.New("state machine halted")
)

var (
	_ raft.BatchingFSM        = (*Store)(nil)
	_ raft.ConfigurationStore = (*Store)(nil)
)

// Store is the state machine of one replica. Raft applies entries to it on one
// goroutine; everything else reads views and cursors, from any goroutine,
// without holding that up.
type Store struct {
	cfg Config

	// Owned by Raft's apply goroutine.
	objects  *objectTree
	outcomes outcomes
	next     View   // the state being built; its trees are unset
	probe    Object // what get looks for; a new one each time would be garbage
	decoder  decoder

	view atomic.Pointer[View]

	mu   sync.RWMutex
	ring ring
	// generation counts installed snapshots: cursors of an earlier one end.
	generation uint64
	changed    chan struct{} // closed and replaced when a view is published
	err        error         // why it has halted
	distrust   error         // why nobody must read it
	digests    digests

	halted chan struct{}
}

// New returns an empty store.
func New(cfg Config) *Store {
	if cfg.Level == 0 {
		cfg.Level = Level
	}
	s := &Store{cfg: cfg, decoder: make(decoder), changed: make(chan struct{}), halted: make(chan struct{})}
	s.reset(newObjectTree(), outcomes{tree: newOutcomeTree()}, View{})
	return s
}

// reset puts the state in place and publishes it; the ring starts anew.
func (s *Store) reset(objects *objectTree, out outcomes, meta View) {
	s.objects, s.outcomes, s.next = objects, out, meta
	v, d := s.freeze(), s.digest()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.digests = digests{}
	s.digests.add(d)
	s.ring = newRing(s.cfg.RingBytes, v)
	s.generation++
	s.view.Store(v)
	s.wakeLocked()
}

// freeze returns the state being built as a view.
func (s *Store) freeze() *View {
	v := s.next
	v.objects, v.outcomes = s.objects.Copy(), s.outcomes.tree.Copy()
	return &v
}

func (s *Store) wakeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// View returns the latest state.
func (s *Store) View() *View { return s.view.Load() }

// Applied is the Raft index of the last command or configuration entry
// applied. Raft does not show no-ops and barriers to a state machine, so it can
// stay below Raft's own applied index: wait for an index of a command.
func (s *Store) Applied() uint64 { return s.view.Load().index }

// Hash returns the state's hash and the index it belongs to.
func (s *Store) Hash() (index uint64, sum [16]byte) {
	v := s.view.Load()
	return v.index, v.hash.Bytes()
}

// Halted is closed when the store has stopped for good; Err says why.
func (s *Store) Halted() <-chan struct{} { return s.halted }

// Err returns why the store has halted, wrapping ErrHalted, or what Distrust
// was told, or nil.
func (s *Store) Err() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.errLocked()
}

// Halt stops the store for good, because of an entry or a state that it must
// not go on with. The first reason stays.
func (s *Store) Halt(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = fmt.Errorf("%w: %w", ErrHalted, err)
	close(s.halted)
	s.wakeLocked()
}

// WaitApplied returns once Applied is at least index. It returns the context's
// error, or Err when the store halts before.
func (s *Store) WaitApplied(ctx context.Context, index uint64) error {
	return s.wait(ctx, func(v *View) bool { return v.index >= index })
}

// WaitRevision returns once the latest view's revision is at least rev, or an
// error as WaitApplied does.
func (s *Store) WaitRevision(ctx context.Context, rev uint64) error {
	return s.wait(ctx, func(v *View) bool { return v.revision >= rev })
}

func (s *Store) wait(ctx context.Context, reached func(*View) bool) error {
	for {
		if reached(s.view.Load()) {
			return nil
		}
		s.mu.RLock()
		changed, err := s.changed, s.errLocked()
		s.mu.RUnlock()
		if reached(s.view.Load()) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ViewAt returns the state at exactly the given revision: ErrCompacted when it
// is no longer kept, ErrFuture when it is not applied yet.
func (s *Store) ViewAt(rev uint64) (*View, error) {
	s.mu.RLock()
	root, events, err := s.ring.rootBefore(rev)
	s.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	return root.after(events), nil // without the lock: Apply must not wait for it
}

// Apply applies one entry. Its answer is a []Result, one for each command of
// the entry (one alone when the entry is malformed), or an error that wraps
// ErrHalted. It is called by Raft, on one goroutine.
func (s *Store) Apply(l *raft.Log) any {
	if err := s.haltedErr(); err != nil {
		return err
	}
	cmds, err := s.decoder.entry(l.Data, s.cfg.Level)
	var results []Result
	var events []Event
	switch {
	case errors.Is(err, ErrUnknownVersion):
		s.Halt(fmt.Errorf("entry %d: %w", l.Index, err))
		return s.haltedErr()
	case err != nil:
		results = []Result{{Code: Malformed, Detail: err.Error(), Revision: s.next.revision}}
	default:
		results = make([]Result, len(cmds))
		for i := range cmds {
			results[i], events = s.apply(l.Term, &cmds[i], events)
		}
		if err := checkLevel(events, s.cfg.Level); err != nil {
			s.Halt(fmt.Errorf("entry %d: %w", l.Index, err)) // what was built is never shown
			return s.haltedErr()
		}
	}
	s.publish(l, events)
	return results
}

// ApplyBatch applies entries one by one; see Apply. A configuration entry is
// only counted.
func (s *Store) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	for i, l := range logs {
		if l.Type == raft.LogCommand {
			out[i] = s.Apply(l)
		} else {
			s.publish(l, nil)
		}
	}
	return out
}

// StoreConfiguration counts a configuration entry as applied. Raft calls it
// only for a state machine that does not take batches.
func (s *Store) StoreConfiguration(index uint64, _ raft.Configuration) {
	s.publish(&raft.Log{Index: index, Term: s.next.term}, nil)
}

func (s *Store) publish(l *raft.Log, events []Event) {
	s.next.index, s.next.term = l.Index, l.Term
	v, d := s.freeze(), s.digest()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.digests.add(d)
	s.ring.append(events, v)
	s.view.Store(v)
	s.wakeLocked()
}

// Snapshot takes the current state; Raft calls it between entries. The work is
// done in Persist, which holds nothing up.
func (s *Store) Snapshot() (raft.FSMSnapshot, error) {
	if err := s.haltedErr(); err != nil {
		return nil, err
	}
	return &snapshot{view: s.view.Load(), queue: s.outcomes.live()}, nil
}

// Restore replaces the state by a snapshot's. Cursors and kept revisions end.
// On an error the state is as before; one that wraps ErrUnknownVersion also
// halts the store, for Raft would have the snapshot sent again and again.
func (s *Store) Restore(r io.ReadCloser) error {
	objects, out, meta, err := readSnapshot(r)
	if cerr := r.Close(); err == nil && cerr != nil {
		err = cerr
	}
	if err == nil {
		err = checkRestored(objects, s.cfg.Level)
	}
	if err != nil {
		err = fmt.Errorf("restore snapshot: %w", err)
		if errors.Is(err, ErrUnknownVersion) {
			s.Halt(err)
		}
		return err
	}
	s.reset(objects, out, meta)
	return nil
}
