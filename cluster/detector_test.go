package cluster

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// silentLayer is a stream layer to which nobody connects.
type silentLayer struct{ net.Listener }

func (silentLayer) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	return nil, syscall.ENETUNREACH
}

func TestElectNeverBlocks(t *testing.T) {
	yes := func() bool { return true }
	for name, c := range map[string]struct {
		allowed func() bool
		raft    func(<-chan raft.RPC)
		close   bool
		want    error
	}{
		"nobody takes the call":   {yes, func(<-chan raft.RPC) {}, false, context.DeadlineExceeded},
		"nobody answers it":       {yes, func(calls <-chan raft.RPC) { <-calls }, false, context.DeadlineExceeded},
		"it is refused":           {yes, func(calls <-chan raft.RPC) { rpc := <-calls; rpc.Respond(nil, errSilent) }, false, errSilent},
		"it works":                {yes, func(calls <-chan raft.RPC) { rpc := <-calls; rpc.Respond(&raft.TimeoutNowResponse{}, nil) }, false, nil},
		"it is not allowed":       {func() bool { return false }, func(<-chan raft.RPC) {}, false, errNotNow},
		"the transport is closed": {yes, func(<-chan raft.RPC) {}, true, raft.ErrTransportShutdown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tr := NewTransport(silentLayer{newSimNet(1).listen("raft", "a:1")}, time.Second, nil)
				if c.close {
					if err := tr.Close(); err != nil {
						t.Error(err)
					}
				}
				go c.raft(tr.Consumer())
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := tr.Elect(ctx, "a", "a:1", c.allowed); !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
				if err := tr.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestElectIsWithdrawn: what was allowed when Raft was busy must still be when
// it takes the call.
func TestElectIsWithdrawn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := NewTransport(silentLayer{newSimNet(1).listen("raft", "a:1")}, time.Second, nil)
		defer tr.Close()
		begun := time.Now()
		err := tr.Elect(t.Context(), "a", "a:1", func() bool { return time.Since(begun) < 100*time.Millisecond })
		if took := time.Since(begun); !errors.Is(err, errNotNow) || took > 110*time.Millisecond {
			t.Errorf("%v after %v", err, took)
		}
	})
}

func TestVotesAreRetried(t *testing.T) {
	stale := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	for name, c := range map[string]struct {
		fails []error
		tries int
		want  error
	}{
		"good":                    {nil, 1, nil},
		"a whole pool is stale":   {[]error{stale, stale, stale}, 4, nil},
		"refused":                 {[]error{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}, 1, syscall.ECONNREFUSED},
		"stale, then refused":     {[]error{stale, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}, 2, syscall.ECONNREFUSED},
		"closed":                  {[]error{raft.ErrTransportShutdown}, 1, raft.ErrTransportShutdown},
		"it never works":          {[]error{stale, stale, stale, stale, stale, stale, stale, stale}, voteTries, syscall.ECONNRESET},
		"it is unreachable first": {[]error{syscall.ENETUNREACH, syscall.ENETUNREACH}, 3, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			tr := NewTransport(silentLayer{newSimNet(1).listen("raft", "a:1")}, time.Second, nil)
			defer tr.Close()
			tries := 0
			err := tr.retryVote(func() error {
				if tries++; tries <= len(c.fails) {
					return c.fails[tries-1]
				}
				return nil
			})
			if tries != c.tries || !errors.Is(err, c.want) {
				t.Errorf("%s: %d tries, %v; want %d, %v", name, tries, err, c.tries, c.want)
			}
		})
	}
}

// TestTransportKeepsPreVote: Raft turns pre-vote off without a word if the
// transport does not have it.
func TestTransportKeepsPreVote(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := NewTransport(silentLayer{newSimNet(1).listen("raft", "a:1")}, time.Second, nil)
		defer tr.Close()
		var asRaftSeesIt raft.Transport = tr
		if _, ok := asRaftSeesIt.(raft.WithPreVote); !ok {
			t.Error("pre-vote is lost")
		}
		if _, ok := asRaftSeesIt.(raft.WithClose); !ok {
			t.Error("closing is lost")
		}
	})
}
