package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// registerOp is an operation on one register as its client saw it.
type registerOp struct {
	kind, key string // GET, PUT or CAS
	from, to  string
}

// registerOut is what it answered. unknown: it may have happened, or not, or
// may still.
type registerOut struct {
	value   string
	ok      bool
	unknown bool
}

// registerModel says what a linearizable register may answer.
var registerModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := make(map[string][]porcupine.Operation)
		for _, op := range history {
			key := op.Input.(registerOp).key
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		value, in, out := state.(string), input.(registerOp), output.(registerOut)
		switch in.kind {
		case "GET":
			return out.unknown || out.value == value, value
		case "PUT":
			return true, in.to
		}
		if out.unknown {
			if value == in.from {
				return true, in.to
			}
			return true, value
		}
		if out.ok {
			return value == in.from, in.to
		}
		return value != in.from && out.value == value, value
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
}

// recorder collects the history of all clients. Its clock counts events, so
// that what came first in the bubble's frozen time also comes first here.
type recorder struct {
	clock atomic.Int64
	mu    sync.Mutex
	ops   []porcupine.Operation

	appended map[string]bool // word -> acknowledged; absent: never tried or surely refused
}

func (r *recorder) add(client int, in registerOp, call int64, out registerOut) {
	end := r.clock.Add(1)
	if out.unknown {
		end = math.MaxInt64
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: call, Return: end})
}

// client does random operations, one after the other, at random servers, until
// the cluster is whole. Then every server must serve it.
func (r *recorder) client(c *simCluster, id int, rng *rand.Rand, whole <-chan struct{}) {
	last := ""
	for seq := 0; ; seq++ {
		select {
		case <-whole:
			r.visit(c, id)
			return
		case <-time.After(time.Duration(rng.Intn(60)) * time.Millisecond):
		}
		h := c.hosts[rng.Intn(len(c.hosts))]
		if n, _ := h.current(); n == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
		key := fmt.Sprintf("/r%d", rng.Intn(3))
		value := fmt.Sprintf("c%d.%d", id, seq)
		call := r.clock.Add(1)
		switch dice := rng.Intn(10); {
		case dice < 4:
			got, err := c.read(ctx, h, key)
			if err == nil {
				r.add(id, registerOp{kind: "GET", key: key}, call, registerOut{value: got})
				last = got
			}
		case dice < 6:
			r.write(ctx, c, h, id, registerOp{kind: "PUT", key: key, to: value}, call)
		case dice < 8:
			r.write(ctx, c, h, id, registerOp{kind: "CAS", key: key, from: last, to: value}, call)
		default:
			status, _, err := c.write(ctx, h, "APPEND", "/list", value)
			r.mu.Lock()
			switch {
			case err == nil && status == 200:
				r.appended[value] = true
			case err == nil || !errors.Is(err, ErrAmbiguous):
			default:
				r.appended[value] = false
			}
			r.mu.Unlock()
		}
		cancel()
	}
}

// visit writes and reads through every server until it has succeeded.
func (r *recorder) visit(c *simCluster, id int) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	const key = "/r0"
	for _, h := range c.hosts {
		written, read := false, false
		for n := 0; !read; n++ {
			if ctx.Err() != nil {
				c.t.Errorf("%s of a cluster that is whole does not serve client %d; written: %v", h.name, id, written)
				return
			}
			call := r.clock.Add(1)
			if !written {
				op := registerOp{kind: "PUT", key: key, to: fmt.Sprintf("c%d.%s.%d", id, h.name, n)}
				written = r.write(ctx, c, h, id, op, call)
			} else if got, err := c.read(ctx, h, key); err == nil {
				r.add(id, registerOp{kind: "GET", key: key}, call, registerOut{value: got})
				read = true
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// write reports whether the write has surely happened.
func (r *recorder) write(ctx context.Context, c *simCluster, h *simHost, id int, op registerOp, call int64) bool {
	body := op.to
	if op.kind == "CAS" {
		body = op.from + " " + op.to
	}
	status, answer, err := c.write(ctx, h, op.kind, op.key, body)
	switch {
	case err == nil && status == 200:
		r.add(id, op, call, registerOut{ok: true})
	case err == nil && status == 409:
		r.add(id, op, call, registerOut{value: answer})
	case err == nil:
		c.t.Errorf("%+v: status %d %s", op, status, answer)
	case errors.Is(err, ErrAmbiguous):
		r.add(id, op, call, registerOut{unknown: true})
	}
	return err == nil && status == http.StatusOK
}

// check fails the test unless the history is linearizable and every appended
// word is in the list as often as it may be.
func (r *recorder) check(t *testing.T, list string) {
	t.Helper()
	if res := porcupine.CheckOperationsTimeout(registerModel, r.ops, 30*time.Second); res != porcupine.Ok {
		t.Errorf("history of %d operations: %v", len(r.ops), res)
		if path := t.ArtifactDir(); path != "" {
			_, info := porcupine.CheckOperationsVerbose(registerModel, r.ops, 30*time.Second)
			if err := porcupine.VisualizePath(registerModel, info, path+"/history.html"); err != nil {
				t.Error(err)
			}
			t.Log("drawn in", path+"/history.html", "(-artifacts keeps it)")
		}
	}
	count := make(map[string]int)
	for _, word := range strings.Fields(list) {
		count[word]++
	}
	for word, acked := range r.appended {
		if acked && count[word] == 0 {
			t.Errorf("%s was acknowledged and is lost", word)
		}
	}
	for word, times := range count {
		if times > 1 {
			t.Errorf("%s was applied %d times", word, times)
		}
		if _, tried := r.appended[word]; !tried {
			t.Errorf("%s was refused and is there", word)
		}
	}
}
