package cluster

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// TestLogOfLargeEntriesStaysSmall writes few but large entries, of which Raft
// alone would keep gigabytes: snapshots come when bytes say so, and a follower
// that missed a few still catches up by the log.
func TestLogOfLargeEntriesStaysSmall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const entry, trailing, between = 32 << 10, 512 << 10, 1 << 20
		var installed atomic.Int64
		c := newSimCluster(t, 6, 3, func(cfg *Config) {
			cfg.TrailingBytes, cfg.SnapshotBytes = trailing, between
			if cfg.Name == "s3" {
				cfg.Snapshots = &countedSnapshots{cfg.Snapshots, cfg.Log.(*raft.InmemStore), &installed}
			}
		})
		defer c.stop()
		value := strings.Repeat("x", entry)
		write := func(i int) {
			t.Helper()
			if code, body, err := c.write(t.Context(), c.hosts[0], "PUT", fmt.Sprint("key-", i%4), value); err != nil || code != 200 {
				t.Fatalf("write %d: %d %.100s %v", i, code, body, err)
			}
		}
		for i := range 300 {
			write(i)
			time.Sleep(50 * time.Millisecond)
			for _, h := range c.hosts {
				n, _ := h.current()
				_, snapshot := n.files.kept.latest()
				// A snapshot that is due is taken at most Timing.Round later.
				bound := trailing + max(between, 2*snapshot) + 20*entry
				if have := n.files.bounded.size(); have > bound {
					t.Fatalf("write %d: the log of %s holds %d bytes, at most %d are wanted", i, h.name, have, bound)
				}
			}
		}
		for _, h := range c.hosts {
			n, _ := h.current()
			if index, _ := n.files.kept.latest(); index == 0 {
				t.Fatalf("%s has taken no snapshot", h.name)
			}
		}
		behind := c.hosts[2]
		before := installed.Load()
		c.crash(behind)
		for i := range 10 {
			write(i)
		}
		c.restart(behind)
		n, _ := behind.current()
		poll(t, "catch up", n.Ready)
		c.converge()
		if got := installed.Load() - before; got != 0 {
			t.Errorf("%d snapshots were sent to a follower that missed 10 entries", got)
		}
		for _, h := range c.hosts {
			n, _ := h.current()
			if size := n.files.bounded.size(); size < trailing-2*entry {
				t.Errorf("%s: only %d bytes are kept", h.name, size)
			}
		}
	})
}
