package cluster

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

// TestForwardStreamHoldsNobodyUp sends requests through one follower: one that
// takes long, many small ones, one too large for the stream. Each gets its own
// answer as soon as that is known, and a stream that breaks is replaced.
func TestForwardStreamHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := make(chan struct{})
		var handled atomic.Int64
		c := newSimCluster(t, 7, 3, func(cfg *Config) {
			cfg.Handler = func(ctx context.Context, req *wire.Request) *wire.Response {
				handled.Add(1)
				if req.Path == "/slow" {
					select {
					case <-slow:
					case <-ctx.Done():
					}
				}
				return &wire.Response{Status: 200, Body: req.Body, Committed: true}
			}
		})
		defer c.stop()
		c.waitLeader()
		leader, follower := c.leader(), c.hosts[0]
		if follower == leader {
			follower = c.hosts[1]
		}
		n, _ := follower.current()
		send := func(ctx context.Context, path string, size int, fill byte) error {
			id := fsm.NewRequestID(0)
			body := bytes.Repeat([]byte{fill}, size)
			resp, err := n.Forward(ctx, &wire.Request{Nonce: id.Nonce, Method: "POST", Path: path, Body: body})
			if err == nil && (resp.Status != 200 || !bytes.Equal(resp.Body, body)) {
				err = errors.New("this is not its answer")
			}
			return err
		}

		begun := time.Now()
		slowly := make(chan error, 1)
		go func() { slowly <- send(t.Context(), "/slow", 10, 's') }()
		var quick sync.WaitGroup
		for i := range 300 {
			quick.Go(func() {
				if err := send(t.Context(), "/quick", i, byte(i)); err != nil {
					t.Errorf("request %d: %v", i, err)
				}
			})
		}
		quick.Go(func() {
			if err := send(t.Context(), "/quick", maxStreamed+1, 'x'); err != nil {
				t.Errorf("a large request: %v", err)
			}
		})
		quick.Wait()
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the quick ones took %v", took)
		}

		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := send(ctx, "/slow", 10, 'g'); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrAmbiguous) {
			t.Errorf("one that is given up: %v", err)
		}
		cancel()

		before := handled.Load()
		stream, err := n.links.stream(leader.addr)
		if err != nil {
			t.Fatal(err)
		}
		c.net.refuse("link", follower.addr, leader.addr)
		time.Sleep(100 * time.Millisecond)
		c.net.heal()
		close(slow)
		if err := <-slowly; err != nil {
			t.Errorf("the slow one: %v", err)
		}
		if err := send(t.Context(), "/quick", 1, 'a'); err != nil {
			t.Errorf("one after the network healed: %v", err)
		}
		now, err := n.links.stream(leader.addr)
		if err != nil {
			t.Fatal(err)
		}
		if again := handled.Load() - before; again < 2 || now == stream {
			t.Errorf("%d requests were handled after the stream broke, and it was replaced: %v", again, now != stream)
		}
	})
}

func TestForwardStreamRefusesWhatItCannotHold(t *testing.T) {
	g := newGathering()
	one := func(b []byte) []byte { return append(b, 1, 2, 3) }
	if !g.add(2, one) || g.add(2, one) || !g.add(3, one) {
		t.Error("the bound is not kept")
	}
	if got, ok := g.take(nil); !ok || len(got) != 6 {
		t.Errorf("took %v, %v", got, ok)
	}
	done := make(chan struct{})
	close(done)
	if got, ok := g.take(done); ok {
		t.Errorf("took %v after the end", got)
	}
}
