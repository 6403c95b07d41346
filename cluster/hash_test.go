package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/fsm"
)

// lyingLog is a log that gives back another value than it was given.
type lyingLog struct {
	*raft.InmemStore
	lies *atomic.Bool
}

func (l *lyingLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

func (l *lyingLog) StoreLogs(entries []*raft.Log) error {
	for _, e := range entries {
		if l.lies.Load() {
			e.Data = bytes.ReplaceAll(bytes.Clone(e.Data), []byte("good"), []byte("evil"))
		}
	}
	return l.InmemStore.StoreLogs(entries)
}

// newWithLiars is a cluster whose servers' logs can lie.
func newWithLiars(t *testing.T, size int) (*watched, map[string]*atomic.Bool) {
	lies := make(map[string]*atomic.Bool)
	return newWatched(t, 3, size, func(cfg *Config) {
		if lies[cfg.Name] == nil {
			lies[cfg.Name] = &atomic.Bool{}
		}
		l := &lyingLog{cfg.Log.(*raft.InmemStore), lies[cfg.Name]}
		cfg.Log, cfg.Stable = l, l
	}), lies
}

// refuses fails the test unless the server does nothing for anybody.
func (w *watched) refuses(h *simHost) {
	w.t.Helper()
	n, store := h.current()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := n.Ready(); !errors.Is(err, ErrDiffers) {
		w.t.Errorf("%s: ready: %v", h.name, err)
	}
	if v, err := w.read(ctx, h, "/r"); !errors.Is(err, ErrDiffers) {
		w.t.Errorf("%s: read %q, %v", h.name, v, err)
	}
	if code, _, err := w.write(ctx, h, "PUT", "/r", "x"); !errors.Is(err, ErrDiffers) {
		w.t.Errorf("%s: write %d, %v", h.name, code, err)
	}
	if _, err := n.Heartbeat(ctx, "node"); !errors.Is(err, ErrDiffers) {
		w.t.Errorf("%s: heartbeat: %v", h.name, err)
	}
	if _, err := store.Cursor(store.View().Revision()); !errors.Is(err, ErrDiffers) {
		w.t.Errorf("%s: watch: %v", h.name, err)
	}
	if _, leading := n.Leadership(); leading || n.raft.State() == raft.Leader {
		w.t.Errorf("%s leads", h.name)
	}
	if st := n.serverStatus(); !bytes.Contains([]byte(st.Problem), []byte("join it again as a new server")) {
		w.t.Errorf("%s: status: %q", h.name, st.Problem)
	}
}

// TestReplicaThatDiffersStops is field report 10: a replica whose log was
// corrupted is found out by the others' hash at the same index, and serves
// nothing any more, as a follower, as the leader and after a restart. The
// others go on.
func TestReplicaThatDiffersStops(t *testing.T) {
	for _, lead := range []bool{false, true} {
		t.Run(fmt.Sprint("leads=", lead), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, lies := newWithLiars(t, 3)
				defer w.stop()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				old, others := w.split()
				bad := others[0]
				time.Sleep(30 * time.Second)
				if w.count(bad, "shepherd_state_comparisons_total", string(findEqual)) == 0 {
					t.Error("healthy servers do not compare themselves")
				}
				lies[bad.name].Store(true)
				if code, _, err := w.write(ctx, old, "PUT", "/r", "good"); code != 200 {
					t.Fatal(code, err)
				}
				time.Sleep(time.Second) // a majority without the liar may have sufficed
				lies[bad.name].Store(false)
				if lead {
					n, _ := old.current()
					if err := n.Transfer(ctx, bad.name); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(20 * time.Second)
				w.refuses(bad)
				good := []*simHost{old, others[1]}
				w.mustWrite(good)
				for _, h := range good {
					if n, _ := h.current(); n.Ready() != nil {
						t.Errorf("%s is not ready: %v", h.name, n.Ready())
					}
				}
				w.crash(bad)
				w.restart(bad)
				time.Sleep(10 * time.Second)
				w.refuses(bad)
				w.mustWrite(good)
			})
		})
	}
}

// TestDifferenceWithoutMajorityIsSaid: of two that differ nobody knows who is
// right, so both serve and say it.
func TestDifferenceWithoutMajorityIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, lies := newWithLiars(t, 2)
		defer w.stop()
		old, others := w.split()
		lies[others[0].name].Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if code, _, err := w.write(ctx, old, "PUT", "/r", "good"); code != 200 {
			t.Fatal(code, err)
		}
		time.Sleep(20 * time.Second)
		for _, h := range w.hosts {
			n, _ := h.current()
			if st := n.serverStatus(); st.Notice == "" || st.Problem != "" || n.Ready() != nil {
				t.Errorf("%s: notice %q, problem %q, ready %v", h.name, st.Notice, st.Problem, n.Ready())
			}
		}
		w.mustWrite(w.hosts)
	})
}

func TestJudgeDigests(t *testing.T) {
	d := func(epoch uint64, sum byte) fsm.Digest { return fsm.Digest{Index: 7, Epoch: epoch, Sum: [16]byte{sum}} }
	three, five := []string{"a", "b", "c"}, []string{"a", "b", "c", "d", "e"}
	for _, c := range []struct {
		name   string
		self   string
		mine   fsm.Digest
		others map[string]fsm.Digest
		voters []string
		want   finding
	}{
		{"nobody answers", "a", d(0, 1), nil, three, findUnanswered},
		{"all equal", "a", d(0, 1), map[string]fsm.Digest{"b": d(0, 1), "c": d(0, 1)}, three, findEqual},
		{"the odd one", "a", d(0, 2), map[string]fsm.Digest{"b": d(0, 1), "c": d(0, 1)}, three, findDiffers},
		{"beside the odd one", "a", d(0, 1), map[string]fsm.Digest{"b": d(0, 1), "c": d(0, 2)}, three, findOther},
		{"two of three", "a", d(0, 1), map[string]fsm.Digest{"b": d(0, 2)}, three, findUndecided},
		{"all differ", "a", d(0, 1), map[string]fsm.Digest{"b": d(0, 2), "c": d(0, 3)}, three, findUndecided},
		{"two of five are no majority", "a", d(0, 1), map[string]fsm.Digest{"b": d(0, 2), "c": d(0, 2)}, five, findUndecided},
		{"three of five are", "a", d(0, 1), map[string]fsm.Digest{"b": d(0, 2), "c": d(0, 2), "d": d(0, 2)}, five, findDiffers},
		{"an earlier epoch", "a", d(0, 1), map[string]fsm.Digest{"b": d(1, 1)}, three, findDiffers},
		{"outnumbered by an earlier epoch", "a", d(1, 1), map[string]fsm.Digest{"b": d(0, 1), "c": d(0, 1)}, three, findUndecided},
		{"a non-voter that differs", "x", d(0, 2), map[string]fsm.Digest{"a": d(0, 1), "b": d(0, 1)}, three, findDiffers},
		{"non-voters do not count", "a", d(0, 1), map[string]fsm.Digest{"x": d(0, 2), "y": d(0, 2)}, three, findUndecided},
	} {
		if got, _ := judgeDigests(c.self, c.mine, c.others, c.voters); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
