package cluster

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/cluster/seal"
	"github.com/shepherd-project/shepherd/fsm"
)

// bufferSink is a snapshot in memory.
type bufferSink struct{ bytes.Buffer }

func (*bufferSink) ID() string    { return "memory" }
func (*bufferSink) Cancel() error { return nil }
func (*bufferSink) Close() error  { return nil }

// BenchmarkSnapshot writes and restores 100,000 objects of 1 KB, plain and sealed.
func BenchmarkSnapshot(b *testing.B) {
	store := fsm.New(fsm.DefaultConfig())
	for i := range uint64(200) {
		cmd := fsm.Command{Term: 1}
		for j := range 500 {
			name := fmt.Sprintf("o%d-%d", i, j)
			cmd.Ops = append(cmd.Ops, fsm.Op{Verb: fsm.Create, Key: registerKey(name), UID: name, Data: bytes.Repeat([]byte{byte(j)}, 1024)})
		}
		store.Apply(&raft.Log{Index: i + 1, Term: 1, Data: fsm.EncodeEntry([]fsm.Command{cmd})})
	}
	if n := store.View().Len(); n != 100_000 {
		b.Fatalf("%d objects", n)
	}
	for name, keys := range map[string]seal.Keys{"plain": {}, "sealed": seal.Begin(time.Unix(1000, 0))} {
		n := &Node{store: store, logger: hclog.NewNullLogger(), cfg: Config{Keys: seal.NewRing(keys, nil)}}
		n.keys = newKeychain(n)
		sealed := newSealedStore(&machine{Store: store}, n.keys)
		var sink bufferSink
		persist := func(b *testing.B) {
			sink.Reset()
			snap, err := sealed.Snapshot()
			if err != nil {
				b.Fatal(err)
			}
			if err := snap.Persist(&sink); err != nil {
				b.Fatal(err)
			}
		}
		persist(b)
		b.Run(name+"/persist", func(b *testing.B) {
			b.SetBytes(int64(sink.Len()))
			for b.Loop() {
				persist(b)
			}
		})
		b.Run(name+"/restore", func(b *testing.B) {
			b.SetBytes(int64(sink.Len()))
			into := newSealedStore(&machine{Store: fsm.New(fsm.DefaultConfig())}, n.keys)
			for b.Loop() {
				if err := into.Restore(io.NopCloser(bytes.NewReader(sink.Bytes()))); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
