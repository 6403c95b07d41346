package histories

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"strconv"
	"time"
)

// client does one random operation after the other, each at a random replica.
// It belongs to one goroutine.
type client struct {
	run  *Run
	id   int
	rng  *rand.Rand
	seen [8]uint64 // per key, the version that this client was told last
	todo []service // what it has still to be given, once the cluster is whole
}

// service is what a replica gives a client: a read, or a write that succeeds.
type service struct {
	replica Replica
	write   bool
}

func (c *client) work(ctx context.Context) {
	whole := c.run.whole
	for n := 0; ctx.Err() == nil; n++ {
		c.run.pause(ctx, time.Duration(c.rng.Int63n(int64(c.run.Think))))
		select {
		case <-whole:
			whole = nil
			for _, r := range c.run.Replicas {
				c.todo = append(c.todo, service{r, true}, service{r, false})
			}
		default:
		}
		// What has begun is finished: its outcome counts.
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.run.Patience)
		c.once(attempt, fmt.Sprintf("%d.%d", c.id, n))
		cancel()
	}
}

// firstRead is the number of the dice from which on it stands for a read.
const firstRead = 16

// once does one operation; tag is the value of a write.
func (c *client) once(ctx context.Context, tag string) {
	replica, dice := c.run.pick(c.rng), c.rng.Intn(20)
	if len(c.todo) > 0 {
		replica = c.todo[0].replica
		for c.todo[0].write != (dice < firstRead) {
			dice = c.rng.Intn(20)
		}
	}
	k := c.rng.Intn(c.run.Keys)
	op := operation{Key: c.run.keys()[k]}
	conditional := c.rng.Intn(2) == 0
	switch {
	case dice < 4:
		op.Verb, op.Data.V = verbCreate, tag
	case dice < 9:
		op.Verb, op.Data.V = verbUpdate, tag
	case dice < 13:
		op.Verb, op.Data.P = verbPatch, tag
	case dice < 15:
		op.Verb = verbDelete
	case dice < firstRead:
		c.purge(ctx, replica)
		return
	case dice < 19:
		op.Verb = verbGet
	default:
		call := c.run.rec.now()
		if l, _, err := c.run.list(ctx, replica); err == nil {
			l.what = fmt.Sprintf("client %d's list at %s", c.id, replica.Name)
			c.run.rec.addList(c.id, c.run.keys(), l, call)
			c.served()
		}
		return
	}
	if conditional && op.Verb != verbCreate && op.Verb != verbGet {
		op.Version = c.seen[k]
	}
	call := c.run.rec.now()
	a := c.send(ctx, replica, op)
	c.run.rec.add(c.id, op, a, call)
	if a.Version != 0 {
		c.seen[k] = a.Version
	}
	if a.Is == isOK || op.Verb == verbGet && a.Is == isNotFound {
		c.served()
	}
}

// purge deletes the whole collection. That is a deletion of each object, at a
// moment of its own; an object that was not there had a moment without it.
func (c *client) purge(ctx context.Context, replica Replica) {
	call := c.run.rec.now()
	outcome, deleted, err := c.run.deleteAll(ctx, replica)
	if err != nil {
		c.run.rec.problem("client %d: deletecollection at %s: %v", c.id, replica.Name, err)
	}
	for _, key := range c.run.keys() {
		op, a := operation{Verb: verbDelete, Key: key}, answer{Is: outcome}
		if o, ok := deleted[key]; ok {
			a = o
		} else if outcome == isOK {
			op.Verb, a.Is = verbGet, isNotFound
		}
		c.run.rec.add(c.id, op, a, call)
	}
	if len(deleted) > 0 {
		c.served()
	}
}

// served crosses off what the client has just been given.
func (c *client) served() {
	if len(c.todo) == 0 {
		return
	}
	if c.todo = c.todo[1:]; len(c.todo) == 0 {
		c.run.served <- struct{}{}
	}
}

// send asks the replica and reads its answer. Whatever does not say that the
// write has happened, or has not, is isUnknown.
func (c *client) send(ctx context.Context, to Replica, op operation) answer {
	method, name, contentType, body := op.request()
	resp, err := c.run.request(ctx, to, method, c.run.path(name), contentType, body)
	if err != nil {
		return answer{Is: isUnknown}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{Is: isUnknown}
	}
	a, err := readAnswer(op, resp, text)
	if err != nil {
		c.run.rec.problem("client %d: %+v at %s: %v", c.id, op, to.Name, err)
	}
	return a
}

// request is the operation as HTTP.
func (op operation) request() (method, name, contentType string, body []byte) {
	version := ""
	if op.Version != 0 {
		version = strconv.FormatUint(op.Version, 10)
	}
	metadata := fmt.Sprintf(`"metadata":{"name":%q,"resourceVersion":%q,"labels":{%q:""}}`, op.Key, version, ours)
	switch op.Verb {
	case verbCreate:
		return http.MethodPost, "", "application/json", fmt.Appendf(nil, `{%s,"data":{"V":%q}}`, metadata, op.Data.V)
	case verbUpdate:
		return http.MethodPut, op.Key, "application/json", fmt.Appendf(nil, `{%s,"data":{"V":%q}}`, metadata, op.Data.V)
	case verbPatch:
		patch := fmt.Appendf(nil, `{"data":{"P":%q}}`, op.Data.P)
		if version != "" {
			patch = fmt.Appendf(nil, `{%s,"data":{"P":%q}}`, metadata, op.Data.P)
		}
		return http.MethodPatch, op.Key, "application/merge-patch+json", patch
	case verbDelete:
		if version == "" {
			return http.MethodDelete, op.Key, "", nil
		}
		return http.MethodDelete, op.Key, "application/json", fmt.Appendf(nil, `{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"resourceVersion":%q}}`, version)
	}
	return http.MethodGet, op.Key, "", nil
}

// readAnswer says what an answer means. It is an error, and the outcome is not
// known, if the request must not be answered so.
func readAnswer(op operation, resp *http.Response, text []byte) (answer, error) {
	var o wireObject
	if err := json.Unmarshal(text, &o); err != nil {
		return answer{Is: isUnknown}, fmt.Errorf("%w: status %d: %s", errStrange, resp.StatusCode, text)
	}
	want := http.StatusOK
	if op.Verb == verbCreate {
		want = http.StatusCreated
	}
	switch code := resp.StatusCode; {
	case code == want && op.Verb == verbDelete:
		return answer{Is: isOK, UID: o.Details.UID}, nil
	case code == want:
		return o.answer(), nil
	case code == http.StatusNotFound && op.Verb != verbCreate:
		return answer{Is: isNotFound}, nil
	case code == http.StatusConflict && op.Verb == verbCreate && o.Reason == "AlreadyExists":
		return answer{Is: isExists}, nil
	case code == http.StatusConflict && op.Version != 0 && o.Reason == "Conflict":
		return answer{Is: isConflict}, nil
	}
	is, err := readFailure(resp, text)
	return answer{Is: is}, err
}

// readFailure says what the answer means to a write that has not got what it
// asked for.
func readFailure(resp *http.Response, text []byte) (is, error) {
	switch code := resp.StatusCode; {
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != "":
		return isRefused, nil // who invites a new attempt has done nothing
	case code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		return isUnknown, nil
	}
	return isUnknown, fmt.Errorf("%w: status %d: %s", errStrange, resp.StatusCode, text)
}
