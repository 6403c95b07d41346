package api

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/shepherd-project/shepherd/fsm"
)

// serveWatch streams the changes of a collection until the client goes away,
// its time is up, it falls behind, or the server closes.
func (s *Server) serveWatch(w http.ResponseWriter, r *http.Request, info requestInfo) {
	media, ok := negotiate(r.Header.Get("Accept"), shapesObject)
	if !ok || media.form == formYAML {
		s.writeError(w, r, errNotAcceptable(typeJSON+", "+typeProtobuf))
		return
	}
	if media.shape == shapeTable {
		if _, err := includeObject(info.Query); err != nil {
			s.writeError(w, r, err)
			return
		}
	}
	options, err := parseListOptions(info)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	start, err := s.startWatch(r.Context(), options)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	if err := s.authorize(s.cfg.Store.View(), identityFrom(r.Context()), info); err != nil {
		s.writeError(w, r, err)
		return
	}
	gauge := s.metrics.watches.WithLabelValues(info.Kind.GroupResource())
	gauge.Inc()
	defer gauge.Dec()

	ctx, cancel := context.WithTimeout(r.Context(), s.watchDuration(options))
	defer cancel()
	watcher := &watcher{
		server: s, selector: options.selector, bookmarks: options.AllowWatchBookmarks, watchStart: start,
		events: eventEncoder{server: s, kind: info.Kind, media: media, query: info.Query},
		out:    newWatchWriter(w, s.cfg.WatchWriteTimeout),
	}
	w.Header().Set("Content-Type", media.form.streamType())
	w.WriteHeader(http.StatusOK)
	err = watcher.run(ctx)
	switch {
	case errors.Is(err, errSlowWatcher): // it also ends the request's context
		s.metrics.slow.Inc()
		s.logger.Info("closed a watch whose client did not read", "path", r.URL.Path, "user", identityFrom(r.Context()).User)
		panic(http.ErrAbortHandler)
	case err != nil && r.Context().Err() == nil:
		s.logger.Debug("watch ended", "path", r.URL.Path, "error", err)
	}
}

// watchDuration is how long a watch lasts at most.
func (s *Server) watchDuration(o listOptions) time.Duration {
	if o.TimeoutSeconds != nil && *o.TimeoutSeconds > 0 {
		return time.Duration(min(*o.TimeoutSeconds, 24*60*60)) * time.Second
	}
	return s.cfg.WatchMin + rand.N(s.cfg.WatchMax-s.cfg.WatchMin+1)
}

// watchStart is where a watch begins.
type watchStart struct {
	cursor *fsm.Cursor
	// initial is the state that is sent first, as additions; nil for none.
	initial *fsm.View
	// announce: the end of the initial state is marked by a bookmark.
	announce bool
}

// startWatch finds the beginning of a watch: a revision to go on from, or the
// present state with what follows it.
func (s *Server) startWatch(ctx context.Context, o listOptions) (watchStart, error) {
	asked := o.SendInitialEvents != nil && *o.SendInitialEvents
	refused := o.SendInitialEvents != nil && !*o.SendInitialEvents
	if o.revision != 0 && !asked {
		if err := s.waitRevision(ctx, o.revision); err != nil {
			return watchStart{}, err
		}
		cursor, err := s.cfg.Store.Cursor(o.revision)
		if err != nil {
			return watchStart{}, s.storeError(err, o.revision)
		}
		return watchStart{cursor: cursor}, nil
	}
	for {
		view, err := s.readView(ctx, o.revision)
		if err != nil {
			return watchStart{}, err
		}
		cursor, err := s.cfg.Store.Cursor(view.Revision())
		if errors.Is(err, fsm.ErrCompacted) && ctx.Err() == nil {
			continue // a snapshot was installed, or a burst passed by, in between
		}
		if err != nil {
			return watchStart{}, s.storeError(err, view.Revision())
		}
		start := watchStart{cursor: cursor, announce: asked && o.AllowWatchBookmarks}
		if !refused {
			start.initial = view
		}
		return start, nil
	}
}
