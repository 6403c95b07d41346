package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/shepherd-project/shepherd/api/wire"
)

// maxStreamed is the largest request that shares the stream to the leader, in
// bytes. A larger one has an exchange of its own, so that others need not wait
// until it is through.
const maxStreamed = 256 << 10

// maxUnsent bounds what waits to be sent on one stream, in bytes.
const maxUnsent = 32 << 20

// forwardStream carries requests to one server, see wire.LinkForwards: those
// that come while others are being sent leave together. It ends with its first
// failure, and all its calls with it; the next call begins a new one. It is
// safe for concurrent use.
type forwardStream struct {
	links   *links
	address string
	unsent  gathering

	mu    sync.Mutex
	err   error                  // why it has ended
	last  uint64                 // number that was given to a call
	calls map[uint64]chan<- sent // without an answer; nil once it has ended
}

// sent is what became of a call.
type sent struct {
	response []byte
	err      error
}

// stream returns the stream to a server.
func (l *links) stream(address string) (*forwardStream, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrStopped
	}
	if s := l.streams[address]; s != nil {
		return s, nil
	}
	s := &forwardStream{links: l, address: address, unsent: newGathering(), calls: map[uint64]chan<- sent{}}
	l.streams[address] = s
	l.wg.Go(s.run)
	return s, nil
}

// forward sends an encoded request to the server at an address and waits for
// the answer or the context's end; once giveUp is closed no longer than linger.
func (l *links) forward(ctx context.Context, giveUp <-chan struct{}, linger func() time.Duration, address string, request []byte) (*wire.Response, error) {
	s, err := l.stream(address)
	if err != nil {
		return nil, err
	}
	timeout := time.Minute
	if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline)
	}
	number, answer, err := s.begin(request, timeout)
	if err != nil {
		return nil, err
	}
	defer s.forget(number)
	var late <-chan time.Time
	for {
		select {
		case a := <-answer:
			return s.read(a)
		case <-ctx.Done():
			return nil, fmt.Errorf("link to %s: %w", address, ctx.Err())
		case <-l.ctx.Done():
			return nil, ErrStopped
		case <-giveUp:
			timer := time.NewTimer(linger())
			defer timer.Stop()
			giveUp, late = nil, timer.C
		case <-late:
			return nil, fmt.Errorf("link to %s: the leader changed: %w", address, context.Canceled)
		}
	}
}

func (s *forwardStream) read(a sent) (*wire.Response, error) {
	if a.err != nil {
		return nil, a.err
	}
	resp, err := wire.DecodeResponse(a.response)
	if err != nil {
		return nil, fmt.Errorf("answer of %s on %s: %w", s.address, wire.LinkForwards, err)
	}
	return resp, nil
}

func (s *forwardStream) begin(request []byte, timeout time.Duration) (uint64, <-chan sent, error) {
	answer := make(chan sent, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, nil, s.err
	}
	s.last++
	call := wire.ForwardCall{Number: s.last, Timeout: timeout, Request: request}
	if !s.unsent.add(maxUnsent, func(b []byte) []byte { return wire.AppendForwardCall(b, call) }) {
		return 0, nil, fmt.Errorf("link to %s: too much waits to be sent", s.address)
	}
	s.calls[s.last] = answer
	return s.last, answer, nil
}

// forget ends the wait for an answer. The server is not told: it goes on.
func (s *forwardStream) forget(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, number)
}

// run sends and receives until the stream breaks.
func (s *forwardStream) run() {
	err := s.exchange()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	err = fmt.Errorf("link to %s: %w", s.address, err)
	s.links.mu.Lock()
	if s.links.streams[s.address] == s {
		delete(s.links.streams, s.address)
	}
	s.links.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	for _, answer := range s.calls {
		answer <- sent{err: err}
	}
	s.calls = nil
}

func (s *forwardStream) exchange() (err error) {
	ctx, cancel := context.WithCancel(s.links.ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.address+wire.LinkForwards, &unsentReader{of: &s.unsent, done: ctx.Done(), close: cancel})
	if err != nil {
		return err
	}
	resp, err := s.links.RoundTrip(req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	in := bufio.NewReaderSize(resp.Body, 64<<10)
	for {
		answer, err := wire.ReadForwardAnswer(in)
		if err != nil {
			return err
		}
		s.mu.Lock()
		waiting := s.calls[answer.Number]
		delete(s.calls, answer.Number)
		s.mu.Unlock()
		if waiting != nil { // else nobody wants it any more
			waiting <- sent{response: answer.Response}
		}
	}
}

// unsentReader is the body of a request that never ends by itself. HTTP/2
// reads it whenever it can send.
type unsentReader struct {
	of    *gathering
	done  <-chan struct{} // closed by close
	close func()
	left  []byte
}

func (r *unsentReader) Read(p []byte) (int, error) {
	for len(r.left) == 0 {
		var ok bool
		if r.left, ok = r.of.take(r.done); !ok {
			return 0, io.ErrClosedPipe
		}
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

// Close ends a Read that waits. HTTP calls it when the stream has broken, and
// tells nobody of that before the Read has returned.
func (r *unsentReader) Close() error {
	r.close()
	return nil
}
