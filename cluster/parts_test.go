package cluster

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/fsm"
)

// TestRoundsAreSharedAndBeginLater: who asks while a round runs must not get
// its answer, and all who ask meanwhile share the next one.
func TestRoundsAreSharedAndBeginLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Uint64
		var all tasks
		r := newRounds(&all, func() (uint64, error) {
			now := begun.Add(1)
			time.Sleep(10 * time.Millisecond)
			return now, nil
		})
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Microsecond)
				before := begun.Load()
				if got, err := r.join(t.Context()); err != nil || got <= before {
					t.Errorf("round %d answers a question asked after round %d began, %v", got, before, err)
				}
			})
		}
		wg.Wait()
		if n := begun.Load(); n > 3 {
			t.Errorf("%d rounds for 10 ms of questions", n)
		}
		all.wait()
		if _, err := r.join(t.Context()); !errors.Is(err, ErrStopped) {
			t.Errorf("a round after the end: %v", err)
		}
	})
}

func TestClockNeverGoesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClock(fsm.New(fsm.DefaultConfig()))
		ahead := time.Now().Add(time.Hour).UTC()
		if got := c.advance(ahead); !got.Equal(ahead) {
			t.Errorf("advanced to %v, want %v", got, ahead)
		}
		time.Sleep(time.Minute)
		if got := c.advance(ahead.Add(-time.Hour)); !got.Equal(ahead.Add(time.Minute)) {
			t.Errorf("after a minute and an old time: %v, want %v", got, ahead.Add(time.Minute))
		}
	})
}

// stuckPipeline is a pipeline whose sends wait until it is closed.
type stuckPipeline struct {
	answers chan raft.AppendFuture
	closed  chan struct{}
}

func (p *stuckPipeline) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	<-p.closed
	return nil, raft.ErrPipelineShutdown
}
func (p *stuckPipeline) Consumer() <-chan raft.AppendFuture { return p.answers }
func (p *stuckPipeline) Close() error                       { close(p.closed); return nil }

// rejected is an answer that ends Raft's reading of the pipeline.
type rejected struct{ raft.AppendFuture }

func (rejected) Error() error { return nil }
func (rejected) Response() *raft.AppendEntriesResponse {
	return &raft.AppendEntriesResponse{Success: false}
}

func TestPipelineEndsWithItsFirstFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := &stuckPipeline{answers: make(chan raft.AppendFuture, 1), closed: make(chan struct{})}
		p := newPipeline(inner)
		sent := make(chan error, 1)
		go func() {
			_, err := p.AppendEntries(nil, nil)
			sent <- err
		}()
		inner.answers <- rejected{}
		<-p.Consumer() // Raft's last look at the answers
		select {
		case err := <-sent:
			if !errors.Is(err, raft.ErrPipelineShutdown) {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("the send still waits")
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}
