package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// LinkForwards carries many Requests at once, in both directions of one HTTP
// exchange that lasts as long as the link. The body is a sequence of calls:
//
//	length   4 bytes, of all that follows
//	number   8 bytes, chosen by the sender, of one exchange
//	timeout  4 bytes, how many milliseconds the sender still waits
//	Request
//
// and the response one of answers, in the order in which they become known:
//
//	length   4 bytes, of all that follows
//	number   8 bytes, the call's
//	Response
//
// Integers have their high byte first.
const LinkForwards = "/link/v1/forwards"

const (
	callHead   = 8 + 4
	answerHead = 8
)

// ForwardCall is one Request of LinkForwards.
type ForwardCall struct {
	Number  uint64
	Timeout time.Duration // in whole milliseconds
	Request []byte        // encoded
}

// ForwardAnswer is the answer to the call with its number.
type ForwardAnswer struct {
	Number   uint64
	Response []byte // encoded
}

// AppendForwardCall adds a call to b. Its Request must not be larger than
// MaxMessage.
func AppendForwardCall(b []byte, c ForwardCall) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(callHead+len(c.Request)))
	b = binary.BigEndian.AppendUint64(b, c.Number)
	b = binary.BigEndian.AppendUint32(b, uint32(min(max(c.Timeout.Milliseconds(), 1), math.MaxUint32)))
	return append(b, c.Request...)
}

// ReadForwardCall reads the next call; its bytes are the caller's. io.EOF
// means that there are no more.
func ReadForwardCall(r io.Reader) (ForwardCall, error) {
	b, err := readFrame(r, callHead)
	if err != nil {
		return ForwardCall{}, err
	}
	return ForwardCall{
		Number:  binary.BigEndian.Uint64(b),
		Timeout: time.Duration(binary.BigEndian.Uint32(b[8:])) * time.Millisecond,
		Request: b[callHead:],
	}, nil
}

// AppendForwardAnswer adds an answer to b. Its Response must not be larger
// than MaxMessage.
func AppendForwardAnswer(b []byte, a ForwardAnswer) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(answerHead+len(a.Response)))
	b = binary.BigEndian.AppendUint64(b, a.Number)
	return append(b, a.Response...)
}

// ReadForwardAnswer reads the next answer; its bytes are the caller's. io.EOF
// means that there are no more.
func ReadForwardAnswer(r io.Reader) (ForwardAnswer, error) {
	b, err := readFrame(r, answerHead)
	if err != nil {
		return ForwardAnswer{}, err
	}
	return ForwardAnswer{Number: binary.BigEndian.Uint64(b), Response: b[answerHead:]}, nil
}

// readFrame reads a length and as many bytes, at least head.
func readFrame(r io.Reader, head int) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, malformed("half a length")
		}
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(length[:]))
	if n < head || n > MaxMessage+head {
		return nil, malformed("%d bytes, between %d and %d are allowed", n, head, MaxMessage+head)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("%w: cut short: %w", ErrMalformed, err)
	}
	return b, nil
}
