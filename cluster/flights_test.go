package cluster

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

func copyOf(id, term, attempt uint64) *wire.Request {
	return &wire.Request{Nonce: [16]byte{byte(id), byte(id >> 8)}, Birth: 1, Method: "POST", Path: "/", Term: term, Attempt: attempt}
}

func TestFlights(t *testing.T) {
	const none, joins, flies = "none", "joins", "flies"
	steps := []struct {
		id, term, attempt uint64
		want              string
		lands             bool // at once
	}{
		{1, 5, 1, flies, false},
		{1, 5, 1, joins, false},
		{1, 5, 2, joins, false},
		{1, 5, 1, none, false}, // a later copy was here
		{2, 5, 2, flies, true},
		{2, 5, 1, none, false},
		{2, 5, 2, flies, true},
		{2, 5, 3, flies, true},
		{3, 5, 1, flies, true},
		{1, 6, 3, flies, false}, // the flight of term 5 can do nothing any more
		{1, 6, 3, joins, false},
		{1, 5, 4, none, false},
		{2, 6, 1, flies, true}, // whatever came before was sent to another term's leader
	}
	f := newFlights(fsm.New(fsm.DefaultConfig()).View)
	for i, step := range steps {
		fl, first := f.join(copyOf(step.id, step.term, step.attempt))
		got := joins
		switch {
		case fl == nil:
			got = none
		case first:
			got = flies
		}
		if got != step.want {
			t.Errorf("step %d, %+v: %s", i, step, got)
		}
		if step.lands && fl != nil {
			f.land(fl, &wire.Response{})
		}
	}
}

// TestFlightsForgetWhatIsTooOld: requests that are refused for their age need
// not be remembered, all others must.
func TestFlightsForgetWhatIsTooOld(t *testing.T) {
	store := fsm.New(fsm.Config{RingBytes: 1 << 20, MaxOutcomes: 1, MaxOutcomeBytes: 1 << 20, Level: fsm.Level})
	for i := range uint64(4) {
		id := fsm.RequestID{Nonce: [16]byte{15: byte(i + 1)}, Birth: i}
		store.Apply(&raft.Log{Index: i + 1, Term: 1, Type: raft.LogCommand, Data: fsm.EncodeEntry([]fsm.Command{{
			ID: id, Term: 1, Ops: []fsm.Op{{Verb: fsm.Create, Key: fsm.Key{Resource: "configmaps", Namespace: "a", Name: string(rune('a' + i))}, UID: "u", Data: []byte("x")}},
		}})})
	}
	if !store.View().Expired(fsm.RequestID{Nonce: [16]byte{1}, Birth: 1}) {
		t.Fatal("the table forgot nothing")
	}
	f := newFlights(store.View)
	for i := range uint64(minLatest - 1) { // no ID is zero
		fl, _ := f.join(copyOf(i+1, 1, 2))
		f.land(fl, &wire.Response{})
	}
	young := copyOf(5000, 1, 2)
	young.Birth = store.View().Revision()
	fl, _ := f.join(young)
	f.land(fl, &wire.Response{})
	if len(f.latest) != 1 {
		t.Errorf("%d requests are remembered", len(f.latest))
	}
	young.Attempt = 1
	if fl, _ := f.join(young); fl != nil {
		t.Error("one that is not too old was forgotten")
	}
}

// TestCopyIsHandledInItsTermOnly: what was sent to the leader of one term is
// not carried out in another, neither by a later leader nor before its time.
func TestCopyIsHandledInItsTermOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var handled atomic.Int64
		c := newSimCluster(t, 3, 3, func(cfg *Config) {
			cfg.Handler = func(context.Context, *wire.Request) *wire.Response {
				handled.Add(1)
				return &wire.Response{Status: 200}
			}
		})
		defer c.stop()
		n := c.waitLeader()
		term, _ := n.Leadership()
		for _, other := range []uint64{term - 1, term + 1} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if resp := n.lead(ctx, copyOf(1, other, 1)); !resp.NotLeader || handled.Load() != 0 {
				t.Errorf("in term %d a copy for term %d got %+v", term, other, resp)
			}
			cancel()
		}
		if resp := n.lead(t.Context(), copyOf(1, term, 1)); resp.Status != 200 || handled.Load() != 1 {
			t.Errorf("in its own term it got %+v", resp)
		}
	})
}

// TestLateCopyOfARefusal: a copy that was given up reaches the handler after a
// later one was refused, and what the refusal was about has changed. The client
// has been told that nothing was done, so nothing must be.
func TestLateCopyOfARefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 5, 3, nil)
		defer c.stop()
		leader := c.waitLeader()
		term, _ := leader.Leadership()
		other := c.hosts[0]
		if c.leader() == other {
			other = c.hosts[1]
		}
		follower, _ := other.current()
		send := func(req *wire.Request) *wire.Response {
			t.Helper()
			resp, err := call(t.Context(), follower, follower.level.Load().address, wire.LinkForward, wire.EncodeRequest(req), wire.DecodeResponse)
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		put := func(value string) {
			t.Helper()
			if status, _, err := c.write(t.Context(), other, "PUT", "x", value); err != nil || status != http.StatusOK {
				t.Fatalf("put: %d, %v", status, err)
			}
		}
		put("0")
		req := copyOf(1, term, 2)
		req.Birth, req.Method, req.Path, req.Body = follower.store.View().Revision(), "CAS", "x", []byte("1 ghost")
		if resp := send(req); resp.Status != http.StatusConflict {
			t.Fatalf("the second copy got %+v", resp)
		}
		put("1")
		late := *req
		late.Attempt = 1
		if resp := send(&late); !resp.NotLeader {
			t.Errorf("the first copy got %+v", resp)
		}
		if got := leader.store.View().Get(registerKey("x")); string(got.Data) != "1" {
			t.Errorf("there is %s", got.Data)
		}
	})
}
