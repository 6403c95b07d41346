package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// fullDisk is stores on a file system that may be out of space.
type fullDisk struct {
	*raft.InmemStore
	full *atomic.Bool
	why  error // of a write while it is full
}

func (d *fullDisk) check() error {
	if d.full.Load() {
		return &fs.PathError{Op: "write", Path: "raft.db", Err: d.why}
	}
	return nil
}

func (d *fullDisk) StoreLog(l *raft.Log) error { return d.StoreLogs([]*raft.Log{l}) }

func (d *fullDisk) StoreLogs(logs []*raft.Log) error {
	if err := d.check(); err != nil {
		return err
	}
	return d.InmemStore.StoreLogs(logs)
}

func (d *fullDisk) Set(key, value []byte) error {
	if err := d.check(); err != nil {
		return err
	}
	return d.InmemStore.Set(key, value)
}

func (d *fullDisk) SetUint64(key []byte, value uint64) error {
	if err := d.check(); err != nil {
		return err
	}
	return d.InmemStore.SetUint64(key, value)
}

// fullDisks gives every server of a simulation a disk that can be full, or
// cannot be written for another reason.
func fullDisks(why error) (full map[string]*atomic.Bool, tune func(*Config)) {
	full = map[string]*atomic.Bool{"s1": {}, "s2": {}, "s3": {}}
	return full, func(c *Config) {
		d := &fullDisk{InmemStore: c.Log.(*raft.InmemStore), full: full[c.Name], why: why}
		c.Log, c.Stable = d, d
	}
}

func mustWrite(t *testing.T, c *simCluster, via *simHost, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if code, body, err := c.write(ctx, via, "PUT", key, "v"); err != nil || code != 200 && code != 201 {
		t.Errorf("write %s: %d %s %v", key, code, body, err)
	}
}

// TestFullDisk fills each server's disk in turn, then all of them, and frees
// them: no server ends, writes go on wherever a majority can and through every
// server, and nobody has to restart anything. The same if the disk is read-only
// or broken for a while.
func TestFullDisk(t *testing.T) {
	for _, why := range []error{syscall.ENOSPC, syscall.EROFS, syscall.EIO} {
		t.Run(why.Error(), func(t *testing.T) {
			t.Parallel()
			testFullDisk(t, why)
		})
	}
}

func testFullDisk(t *testing.T, why error) {
	synctest.Test(t, func(t *testing.T) {
		full, tune := fullDisks(why)
		c := newSimCluster(t, 1, 3, tune)
		defer c.stop()
		for round := range 6 {
			leader := c.leader()
			follower := c.hosts[0]
			if follower == leader {
				follower = c.hosts[1]
			}
			sick := leader
			if round%2 == 1 {
				sick = follower
			}
			full[sick.name].Store(true)
			mustWrite(t, c, follower, fmt.Sprintf("full-%d", round))
			c.waitLeader()
			if c.leader() == sick {
				t.Errorf("round %d: %s leads with a full disk", round, sick.name)
			}
			time.Sleep(20 * time.Second)
			for i, h := range c.hosts {
				// The sick one may be unable to store the new leader's term, and so to follow it.
				mustWrite(t, c, h, fmt.Sprintf("later-%d-%d", round, i))
			}
			checkReads(t, c, sick, fmt.Sprintf("later-%d-0", round))
			n, _ := sick.current()
			if st := n.serverStatus(); !strings.Contains(st.Problem, why.Error()) {
				t.Errorf("round %d: the status of %s says %q", round, sick.name, st.Problem)
			}
			full[sick.name].Store(false)
			time.Sleep(20 * time.Second)
			mustWrite(t, c, sick, fmt.Sprintf("free-%d", round))
			c.converge()
			if st := n.serverStatus(); st.Problem != "" {
				t.Errorf("round %d: with space again %s says %q", round, sick.name, st.Problem)
			}
		}
		for _, f := range full {
			f.Store(true)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		switch code, body, err := c.write(ctx, c.hosts[0], "PUT", "none", "v"); {
		case err == nil && code < 400:
			t.Errorf("a write without a disk: %d %s", code, body)
		case !errors.Is(err, ErrNoLeader), !strings.Contains(err.Error(), why.Error()):
			t.Errorf("a write without a disk: %v", err)
		case why != syscall.EIO && errors.Is(err, ErrAmbiguous):
			t.Errorf("a write that no disk took may have happened: %v", err)
		}
		time.Sleep(time.Minute)
		for _, f := range full {
			f.Store(false)
		}
		time.Sleep(10 * time.Second)
		mustWrite(t, c, c.hosts[0], "all-free")
		c.converge()
		for _, h := range c.hosts {
			if n, _ := h.current(); n.Err() != nil {
				t.Errorf("%s ended: %v", h.name, n.Err())
			}
		}
	})
}

// checkReads reads through a server that cannot write down what the others have
// written: it says so, and tells nothing old. What it has it shows.
func checkReads(t *testing.T, c *simCluster, sick *simHost, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if got, err := c.read(ctx, sick, key); !errors.Is(err, ErrNotReady) {
		t.Errorf("%s is read as %q by a server that cannot have it: %v", key, got, err)
	}
}

// TestStopWithFullDisk stops servers whose Raft waits for its disk.
func TestStopWithFullDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		full, tune := fullDisks(syscall.ENOSPC)
		c := newSimCluster(t, 2, 3, tune)
		for _, f := range full {
			f.Store(true)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if code, body, err := c.write(ctx, c.hosts[0], "PUT", "none", "v"); err == nil && code < 400 {
			t.Errorf("a write without a disk: %d %s", code, body)
		}
		time.Sleep(30 * time.Second) // some wait in a term, some are candidates
		for _, h := range c.hosts {
			n, _ := h.current()
			done := make(chan struct{})
			go func() { c.crash(h); close(done) }()
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Fatalf("%s does not stop: %v", h.name, n.disk.problem())
			}
		}
	})
}
