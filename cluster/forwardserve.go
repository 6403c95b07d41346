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
	answers := newAnswers(n.cfg.MaxForwards + 1024)
	defer answers.end()
	var running sync.WaitGroup
	running.Go(func() {
		defer cancel()
		for {
			ready, ok := answers.known.take(ctx.Done())
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
	running.Go(func() { n.refuseDeposed(ctx, answers) })
	err := n.receive(ctx, bufio.NewReaderSize(r.Body, 64<<10), &running, answers)
	if err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
		n.logger.Debug("requests on link", "error", err)
	}
	cancel()
	running.Wait()
}

// receive sees to each request until the stream ends.
func (n *Node) receive(ctx context.Context, in io.Reader, running *sync.WaitGroup, answers *answers) error {
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
		case answers.slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		if n.leadsIn(req.Term) {
			n.answerWhenLanded(call.Number, req, answers)
			continue
		}
		running.Go(func() {
			answers.begin(call.Number, 0)
			waiting, cancel := context.WithTimeout(ctx, min(call.Timeout, n.timing.Forward))
			defer cancel()
			answers.answer(call.Number, n.lead(waiting, req))
		})
	}
}

// leadsIn reports whether this server leads in the term, with its state complete.
func (n *Node) leadsIn(term uint64) bool {
	l := n.level.Load()
	return l.leading && l.term == term && n.trust.problem() == nil && n.ctx.Err() == nil
}

// answerWhenLanded is lead for a server that leads already: nothing waits but
// the flight itself.
func (n *Node) answerWhenLanded(number uint64, req *wire.Request, answers *answers) {
	answers.begin(number, req.Term)
	fl, first := n.flights.join(req)
	if fl == nil {
		answers.answer(number, &wire.Response{NotLeader: true})
		return
	}
	n.flights.whenLanded(fl, func(resp *wire.Response) { answers.answer(number, resp) })
	if first {
		n.fly(fl, req)
	}
	if !n.leadsIn(req.Term) { // refuseDeposed may have looked before begin
		answers.answer(number, &wire.Response{NotLeader: true})
	}
}

// refuseDeposed lets the sender go on at once with what was sent to a leader
// that this server no longer is.
func (n *Node) refuseDeposed(ctx context.Context, answers *answers) {
	for ctx.Err() == nil {
		l := n.level.Load()
		answers.refuse(func(term uint64) bool { return l.term != term || !l.leading })
		n.await(ctx, l.changed)
	}
}

// answers are those of one stream. A call is answered once, whoever does it
// first. It is safe for concurrent use.
type answers struct {
	known gathering     // to be sent
	slots chan struct{} // one is held for each call without an answer

	mu   sync.Mutex
	open map[uint64]uint64 // by number, the term of the leader that a call without an answer was sent to; 0: it is not refused
}

func newAnswers(most int) *answers {
	return &answers{known: newGathering(), slots: make(chan struct{}, most), open: make(map[uint64]uint64)}
}

// begin opens a call, for which its caller has taken a slot.
func (a *answers) begin(number, term uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open != nil {
		a.open[number] = term
	}
}

func (a *answers) answer(number uint64, resp *wire.Response) {
	a.mu.Lock()
	_, open := a.open[number]
	delete(a.open, number)
	a.mu.Unlock()
	if !open {
		return
	}
	answer := wire.ForwardAnswer{Number: number, Response: wire.EncodeResponse(resp)}
	a.known.add(math.MaxInt, func(b []byte) []byte { return wire.AppendForwardAnswer(b, answer) })
	<-a.slots
}

// refuse answers the calls to leaders of these terms.
func (a *answers) refuse(of func(term uint64) bool) {
	a.mu.Lock()
	var numbers []uint64
	for number, term := range a.open {
		if term != 0 && of(term) {
			numbers = append(numbers, number)
		}
	}
	a.mu.Unlock()
	for _, number := range numbers {
		a.answer(number, &wire.Response{NotLeader: true})
	}
}

// end drops the calls: nobody hears their answers.
func (a *answers) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open = nil
}
