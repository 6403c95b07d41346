package cluster

import "sync/atomic"

// maxIdle is how many goroutines of a crew stay when there is nothing to do.
const maxIdle = 256

// crew runs tasks on goroutines that stay for the next ones. To handle a request
// takes a deep stack, and a new goroutine comes to one by copying it several
// times. It is safe for concurrent use.
type crew struct {
	tasks *tasks
	done  <-chan struct{} // closed when all have to end
	next  chan func()
	idle  atomic.Int64
}

func newCrew(t *tasks, done <-chan struct{}) *crew {
	return &crew{tasks: t, done: done, next: make(chan func())}
}

// run is tasks.run.
func (c *crew) run(f func()) bool {
	select {
	case c.next <- f: // somebody has nothing to do
		return true
	default:
		return c.tasks.run(func() { c.work(f) })
	}
}

func (c *crew) work(f func()) {
	for f != nil {
		f()
		f = c.wait()
	}
}

// wait returns the next task, or nil if there is none for this goroutine.
func (c *crew) wait() func() {
	defer c.idle.Add(-1)
	if c.idle.Add(1) > maxIdle {
		return nil
	}
	select {
	case f := <-c.next:
		return f
	case <-c.done:
		return nil
	}
}
