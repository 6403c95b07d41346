package cluster

import (
	"runtime"
	"sync"
)

// gathering collects what many have to send until one takes it all. It is
// safe for concurrent use by many who add and one who takes.
type gathering struct {
	wake chan struct{} // holds one if something was added

	mu    sync.Mutex
	bytes []byte
	spare []byte // what the taker has done with
}

func newGathering() gathering { return gathering{wake: make(chan struct{}, 1)} }

// add lets write append to what waits, unless that is more than limit bytes
// already.
func (g *gathering) add(limit int, write func([]byte) []byte) bool {
	g.mu.Lock()
	if len(g.bytes) > limit {
		g.mu.Unlock()
		return false
	}
	g.bytes = write(g.bytes)
	g.mu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default:
	}
	return true
}

// take waits for something and returns all that waits, which is the caller's
// until it calls take again; false means that done was closed.
func (g *gathering) take(done <-chan struct{}) ([]byte, bool) {
	select {
	case <-g.wake:
	case <-done:
		return nil, false
	}
	// Whoever else is about to add something does so first: the commands of
	// one entry are answered all at once, and leave so.
	runtime.Gosched()
	g.mu.Lock()
	defer g.mu.Unlock()
	taken := g.bytes
	g.bytes = nil
	if cap(g.spare) <= maxSpare {
		g.bytes = g.spare[:0]
	}
	g.spare = taken
	return taken, true
}

// maxSpare is the largest buffer that is kept for the next use, in bytes.
const maxSpare = 1 << 20
