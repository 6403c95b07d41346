package upstream

import (
	"crypto/tls"
	"errors"
	"testing"
	"time"
)

// TestSpreadGrowsWithTheCluster: a handful of agents is back at once, five
// thousand take seconds, and none takes longer than the limit.
func TestSpreadGrowsWithTheCluster(t *testing.T) {
	for nodes, most := range map[int]time.Duration{0: spreadEach, 1: spreadEach, 5: 5 * spreadEach, 400: spreadLimit, 5000: spreadLimit} {
		longest := time.Duration(0)
		for range 2000 {
			longest = max(longest, Spread(nodes))
		}
		if longest >= most || longest < most*9/10 {
			t.Errorf("%d nodes wait for %v at most, want nearly %v", nodes, longest, most)
		}
	}
}

// TestAgentsSpreadOverTheServers: a hundred agents that all joined at the first
// server do not stay with it when they learn of the others.
func TestAgentsSpreadOverTheServers(t *testing.T) {
	servers := []string{"a:1", "b:1", "c:1"}
	users := map[string]int{}
	for range 100 {
		cfg := DefaultConfig()
		cfg.Seeds, cfg.TLS = servers[:1], func() (*tls.Config, error) { return nil, errors.New("nobody dials") }
		p, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Update(servers); err != nil {
			t.Fatal(err)
		}
		first := p.Current()
		users[first]++
		if err := p.Update(append(servers, "d:1")); err != nil {
			t.Fatal(err)
		}
		if p.Current() != first {
			t.Errorf("an agent left %s, which had not failed", first)
		}
	}
	for _, s := range servers {
		if users[s] < 10 {
			t.Errorf("%d of 100 agents talk to %s", users[s], s)
		}
	}
}
