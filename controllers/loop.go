package controllers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/shepherd-project/shepherd/fsm"
)

const (
	// maxStretch is how many periods an idle loop waits at most.
	maxStretch = 4
	// minWait keeps a deadline that has just passed from spinning a loop.
	minWait = 10 * time.Millisecond
)

var (
	// errPanic is wrapped by the error of a reconcile that panicked.
	errPanic = errors.New("reconcile panicked")
	// errDeposed is returned by a reconcile whose term of leadership is over.
	errDeposed = errors.New("leadership has ended")
	// errNotStopped is what the process ends with when a loop does not stop.
	errNotStopped = errors.New("controller did not stop in time")
)

// outcome is what one reconcile did and wants.
type outcome struct {
	changes int
	// after, if positive, is the longest time until the next reconcile: a
	// deadline that no event will announce.
	after time.Duration
}

// Loop runs one reconcile again and again: at once when it starts, on a tick,
// and on a kick, which a change of the watched objects gives. A lost kick
// breaks nothing, because a reconcile looks at the whole state and the tick
// still comes.
//
// A Loop is used once, by one goroutine, and shares nothing with other loops.
type Loop struct {
	name      string
	period    time.Duration
	reconcile func(context.Context) (outcome, error)
	// store and watches say whose changes kick; store may be nil.
	store       *fsm.Store
	watches     func(fsm.Event) bool
	stopTimeout time.Duration
	fatal       func(error)
	first       func() // called after the first reconcile without an error; may be nil
	settled     bool   // a reconcile without an error has been
	metrics     *metrics
	logger      hclog.Logger
}

// Run reconciles until stopCh is closed. It returns only when its last
// reconcile has returned; a reconcile that does not return within the stop
// timeout ends the process, because the next leader may be at work already.
func (l *Loop) Run(stopCh <-chan struct{}) {
	l.logger.Info("controller started", "name", l.name)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	kick := make(chan struct{}, 1)
	var helpers, watchdog sync.WaitGroup
	watchdog.Go(func() { l.watch(stopCh, done, cancel) })
	if l.store != nil {
		// Opened before the first reconcile takes its view: no change is missed
		// between the two.
		cursor, err := l.store.Cursor(l.store.View().Revision())
		helpers.Go(func() { l.feed(ctx, cursor, err, kick) })
	}

	l.cycle(ctx, kick)

	helpers.Wait()
	close(done)
	watchdog.Wait()
	l.logger.Info("controller stopped", "name", l.name)
}

// cycle reconciles until the context ends.
func (l *Loop) cycle(ctx context.Context, kick <-chan struct{}) {
	stretch := 1
	timer := time.NewTimer(0)
	defer timer.Stop()
	first := l.first
	for ctx.Err() == nil {
		start := time.Now()
		out, err := l.once(ctx)
		took := time.Since(start)
		if ctx.Err() != nil {
			return
		}
		if out.changes > 0 || err != nil {
			stretch = 1
		}
		if err == nil && first != nil {
			first()
			first = nil
		}
		wait := l.period * time.Duration(stretch)
		if out.after > 0 {
			wait = min(wait, max(out.after, minWait))
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			stretch = min(stretch*2, maxStretch)
		case <-kick:
			stretch = 1
			// Under a constant stream of changes at least half of the time
			// is left to others.
			if !pause(ctx, took) {
				return
			}
		}
	}
}

// pause waits, and reports false if the context ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// once runs one reconcile, logs and counts it.
func (l *Loop) once(ctx context.Context) (outcome, error) {
	start := time.Now()
	out, err := l.guarded(ctx)
	took := time.Since(start)
	l.metrics.duration.WithLabelValues(l.name).Observe(took.Seconds())
	l.metrics.changes.WithLabelValues(l.name).Add(float64(out.changes))
	switch {
	case err == nil:
		l.metrics.reconciles.WithLabelValues(l.name, "ok").Inc()
		level := hclog.Info
		if l.settled && out.changes == 0 {
			level = hclog.Debug // the log of an idle cluster is silent
		}
		l.settled = true
		l.logger.Log(level, "reconciled", "name", l.name, "changes", out.changes, "duration", took)
	case errors.Is(err, errPanic):
		l.metrics.reconciles.WithLabelValues(l.name, "panic").Inc()
	case errors.Is(err, errDeposed), ctx.Err() != nil:
		l.logger.Debug("reconcile ended early", "name", l.name, "reason", err)
	default:
		l.metrics.reconciles.WithLabelValues(l.name, "error").Inc()
		l.logger.Warn("reconcile failed", "name", l.name, "changes", out.changes, "duration", took, "error", err)
	}
	return out, err
}

// guarded turns a panic of the reconcile into an error.
func (l *Loop) guarded(ctx context.Context) (out outcome, err error) {
	defer func() {
		if r := recover(); r != nil {
			l.metrics.panics.WithLabelValues(l.name).Inc()
			l.logger.Error("reconcile panicked", "name", l.name, "panic", r, "stack", string(debug.Stack()))
			out, err = outcome{}, fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	return l.reconcile(ctx)
}

// watch turns the end of stopCh into the end of the context, and ends the
// process when done does not follow in time.
func (l *Loop) watch(stopCh, done <-chan struct{}, cancel context.CancelFunc) {
	select {
	case <-stopCh:
	case <-done:
	}
	cancel()
	timer := time.NewTimer(l.stopTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		l.logger.Error("controller did not stop, ending the process", "name", l.name, "timeout", l.stopTimeout)
		l.fatal(fmt.Errorf("%w: %s after %s", errNotStopped, l.name, l.stopTimeout))
	}
}

// feed kicks whenever a watched object changes, until the context ends. err is
// that of opening the cursor.
func (l *Loop) feed(ctx context.Context, cursor *fsm.Cursor, err error, kick chan<- struct{}) {
	knock := func() {
		select {
		case kick <- struct{}{}:
		default: // one is pending, and the reconcile that it starts will see this change too
		}
	}
	for {
		if err == nil {
			err = l.follow(ctx, cursor, knock)
		}
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, fsm.ErrCompacted) {
			// The store has halted: only the tick is left.
			l.logger.Warn("changes can no longer be followed", "name", l.name, "error", err)
			return
		}
		cursor, err = l.store.Cursor(l.store.View().Revision())
		knock() // left behind: whatever was missed, a reconcile sees it
	}
}

// follow kicks for watched events and returns why it had to end.
func (l *Loop) follow(ctx context.Context, cursor *fsm.Cursor, knock func()) error {
	for {
		if err := cursor.Wait(ctx); err != nil {
			return err
		}
		events, err := cursor.Next(256)
		if err != nil {
			return err
		}
		for i := range events {
			if l.watches(events[i]) {
				knock()
				break
			}
		}
	}
}

// exit is the Fatal of a server that set none.
func exit(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}
