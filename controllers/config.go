package controllers

import (
	"fmt"
	"net/netip"
	"time"
)

// Config is the settings of all controllers. A period is the time between two
// reconciles of a controller that nothing kicks; an idle one stretches to four
// times that, unless it has a deadline to watch.
type Config struct {
	SchedulerPeriod   time.Duration
	ReplicationPeriod time.Duration
	ServicePeriod     time.Duration
	NodePeriod        time.Duration
	GCPeriod          time.Duration
	NamespacePeriod   time.Duration

	// NodeMonitorGrace is the age of a node's last heartbeat from which on it
	// is NotReady.
	NodeMonitorGrace time.Duration
	// EvictionGrace is how long a node is NotReady before its pods are
	// removed, for pods that do not tolerate it for a time of their own.
	EvictionGrace time.Duration
	// LeasePeriod is the time between two batches of node leases.
	LeasePeriod time.Duration

	// ClusterCIDR is cut into one range of pod addresses for each node, each
	// NodeMask bits long. ServiceCIDR holds the cluster IPs; its first address
	// is that of service default/kubernetes.
	ClusterCIDR netip.Prefix
	NodeMask    int
	ServiceCIDR netip.Prefix

	// EventTTL is how long events are kept, in cluster time.
	EventTTL time.Duration
	// FinishedPods is how many pods without a controller are kept after they
	// have succeeded or failed; the oldest ones go first.
	FinishedPods int

	// StopTimeout is how long a loop may take to stop before the process ends.
	StopTimeout time.Duration
}

// DefaultConfig returns the settings that the README documents.
func DefaultConfig() Config {
	return Config{
		SchedulerPeriod:   2 * time.Second,
		ReplicationPeriod: 5 * time.Second,
		ServicePeriod:     5 * time.Second,
		NodePeriod:        10 * time.Second,
		GCPeriod:          5 * time.Second,
		NamespacePeriod:   5 * time.Second,
		NodeMonitorGrace:  40 * time.Second,
		EvictionGrace:     60 * time.Second,
		LeasePeriod:       time.Minute,
		ClusterCIDR:       netip.MustParsePrefix("10.42.0.0/16"),
		NodeMask:          24,
		ServiceCIDR:       netip.MustParsePrefix("10.43.0.0/16"),
		EventTTL:          time.Hour,
		FinishedPods:      1000,
		StopTimeout:       10 * time.Second,
	}
}

// Validate names the first setting that cannot work.
func (c *Config) Validate() error {
	for _, p := range []struct {
		name  string
		value time.Duration
	}{
		{"scheduler period", c.SchedulerPeriod},
		{"replication period", c.ReplicationPeriod},
		{"service period", c.ServicePeriod},
		{"node period", c.NodePeriod},
		{"garbage collection period", c.GCPeriod},
		{"namespace period", c.NamespacePeriod},
		{"node monitor grace", c.NodeMonitorGrace},
		{"lease period", c.LeasePeriod},
		{"event TTL", c.EventTTL},
		{"stop timeout", c.StopTimeout},
	} {
		if p.value <= 0 {
			return fmt.Errorf("controllers: %s must be positive, not %s", p.name, p.value)
		}
	}
	if c.EvictionGrace < 0 {
		return fmt.Errorf("controllers: eviction grace must not be negative, not %s", c.EvictionGrace)
	}
	if c.FinishedPods < 0 {
		return fmt.Errorf("controllers: number of finished pods must not be negative, not %d", c.FinishedPods)
	}
	for _, p := range []struct {
		name  string
		value netip.Prefix
	}{{"cluster CIDR", c.ClusterCIDR}, {"service CIDR", c.ServiceCIDR}} {
		if !p.value.IsValid() || !p.value.Addr().Is4() || p.value != p.value.Masked() {
			return fmt.Errorf("controllers: %s must be an IPv4 network, not %s", p.name, p.value)
		}
	}
	if c.ClusterCIDR.Overlaps(c.ServiceCIDR) {
		return fmt.Errorf("controllers: cluster CIDR %s and service CIDR %s overlap", c.ClusterCIDR, c.ServiceCIDR)
	}
	if c.ServiceCIDR.Bits() > 30 {
		return fmt.Errorf("controllers: service CIDR %s is too small", c.ServiceCIDR)
	}
	if c.NodeMask < c.ClusterCIDR.Bits() || c.NodeMask > 30 {
		return fmt.Errorf("controllers: node mask must be between %d and 30, not %d", c.ClusterCIDR.Bits(), c.NodeMask)
	}
	return nil
}
