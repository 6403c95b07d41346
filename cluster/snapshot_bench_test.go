package cluster

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/fsm"
)

// BenchmarkSnapshotStop takes snapshots of 100,000 objects of 1 KB, with a full
// table of outcomes, between entries that are applied, as Raft does on the one
// goroutine that applies. max-stop-ms is the longest time for which no entry was
// applied, and max-apply-ms the longest that an entry took while a snapshot was
// being written beside it. max-restore-ms is the longest time to restore one.
func BenchmarkSnapshotStop(b *testing.B) {
	m := &machine{Store: fsm.New(fsm.DefaultConfig())}
	index := uint64(0)
	apply := func(verb fsm.Verb, names, from int) {
		index++
		data := fmt.Appendf(nil, "%01024d", index) // an update that changes nothing has no revision
		var cmds []fsm.Command
		for i := from; i < from+names; i++ {
			name := fmt.Sprint("o", i%100_000)
			cmds = append(cmds, fsm.Command{Term: 1, ID: fsm.NewRequestID(m.View().Revision()), Ops: []fsm.Op{{Verb: verb, Key: registerKey(name), UID: name, Data: data}}})
		}
		for _, r := range m.Apply(&raft.Log{Index: index, Term: 1, Data: fsm.EncodeEntry(cmds)}).([]fsm.Result) {
			if r.Code != fsm.OK {
				b.Fatal(r.Code, r.Detail)
			}
		}
	}
	for i := range 1000 {
		apply(fsm.Create, 100, i*100)
	}
	var stop, slowest, restore time.Duration
	var sink bufferSink
	for b.Loop() {
		begun := time.Now()
		snap, err := m.Snapshot()
		stop = max(stop, time.Since(begun))
		if err != nil {
			b.Fatal(err)
		}
		sink.Reset()
		written := make(chan error, 1)
		go func() { written <- snap.Persist(&sink) }()
		for busy := true; busy; {
			begun := time.Now()
			apply(fsm.Update, 16, int(index*7919))
			slowest = max(slowest, time.Since(begun))
			select {
			case err := <-written:
				if err != nil {
					b.Fatal(err)
				}
				busy = false
			default:
			}
		}
		snap.Release()
		into, begun := &machine{Store: fsm.New(fsm.DefaultConfig())}, time.Now()
		if err := into.Restore(io.NopCloser(bytes.NewReader(sink.Bytes()))); err != nil {
			b.Fatal(err)
		}
		restore = max(restore, time.Since(begun))
		if n := into.View().Len(); n != 100_000 {
			b.Fatalf("%d objects were restored", n)
		}
	}
	for unit, d := range map[string]time.Duration{"max-stop-ms": stop, "max-apply-ms": slowest, "max-restore-ms": restore} {
		b.ReportMetric(float64(d.Microseconds())/1000, unit)
	}
}
