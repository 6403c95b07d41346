package wire

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"testing"
	"time"
)

func TestForwardCallsAndAnswers(t *testing.T) {
	calls := []ForwardCall{
		{Number: 1, Timeout: 5 * time.Second, Request: []byte("one")},
		{Number: 1 << 63, Timeout: time.Millisecond, Request: []byte{}},
	}
	var b []byte
	for _, c := range calls {
		b = AppendForwardCall(b, c)
	}
	r := bytes.NewReader(b)
	for _, want := range calls {
		if got, err := ReadForwardCall(r); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("read %+v, %v, want %+v", got, err, want)
		}
	}
	if _, err := ReadForwardCall(r); err != io.EOF {
		t.Errorf("after the last call: %v", err)
	}
	if got, err := ReadForwardCall(bytes.NewReader(AppendForwardCall(nil, ForwardCall{Timeout: -time.Second}))); err != nil || got.Timeout != time.Millisecond {
		t.Errorf("a sender that waits no more: %v, %v", got.Timeout, err)
	}
	want := ForwardAnswer{Number: 7, Response: []byte("seven")}
	r = bytes.NewReader(AppendForwardAnswer(nil, want))
	if got, err := ReadForwardAnswer(r); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v, want %+v", got, err, want)
	}
	if _, err := ReadForwardAnswer(r); err != io.EOF {
		t.Errorf("after the last answer: %v", err)
	}
}

func TestForwardCallsThatAreNone(t *testing.T) {
	whole := AppendForwardCall(nil, ForwardCall{Number: 1, Timeout: time.Second, Request: []byte("request")})
	for size := 1; size < len(whole); size++ {
		if _, err := ReadForwardCall(bytes.NewReader(whole[:size])); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d bytes of %d: %v", size, len(whole), err)
		}
	}
	for name, b := range map[string][]byte{"too short": {0, 0, 0, callHead - 1}, "too long": {0xff, 0, 0, 0}} {
		if _, err := ReadForwardCall(bytes.NewReader(append(b, make([]byte, 64)...))); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
