package shim

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Version is the version of the frames and of the records on disk. A shim
// outlives agents: a newer agent must still speak this one.
const Version = 1

// Type is the type of a frame.
type Type uint8

// The types of frames; doc.go draws their use.
const (
	TypeCreate   Type = 1
	TypeHello    Type = 2
	TypeStart    Type = 3
	TypeStop     Type = 4
	TypeSignal   Type = 5
	TypeShutdown Type = 6
	TypeReply    Type = 7
	TypeEvent    Type = 8

	TypeExec       Type = 16
	TypeStdin      Type = 17
	TypeCloseStdin Type = 18
	TypeResize     Type = 19
	TypeStdout     Type = 20
	TypeStderr     Type = 21
	TypeExecExit   Type = 22

	TypeInit     Type = 32
	TypeTerminal Type = 33
	TypeReady    Type = 34
	TypeGo       Type = 35
	TypeFailed   Type = 36
)

const (
	headerSize = 16
	// MaxPayload bounds a frame: more than the kernel takes as arguments and
	// environment of a program.
	MaxPayload = 8 << 20
)

// ErrVersion: the other side speaks another version.
var ErrVersion = errors.New("unknown frame version")

// Frame is one message.
type Frame struct {
	Type    Type
	ID      uint64
	Payload []byte
}

// WriteFrame writes one frame in one Write.
func WriteFrame(w io.Writer, f Frame) error {
	if len(f.Payload) > MaxPayload {
		return fmt.Errorf("frame of %d bytes: more than %d", len(f.Payload), MaxPayload)
	}
	b := make([]byte, headerSize, headerSize+len(f.Payload))
	binary.BigEndian.PutUint32(b, uint32(headerSize-4+len(f.Payload)))
	b[4], b[5] = Version, byte(f.Type)
	binary.BigEndian.PutUint64(b[8:], f.ID)
	_, err := w.Write(append(b, f.Payload...))
	return err
}

// WriteJSON writes a frame whose payload is v as JSON.
func WriteJSON(w io.Writer, t Type, id uint64, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return WriteFrame(w, Frame{Type: t, ID: id, Payload: b})
}

// ReadFrame reads one frame. io.EOF: the other side closed between two frames.
func ReadFrame(r io.Reader) (Frame, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Frame{}, err
	}
	n := binary.BigEndian.Uint32(h[:])
	if h[4] != Version {
		return Frame{}, fmt.Errorf("%w %d", ErrVersion, h[4])
	}
	if n < headerSize-4 || n > headerSize-4+MaxPayload {
		return Frame{}, fmt.Errorf("frame of %d bytes: out of bounds", n)
	}
	f := Frame{Type: Type(h[5]), ID: binary.BigEndian.Uint64(h[8:]), Payload: make([]byte, n-(headerSize-4))}
	if _, err := io.ReadFull(r, f.Payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return f, nil
}

// Decode reads the payload as JSON.
func (f Frame) Decode(v any) error {
	if err := json.Unmarshal(f.Payload, v); err != nil {
		return fmt.Errorf("frame type %d: %w", f.Type, err)
	}
	return nil
}
