package wire

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// The binary form of a message is one version byte, then fields in protobuf's
// wire format. A decoder skips fields it does not know and refuses versions it
// does not know: new optional fields need no new version.
const codecVersion = 1

// ErrMalformed is returned for bytes that are no message of the expected type,
// or one beyond the bounds of this package.
var ErrMalformed = errors.New("malformed message")

// ErrVersion is returned for a message of a version that this program does not know.
var ErrVersion = errors.New("unknown message version")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// encoder appends fields and leaves out those with a zero value.
type encoder struct{ b []byte }

func newEncoder(size int) *encoder {
	e := &encoder{b: make([]byte, 0, size+16)}
	e.b = append(e.b, codecVersion)
	return e
}

func (e *encoder) bytes(n protowire.Number, v []byte) {
	if len(v) > 0 {
		e.item(n, v)
	}
}

// item is bytes for repeated fields, where an empty one counts too.
func (e *encoder) item(n protowire.Number, v []byte) {
	e.b = protowire.AppendTag(e.b, n, protowire.BytesType)
	e.b = protowire.AppendBytes(e.b, v)
}

func (e *encoder) string(n protowire.Number, v string) {
	if v != "" {
		e.b = protowire.AppendTag(e.b, n, protowire.BytesType)
		e.b = protowire.AppendString(e.b, v)
	}
}

func (e *encoder) uint(n protowire.Number, v uint64) {
	if v != 0 {
		e.b = protowire.AppendTag(e.b, n, protowire.VarintType)
		e.b = protowire.AppendVarint(e.b, v)
	}
}

func (e *encoder) bool(n protowire.Number, v bool) { e.uint(n, protowire.EncodeBool(v)) }

// field is one decoded field: num for varints, data for bytes. data aliases
// the input.
type field struct {
	n    protowire.Number
	t    protowire.Type
	num  uint64
	data []byte
}

func (f field) is(t protowire.Type) error {
	if f.t != t {
		return malformed("field %d has wire type %d, want %d", f.n, f.t, t)
	}
	return nil
}

// decode checks size and version and calls f for every field in order.
func decode(b []byte, limit int, f func(field) error) error {
	if len(b) > limit {
		return malformed("%d bytes, at most %d are allowed", len(b), limit)
	}
	if len(b) == 0 {
		return malformed("empty")
	}
	if b[0] != codecVersion {
		return fmt.Errorf("%w %d", ErrVersion, b[0])
	}
	return fields(b[1:], f)
}

// fields calls f for every field of an embedded message, which has no version.
func fields(b []byte, f func(field) error) error {
	for count := 0; len(b) > 0; count++ {
		if count > maxItems {
			return malformed("more than %d fields", maxItems)
		}
		n, t, size := protowire.ConsumeTag(b)
		if size < 0 {
			return malformed("tag: %v", protowire.ParseError(size))
		}
		b = b[size:]
		v := field{n: n, t: t}
		switch t {
		case protowire.VarintType:
			v.num, size = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			v.data, size = protowire.ConsumeBytes(b)
		default:
			size = protowire.ConsumeFieldValue(n, t, b)
		}
		if size < 0 {
			return malformed("field %d: %v", n, protowire.ParseError(size))
		}
		b = b[size:]
		if err := f(v); err != nil {
			return err
		}
	}
	return nil
}

// into returns a setter of known fields: the table maps field numbers to
// pointers. Unknown numbers are skipped.
func into(table map[protowire.Number]any) func(field) error {
	return func(f field) error {
		target, ok := table[f.n]
		if !ok {
			return nil
		}
		want := protowire.BytesType
		switch target.(type) {
		case *uint64, *int, *int64, *bool:
			want = protowire.VarintType
		}
		if err := f.is(want); err != nil {
			return err
		}
		switch p := target.(type) {
		case *uint64:
			*p = f.num
		case *int64:
			*p = int64(f.num)
		case *int:
			if f.num > math.MaxInt32 {
				return malformed("field %d is too large", f.n)
			}
			*p = int(f.num)
		case *bool:
			*p = protowire.DecodeBool(f.num)
		case *string:
			*p = string(f.data)
		case *[]byte:
			*p = f.data
		case *[]string:
			*p = append(*p, string(f.data))
		case func([]byte) error:
			return p(f.data)
		default:
			return fmt.Errorf("field %d has no decoder for %T", f.n, target)
		}
		return nil
	}
}
