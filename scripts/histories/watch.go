package histories

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// event is a change as a watch shows it.
type event struct {
	Type     string
	Key, UID string
	Revision uint64
	Data     data
}

// applyTo carries the change out and returns the value that it brought.
func (e event) applyTo(state map[string]answer) (tag string) {
	old := state[e.Key]
	if e.Type == "DELETED" {
		delete(state, e.Key)
		return ""
	}
	state[e.Key] = answer{Is: isOK, UID: e.UID, Version: e.Revision, Data: e.Data}
	if e.Data.V != old.Data.V || e.UID != old.UID {
		return e.Data.V
	}
	return e.Data.P
}

// segment is a stretch of revisions that a watcher has looked at without a gap,
// at however many replicas.
type segment struct {
	what     string
	from, to uint64
	events   []event
}

// watcher follows the ConfigMaps as an informer does: it lists, watches, and
// goes on at another replica when a watch ends, until it is told that the
// revision is gone. It belongs to one goroutine.
type watcher struct {
	run   *Run
	id    int
	rng   *rand.Rand
	goal  func() uint64 // the revision at which it may end; 0 as long as that is not known
	state map[string]answer
	seg   *segment // nil when it has to list
	last  uint64   // what it had seen when it last had to list
	// bookmarked: the revision that seg.to stands at came from a bookmark.
	bookmarked bool
}

func (w *watcher) name() string { return fmt.Sprintf("watcher %d", w.id) }

func (w *watcher) problem(format string, args ...any) {
	w.run.rec.problem("%s: %s", w.name(), fmt.Sprintf(format, args...))
}

// follow watches until the goal is reached or the context ends.
func (w *watcher) follow(ctx context.Context) {
	for ctx.Err() == nil {
		if goal := w.goal(); goal != 0 && w.seg != nil && w.seg.to >= goal {
			return
		}
		replica := w.run.pick(w.rng)
		attempt, cancel := context.WithTimeout(ctx, w.run.Patience)
		err := w.attempt(attempt, replica)
		cancel()
		if err != nil {
			w.run.pause(ctx, time.Duration(1+w.rng.Intn(50))*time.Millisecond)
		}
	}
	w.problem("it has not reached the end, revision %d", w.goal())
}

func (w *watcher) attempt(ctx context.Context, replica Replica) error {
	query := url.Values{"watch": {"1"}, "allowWatchBookmarks": {"true"}, "timeoutSeconds": {strconv.Itoa(1 + w.rng.Intn(2))}}
	initial := false
	switch {
	case w.seg != nil:
		query.Set("resourceVersion", strconv.FormatUint(w.seg.to, 10))
	case w.rng.Intn(2) == 0: // the state comes with the watch
		initial = true
		query.Set("sendInitialEvents", "true")
		query.Set("resourceVersionMatch", "NotOlderThan")
	default:
		return w.list(ctx, replica)
	}
	call := w.run.rec.now()
	resp, err := w.run.request(ctx, replica, http.MethodGet, w.run.path("")+"?"+query.Encode(), "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return w.ended(resp.StatusCode, resp.Body)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	if initial {
		if err := w.initial(lines, replica, call); err != nil {
			return err
		}
	}
	for lines.Scan() {
		if err := w.line(lines.Bytes()); err != nil {
			return err
		}
		if goal := w.goal(); goal != 0 && w.seg.to >= goal {
			return nil
		}
	}
	return lines.Err()
}

// ended takes an answer that is no watch. Only when the revision is gone the
// watcher lists again: watcher 0 asks the other replicas first.
func (w *watcher) ended(code int, body io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(body, 4096))
	if err != nil {
		return err
	}
	if code == http.StatusGone && w.seg != nil {
		w.gone()
	}
	return fmt.Errorf("status %d: %s", code, text)
}

func (w *watcher) gone() {
	if w.id != 0 || w.rng.Intn(20) == 0 {
		w.last, w.seg = w.seg.to, nil
	}
}

