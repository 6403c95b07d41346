package cluster

import (
	"context"
	"flag"
	"fmt"
	"math/rand"
	"testing"
	"testing/synctest"
	"time"
)

var transferCycles = flag.Int("sim.transfers", 50, "cycles of transfer and partition")

// TestTransferUnderPartition interrupts transfers of leadership by partitions:
// a leader that comes out of it must never go on refusing writes.
func TestTransferUnderPartition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, 3, nil)
		defer c.stop()
		rng := rand.New(rand.NewSource(1))
		var slowest time.Duration
		for i := range *transferCycles {
			leader := c.leader()
			if leader == nil {
				t.Fatalf("cycle %d: no leader", i)
			}
			n, _ := leader.current()
			followers := c.followersOf(leader)
			target, victim := followers[rng.Intn(2)], c.hosts[rng.Intn(3)]
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			done := make(chan error, 1)
			go func() { done <- n.Transfer(ctx, target.name) }()
			time.Sleep(time.Duration(rng.Intn(5000)) * time.Microsecond)
			c.net.isolate(victim.addr, c.addrs(), true)
			time.Sleep(time.Duration(rng.Intn(1500)) * time.Millisecond)
			c.net.heal()
			healed := time.Now()
			status, _, err := c.write(t.Context(), c.hosts[rng.Intn(3)], "PUT", "/r", fmt.Sprint(i))
			took := time.Since(healed)
			slowest = max(slowest, took)
			if err != nil || status != 200 || took > 5*time.Second {
				t.Fatalf("cycle %d: a write after the partition healed: %d, %v, after %v", i, status, err, took)
			}
			if err := <-done; err != nil {
				n.logger.Debug("transfer", "error", err) // it was interrupted
			}
			cancel()
			c.waitLeader()
		}
		t.Logf("%d cycles, the slowest write took %v", *transferCycles, slowest)
		c.converge()
	})
}
