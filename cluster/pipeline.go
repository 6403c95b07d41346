package cluster

import (
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// AppendEntriesPipeline opens a pipeline that closes itself with its first
// failure. Raft stops reading answers after one, and notices that only between
// two sends: when it is in a send that waits for room, it waits for ever. The
// leader then never replicates to that follower again, whose heartbeats go on,
// and Raft can not be shut down. A closed pipeline ends the send.
func (t *Transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	inner, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, fmt.Errorf("pipeline to %s: %w", id, err)
	}
	return newPipeline(inner), nil
}

func newPipeline(inner raft.AppendPipeline) *pipeline {
	p := &pipeline{AppendPipeline: inner, answers: make(chan raft.AppendFuture), closed: make(chan struct{})}
	go p.forward()
	return p
}

// pipeline passes on the answers of another one until the first failure.
type pipeline struct {
	raft.AppendPipeline
	answers chan raft.AppendFuture
	once    sync.Once
	closed  chan struct{}
	err     error // of closing; set once
}

// Consumer returns the answers.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

// Close closes the pipeline.
func (p *pipeline) Close() error {
	p.once.Do(func() {
		close(p.closed)
		p.err = p.AppendPipeline.Close()
	})
	return p.err
}

func (p *pipeline) forward() {
	for {
		select {
		case f := <-p.AppendPipeline.Consumer():
			select {
			case p.answers <- f:
			case <-p.closed:
				return
			}
			// It was answered before it came here, so this does not wait.
			if f.Error() != nil || !f.Response().Success {
				_ = p.Close() // Raft closes it too, and hears of an error then
				return
			}
		case <-p.closed:
			return
		}
	}
}
