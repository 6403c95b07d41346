package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// The entry format:
//
//	byte  0     version: the level of the commands, see Level
//	bytes 1-4   ID of the key that the payload is sealed with, big endian;
//	            0 means plain
//	bytes 5-    payload: protobuf wire format, field 1 repeated: Command
//
//	Command       1 id RequestID, 2 term, 3 time, 4 pre repeated, 5 ops repeated
//	RequestID     1 nonce, 2 birth, 3 sub
//	Precondition  1 key, 2 absent, 3 uid, 4 revision, 5 live
//	Op            1 verb, 2 key, 3 uid, 4 deleting, 5 data
//	Key           1 resource, 2 namespace, 3 name
//
// Times are zigzag varints, other numbers plain varints, zero values are left
// out. Decoding is strict: an unknown field is an error, since to skip what
// another version meant would let replicas part. A change of meaning takes a
// new level.
const entryHeaderSize = 5

var (
	// ErrMalformed is returned for bytes that are not an entry. It is the same
	// on every replica.
	ErrMalformed = errors.New("malformed entry")
	// ErrUnknownVersion is returned for an entry or a snapshot of a version
	// that this build does not know, or sealed with a key it does not have. A
	// replica that meets one stops: to skip it would let replicas part.
	ErrUnknownVersion = errors.New("unknown version")
)

// EncodeEntry returns the Raft log payload for the commands.
func EncodeEntry(cmds []Command) []byte {
	b := make([]byte, entryHeaderSize, entryHeaderSize+sizeHint(cmds))
	b[0] = 1
	for i := range cmds {
		b[0] = max(b[0], cmds[i].Level)
		b = appendMessage(b, 1, func(b []byte) []byte { return appendCommand(b, &cmds[i]) })
	}
	return b
}

func sizeHint(cmds []Command) int {
	n := 0
	for i := range cmds {
		n += 64
		for j := range cmds[i].Ops {
			n += 256 + len(cmds[i].Ops[j].Data)
		}
		n += 128 * len(cmds[i].Pre)
	}
	return n
}

// DecodeEntry is the reverse of EncodeEntry, but for the level of each command.
// The commands do not alias b.
func DecodeEntry(b []byte) ([]Command, error) { return make(decoder).entry(b, Level) }

// decoder decodes what has keys. It knows the resources and the namespaces that
// it has met, so that keys share those strings: they take memory once, and to
// compare two that are equal touches none.
type decoder map[string]string

// maxShared bounds the strings that a decoder knows.
const maxShared = 8192

func (d decoder) shared(b []byte) string {
	if s, ok := d[string(b)]; ok {
		return s
	}
	if len(d) >= maxShared {
		clear(d)
	}
	s := string(b)
	d[s] = s
	return s
}

