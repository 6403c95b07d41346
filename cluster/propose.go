package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/fsm"
)

// maxInFlight is how many entries of commands are on their way at once: one
// being written to disks while the next is being sent.
const maxInFlight = 2

// Propose puts a command into the log and returns what applying it gave. The
// caller has set its Term, from Leadership, before it read the view that the
// command was planned on; Time is filled in here.
//
// ErrNotLeader, ErrBusy, ErrLevel and a context that ended in time mean that nothing was
// changed; ErrAmbiguous that it may have been. The wait is bounded by
// Timing.Propose.
func (n *Node) Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	if term, leading := n.Leadership(); !leading || cmd.Term > term {
		return fsm.Result{}, ErrNotLeader
	}
	if err := n.checkCommand(&cmd); err != nil {
		return fsm.Result{}, err
	}
	start := time.Now()
	res, err := n.batch.propose(ctx, cmd)
	n.metrics.commit(time.Since(start), err)
	return res, err
}

// proposal is one command on its way. The batcher owns it; done receives once.
type proposal struct {
	cmd  fsm.Command
	size int
	done chan outcome
	sent bool // under batcher.mu: part of an entry, can no longer be taken back
}

type outcome struct {
	result fsm.Result
	err    error
}

// batcher commits in groups: commands that arrive while entries are in flight
// go into the next entry together.
type batcher struct {
	n *Node

	mu       sync.Mutex
	waiting  []*proposal
	inFlight int
	sending  bool          // a goroutine is in send
	pauses   int           // while above zero nothing is sent
	drained  chan struct{} // closed when nothing is in flight; nil if nobody waits for that
	closed   bool
	idle     chan struct{} // closed when closed and nothing is in flight
}

func newBatcher(n *Node) *batcher { return &batcher{n: n, idle: make(chan struct{})} }

func (b *batcher) propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	p := &proposal{cmd: cmd, size: commandSize(&cmd), done: make(chan outcome, 1)}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return fsm.Result{}, fmt.Errorf("%w: %w", ErrNotLeader, ErrStopped)
	}
	if len(b.waiting) >= b.n.cfg.MaxPending {
		b.mu.Unlock()
		return fsm.Result{}, ErrBusy
	}
	b.waiting = append(b.waiting, p)
	b.kickLocked()
	b.mu.Unlock()

	bound := time.NewTimer(b.n.timing.Propose)
	defer bound.Stop()
	var why error
	select {
	case o := <-p.done:
		return o.result, o.err
	case <-ctx.Done():
		why = ctx.Err()
	case <-bound.C:
		why = context.DeadlineExceeded
	}
	if b.takeBack(p) {
		return fsm.Result{}, why
	}
	select {
	case o := <-p.done: // it came at the last moment
		return o.result, o.err
	default:
		return fsm.Result{}, fmt.Errorf("%w: %w", ErrAmbiguous, why)
	}
}

// waitingCount is how many proposals are not part of an entry yet.
func (b *batcher) waitingCount() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

