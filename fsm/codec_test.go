package fsm

import (
	"errors"
	"reflect"
	"testing"
)

func TestEntryRoundTrip(t *testing.T) {
	g := newGenerator(11)
	m := newMachine(t, DefaultConfig())
	for range 500 {
		var cmds []Command
		for range 1 + g.r.IntN(3) {
			cmds = append(cmds, g.command(m.store.View(), m.term))
		}
		m.entry(cmds...)
		got, err := DecodeEntry(EncodeEntry(cmds))
		if err != nil {
			t.Fatal(err)
		}
		for i := range cmds {
			normalise(&cmds[i])
			normalise(&got[i])
		}
		if !reflect.DeepEqual(got, cmds) {
			t.Fatalf("got  %+v\nwant %+v", got, cmds)
		}
	}
}

// normalise forgets the difference between nil and empty, which the format does not keep.
func normalise(c *Command) {
	for i := range c.Ops {
		if len(c.Ops[i].Data) == 0 {
			c.Ops[i].Data = nil
		}
	}
}

// The bytes of version 1 are what logs on disk hold: this must never change.
func TestEntryGolden(t *testing.T) {
	c := Command{
		ID: RequestID{Nonce: [16]byte{1, 2}, Birth: 5, Sub: "s"}, Term: 3, Time: -1,
		Pre: []Precondition{{Key: Key{"namespaces", "", "d"}, Live: true}, {Key: Key{"r", "n", "x"}, Absent: true, UID: "u", Revision: 300}},
		Ops: []Op{{Verb: Update, Key: Key{"pods", "d", "p"}, UID: "u", Deleting: true, Data: []byte{9}}},
	}
	want := "\x01\x00\x00\x00\x00" + "\x0a\x61" +
		"\x0a\x17\x0a\x10\x01\x02" + string(make([]byte, 14)) + "\x10\x05\x1a\x01s" +
		"\x10\x03\x18\x01" +
		"\x22\x13\x0a\x0f\x0a\x0anamespaces\x1a\x01d\x28\x01" +
		"\x22\x13\x0a\x09\x0a\x01r\x12\x01n\x1a\x01x\x10\x01\x1a\x01u\x20\xac\x02" +
		"\x2a\x18\x08\x02\x12\x0c\x0a\x04pods\x12\x01d\x1a\x01p\x1a\x01u\x20\x01\x2a\x01\x09"
	if got := string(EncodeEntry([]Command{c})); got != want {
		t.Fatalf("got  %q\nwant %q", got, want)
	}
}

func TestDecodeRefuses(t *testing.T) {
	good := EncodeEntry([]Command{{Term: 1, Ops: []Op{create(pod("a"), "u", "x")}}})
	sealed := append([]byte(nil), good...)
	sealed[4] = 7
	future := append([]byte(nil), good...)
	future[0] = 2
	for name, c := range map[string]struct {
		in   []byte
		want error
	}{
		"empty":         {nil, ErrMalformed},
		"short":         {good[:4], ErrMalformed},
		"cut":           {good[:len(good)-1], ErrMalformed},
		"unknown field": {append(append([]byte(nil), good...), 0x12, 0), ErrMalformed},
		"fixed32 field": {append(append([]byte(nil), good...), 0x0d, 0, 0, 0, 0), ErrMalformed},
		"version":       {future, ErrUnknownVersion},
		"sealed":        {sealed, ErrUnknownVersion},
	} {
		if _, err := DecodeEntry(c.in); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func FuzzDecodeEntry(f *testing.F) {
	g := newGenerator(1)
	m := newMachine(f, DefaultConfig())
	for range 20 {
		f.Add(EncodeEntry([]Command{g.command(m.store.View(), 1)}))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		cmds, err := DecodeEntry(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnknownVersion) {
				t.Fatalf("unexpected error %v", err)
			}
			return
		}
		again, err := DecodeEntry(EncodeEntry(cmds))
		if err != nil || !reflect.DeepEqual(again, cmds) {
			t.Fatalf("decoded %+v, again %+v, %v", cmds, again, err)
		}
	})
}
