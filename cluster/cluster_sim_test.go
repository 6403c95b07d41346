package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

var (
	simSeeds = flag.Int("sim.seeds", 24, "number of simulated fault schedules")
	simFirst = flag.Int64("sim.first", 1, "seed of the first one")
	simTime  = flag.Duration("sim.time", 20*time.Second, "simulated time of each")
)

func TestThreeServersElectForwardAndRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, 3, nil)
		defer c.stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for i, h := range c.hosts {
			value := string(rune('a' + i))
			if status, _, err := c.write(ctx, h, "PUT", "/r", value); err != nil || status != 200 {
				t.Fatalf("write at %s: %d, %v", h.name, status, err)
			}
			for _, other := range c.hosts {
				if got, err := c.read(ctx, other, "/r"); err != nil || got != value {
					t.Fatalf("read at %s: %q, %v, want %q", other.name, got, err, value)
				}
			}
		}
		c.converge()
	})
}

// TestFaults runs clients against a cluster to which everything happens that
// the network and the power supply can do, and checks that their histories are
// linearizable, that what was acknowledged is there once, and that in the end all
// replicas agree and every server serves every client. A goroutine that outlives the nodes fails it too.
func TestFaults(t *testing.T) {
	testFaults(t, 3, *simSeeds)
}

// TestFaultsOfFive is the same for five servers, for fewer seeds: it takes longer.
func TestFaultsOfFive(t *testing.T) {
	testFaults(t, 5, (*simSeeds+5)/6)
}

func testFaults(t *testing.T, size, seeds int) {
	for i := range seeds {
		seed := *simFirst + int64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rec := &recorder{appended: make(map[string]bool)}
			var list string
			synctest.Test(t, func(t *testing.T) {
				list = runFaults(t, seed, size, rec)
			})
			rec.check(t, list)
		})
	}
}

func runFaults(t *testing.T, seed int64, size int, rec *recorder) (list string) {
	c := newSimCluster(t, seed, size, func(cfg *Config) {
		cfg.SnapshotThreshold, cfg.TrailingLogs = 64, 32 // restarts read snapshots, laggards get them
		cfg.Timing.Snapshot = 2 * time.Second
	})
	defer c.stop()
	whole := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 5 {
		clients.Go(func() { rec.client(c, i, rand.New(rand.NewSource(seed*100+int64(i))), whole) })
	}
	faults(c, rand.New(rand.NewSource(seed)), *simTime)
	c.heal()
	c.waitLeader()
	close(whole)
	clients.Wait()
	c.converge()
	_, store := c.hosts[0].current()
	if o := store.View().Get(registerKey("/list")); o != nil {
		list = string(o.Data)
	}
	return list
}

// faults makes things happen for the given time.
func faults(c *simCluster, rng *rand.Rand, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(time.Duration(100+rng.Intn(900)) * time.Millisecond)
		victim := c.hosts[rng.Intn(len(c.hosts))]
		if l := c.leader(); l != nil && rng.Intn(2) == 0 {
			victim = l
		}
		other := c.hosts[rng.Intn(len(c.hosts))]
		switch rng.Intn(12) {
		case 0, 1:
			c.net.isolate(victim.addr, c.addrs(), true)
		case 2:
			if victim != other {
				c.net.set(victim.addr, other.addr, true)
			}
		case 3:
			if victim != other {
				c.net.slow(victim.addr, other.addr, time.Duration(50+rng.Intn(400))*time.Millisecond)
			}
		case 4:
			c.crash(victim)
		case 5: // a frozen leader, and another one elected while it believes in itself
			c.net.isolate(victim.addr, c.addrs(), true)
			c.forceElection(other)
			time.Sleep(time.Duration(rng.Intn(200)) * time.Millisecond)
			c.net.heal()
		case 6:
			c.forceElection(other)
		case 7:
			if n, _ := victim.current(); n != nil {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				if err := n.Transfer(ctx, ""); err != nil {
					n.logger.Debug("transfer", "error", err)
				}
				cancel()
			}
		case 8: // one server alone loses its connections to another
			if victim != other {
				c.net.refuse("link", other.addr, victim.addr)
				if rng.Intn(2) == 0 {
					c.net.refuse("raft", victim.addr, other.addr)
				}
			}
		default:
			c.heal()
		}
	}
}

