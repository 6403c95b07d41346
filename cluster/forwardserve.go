package cluster

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"sync"

	"github.com/shepherd-project/shepherd/api/wire"
)

// linkForwards handles the requests of another server's forwardStream, each on
// its own, and sends each answer as soon as it is known.
func (n *Node) linkForwards(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := control.Flush(); err != nil {
		n.logger.Debug("answer on link", "error", err)
		cancel()
		return
	}
	answers := newGathering()
	var running sync.WaitGroup
	running.Go(func() {
		defer cancel()
		for {
			ready, ok := answers.take(ctx.Done())
			if !ok {
				return
			}
			if len(ready) == 0 {
				continue
			}
			if _, err := w.Write(ready); err != nil {
				return // the connection is gone, and the other side knows it
			}
			if err := control.Flush(); err != nil {
				return
			}
		}
	})
	err := n.receive(ctx, bufio.NewReaderSize(r.Body, 64<<10), &running, &answers)
	if err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
		n.logger.Debug("requests on link", "error", err)
	}
	cancel()
	running.Wait()
}

// receive starts the handling of each request until the stream ends.
func (n *Node) receive(ctx context.Context, in io.Reader, running *sync.WaitGroup, answers *gathering) error {
	slots := make(chan struct{}, n.cfg.MaxForwards+1024)
	for {
		call, err := wire.ReadForwardCall(in)
		if err != nil {
			return err
		}
		req, err := wire.DecodeRequest(call.Request)
		if err != nil {
			return err
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		running.Go(func() {
			defer func() { <-slots }()
			waiting, cancel := context.WithTimeout(ctx, min(call.Timeout, n.timing.Forward))
			defer cancel()
			answer := wire.ForwardAnswer{Number: call.Number, Response: wire.EncodeResponse(n.lead(waiting, req))}
			answers.add(math.MaxInt, func(b []byte) []byte { return wire.AppendForwardAnswer(b, answer) })
		})
	}
}
