package histories

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Replica is a server as clients reach it.
type Replica struct {
	Name   string
	URL    string
	Client *http.Client
}

// Run is one history. Its fields must be set before Do, which is called once.
type Run struct {
	// Replicas are asked in no particular order, dead ones too.
	Replicas []Replica
	// Namespace holds the ConfigMaps. Nobody else may write them.
	Namespace string
	// Alone says that nothing else at all is written in the cluster.
	Alone bool
	// Seed decides what clients ask, though not when answers come.
	Seed int64
	// Clients and Watchers are how many there are; at least two watchers.
	Clients, Watchers int
	// Keys is how many ConfigMaps they share.
	Keys int
	// Think bounds a client's pause between two operations.
	Think time.Duration
	// Patience is how long a client waits for an answer.
	Patience time.Duration
	// Settle bounds what comes after the faults: the last reads, and what the
	// watchers have not seen yet.
	Settle time.Duration
	// Drawing is where a history without an order is drawn; empty: nowhere.
	Drawing string

	rec  *recorder
	goal atomic.Uint64

	whole  chan struct{} // closed by AwaitService
	served chan struct{} // from each client, once every replica has served it
}

// Report is what a run has found.
type Report struct {
	// Operations that were answered, and events and lists that were seen.
	Operations, Events, Lists int
	// Unknown counts the writes of which nobody knows whether they happened.
	Unknown int
	// Problems is everything that is wrong.
	Problems []string
}

func (r *Report) String() string {
	return fmt.Sprintf("%d operations answered, %d writes unknown, %d events, %d lists, %d problems",
		r.Operations, r.Unknown, r.Events, r.Lists, len(r.Problems))
}

// Do lets the clients and watchers work while faults runs, which must leave
// the cluster whole. It fails if the cluster cannot be read before or after.
func (r *Run) Do(ctx context.Context, faults func()) error {
	r.rec, r.whole, r.served = newRecorder(), make(chan struct{}), make(chan struct{}, r.Clients)
	if _, err := r.snapshot(ctx, "the first list"); err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	watching, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var clients, watchers sync.WaitGroup
	for i := range r.Clients {
		c := &client{run: r, id: i, rng: rand.New(rand.NewSource(r.Seed*1000 + int64(i)))}
		clients.Go(func() { c.work(working) })
	}
	for i := range r.Watchers {
		w := &watcher{run: r, id: i, rng: rand.New(rand.NewSource(r.Seed*1000 + 500 + int64(i))), goal: r.goal.Load}
		watchers.Go(func() { w.follow(watching) })
	}
	faults()
	stop()
	clients.Wait()
	// One who lists last has seen the last revision, which all watchers reach.
	last, err := r.snapshot(ctx, "the last list")
	r.goal.Store(last)
	timeout := time.AfterFunc(r.Settle, giveUp)
	defer timeout.Stop()
	if err != nil {
		giveUp()
	}
	watchers.Wait()
	return err
}

// AwaitService waits until every client has read, and has written with success,
// through every replica. It is called once, at the end of the faults, of a
// cluster that is whole. It fails if the context ends first.
func (r *Run) AwaitService(ctx context.Context) error {
	close(r.whole)
	for n := range r.Clients {
		select {
		case <-r.served:
		case <-ctx.Done():
			return fmt.Errorf("every replica of a cluster that is whole must serve all %d clients, and %d are not: %w", r.Clients, r.Clients-n, ctx.Err())
		}
	}
	return nil
}

// Check looks for what is wrong in what they were told. It measures its own
// time: it must not be called in a bubble, whose clock stands still.
func (r *Run) Check() *Report {
	rep := &Report{Operations: r.rec.acknowledged(), Lists: len(r.rec.lists), Problems: r.rec.check(r.Alone, r.Drawing)}
	rep.Unknown = len(r.rec.ops) - rep.Operations
	for _, s := range r.rec.segments {
		rep.Events += len(s.events)
	}
	return rep
}

