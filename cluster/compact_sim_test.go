package cluster

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// countedSnapshots counts the snapshots that a server is sent: those that are
// beyond its own log.
type countedSnapshots struct {
	raft.SnapshotStore
	log       *raft.InmemStore
	installed *atomic.Int64
}

func (s *countedSnapshots) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, at uint64, t raft.Transport) (raft.SnapshotSink, error) {
	if last, err := s.log.LastIndex(); err == nil && last < index {
		s.installed.Add(1)
	}
	return s.SnapshotStore.Create(v, index, term, c, at, t)
}

// TestLaggardCatchesUpInOneTransfer is field report 14: a follower that is
// behind the truncated log gets one snapshot while writes go on, drops its old
// log, and has no gap in the new one.
func TestLaggardCatchesUpInOneTransfer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var installed atomic.Int64
		c := newSimCluster(t, 4, 3, func(cfg *Config) {
			cfg.SnapshotThreshold, cfg.TrailingLogs, cfg.Timing.Snapshot = 64, 128, time.Second
			if cfg.Name == "s3" {
				cfg.Snapshots = &countedSnapshots{cfg.Snapshots, cfg.Log.(*raft.InmemStore), &installed}
			}
		})
		defer c.stop()
		slow := c.hosts[2]
		for i := range 20 { // an old log that compaction alone would keep
			mustWrite(t, c, c.hosts[0], fmt.Sprint("before-", i))
		}
		c.crash(slow)
		for i := range 600 {
			mustWrite(t, c, c.hosts[0], fmt.Sprint("missed-", i%50))
			time.Sleep(10 * time.Millisecond)
		}
		stop := make(chan struct{})
		var load sync.WaitGroup
		load.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				if code, body, err := c.write(ctx, c.hosts[0], "PUT", "load", fmt.Sprint(i)); err != nil || code != 200 {
					t.Errorf("write under load: %d %s %v", code, body, err)
				}
				cancel()
			}
		})
		before := installed.Load()
		c.restart(slow)
		n, _ := slow.current()
		poll(t, "catch up", n.Ready)
		time.Sleep(500 * time.Millisecond)
		close(stop)
		load.Wait()
		c.converge()
		if got := installed.Load() - before; got != 1 {
			t.Errorf("%d snapshots were installed, want 1", got)
		}
		first, err := slow.log.FirstIndex()
		if err != nil {
			t.Fatal(err)
		}
		last, err := slow.log.LastIndex()
		if err != nil {
			t.Fatal(err)
		}
		for index := first; index <= last; index++ {
			if err := slow.log.GetLog(index, &raft.Log{}); err != nil {
				t.Fatalf("the log from %d to %d has a gap at %d: %v", first, last, index, err)
			}
		}
	})
}
