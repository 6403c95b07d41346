package agent

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Config holds every setting of the agent. Start from DefaultConfig and fill
// in NodeName, Servers and TLS.
type Config struct {
	// NodeName is the name of this machine's Node object. The certificate
	// that TLS returns must be that of the same node.
	NodeName string
	// DataDir keeps what must outlive a restart of the machine: images, logs,
	// the server list, the highest revision acted on. Absolute.
	DataDir string
	// RunDir keeps what must not outlive it: sockets, network namespaces, pod
	// volumes in memory. Absolute, normally on a tmpfs.
	RunDir string
	// CgroupRoot is the parent of all pods' cgroups, relative to the
	// hierarchy's mount point, for example "shepherd".
	CgroupRoot string
	// ShimPath is the shepherd-shim binary; empty means beside this program's.
	ShimPath string

	// Servers are the HOST:PORT addresses to begin with. The agent learns the
	// others and keeps them in DataDir.
	Servers []string
	// TLS returns the client configuration for connections to servers: the
	// certificate of this node, the cluster's CA, and the verification of the
	// server's role. It is called at every dial, so that a renewed certificate
	// is used at once; it must be quick and safe for concurrent use. The
	// agent sets NextProtos, and ServerName when it is empty.
	TLS func() (*tls.Config, error)
	// LocalAddr is where raw TCP is passed through to any live server, for
	// the kubeconfigs of this machine. Empty turns it off.
	LocalAddr string

	// NodeIP is the address other nodes reach this one at. The zero value
	// means the source address of the route to the first server.
	NodeIP netip.Addr
	// Labels are set on the Node at each registration; labels set by others
	// are kept.
	Labels map[string]string
	// Taints are given to the Node when it is created, and never afterwards.
	Taints []corev1.Taint
	// MaxPods is the Node's capacity in pods.
	MaxPods int
	// Version is reported as the node's kubelet version.
	Version string

	// HeartbeatInterval is the time between two heartbeats.
	HeartbeatInterval time.Duration
	// HeartbeatTimeout bounds one attempt at one server.
	HeartbeatTimeout time.Duration
	// SyncInterval is the time between two looks at all pods; an event makes
	// one come at once.
	SyncInterval time.Duration
	// NodeStatusInterval is the time after which an unchanged node status is
	// compared with the server's again.
	NodeStatusInterval time.Duration

	// MaxParallelPulls bounds the images pulled at the same time.
	MaxParallelPulls int
	// InsecureRegistries are HOST[:PORT] of registries spoken to over plain
	// HTTP. Those on loopback addresses always are tried that way too.
	InsecureRegistries []string
	// DNS is the resolv.conf of pods whose dnsPolicy is ClusterFirst. Without
	// name servers they get the machine's.
	DNS DNSConfig

	// Logger receives everything the agent has to say. Nil discards.
	Logger hclog.Logger
}

// DNSConfig is what pods get as resolver configuration.
type DNSConfig struct {
	// Servers are the name servers' addresses.
	Servers []string
	// Domain is the cluster's domain, "cluster.local" by default.
	Domain string
}

// DefaultConfig returns the settings that an agent has unless told otherwise.
func DefaultConfig() Config {
	return Config{
		DataDir:            "/var/lib/shepherd",
		RunDir:             "/run/shepherd",
		CgroupRoot:         "shepherd",
		LocalAddr:          "127.0.0.1:9875",
		MaxPods:            110,
		Version:            "v1.37.0+shepherd",
		HeartbeatInterval:  10 * time.Second,
		HeartbeatTimeout:   4 * time.Second,
		SyncInterval:       3 * time.Second,
		NodeStatusInterval: 3 * time.Minute,
		MaxParallelPulls:   3,
		DNS:                DNSConfig{Domain: "cluster.local"},
	}
}

// Validate reports every setting that cannot work, each by its name.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if msgs := validation.IsDNS1123Subdomain(c.NodeName); len(msgs) > 0 {
		bad("node name %q: %s", c.NodeName, strings.Join(msgs, "; "))
	}
	if !filepath.IsAbs(c.DataDir) {
		bad("data directory %q: must be an absolute path", c.DataDir)
	}
	if !filepath.IsAbs(c.RunDir) {
		bad("run directory %q: must be an absolute path", c.RunDir)
	}
	if c.CgroupRoot == "" || strings.Contains(c.CgroupRoot, "..") {
		bad("cgroup root %q: must be a path below the hierarchy's root", c.CgroupRoot)
	}
	if len(c.Servers) == 0 {
		bad("servers: at least one HOST:PORT is needed")
	}
	for _, s := range c.Servers {
		if _, _, err := net.SplitHostPort(s); err != nil {
			bad("server %q: %w", s, err)
		}
	}
	if c.TLS == nil {
		bad("TLS: no source of client certificates")
	}
	if c.LocalAddr != "" {
		if err := validateLoopback(c.LocalAddr); err != nil {
			bad("local address %q: %w", c.LocalAddr, err)
		}
	}
	if c.MaxPods <= 0 {
		bad("max pods %d: must be positive", c.MaxPods)
	}
	if c.MaxParallelPulls <= 0 {
		bad("parallel pulls %d: must be positive", c.MaxParallelPulls)
	}
	for name, d := range map[string]time.Duration{
		"heartbeat interval": c.HeartbeatInterval, "heartbeat timeout": c.HeartbeatTimeout,
		"sync interval": c.SyncInterval, "node status interval": c.NodeStatusInterval,
	} {
		if d <= 0 {
			bad("%s %v: must be positive", name, d)
		}
	}
	for k, v := range c.Labels {
		if msgs := validation.IsQualifiedName(k); len(msgs) > 0 {
			bad("label %q: %s", k, strings.Join(msgs, "; "))
		}
		if msgs := validation.IsValidLabelValue(v); len(msgs) > 0 {
			bad("label %s=%q: %s", k, v, strings.Join(msgs, "; "))
		}
	}
	return errors.Join(errs...)
}

// validateLoopback refuses an address that other machines could reach: the
// pass-through carries whatever credentials its callers have.
func validateLoopback(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return err
	}
	if !ip.IsLoopback() {
		return errors.New("must be a loopback address")
	}
	return nil
}