// takeBack removes a proposal that is not part of an entry yet.
func (b *batcher) takeBack(p *proposal) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.sent {
		return false
	}
	for i, q := range b.waiting {
		if q == p {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// kickLocked starts a sender if there is something to send and room for it.
func (b *batcher) kickLocked() {
	if b.sending || b.pauses > 0 || b.inFlight >= maxInFlight || len(b.waiting) == 0 {
		return
	}
	b.sending = true
	go b.send()
}

// send hands entries to Raft until nothing waits or enough is in flight. Only
// one runs at a time, so entries keep the order of their times.
func (b *batcher) send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer func() { b.sending = false }()
	for b.pauses == 0 && b.inFlight < maxInFlight && len(b.waiting) > 0 {
		group := b.takeLocked()
		b.inFlight++
		b.mu.Unlock()
		now := b.n.clock.now().UnixNano()
		cmds := make([]fsm.Command, len(group))
		for i, p := range group {
			p.cmd.Time = now
			cmds[i] = p.cmd
		}
		entry, err := b.n.keys.seal(fsm.EncodeEntry(cmds))
		if err != nil {
			b.n.logger.Error("proposals are refused", "error", err)
			go b.finish(group, refusedEntry{err: err})
			b.mu.Lock()
			continue
		}
		b.n.metrics.batchSize.Observe(float64(len(group)))
		b.n.metrics.batchBytes.Observe(float64(len(entry)))
		future := b.n.raft.Apply(entry, b.n.timing.Propose)
		go b.finish(group, future)
		b.mu.Lock()
	}
}

func (b *batcher) takeLocked() []*proposal {
	count, size := 0, 0
	for _, p := range b.waiting {
		if count > 0 && (count >= b.n.cfg.MaxBatch || size+p.size > b.n.cfg.MaxBatchBytes) {
			break
		}
		p.sent = true
		count++
		size += p.size
	}
	group := b.waiting[:count:count]
	b.waiting = append([]*proposal(nil), b.waiting[count:]...)
	return group
}

// finish waits for an entry's results and gives each to its proposal.
func (b *batcher) finish(group []*proposal, future raft.ApplyFuture) {
	results, err := b.results(group, future)
	for i, p := range group {
		if err != nil {
			p.done <- outcome{err: err}
		} else {
			p.done <- outcome{result: results[i]}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight--
	b.kickLocked()
	b.settleLocked()
}

func (b *batcher) results(group []*proposal, future raft.ApplyFuture) ([]fsm.Result, error) {
	if err := future.Error(); err != nil {
		return nil, proposalError(err)
	}
	switch r := future.Response().(type) {
	case []fsm.Result:
		if len(r) == len(group) {
			return r, nil
		}
		if len(r) == 1 && r[0].Code == fsm.Malformed { // the entry as a whole
			return repeat(r[0], len(group)), nil
		}
		return nil, fmt.Errorf("%w: %d results for %d commands", ErrAmbiguous, len(r), len(group))
	case error:
		return nil, fmt.Errorf("%w: %w", ErrAmbiguous, r)
	default:
		return nil, fmt.Errorf("%w: state machine answered %T", ErrAmbiguous, r)
	}
}

func repeat(r fsm.Result, count int) []fsm.Result {
	all := make([]fsm.Result, count)
	for i := range all {
		all[i] = r
	}
	return all
}

// proposalError tells the errors that Raft gives before it has taken an entry
// from all others, which say nothing about the entry's fate.
func proposalError(err error) error {
	switch {
	case errors.Is(err, errNotSealed): // Raft was not asked
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	case notWritten(err): // Raft steps down, and has sent it to nobody
		return fmt.Errorf("%w any more: its log cannot be written: %w", ErrNotLeader, err)
	}
	return fmt.Errorf("%w: %w", ErrAmbiguous, err)
}

// close refuses what waits and returns when no entry is in flight any more.
// Raft still runs and answers them all, unless its disk hangs; then that is
// waited for no longer than a leader without a majority may take.
func (b *batcher) close() {
	b.mu.Lock()
	b.closed = true
	for _, p := range b.waiting {
		p.sent = true
		p.done <- outcome{err: fmt.Errorf("%w: %w", ErrNotLeader, ErrStopped)}
	}
	b.waiting = nil
	b.settleLocked()
	b.mu.Unlock()
	t := time.NewTimer(b.n.timing.Propose)
	defer t.Stop()
	select {
	case <-b.idle:
	case <-t.C:
		b.n.logger.Error("a proposal did not end; the disk may hang")
	}
}

// pause holds back what has not been sent, and waits until what has is settled
// or the context ends. The caller calls resume in either case.
func (b *batcher) pause(ctx context.Context) (resume func(), err error) {
	b.mu.Lock()
	b.pauses++
	if b.inFlight > 0 && b.drained == nil {
		b.drained = make(chan struct{})
	}
	drained := b.drained
	b.mu.Unlock()
	resume = func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.pauses--
		b.kickLocked()
	}
	if drained == nil {
		return resume, nil
	}
	select {
	case <-drained:
		return resume, nil
	case <-ctx.Done():
		return resume, fmt.Errorf("wait for proposals: %w", ctx.Err())
	}
}

func (b *batcher) settleLocked() {
	if b.inFlight == 0 && b.drained != nil {
		close(b.drained)
		b.drained = nil
	}
	if !b.closed || b.inFlight > 0 {
		return
	}
	select {
	case <-b.idle:
	default:
		close(b.idle)
	}
}

// commandSize estimates a command's encoded size.
func commandSize(c *fsm.Command) int {
	size := 64
	for i := range c.Pre {
		size += 32 + keySize(c.Pre[i].Key) + len(c.Pre[i].UID)
	}
	for i := range c.Ops {
		size += 32 + keySize(c.Ops[i].Key) + len(c.Ops[i].UID) + len(c.Ops[i].Data)
	}
	return size
}

func keySize(k fsm.Key) int { return len(k.Resource) + len(k.Namespace) + len(k.Name) }
