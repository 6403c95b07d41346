package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// lease is the record of one pod, written before anything is made for it.
type lease struct {
	Version int        `json:"version"`
	UID     string     `json:"uid"`
	IP      netip.Addr `json:"ip"`
}

// ipam hands out the node's pod addresses. An address that was just released
// is the last to be used again: peers may still talk to its former owner.
type ipam struct {
	dir string

	mu     sync.Mutex
	cidr   netip.Prefix
	byUID  map[string]netip.Addr
	byAddr map[netip.Addr]string
	last   netip.Addr
}

func openIPAM(dir string) (*ipam, error) {
	p := &ipam{dir: dir, byUID: map[string]netip.Addr{}, byAddr: map[netip.Addr]string{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list pod addresses: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !strings.HasSuffix(e.Name(), ".json") {
			// A record that was never completed: nothing was made for it.
			if err := os.Remove(path); err != nil {
				return nil, fmt.Errorf("remove unfinished record: %w", err)
			}
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read pod address: %w", err)
		}
		var l lease
		if err := json.Unmarshal(data, &l); err != nil || l.Version != 1 || !l.IP.IsValid() || l.UID+".json" != e.Name() {
			return nil, fmt.Errorf("pod address record %s cannot be read (remove it when no pod runs here): %w", path, err)
		}
		p.byUID[l.UID], p.byAddr[l.IP] = l.IP, l.UID
		if !p.last.IsValid() || p.last.Less(l.IP) {
			p.last = l.IP
		}
	}
	return p, nil
}

func (p *ipam) configure(cidr netip.Prefix) error {
	if !cidr.IsValid() || !cidr.Addr().Is4() || cidr.Bits() > 30 || cidr != cidr.Masked() {
		return fmt.Errorf("pod address range %v: must be an IPv4 network of at most 30 bits", cidr)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, ip := range p.byUID {
		if !cidr.Contains(ip) {
			return fmt.Errorf("%w: pod %s has %s, the range is %s", ErrRangeChanged, uid, ip, cidr)
		}
	}
	p.cidr = cidr
	return nil
}

// allocate returns the pod's address, a new one if it has none.
func (p *ipam) allocate(uid string) (netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ip, ok := p.byUID[uid]; ok {
		return ip, nil
	}
	if !p.cidr.IsValid() {
		return netip.Addr{}, ErrNotConfigured
	}
	ip, err := p.nextLocked()
	if err != nil {
		return netip.Addr{}, err
	}
	if err := p.write(lease{Version: 1, UID: uid, IP: ip}); err != nil {
		return netip.Addr{}, fmt.Errorf("record pod address: %w", err)
	}
	p.byUID[uid], p.byAddr[ip], p.last = ip, uid, ip
	return ip, nil
}

// nextLocked finds the free address that comes next after the last one given.
// The network's own, its first and its last address are never given.
func (p *ipam) nextLocked() (netip.Addr, error) {
	first := p.cidr.Addr().Next().Next()
	ip := first
	if p.last.IsValid() && p.cidr.Contains(p.last) {
		ip = p.last.Next()
	}
	for range 1 << (32 - p.cidr.Bits()) {
		if !p.cidr.Contains(ip) || !p.cidr.Contains(ip.Next()) { // past the end, or the broadcast address
			ip = first
		}
		if _, taken := p.byAddr[ip]; !taken {
			return ip, nil
		}
		ip = ip.Next()
	}
	return netip.Addr{}, ErrExhausted
}

// write puts the record in place whole. The run directory does not outlive
// the machine's run, so there is nothing to flush.
func (p *ipam) write(l lease) error {
	data, err := json.Marshal(l)
	if err != nil {
		return err
	}
	path := filepath.Join(p.dir, l.UID+".json")
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (p *ipam) lookup(uid string) (netip.Addr, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ip, ok := p.byUID[uid]
	return ip, ok
}

func (p *ipam) owners() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]string, 0, len(p.byUID))
	for uid := range p.byUID {
		out = append(out, uid)
	}
	return out
}

func (p *ipam) release(uid string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := os.Remove(filepath.Join(p.dir, uid+".json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove pod address: %w", err)
	}
	delete(p.byAddr, p.byUID[uid])
	delete(p.byUID, uid)
	return nil
}
