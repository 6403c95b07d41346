package cluster

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// slowDisk is a server's stores, each write of which takes a while. Unlike a
// hanging disk, it always answers.
type slowDisk struct {
	*raft.InmemStore
	takes *atomic.Int64 // nanoseconds of one write
}

func (d *slowDisk) wait() { time.Sleep(time.Duration(d.takes.Load())) }

func (d *slowDisk) StoreLog(l *raft.Log) error { return d.StoreLogs([]*raft.Log{l}) }

func (d *slowDisk) StoreLogs(logs []*raft.Log) error {
	d.wait()
	return d.InmemStore.StoreLogs(logs)
}

func (d *slowDisk) DeleteRange(first, last uint64) error {
	d.wait()
	return d.InmemStore.DeleteRange(first, last)
}

func (d *slowDisk) Set(key, value []byte) error {
	d.wait()
	return d.InmemStore.Set(key, value)
}

func (d *slowDisk) SetUint64(key []byte, value uint64) error {
	d.wait()
	return d.InmemStore.SetUint64(key, value)
}

// TestSlowDisksEverywhere: bbolt syncs twice a write, so with 100 ms for each a
// write to the log takes 200 ms, and an election 1.2 s: more than its timeout.
// Nobody is at fault: the leader goes on leading, writes go on slowly, and if it
// dies, or all do, another one is elected at that pace.
func TestSlowDisksEverywhere(t *testing.T) {
	for seed := range int64(3) {
		synctest.Test(t, func(t *testing.T) { slowDisks(t, seed) })
	}
}

func slowDisks(t *testing.T, seed int64) {
	var takes atomic.Int64
	w := newWatched(t, seed, 3, func(c *Config) {
		d := &slowDisk{InmemStore: c.Log.(*raft.InmemStore), takes: &takes}
		c.Log, c.Stable = d, d
		name := c.Name
		c.GiveUp = func(err error) { t.Errorf("%s gives up: %v", name, err) }
	})
	defer w.stop()
	leader, _ := w.split()
	term := w.term()
	takes.Store(int64(200 * time.Millisecond))
	wrote := 0
	for begun := time.Now(); time.Since(begun) < time.Minute; wrote += len(w.hosts) {
		if took := w.mustWrite(w.hosts); took > 2*time.Second {
			t.Errorf("a write took %v", took)
		}
	}
	if wrote < 60 {
		t.Errorf("%d writes in a minute", wrote)
	}
	if w.leader() != leader || w.term() != term {
		t.Errorf("slow disks made term %d of %d", w.term(), term)
	}
	for round := range 3 {
		old, others := w.split()
		w.crash(old)
		if took := w.mustWrite(others); took > 10*time.Second {
			t.Errorf("round %d: a write took %v after the leader's death", round, took)
		}
		w.restart(old)
		w.waitVoters(len(w.hosts))
		w.converge()
		next, term := w.leader(), w.term()
		time.Sleep(20 * time.Second)
		if w.leader() != next || w.term() != term {
			t.Errorf("round %d: term %d, was %d: elections go on", round, w.term(), term)
		}
	}
	for _, h := range w.hosts {
		w.crash(h)
	}
	for _, h := range w.hosts {
		w.restart(h) // and nobody knows yet how slow its disk is
	}
	if took := w.mustWrite(w.hosts); took > 20*time.Second {
		t.Errorf("a write took %v after all had died", took)
	}
	w.converge()
	takes.Store(0)
	if took := w.mustWrite(w.hosts); took > time.Second {
		t.Errorf("a write took %v once the disks were good again", took)
	}
	w.converge()
}
