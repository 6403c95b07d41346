package fsm

import "context"

// Cursor reads the events of a store in order. It is pulled, so a slow reader
// holds nothing up and is told when it was left behind. It is for one
// goroutine; it needs no closing.
type Cursor struct {
	store      *Store
	position   uint64
	generation uint64
}

// Cursor returns a reader of the events with revisions above after. It returns
// ErrCompacted when some of those are gone, ErrFuture when this replica has
// not applied that revision, or Store.Err.
func (s *Store) Cursor(after uint64) (*Cursor, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.errLocked(); err != nil {
		return nil, err
	}
	if _, err := s.ring.after(after, 0); err != nil {
		return nil, err
	}
	return &Cursor{store: s, position: after, generation: s.generation}, nil
}

// Position is the revision of the last event returned: all events up to it
// were.
func (c *Cursor) Position() uint64 { return c.position }

// Next returns up to max events without waiting; none when it has caught up.
// It returns ErrCompacted when it was left behind or a snapshot was installed.
func (c *Cursor) Next(max int) ([]Event, error) {
	c.store.mu.RLock()
	defer c.store.mu.RUnlock()
	if c.generation != c.store.generation {
		return nil, ErrCompacted
	}
	events, err := c.store.ring.after(c.position, max)
	if err != nil {
		return nil, err
	}
	if n := len(events); n > 0 {
		c.position = events[n-1].Revision
	}
	return events, nil
}

// closed is what Ready returns when there is no need to wait.
var closed = func() chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}()

// Ready returns a channel that is closed when Next may have something to say.
// It can close early; ask for a new one after each Next.
func (c *Cursor) Ready() <-chan struct{} {
	c.store.mu.RLock()
	defer c.store.mu.RUnlock()
	if c.generation != c.store.generation || c.position < c.store.ring.last() || c.store.errLocked() != nil {
		return closed
	}
	return c.store.changed
}

// Wait returns nil when Next has events or an error to return, or the
// context's error, or Store.Err after the store has halted.
func (c *Cursor) Wait(ctx context.Context) error {
	for {
		c.store.mu.RLock()
		ready := c.generation != c.store.generation || c.position < c.store.ring.last()
		changed, err := c.store.changed, c.store.errLocked()
		c.store.mu.RUnlock()
		if ready {
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
