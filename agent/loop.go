package agent

import (
	"context"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/hashicorp/go-hclog"
)

// guard runs fn and turns a panic into a log entry with its stack: one loop's
// fault must not take down the others, least of all the heartbeat.
func guard(logger hclog.Logger, name string, fn func()) {
	defer func() {
		if r := recover(); r != nil {
			logger.Error("panic", "in", name, "panic", r, "stack", string(debug.Stack()))
		}
	}()
	fn()
}

// every runs fn at once, after each period and at each kick, until ctx ends.
func every(ctx context.Context, logger hclog.Logger, name string, period time.Duration, kick <-chan struct{}, fn func(context.Context)) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for ctx.Err() == nil {
		guard(logger, name, func() { fn(ctx) })
		select {
		case <-ticker.C:
		case <-kick:
		case <-ctx.Done():
		}
	}
}

// persist runs fn until it returns because ctx ended: a panic or an early
// return is followed by another try, after a pause that grows to max.
func persist(ctx context.Context, logger hclog.Logger, name string, limit time.Duration, fn func(context.Context) error) {
	b := retry{base: 200 * time.Millisecond, limit: limit}
	for ctx.Err() == nil {
		began := time.Now()
		guard(logger, name, func() {
			if err := fn(ctx); err != nil && ctx.Err() == nil {
				logger.Warn("interrupted, trying again", "in", name, "error", err)
			}
		})
		if time.Since(began) > limit {
			b.reset()
		}
		pause(ctx, b.next())
	}
}

// pause waits for d or the context's end, which it reports as false.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// kick puts a token into a channel of capacity one. A token that is already
// there stands for this one too.
func kick(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// retry is an exponential back-off with jitter: many agents that lost the same
// server must not come back at the same moment.
type retry struct {
	base, limit time.Duration
	n           int
}

func (r *retry) next() time.Duration {
	d := min(r.base<<min(r.n, 20), r.limit)
	r.n++
	return d/2 + rand.N(d/2+1)
}

func (r *retry) reset() { r.n = 0 }
