package api

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// rawWatch is a watch in JSON as it is on the wire.
type rawWatch struct {
	t     *testing.T
	resp  *http.Response
	lines *bufio.Reader
}

type rawEvent struct {
	Type   string
	Object map[string]any
}

func (f *fixture) rawWatch(path, accept string) *rawWatch {
	f.t.Helper()
	resp := f.open(testContext(f.t), "admin", path, accept)
	f.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(resp.Body)
		f.t.Fatalf("watch %s: %d %s", path, resp.StatusCode, body)
	}
	return &rawWatch{t: f.t, resp: resp, lines: bufio.NewReader(resp.Body)}
}

// next is the next event; ok is false at the end of the stream.
func (w *rawWatch) next() (e rawEvent, ok bool) {
	w.t.Helper()
	line, err := w.lines.ReadBytes('\n')
	if err == io.EOF && len(line) == 0 {
		return e, false
	}
	if err == nil {
		err = json.Unmarshal(line, &e)
	}
	if err != nil {
		w.t.Fatalf("watch: %v, line %q", err, line)
	}
	return e, true
}

// want fails the test unless the next events are these, each written as
// "TYPE name".
func (w *rawWatch) want(events ...string) (last rawEvent) {
	w.t.Helper()
	for _, want := range events {
		e, ok := w.next()
		if got := e.String(); !ok || got != want {
			w.t.Fatalf("got event %q (%v), want %q", got, ok, want)
		}
		last = e
	}
	return last
}

func (e rawEvent) meta(field string) any {
	m, _ := e.Object["metadata"].(map[string]any)
	return m[field]
}

func (e rawEvent) String() string {
	if name, ok := e.meta("name").(string); ok {
		return e.Type + " " + name
	}
	return e.Type
}

func TestWatchResumesWithoutLossInOrder(t *testing.T) {
	f := newFixture(t)
	var revisions []string
	for i := range 20 {
		cm := testConfigMap("default", numbered("c", i), nil)
		f.put(cm)
		revisions = append(revisions, strconv.FormatUint(f.stored(cm).Modified, 10))
	}
	// From each revision a watch gives exactly what follows it, and goes on live.
	var watches []*rawWatch
	for start := 0; start < len(revisions); start += 7 {
		w := f.rawWatch("/api/v1/namespaces/default/configmaps"+query("watch", "1", "resourceVersion", revisions[start]), "")
		for i := start + 1; i < len(revisions); i++ {
			if e := w.want("ADDED " + numbered("c", i)); e.meta("resourceVersion") != revisions[i] {
				t.Fatalf("event of c%03d has revision %v, want %s", i, e.meta("resourceVersion"), revisions[i])
			}
		}
		watches = append(watches, w)
	}
	f.put(testConfigMap("kube-system", "elsewhere", nil))
	live := testConfigMap("default", "live", nil)
	f.put(live)
	live.Data = map[string]string{"k": "v"}
	f.change(live)
	gone := f.remove(live)
	for _, w := range watches {
		e := w.want("ADDED live", "MODIFIED live", "DELETED live")
		if e.meta("resourceVersion") != strconv.FormatUint(gone.Modified, 10) {
			t.Fatalf("the deletion has revision %v, want %d", e.meta("resourceVersion"), gone.Modified)
		}
	}
}

func TestWatchWithoutRevisionStartsWithTheState(t *testing.T) {
	f := newFixture(t)
	f.put(testConfigMap("default", "a", nil))
	f.put(testConfigMap("default", "b", nil))
	for _, rv := range []string{"", "0"} {
		w := f.rawWatch("/api/v1/namespaces/default/configmaps"+query("watch", "true", "resourceVersion", rv), "")
		w.want("ADDED a", "ADDED b")
	}
	w := f.rawWatch("/api/v1/namespaces/default/configmaps"+query("watch", "true", "fieldSelector", "metadata.name=b"), "")
	w.want("ADDED b")
	w = f.rawWatch("/api/v1/watch/namespaces/default/configmaps/a", "")
	w.want("ADDED a")
}

