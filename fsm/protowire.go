package fsm

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// field is one decoded protobuf field: a varint or a length-delimited value.
// bytes alias the input.
type field struct {
	num   uint64
	bytes []byte
}

// eachField calls fn for each field of a message.
func eachField(b []byte, fn func(protowire.Number, field) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		var f field
		switch typ {
		case protowire.VarintType:
			f.num, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(b)
		default:
			return fmt.Errorf("field %d has wire type %d", num, typ)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := fn(num, f); err != nil {
			return err
		}
	}
	return nil
}

func unknownField(in string, num protowire.Number) error {
	return fmt.Errorf("unknown field %d in %s", num, in)
}

func appendUint(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	b = protowire.AppendTag(b, num, protowire.VarintType)
	return protowire.AppendVarint(b, v)
}

func appendBool(b []byte, num protowire.Number, v bool) []byte {
	return appendUint(b, num, protowire.EncodeBool(v))
}

func appendString(b []byte, num protowire.Number, v string) []byte {
	if v == "" {
		return b
	}
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendString(b, v)
}

func appendBytes(b []byte, num protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendBytes(b, v)
}

// appendMessage appends a length-delimited field whose value fn appends. It
// reserves one byte for the length and moves the value when that is too few.
func appendMessage(b []byte, num protowire.Number, fn func([]byte) []byte) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	start := len(b)
	b = append(b, 0)
	b = fn(b)
	size := len(b) - start - 1
	if extra := protowire.SizeVarint(uint64(size)) - 1; extra > 0 {
		b = append(b, make([]byte, extra)...)
		copy(b[start+1+extra:], b[start+1:start+1+size])
	}
	protowire.AppendVarint(b[:start], uint64(size))
	return b
}