// list begins a segment with a list.
func (w *watcher) list(ctx context.Context, replica Replica) error {
	l, call, err := w.run.list(ctx, replica)
	if err != nil {
		return err
	}
	l.what = w.name() + "'s list at " + replica.Name
	w.run.rec.addList(1000+w.id, nil, l, call)
	w.begin(l.revision, maps.Clone(l.objects))
	return nil
}

func (w *watcher) begin(revision uint64, state map[string]answer) {
	if revision < w.last {
		w.problem("the state that it was given is of revision %d, after it had seen %d", revision, w.last)
	}
	w.seg = &segment{what: w.name(), from: revision, to: revision}
	w.state = state
	w.run.rec.mu.Lock()
	w.run.rec.segments = append(w.run.rec.segments, w.seg)
	w.run.rec.mu.Unlock()
}

// initial reads a state that comes as additions with a bookmark behind them.
func (w *watcher) initial(lines *bufio.Scanner, replica Replica, call moment) error {
	state := make(map[string]answer)
	for lines.Scan() {
		e, obj, err := parseEvent(lines.Bytes())
		if err != nil {
			return err
		}
		switch {
		case e.Type == "ADDED":
			if _, twice := state[e.Key]; twice {
				w.problem("the initial state has %s twice", e.Key)
			}
			state[e.Key] = answer{Is: isOK, UID: e.UID, Version: e.Revision, Data: e.Data}
		case e.Type == "BOOKMARK" && obj.Metadata.Annotations["k8s.io/initial-events-end"] == "true":
			l := list{revision: e.Revision, objects: maps.Clone(state), what: w.name() + "'s initial state at " + replica.Name}
			w.run.rec.addList(1000+w.id, nil, l, call)
			w.begin(e.Revision, state)
			return nil
		case e.Type == "ERROR":
			return fmt.Errorf("%s", lines.Bytes())
		default:
			w.problem("%s in the middle of the initial state", e.Type)
		}
	}
	return fmt.Errorf("the initial state is not complete: %w", lines.Err())
}

// line takes one line of a watch.
func (w *watcher) line(line []byte) error {
	e, obj, err := parseEvent(line)
	if err != nil {
		return err
	}
	switch e.Type {
	case "ERROR":
		if obj.Code == http.StatusGone {
			w.gone()
		}
		return fmt.Errorf("%s", line)
	case "BOOKMARK":
		if e.Revision < w.seg.to {
			w.problem("a bookmark says %d after %d", e.Revision, w.seg.to)
		}
		w.seg.to, w.bookmarked = max(w.seg.to, e.Revision), true
		return nil
	}
	if e.Revision <= w.seg.to {
		why := "twice, or out of order"
		if w.bookmarked {
			why = "and the bookmark was ahead of it"
		}
		w.problem("%s %s has revision %d after %d: %s", e.Type, e.Key, e.Revision, w.seg.to, why)
	}
	old, there := w.state[e.Key]
	switch {
	case e.Type == "ADDED" && there, e.Type != "ADDED" && (!there || old.UID != e.UID), e.Type == "DELETED" && old.Data != e.Data:
		w.problem("%+v does not follow %+v", e, old)
	}
	e.applyTo(w.state)
	w.seg.to, w.bookmarked = max(w.seg.to, e.Revision), false
	w.seg.events = append(w.seg.events, e)
	return nil
}

func parseEvent(line []byte) (event, wireObject, error) {
	var frame struct {
		Type   string
		Object wireObject
	}
	if err := json.Unmarshal(line, &frame); err != nil {
		return event{}, frame.Object, fmt.Errorf("event %q: %w", line, err)
	}
	a := frame.Object.answer()
	return event{Type: frame.Type, Key: frame.Object.Metadata.Name, UID: a.UID, Revision: a.Version, Data: a.Data}, frame.Object, nil
}