func (d decoder) entry(b []byte, level uint8) ([]Command, error) {
	if len(b) < entryHeaderSize {
		return nil, fmt.Errorf("%w: %d bytes are no entry", ErrMalformed, len(b))
	}
	if b[0] == 0 || b[0] > level {
		return nil, TooOld("it is", uint64(b[0]), level)
	}
	if id := binary.BigEndian.Uint32(b[1:]); id != 0 {
		return nil, fmt.Errorf("%w: entry is sealed with key %d, which this server does not have", ErrUnknownVersion, id)
	}
	var cmds []Command
	err := eachField(b[entryHeaderSize:], func(num protowire.Number, f field) error {
		if num != 1 {
			return unknownField("entry", num)
		}
		c, err := d.command(f.bytes)
		if err != nil {
			return err
		}
		cmds = append(cmds, c)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return cmds, nil
}

func appendCommand(b []byte, c *Command) []byte {
	if !c.ID.IsZero() {
		b = appendMessage(b, 1, func(b []byte) []byte { return appendRequestID(b, c.ID) })
	}
	b = appendUint(b, 2, c.Term)
	b = appendUint(b, 3, protowire.EncodeZigZag(c.Time))
	for i := range c.Pre {
		p := &c.Pre[i]
		b = appendMessage(b, 4, func(b []byte) []byte {
			b = appendKey(b, 1, p.Key)
			b = appendBool(b, 2, p.Absent)
			b = appendString(b, 3, p.UID)
			b = appendUint(b, 4, p.Revision)
			return appendBool(b, 5, p.Live)
		})
	}
	for i := range c.Ops {
		o := &c.Ops[i]
		b = appendMessage(b, 5, func(b []byte) []byte {
			b = appendUint(b, 1, uint64(o.Verb))
			b = appendKey(b, 2, o.Key)
			b = appendString(b, 3, o.UID)
			b = appendBool(b, 4, o.Deleting)
			return appendBytes(b, 5, o.Data)
		})
	}
	return b
}

func appendRequestID(b []byte, id RequestID) []byte {
	b = appendBytes(b, 1, id.Nonce[:])
	b = appendUint(b, 2, id.Birth)
	return appendString(b, 3, id.Sub)
}

func appendKey(b []byte, num protowire.Number, k Key) []byte {
	return appendMessage(b, num, func(b []byte) []byte {
		b = appendString(b, 1, k.Resource)
		b = appendString(b, 2, k.Namespace)
		return appendString(b, 3, k.Name)
	})
}

func (d decoder) command(b []byte) (c Command, err error) {
	err = eachField(b, func(num protowire.Number, f field) (err error) {
		switch num {
		case 1:
			c.ID, err = decodeRequestID(f.bytes)
		case 2:
			c.Term = f.num
		case 3:
			c.Time = protowire.DecodeZigZag(f.num)
		case 4:
			var p Precondition
			p, err = d.precondition(f.bytes)
			c.Pre = append(c.Pre, p)
		case 5:
			var o Op
			o, err = d.operation(f.bytes)
			c.Ops = append(c.Ops, o)
		default:
			err = unknownField("command", num)
		}
		return err
	})
	return c, err
}

func decodeRequestID(b []byte) (id RequestID, err error) {
	err = eachField(b, func(num protowire.Number, f field) error {
		switch num {
		case 1:
			if len(f.bytes) != len(id.Nonce) {
				return fmt.Errorf("request ID of %d bytes", len(f.bytes))
			}
			copy(id.Nonce[:], f.bytes)
		case 2:
			id.Birth = f.num
		case 3:
			id.Sub = string(f.bytes)
		default:
			return unknownField("request ID", num)
		}
		return nil
	})
	if err == nil && id.IsZero() {
		err = errors.New("request ID without a nonce")
	}
	return id, err
}

func (d decoder) precondition(b []byte) (p Precondition, err error) {
	err = eachField(b, func(num protowire.Number, f field) (err error) {
		switch num {
		case 1:
			p.Key, err = d.key(f.bytes)
		case 2:
			p.Absent = f.num != 0
		case 3:
			p.UID = string(f.bytes)
		case 4:
			p.Revision = f.num
		case 5:
			p.Live = f.num != 0
		default:
			err = unknownField("precondition", num)
		}
		return err
	})
	return p, err
}

func (d decoder) operation(b []byte) (o Op, err error) {
	err = eachField(b, func(num protowire.Number, f field) (err error) {
		switch num {
		case 1:
			if f.num > 255 {
				return fmt.Errorf("verb %d", f.num)
			}
			o.Verb = Verb(f.num)
		case 2:
			o.Key, err = d.key(f.bytes)
		case 3:
			o.UID = string(f.bytes)
		case 4:
			o.Deleting = f.num != 0
		case 5:
			// A copy: the object must not keep the whole entry in memory.
			o.Data = append([]byte(nil), f.bytes...)
		default:
			err = unknownField("operation", num)
		}
		return err
	})
	return o, err
}

func (d decoder) key(b []byte) (k Key, err error) {
	err = eachField(b, func(num protowire.Number, f field) error {
		switch num {
		case 1:
			k.Resource = d.shared(f.bytes)
		case 2:
			k.Namespace = d.shared(f.bytes)
		case 3:
			k.Name = string(f.bytes)
		default:
			return unknownField("key", num)
		}
		return nil
	})
	return k, err
}
