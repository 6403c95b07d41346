package histories

import (
	"context"
	"flag"
	"fmt"
	"math/rand"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shepherd-project/shepherd/api"
	"github.com/shepherd-project/shepherd/cluster"
	"github.com/shepherd-project/shepherd/fsm"
)

var (
	seeds    = flag.Int("seeds", 24, "number of simulated fault schedules")
	first    = flag.Int64("first", 1, "seed of the first one")
	duration = flag.Duration("time", 5*time.Second, "simulated time of each")
)

// TestSimulatedHistories: whatever the network and the power supply do, clients
// and watchers of the API are told one consistent story by all replicas.
func TestSimulatedHistories(t *testing.T) {
	for i := range *seeds {
		seed := *first + int64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			drawing := filepath.Join(t.ArtifactDir(), "history.html")
			var run *Run
			synctest.Test(t, func(t *testing.T) { run = simulateHistory(t, seed, drawing) })
			if !t.Failed() {
				report := run.Check()
				t.Log(report)
				for _, p := range report.Problems {
					t.Error(p)
				}
			}
			if t.Failed() {
				t.Logf("again: go test ./scripts/histories -run 'TestSimulatedHistories$' -seeds 1 -first %d -time %v -artifacts; the history is drawn in %s", seed, *duration, drawing)
			}
		})
	}
}

func simulateHistory(t *testing.T, seed int64, drawing string) *Run {
	size := 3
	if seed%4 == 0 {
		size = 5
	}
	s := simulate(t, seed, size, snapshotOften)
	defer s.stop()
	run := &Run{
		Namespace: "default", Alone: true, Seed: seed, Clients: 5, Watchers: 3, Keys: 3,
		Think: 40 * time.Millisecond, Patience: 3 * time.Second, Settle: 30 * time.Second, Drawing: drawing,
	}
	for _, h := range s.hosts {
		run.Replicas = append(run.Replicas, Replica{Name: h.name, URL: "http://" + h.addr, Client: s.client("client:1")})
	}
	rng := rand.New(rand.NewSource(seed))
	err := run.Do(t.Context(), func() {
		for end := time.Now().Add(*duration); time.Now().Before(end); {
			s.fault(rng)
		}
		s.heal()
		s.awaitService(run)
	})
	if err != nil {
		t.Error(err)
	}
	s.converge()
	return run
}

// snapshotOften: restarts read snapshots, laggards get them.
func snapshotOften(_ *fsm.Config, nc *cluster.Config, _ *api.Config) {
	nc.SnapshotThreshold, nc.TrailingLogs = 64, 32
	nc.Timing.Snapshot = time.Second
}

// awaitService wants every replica of a cluster that is whole to serve every
// client. What was asked before may take their patience.
func (s *simulation) awaitService(run *Run) {
	s.t.Helper()
	s.awaitLeader()
	ctx, cancel := context.WithTimeout(s.t.Context(), run.Patience+10*time.Second)
	defer cancel()
	if err := run.AwaitService(ctx); err != nil {
		s.t.Error(err)
	}
}

// fault waits a little and makes something happen.
func (s *simulation) fault(rng *rand.Rand) {
	time.Sleep(time.Duration(50+rng.Intn(500)) * time.Millisecond)
	victim, other := s.hosts[rng.Intn(len(s.hosts))], s.hosts[rng.Intn(len(s.hosts))]
	if l := s.leader(); l != nil && rng.Intn(2) == 0 {
		victim = l
	}
	switch rng.Intn(15) {
	case 0: // its packets are dropped, those of clients are not
		s.net.Isolate(victim.addr, s.addrs(), true)
	case 1: // it hangs for a while, as one that is stopped
		everybody := append(s.addrs(), "client:1")
		s.net.Isolate(victim.addr, everybody, true)
		time.Sleep(time.Duration(rng.Intn(1000)) * time.Millisecond)
		s.net.Isolate(victim.addr, everybody, false)
	case 2: // packets are dropped one way
		if victim != other {
			s.net.Block(victim.addr, other.addr, true)
		}
	case 3: // answers to clients are dropped, what they ask arrives
		s.net.Block(victim.addr, "client:1", true)
	case 4: // acknowledgements come late
		if victim != other {
			s.net.Slow(victim.addr, other.addr, time.Duration(50+rng.Intn(400))*time.Millisecond)
		}
	case 5, 6:
		s.crash(victim)
	case 7: // a frozen leader, and another one elected while it believes in itself
		s.net.Isolate(victim.addr, s.addrs(), true)
		s.elect(other)
		time.Sleep(time.Duration(rng.Intn(200)) * time.Millisecond)
		s.net.Heal()
	case 8:
		s.elect(other)
	case 9:
		if up := victim.up.Load(); up != nil {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			if err := up.node.Transfer(ctx, ""); err != nil {
				logger().Debug("transfer", "error", err)
			}
			cancel()
		}
	case 10: // one server alone loses its connections to another
		if victim != other {
			s.net.Refuse("link", other.addr, victim.addr)
			if rng.Intn(2) == 0 {
				s.net.Refuse("raft", victim.addr, other.addr)
			}
		}
	case 11: // its wall clock is wrong by up to a day from now on
		victim.off.Store(rng.Int63n(int64(48*time.Hour)) - int64(24*time.Hour))
	default:
		s.heal()
	}
}