// TestFrozenLeaderReadsNothingOld: a leader that is cut off still believes in
// itself for its lease. Another one is elected by force and acknowledges a
// write meanwhile. Reads at the old leader must not see the time before it, even
// when answers to its earlier messages arrive in time to keep its lease.
func TestFrozenLeaderReadsNothingOld(t *testing.T) {
	for seed := range int64(10) {
		synctest.Test(t, func(t *testing.T) {
			c := newSimCluster(t, seed, 3, nil)
			defer c.stop()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			old := c.leader()
			var heir, third *simHost
			for _, h := range c.hosts {
				switch {
				case h == old:
				case heir == nil:
					heir = h
				default:
					third = h
				}
			}
			if status, _, err := c.write(ctx, heir, "PUT", "/r", "old"); err != nil || status != 200 {
				t.Fatal(status, err)
			}
			// Its messages arrive, the answers come late.
			c.net.slow(heir.addr, old.addr, 150*time.Millisecond)
			c.net.slow(third.addr, old.addr, 150*time.Millisecond)
			time.Sleep(60 * time.Millisecond)
			c.net.set(old.addr, heir.addr, true)
			c.net.set(old.addr, third.addr, true)
			c.forceElection(heir)
			if n, _ := heir.current(); !waitLeading(n, 100*time.Millisecond) {
				t.Fatal("the heir does not lead")
			}
			if status, _, err := c.write(ctx, heir, "PUT", "/r", "new"); err != nil || status != 200 {
				t.Fatal(status, err)
			}
			node, _ := old.current()
			if _, leading := node.Leadership(); !leading || node.raft.State() != raft.Leader {
				t.Fatal("the old leader has noticed; the test shows nothing")
			}
			short, stop := context.WithTimeout(ctx, 100*time.Millisecond)
			got, err := c.read(short, old, "/r")
			stop()
			if err == nil && got != "new" {
				t.Fatalf("the frozen leader served %q", got)
			}
			c.net.heal()
			if got, err = c.read(ctx, old, "/r"); err != nil || got != "new" {
				t.Fatalf("after healing: %q, %v", got, err)
			}
			c.converge()
		})
	}
}

func waitLeading(n *Node, d time.Duration) bool {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, leading := n.Leadership(); leading {
			return true
		}
	}
	return false
}

// TestLeaderCrashUnderWrites: requests that wait when the leader dies go to the
// next one by themselves, and every one of them succeeds.
func TestLeaderCrashUnderWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 5, 3, nil)
		defer c.stop()
		old := c.leader()
		var wg sync.WaitGroup
		for _, h := range c.hosts {
			if h == old {
				continue
			}
			for i := range 20 {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * 3 * time.Millisecond)
					status, _, err := c.write(context.Background(), h, "APPEND", "/list", fmt.Sprintf("%s.%d", h.name, i))
					if err != nil || status != 200 {
						t.Errorf("write %d at %s: %d, %v", i, h.name, status, err)
					}
				})
			}
		}
		time.Sleep(20 * time.Millisecond)
		c.crash(old)
		wg.Wait()
		c.restart(old)
		c.converge()
		_, store := old.current()
		count := make(map[string]int)
		for _, w := range splitWords(store.View().Get(registerKey("/list")).Data) {
			count[w]++
		}
		if len(count) != 40 {
			t.Errorf("%d of 40 words", len(count))
		}
		for w, times := range count {
			if times != 1 {
				t.Errorf("%s is there %d times", w, times)
			}
		}
	})
}

func splitWords(b []byte) (words []string) {
	start := -1
	for i, ch := range append(append([]byte(nil), b...), ' ') {
		switch {
		case ch != ' ' && start < 0:
			start = i
		case ch == ' ' && start >= 0:
			words = append(words, string(b[start:i]))
			start = -1
		}
	}
	return words
}

func TestForwardWithoutLeaderEndsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 6, 3, nil)
		defer c.stop()
		survivor := c.hosts[0]
		c.crash(c.hosts[1])
		c.crash(c.hosts[2])
		time.Sleep(3 * time.Second)
		start := time.Now()
		_, _, err := c.write(context.Background(), survivor, "PUT", "/r", "x")
		if !errors.Is(err, ErrNoLeader) || errors.Is(err, ErrAmbiguous) {
			t.Errorf("write without a leader: %v", err)
		}
		if took := time.Since(start); took > 31*time.Second || took < 29*time.Second {
			t.Errorf("it took %v", took)
		}
		n, _ := survivor.current()
		if err := n.ReadIndex(context.Background()); err == nil {
			t.Error("a read without a majority succeeded")
		}
		st := n.Status(context.Background())
		if st.Leader != "" || st.Message == "" || len(st.Members) != 3 {
			t.Errorf("status without a leader: %+v", st)
		}
		t.Log(st.Message)
		c.converge()
	})
}
