package api

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shepherd-project/shepherd/fsm"
)

// watchBatch is how many events are read from the store at a time.
const watchBatch = 256

// watcher is one watch under way. It belongs to its request's goroutine.
type watcher struct {
	watchStart
	server    *Server
	selector  selector
	bookmarks bool // the client wants them
	events    eventEncoder
	out       *watchWriter
}

// run sends the initial state and then every change. It returns nil at the
// watch's natural end; the context's deadline is one.
func (w *watcher) run(ctx context.Context) error {
	if err := w.sendInitial(); err != nil {
		return err
	}
	interval := w.server.cfg.BookmarkInterval
	bookmark := time.NewTicker(interval - interval/10 + rand.N(interval/5+1)) // spread out over the watches
	defer bookmark.Stop()
	for {
		if err := w.sendPending(); err != nil {
			return err
		}
		select {
		case <-w.cursor.Ready():
		case <-bookmark.C:
			if err := w.sendBookmark(w.cursor.Position(), false); err != nil {
				return err
			}
		case <-w.server.closed:
			return w.sendBookmark(w.cursor.Position(), false)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return w.sendBookmark(w.cursor.Position(), false)
			}
			return ctx.Err()
		}
	}
}

// sendInitial sends the state that the watch starts with.
func (w *watcher) sendInitial() error {
	if w.initial == nil {
		return w.out.flush() // the header, so that the client knows that it watches
	}
	for o := range w.initial.List(w.selector.kind.GroupResource(), w.selector.namespace) {
		ok, err := w.selector.matches(w.server.decoder, o)
		if err != nil {
			return w.fail(err)
		}
		if !ok {
			continue
		}
		if err := w.send(watch.Added, o, false); err != nil {
			return err
		}
	}
	revision := w.initial.Revision()
	w.initial = nil // it may be large, and it is old
	if w.announce {
		return w.sendBookmark(revision, true)
	}
	return w.out.flush()
}

// sendPending sends what the store has and flushes it.
func (w *watcher) sendPending() error {
	for {
		events, err := w.cursor.Next(watchBatch)
		if err != nil {
			return w.fail(err)
		}
		if len(events) == 0 {
			if err := w.server.cfg.Store.Err(); err != nil {
				return w.fail(err)
			}
			return w.out.flush()
		}
		for _, e := range events {
			if err := w.sendEvent(e); err != nil {
				return err
			}
		}
	}
}

// sendEvent sends one change as the watch's selection sees it: what comes into
// the selection is added, what leaves it is deleted, with its last state inside
// and the revision of the change.
func (w *watcher) sendEvent(e fsm.Event) error {
	if e.Object.Key.Resource != w.selector.kind.GroupResource() || !w.selector.hasKey(e.Object.Key) {
		return nil
	}
	was, is := e.Prev != nil, !e.Deleted
	var err error
	if was {
		if was, err = w.selector.matches(w.server.decoder, e.Prev); err != nil {
			return w.fail(err)
		}
	}
	if is {
		if is, err = w.selector.matches(w.server.decoder, e.Object); err != nil {
			return w.fail(err)
		}
	}
	switch {
	case was && is:
		return w.send(watch.Modified, e.Object, false)
	case is:
		return w.send(watch.Added, e.Object, false)
	case was && e.Deleted:
		return w.send(watch.Deleted, e.Object, false)
	case was:
		// Its revision is that of another state of the object, which the
		// caches hold: this one must not be looked up there.
		return w.send(watch.Deleted, storedVersion(e.Prev, e.Revision), true)
	}
	return nil
}

func (w *watcher) send(event watch.EventType, o *fsm.Object, uncached bool) error {
	frame, err := w.events.object(w.out.next(), event, o, uncached)
	if err != nil {
		return w.fail(err)
	}
	w.server.metrics.events.Inc()
	return w.out.add(frame)
}

// sendBookmark tells the client up to where it has seen everything; initial
// marks the end of the initial state, else only a client that asked gets one.
func (w *watcher) sendBookmark(revision uint64, initial bool) error {
	if !initial && !w.bookmarks {
		return nil
	}
	frame, err := w.events.bookmark(w.out.next(), revision, initial)
	if err != nil {
		return w.fail(err)
	}
	if err := w.out.add(frame); err != nil {
		return err
	}
	return w.out.flush()
}

// fail ends the watch with an ERROR event: 410 when it was left behind.
func (w *watcher) fail(err error) error {
	wire := err
	if errors.Is(err, fsm.ErrCompacted) {
		w.server.metrics.expired.Inc()
		wire = apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d", w.cursor.Position()))
	} else {
		w.server.logger.Warn("watch failed", "resource", w.selector.kind.GroupResource(), "error", err)
	}
	frame, encodeErr := w.events.failure(w.out.next(), toStatus(wire))
	if encodeErr != nil {
		return errors.Join(err, encodeErr)
	}
	if sendErr := w.out.add(frame); sendErr != nil {
		return sendErr
	}
	if sendErr := w.out.flush(); sendErr != nil {
		return sendErr
	}
	return err
}
