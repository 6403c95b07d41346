package cluster

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// hangingDisk is a server's log whose writes wait while it hangs.
type hangingDisk struct {
	*raft.InmemStore

	mu   sync.Mutex
	hung chan struct{} // closed when it works again; nil while it works
}

func (d *hangingDisk) hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung == nil {
		d.hung = make(chan struct{})
	}
}

func (d *hangingDisk) work() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung != nil {
		close(d.hung)
		d.hung = nil
	}
}

func (d *hangingDisk) wait() {
	d.mu.Lock()
	hung := d.hung
	d.mu.Unlock()
	if hung != nil {
		<-hung
	}
}

func (d *hangingDisk) StoreLog(entry *raft.Log) error { return d.StoreLogs([]*raft.Log{entry}) }

func (d *hangingDisk) StoreLogs(entries []*raft.Log) error {
	d.wait()
	return d.InmemStore.StoreLogs(entries)
}

func (d *hangingDisk) Set(key, value []byte) error {
	d.wait()
	return d.InmemStore.Set(key, value)
}

func (d *hangingDisk) SetUint64(key []byte, value uint64) error {
	d.wait()
	return d.InmemStore.SetUint64(key, value)
}

// withDisks is a watched cluster whose disks can hang, and whose servers end as
// a process does when they give up.
type withDisks struct {
	*watched
	disks map[string]*hangingDisk // by server name
	gone  sync.WaitGroup

	mu     sync.Mutex
	reason map[string]error // why servers gave up
}

func newWithDisks(t *testing.T, size int) *withDisks {
	w := &withDisks{disks: make(map[string]*hangingDisk), reason: make(map[string]error)}
	w.watched = newWatched(t, 7, size, func(cfg *Config) {
		name := cfg.Name
		disk := &hangingDisk{InmemStore: cfg.Log.(*raft.InmemStore)}
		w.disks[name] = disk
		cfg.Log, cfg.Stable = disk, disk
		cfg.GiveUp = func(err error) {
			w.mu.Lock()
			w.reason[name] = err
			w.mu.Unlock()
			h := w.host(name)
			w.net.crash(h.addr)
			w.gone.Go(func() {
				disk.work() // a real process goes away; this one has to be stopped
				w.crash(h)
			})
		}
	})
	return w
}

func (w *withDisks) host(name string) *simHost {
	for _, h := range w.hosts {
		if h.name == name {
			return h
		}
	}
	w.t.Fatalf("no server %s", name)
	return nil
}

func (w *withDisks) gaveUp() (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.reason {
		names = append(names, name)
	}
	return names
}

// TestLeaderWithHangingDiskGivesUp: writes go on elsewhere, and it comes back.
func TestLeaderWithHangingDiskGivesUp(t *testing.T) {
	for _, size := range []int{3, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWithDisks(t, size)
				defer w.stop()
				leader, others := w.split()
				w.disks[leader.name].hang()
				if took := w.mustWrite(others); took > 5*time.Second {
					t.Errorf("a write took %v", took)
				}
				w.gone.Wait()
				if !errors.Is(w.reason[leader.name], ErrDiskHangs) || len(w.gaveUp()) != 1 {
					t.Errorf("gave up: %v", w.reason)
				}
				if n := w.count(leader, "shepherd_disk_stalls_total", ""); n != 0 {
					t.Errorf("the metrics outlived the node: %v", n)
				}
				w.restart(leader)
				w.converge()
			})
		})
	}
}

// TestSlowDisksEverywhereAreNoReasonToGiveUp: then nobody would do better.
func TestSlowDisksEverywhereAreNoReasonToGiveUp(t *testing.T) {
	for _, hang := range []int{2, 3} { // so that no majority is left
		t.Run(fmt.Sprint(hang, " of 3"), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWithDisks(t, 3)
				defer w.stop()
				leader, others := w.split()
				term := w.term()
				for _, h := range append([]*simHost{leader}, others...)[:hang] {
					w.disks[h.name].hang()
				}
				written := make(chan time.Duration)
				go func() { written <- w.mustWrite(others) }()
				time.Sleep(20 * time.Second)
				if names := w.gaveUp(); len(names) != 0 {
					t.Fatalf("%v gave up", names)
				}
				if w.count(leader, "shepherd_disk_decisions_total", "stay") == 0 {
					t.Error("it was never considered: the test shows nothing")
				}
				for _, d := range w.disks {
					d.work()
				}
				<-written
				w.converge()
				if w.term() != term || w.leader() != leader {
					t.Errorf("term %d, was %d", w.term(), term)
				}
			})
		})
	}
}

// TestLeaderWithoutQuorumAndDiskDoesNotEnd: there is nobody to go on.
func TestLeaderWithoutQuorumAndDiskDoesNotEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWithDisks(t, 3)
		defer w.stop()
		leader, others := w.split()
		w.disks[leader.name].hang()
		for _, o := range others {
			w.net.set(leader.addr, o.addr, true)
			w.net.set(o.addr, leader.addr, true)
		}
		time.Sleep(20 * time.Second)
		if names := w.gaveUp(); len(names) != 0 {
			t.Errorf("%v gave up", names)
		}
		w.disks[leader.name].work()
		w.mustWrite(others)
		w.converge()
	})
}

// TestStalledFollowerCatchesUp: within 10 s, under the same leader.
func TestStalledFollowerCatchesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWithDisks(t, 3)
		defer w.stop()
		leader, others := w.split()
		term, slow := w.term(), others[0]
		w.disks[slow.name].hang()
		for begun := time.Now(); time.Since(begun) < 30*time.Second; time.Sleep(100 * time.Millisecond) {
			w.mustWrite([]*simHost{leader})
		}
		w.disks[slow.name].work()
		ln, _ := leader.current()
		sn, _ := slow.current()
		for begun, want := time.Now(), ln.raft.LastIndex(); sn.raft.AppliedIndex() < want; time.Sleep(10 * time.Millisecond) {
			if time.Since(begun) > time.Second {
				t.Fatalf("%d of %d applied after %v", sn.raft.AppliedIndex(), want, time.Since(begun))
			}
		}
		if w.count(slow, "shepherd_disk_stalls_total", "") == 0 {
			t.Error("nobody noticed the stall")
		}
		if w.term() != term || w.leader() != leader || len(w.gaveUp()) != 0 {
			t.Errorf("term %d, was %d; gave up: %v", w.term(), term, w.gaveUp())
		}
		w.converge()
	})
}
