package cluster

import (
	"context"
	"sync"
)

// rounds lets callers share an answer that must be found after they asked: who
// arrives while a round runs waits for the next one, together with all others
// who do.
type rounds struct {
	tasks *tasks
	find  func() (uint64, error) // runs one round; never twice at once

	mu      sync.Mutex
	next    *round // not begun
	running bool
}

type round struct {
	done  chan struct{}
	value uint64 // set before done is closed, as is err
	err   error
}

func newRounds(t *tasks, find func() (uint64, error)) *rounds {
	return &rounds{tasks: t, find: find}
}

// join waits for a round that begins after the call.
func (r *rounds) join(ctx context.Context) (uint64, error) {
	r.mu.Lock()
	if r.next == nil {
		r.next = &round{done: make(chan struct{})}
	}
	mine := r.next
	if !r.running {
		if !r.tasks.run(r.loop) {
			r.next = nil
			r.mu.Unlock()
			return 0, ErrStopped
		}
		r.running = true
	}
	r.mu.Unlock()
	select {
	case <-mine.done:
		return mine.value, mine.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// loop runs rounds as long as somebody waits.
func (r *rounds) loop() {
	for {
		r.mu.Lock()
		now := r.next
		r.next = nil
		if now == nil {
			r.running = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		now.value, now.err = r.find()
		close(now.done)
	}
}
