package cluster

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/shepherd-project/shepherd/api/wire"
)

// TestAnswers: each call is answered once, by whoever does it first, and its
// slot is free then; only calls to a deposed leader are refused.
func TestAnswers(t *testing.T) {
	t.Parallel()
	a := newAnswers(4)
	for number, term := range []uint64{5, 5, 6, 0} {
		a.slots <- struct{}{}
		a.begin(uint64(number), term)
	}
	a.answer(0, &wire.Response{Status: 201})
	a.refuse(func(term uint64) bool { return term == 5 })
	a.answer(1, &wire.Response{Status: 500}) // too late
	if len(a.slots) != 2 {
		t.Errorf("%d slots are held, want 2", len(a.slots))
	}
	a.answer(3, &wire.Response{Status: 200})
	a.end()
	a.answer(2, &wire.Response{Status: 500}) // nobody hears it
	sent, ok := a.known.take(nil)
	if !ok {
		t.Fatal("nothing is to be sent")
	}
	in := bytes.NewReader(sent)
	for _, want := range []struct {
		number uint64
		status int
	}{{0, 201}, {1, 0}, {3, 200}} {
		got, err := wire.ReadForwardAnswer(in)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := wire.DecodeResponse(got.Response)
		if err != nil {
			t.Fatal(err)
		}
		if got.Number != want.number || resp.Status != want.status || resp.NotLeader != (want.status == 0) {
			t.Errorf("call %d: %+v, want status %d of call %d", got.Number, resp, want.status, want.number)
		}
	}
	if _, err := wire.ReadForwardAnswer(in); !errors.Is(err, io.EOF) {
		t.Errorf("more answers than calls: %v", err)
	}
}
