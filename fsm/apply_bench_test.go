package fsm

import (
	"fmt"
	"testing"

	"github.com/hashicorp/raft"
)

// BenchmarkApplyEntry is what a server spends on one command of an entry of 32, each
// of which makes an object of 1 KB under a request ID in a namespace that must
// live, beside 100,000 others.
func BenchmarkApplyEntry(b *testing.B) {
	const group = 32
	s := New(DefaultConfig())
	index, revision := uint64(0), uint64(1) // of the entry, and of the store before it
	entry := func(name string, count int) *raft.Log {
		index++
		cmds := make([]Command, count)
		for i := range cmds {
			cmds[i] = Command{
				ID: NewRequestID(revision), Term: 1, Time: int64(index),
				Pre: []Precondition{{Key: Key{Resource: "namespaces", Name: "default"}, Live: true}},
				Ops: []Op{{Verb: Create, Key: Key{"configmaps", "default", fmt.Sprintf("w%d-%s", i, name)}, UID: "0c3ad5a1-0000-4000-8000-000000000000", Data: make([]byte, 1100)}},
			}
		}
		revision += uint64(count)
		return &raft.Log{Index: index, Term: 1, Type: raft.LogCommand, Data: EncodeEntry(cmds)}
	}
	apply := func(l *raft.Log) {
		for _, r := range s.Apply(l).([]Result) {
			if r.Code != OK {
				b.Fatal(r)
			}
		}
	}
	apply(&raft.Log{Index: index, Term: 1, Data: EncodeEntry([]Command{{Term: 1, Ops: []Op{{Verb: Create, Key: Key{Resource: "namespaces", Name: "default"}, UID: "u", Data: []byte("x")}}}})})
	for n := range 100_000 / 500 {
		apply(entry(fmt.Sprint("old-", n), 500))
	}
	logs := make([]*raft.Log, (b.N+group-1)/group)
	for i := range logs {
		logs[i] = entry(fmt.Sprint(i), group)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for _, l := range logs {
		apply(l)
	}
}