// snapshot is a list that must succeed. It returns its revision.
func (r *Run) snapshot(ctx context.Context, what string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Settle)
	defer cancel()
	for i := 0; ; i++ {
		attempt, done := context.WithTimeout(ctx, r.Patience)
		l, call, err := r.list(attempt, r.Replicas[i%len(r.Replicas)])
		done()
		if err == nil {
			l.what = what
			r.rec.addList(-1, r.keys(), l, call)
			return l.revision, nil
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("%s: %w", what, err)
		}
		r.pause(ctx, 20*time.Millisecond)
	}
}

func (r *Run) keys() (keys []string) {
	for i := range r.Keys {
		keys = append(keys, fmt.Sprintf("k%d", i))
	}
	return keys
}

func (r *Run) pick(rng *rand.Rand) Replica { return r.Replicas[rng.Intn(len(r.Replicas))] }

// pause waits for d or until the context ends.
func (r *Run) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// path is that of a ConfigMap, or of all for "".
func (r *Run) path(name string) string {
	path := "/api/v1/namespaces/" + r.Namespace + "/configmaps"
	if name != "" {
		path += "/" + name
	}
	return path
}

func (r *Run) request(ctx context.Context, to Replica, method, path, contentType string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, to.URL+path, strings.NewReader(string(body)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	// A client that sends a request again by itself would be another subject.
	req.GetBody = nil
	return to.Client.Do(req)
}

// list asks a replica for all ConfigMaps.
func (r *Run) list(ctx context.Context, from Replica) (list, moment, error) {
	call := r.rec.now()
	resp, err := r.request(ctx, from, http.MethodGet, r.path(""), "", nil)
	if err != nil {
		return list{}, call, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return list{}, call, err
	}
	if resp.StatusCode != http.StatusOK {
		return list{}, call, fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}
	l, err := parseList(body)
	return l, call, err
}

// deleteAll deletes the collection and returns its objects as they were, each
// with the revision of its deletion.
func (r *Run) deleteAll(ctx context.Context, at Replica) (is, map[string]answer, error) {
	resp, err := r.request(ctx, at, http.MethodDelete, r.path("")+"?labelSelector="+ours, "", nil)
	if err != nil {
		return isUnknown, nil, nil // nobody knows what it has done
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return isUnknown, nil, nil
	}
	if resp.StatusCode != http.StatusOK {
		outcome, err := readFailure(resp, body)
		return outcome, nil, err
	}
	l, err := parseList(body)
	if err != nil {
		return isUnknown, nil, fmt.Errorf("%w: %w", errStrange, err)
	}
	return isOK, l.objects, nil
}

func parseList(body []byte) (list, error) {
	var found struct {
		Metadata struct{ ResourceVersion string }
		Items    []wireObject
	}
	if err := json.Unmarshal(body, &found); err != nil {
		return list{}, err
	}
	l := list{objects: make(map[string]answer, len(found.Items))}
	var err error
	if l.revision, err = strconv.ParseUint(found.Metadata.ResourceVersion, 10, 64); err != nil {
		return list{}, fmt.Errorf("revision of the list %s: %w", body, err)
	}
	for _, o := range found.Items {
		if o.Metadata.Name != notOurs {
			l.objects[o.Metadata.Name] = o.answer()
		}
	}
	return l, nil
}

// ours is the label of the ConfigMaps that the clients write.
const ours = "history"

// notOurs is a ConfigMap that a cluster puts into every namespace.
const notOurs = "kube-root-ca.crt"

// wireObject is a ConfigMap, or a Status, as far as it matters here.
type wireObject struct {
	Metadata struct {
		Name, UID, ResourceVersion string
		Annotations                map[string]string
	}
	Data    data
	Reason  string
	Message string
	Code    int
	Details struct{ UID string }
}

func (o wireObject) answer() answer {
	// No number: 0, which no stored object has.
	version, err := strconv.ParseUint(o.Metadata.ResourceVersion, 10, 64)
	if err != nil {
		version = 0
	}
	return answer{Is: isOK, UID: o.Metadata.UID, Version: version, Data: o.Data}
}

var errStrange = errors.New("an answer that this request must not get")
