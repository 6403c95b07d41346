// Package network gives pods their network namespaces and addresses, and
// nodes their routes to each other's pods.
//
// A pod hangs on a point-to-point veth pair. It has one /32 address from the
// node's range and sends everything to 169.254.1.1, an address that nobody
// owns: a permanent neighbour entry on either side names the other end's
// hardware address, so there is no bridge and no ARP, proxied or real.
// Between nodes of one L2 network there is a route per node.
//
// Everything is named after the pod's UID and written down before it is made,
// so a restarted agent finds what it had, and cleaning up is list and diff.
package network

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	linkPrefix = "shp"
	podLink    = "eth0"
	// routeProtocol marks this package's routes in the kernel's tables.
	routeProtocol = 83
)

// gateway is every pod's next hop. No interface has it.
var gateway = netip.MustParseAddr("169.254.1.1")

var (
	// ErrNotConfigured is returned before the node has been given its range.
	ErrNotConfigured = errors.New("the node has no pod address range yet")
	// ErrExhausted is returned when every address of the range is in use.
	ErrExhausted = errors.New("no free pod address in the node's range")
	// ErrRangeChanged is returned when pods still have addresses of another
	// range than the one to be configured.
	ErrRangeChanged = errors.New("pods have addresses outside of the node's range")
)

// Config says where a Manager keeps its records.
type Config struct {
	// RunDir holds the pods' records and network namespaces; it must not
	// outlive a restart of the machine.
	RunDir string
	// NodeName is used in messages.
	NodeName string
	// MTU of the pods' links, in bytes; 0 means 1500.
	MTU int
	// Logger may be nil.
	Logger hclog.Logger
}

// Validate reports settings that cannot work.
func (c *Config) Validate() error {
	if !filepath.IsAbs(c.RunDir) {
		return fmt.Errorf("network run directory %q: must be an absolute path", c.RunDir)
	}
	if c.MTU != 0 && c.MTU < 576 {
		return fmt.Errorf("MTU %d: must be at least 576", c.MTU)
	}
	return nil
}

// Manager is the network of one node's pods. It is safe for concurrent use.
type Manager struct {
	cfg    Config
	logger hclog.Logger
	// node is the namespace the node's own links live in; nil means that of
	// the process.
	node *netns.NsHandle

	ipam *ipam

	mu   sync.Mutex
	busy map[string]chan struct{} // pods being added or removed
}

// New opens the records in the run directory.
func New(cfg Config) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	for _, d := range []string{"netns", "network"} {
		if err := os.MkdirAll(filepath.Join(cfg.RunDir, d), 0o700); err != nil {
			return nil, fmt.Errorf("create network directory: %w", err)
		}
	}
	pool, err := openIPAM(filepath.Join(cfg.RunDir, "network"))
	if err != nil {
		return nil, err
	}
	return &Manager{cfg: cfg, logger: cfg.Logger, ipam: pool, busy: map[string]chan struct{}{}}, nil
}

// Configure gives the node its range of pod addresses. It may be called
// again with the same range.
func (m *Manager) Configure(podCIDR netip.Prefix) error {
	if err := m.ipam.configure(podCIDR); err != nil {
		return err
	}
	return m.rejectUnused(podCIDR)
}

// AddPod gives the pod a network namespace with an address and returns the
// namespace's path. Called again it repairs what is missing and returns the
// same address.
func (m *Manager) AddPod(ctx context.Context, uid string) (netnsPath string, ip netip.Addr, err error) {
	unlock, err := m.lock(ctx, uid)
	if err != nil {
		return "", netip.Addr{}, err
	}
	defer unlock()
	ip, err = m.ipam.allocate(uid)
	if err != nil {
		return "", netip.Addr{}, fmt.Errorf("address for pod %s: %w", uid, err)
	}
	path := m.netnsPath(uid)
	if err := ensureNetNS(path); err != nil {
		return "", netip.Addr{}, fmt.Errorf("network namespace of pod %s: %w", uid, err)
	}
	if err := m.connect(uid, path, ip); err != nil {
		return "", netip.Addr{}, fmt.Errorf("connect pod %s: %w", uid, err)
	}
	return path, ip, nil
}

// PodIP returns the address of a pod that has one.
func (m *Manager) PodIP(uid string) (netip.Addr, bool) { return m.ipam.lookup(uid) }

// Pods returns the UIDs of all pods that have something here.
func (m *Manager) Pods() []string { return m.ipam.owners() }

// RemovePod takes away what AddPod made. Nothing there is no error.
func (m *Manager) RemovePod(ctx context.Context, uid string) error {
	unlock, err := m.lock(ctx, uid)
	if err != nil {
		return err
	}
	defer unlock()
	if err := m.deleteLink(linkName(uid)); err != nil {
		return fmt.Errorf("remove link of pod %s: %w", uid, err)
	}
	if err := removeNetNS(m.netnsPath(uid)); err != nil {
		return fmt.Errorf("remove network namespace of pod %s: %w", uid, err)
	}
	return m.ipam.release(uid)
}

// Cleanup removes every pod's network, also what no record names any more,
// and the node's routes.
func (m *Manager) Cleanup(ctx context.Context) error {
	var errs []error
	for _, uid := range m.ipam.owners() {
		errs = append(errs, m.RemovePod(ctx, uid))
	}
	entries, err := os.ReadDir(filepath.Join(m.cfg.RunDir, "netns"))
	if err != nil {
		errs = append(errs, err)
	}
	for _, e := range entries {
		errs = append(errs, removeNetNS(filepath.Join(m.cfg.RunDir, "netns", e.Name())))
	}
	errs = append(errs, m.removeStrayLinks(), m.removeRoutes())
	return errors.Join(errs...)
}

// lock makes the caller the only one to work on a pod.
func (m *Manager) lock(ctx context.Context, uid string) (func(), error) {
	if uid == "" || uid != filepath.Base(uid) || uid == "." || uid == ".." {
		return nil, fmt.Errorf("pod UID %q is not a plain name", uid)
	}
	for {
		m.mu.Lock()
		wait, taken := m.busy[uid]
		if !taken {
			done := make(chan struct{})
			m.busy[uid] = done
			m.mu.Unlock()
			return func() {
				m.mu.Lock()
				delete(m.busy, uid)
				m.mu.Unlock()
				close(done)
			}, nil
		}
		m.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (m *Manager) netnsPath(uid string) string {
	return filepath.Join(m.cfg.RunDir, "netns", uid)
}

// uidHash is what a pod's names and hardware addresses are made of.
func uidHash(uid string) [32]byte { return sha256.Sum256([]byte(uid)) }

// linkName is the node's end of a pod's pair: 15 bytes, the kernel's limit.
func linkName(uid string) string {
	h := uidHash(uid)
	return linkPrefix + hex.EncodeToString(h[:6])
}

// hardwareAddr derives a locally administered unicast address.
func hardwareAddr(uid string, side byte) net.HardwareAddr {
	h := uidHash(uid)
	return net.HardwareAddr{0x0a, 0x58 + side, h[8], h[9], h[10], h[11]}
}

// isNotExist tells the kernel's ways to say that a link or route is gone.
func isNotExist(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist)
}