func TestWatchSelectorTransitions(t *testing.T) {
	f := newFixture(t)
	in, out := map[string]string{"app": "a", "step": "1"}, map[string]string{"app": "b"}
	cm := testConfigMap("default", "c", in)
	f.put(cm)
	for name, accept := range map[string]string{"object": "", "metadata": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"} {
		t.Run(name, func(t *testing.T) {
			w := f.rawWatch("/api/v1/configmaps"+query("watch", "1", "labelSelector", "app=a"), accept)
			w.want("ADDED c")
			cm.Labels = out
			left := f.change(cm)
			e := w.want("DELETED c")
			if got := fmt.Sprint(e.meta("labels")); got != "map[app:a step:1]" {
				t.Errorf("the object that left shows labels %s, want its last state in the selection", got)
			}
			if e.meta("resourceVersion") != strconv.FormatUint(left.Modified, 10) {
				t.Errorf("the object that left has revision %v, want %d", e.meta("resourceVersion"), left.Modified)
			}
			cm.Data = map[string]string{"silent": "yes"}
			f.change(cm)
			cm.Labels = in
			f.change(cm)
			w.want("ADDED c")
			cm.Data = nil
			f.change(cm)
			w.want("MODIFIED c")
			// The caches were not fed with the state under a foreign revision.
			resp, body := f.get("admin", "/api/v1/namespaces/default/configmaps/c", "")
			if resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"app":"a"`) {
				t.Errorf("get: %d %s", resp.StatusCode, body)
			}
		})
	}
}

func TestWatchListEndsInitialEventsWithABookmark(t *testing.T) {
	f := newFixture(t)
	f.put(testConfigMap("default", "a", nil))
	list := query("watch", "1", "sendInitialEvents", "true", "allowWatchBookmarks", "true", "resourceVersionMatch", "NotOlderThan")
	w := f.rawWatch("/api/v1/namespaces/default/configmaps"+list, "")
	at := f.revision()
	w.want("ADDED a")
	e := w.want("BOOKMARK")
	if e.meta("resourceVersion") != at {
		t.Errorf("bookmark at %v, want %s", e.meta("resourceVersion"), at)
	}
	annotations, _ := e.meta("annotations").(map[string]any)
	if annotations[metav1.InitialEventsAnnotationKey] != "true" {
		t.Errorf("bookmark lacks the annotation: %v", e.Object)
	}
	if e.Object["kind"] != "ConfigMap" || e.Object["apiVersion"] != "v1" {
		t.Errorf("bookmark is of kind %v", e.Object)
	}
	f.put(testConfigMap("default", "b", nil))
	w.want("ADDED b")

	resp, body := f.get("admin", "/api/v1/configmaps"+query("watch", "1", "sendInitialEvents", "true"), "")
	if resp.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(string(body), "resourceVersionMatch") {
		t.Errorf("sendInitialEvents alone: %d %s", resp.StatusCode, body)
	}
	// false: neither initial events nor their bookmark.
	w = f.rawWatch("/api/v1/namespaces/default/configmaps"+strings.Replace(list, "sendInitialEvents=true", "sendInitialEvents=false", 1), "")
	f.put(testConfigMap("default", "c", nil))
	w.want("ADDED c")
}

func TestWatchBookmarksAndTimeout(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.BookmarkInterval = 20 * time.Millisecond })
	w := f.rawWatch("/api/v1/configmaps"+query("watch", "1", "allowWatchBookmarks", "true", "resourceVersion", f.revision(), "timeoutSeconds", "1"), "")
	f.put(testConfigMap("default", "a", nil))
	sawAdded := false
	for {
		e, ok := w.next()
		if !ok {
			break
		}
		switch e.String() {
		case "ADDED a":
			sawAdded = true
		case "BOOKMARK":
			rv := e.meta("resourceVersion")
			if sawAdded && rv != f.revision() || !sawAdded && rv == f.revision() {
				// Before the event, a bookmark may not be at its revision.
				t.Fatalf("bookmark at %v, event seen: %v", rv, sawAdded)
			}
		default:
			t.Fatalf("unexpected %v", e)
		}
	}
	if !sawAdded {
		t.Fatal("the stream ended without the event")
	}
}

func TestWatchTooOld(t *testing.T) {
	f := newFixture(t)
	old := f.revision()
	w := f.rawWatch("/api/v1/configmaps"+query("watch", "1", "resourceVersion", old), "")
	f.overflow()
	resp, body := f.get("admin", "/api/v1/configmaps"+query("watch", "1", "resourceVersion", old), "")
	if resp.StatusCode != http.StatusGone || !strings.Contains(string(body), `"reason":"Expired"`) {
		t.Fatalf("got %d %s", resp.StatusCode, body)
	}
	// The open watch has seen everything, or was told in the stream.
	for {
		e, ok := w.next()
		if !ok || e.Type == "ERROR" {
			break
		}
		if e.meta("resourceVersion") == f.revision() {
			break
		}
	}
}

func TestWatchLeftBehindEndsWithError(t *testing.T) {
	f := newFixture(t)
	cursor, err := f.store.Cursor(f.store.View().Revision())
	if err != nil {
		t.Fatal(err)
	}
	f.overflow()
	rec := &streamRecorder{header: http.Header{}}
	options, err := parseListOptions(mustParse(t, "/api/v1/configmaps?watch=1"))
	if err != nil {
		t.Fatal(err)
	}
	w := &watcher{
		server: f.server, selector: options.selector, watchStart: watchStart{cursor: cursor},
		events: eventEncoder{server: f.server, kind: options.selector.kind},
		out:    newWatchWriter(rec, time.Second),
	}
	if err := w.run(t.Context()); err == nil {
		t.Fatal("a watcher that was left behind must end with an error")
	}
	var e rawEvent
	if err := json.Unmarshal([]byte(rec.String()), &e); err != nil {
		t.Fatalf("%v: %q", err, rec.String())
	}
	if e.Type != "ERROR" || e.Object["reason"] != "Expired" || e.Object["code"] != float64(http.StatusGone) {
		t.Fatalf("got %v", e)
	}
}

type streamRecorder struct {
	strings.Builder
	header http.Header
}

func (r *streamRecorder) Header() http.Header { return r.header }
func (r *streamRecorder) WriteHeader(int)     {}
func (r *streamRecorder) Flush()              {}

func TestWatchFromTheFuture(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.RevisionWait = 50 * time.Millisecond })
	resp, body := f.get("admin", "/api/v1/configmaps"+query("watch", "1", "resourceVersion", "999999"), "")
	if resp.StatusCode != http.StatusGatewayTimeout || !strings.Contains(string(body), "ResourceVersionTooLarge") {
		t.Fatalf("got %d %s", resp.StatusCode, body)
	}
}

func TestWatchSlowClientIsClosed(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.WatchWriteTimeout = 100 * time.Millisecond })
	// The client never reads: flow control stops the stream.
	resp := f.open(testContext(t), "admin", "/api/v1/configmaps?watch=1&resourceVersion="+f.revision(), "")
	defer resp.Body.Close()
	big := testConfigMap("default", "big", nil)
	big.BinaryData = map[string][]byte{"x": make([]byte, 1<<20)}
	f.put(big)
	for i := range 30 {
		big.BinaryData["x"][0] = byte(i + 1)
		f.change(big)
	}
	if _, err := io.Copy(io.Discard, readAfter(resp.Body, f, t)); err == nil {
		t.Fatal("the stream ended as if it were whole")
	}
}

// readAfter waits until the server has given the watcher up before it reads.
func readAfter(body io.Reader, f *fixture, t *testing.T) io.Reader {
	t.Helper()
	deadline := time.After(testTimeout)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for metricValue(t, f.server.metrics.slow) == 0 {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the watcher was not closed")
		}
	}
	return body
}

func TestWatchTable(t *testing.T) {
	f := newFixture(t)
	f.put(testPod("default", "a", "n1"))
	w := f.rawWatch("/api/v1/namespaces/default/pods?watch=1", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
	e, _ := w.next()
	if e.Object["kind"] != "Table" || e.Object["columnDefinitions"] == nil {
		t.Fatalf("first event: %v", e)
	}
	row := e.Object["rows"].([]any)[0].(map[string]any)
	if row["cells"].([]any)[0] != "a" {
		t.Errorf("row %v", row)
	}
	if kind := row["object"].(map[string]any)["kind"]; kind != "PartialObjectMetadata" {
		t.Errorf("row's object is a %v", kind)
	}
	f.put(testPod("default", "b", "n1"))
	if e, _ = w.next(); e.Object["columnDefinitions"] != nil || e.Type != "ADDED" {
		t.Errorf("second event: %v", e)
	}
}

func TestWatchEndsWhenTheServerCloses(t *testing.T) {
	f := newFixture(t)
	w := f.rawWatch("/api/v1/configmaps?watch=1&allowWatchBookmarks=true&resourceVersion="+f.revision(), "")
	f.server.Close()
	w.want("BOOKMARK")
	if e, ok := w.next(); ok {
		t.Fatalf("got %v after the end", e)
	}
}
