package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// handle opens a netlink handle to the node's namespace.
func (m *Manager) handle() (*netlink.Handle, error) {
	if m.node == nil {
		return netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	return netlink.NewHandleAt(*m.node, unix.NETLINK_ROUTE)
}

// connect joins the pod's namespace to the node. Every step may have been
// done before.
func (m *Manager) connect(uid, path string, ip netip.Addr) error {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	pod, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink in the pod: %w", err)
	}
	defer pod.Close()
	node, err := m.handle()
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer node.Close()
	if err := m.ensurePair(node, pod, ns, uid); err != nil {
		return err
	}
	if err := podSide(pod, uid, ip); err != nil {
		return fmt.Errorf("pod's side: %w", err)
	}
	if err := m.nodeSide(node, uid, ip); err != nil {
		return fmt.Errorf("node's side: %w", err)
	}
	return nil
}

// ensurePair makes the veth pair with one end in the pod. A pair of which
// only the node's end can be seen belongs to a namespace that is gone.
func (m *Manager) ensurePair(node, pod *netlink.Handle, ns netns.NsHandle, uid string) error {
	_, hostErr := node.LinkByName(linkName(uid))
	_, podErr := pod.LinkByName(podLink)
	if hostErr == nil && podErr == nil {
		return nil
	}
	if hostErr == nil {
		if err := m.deleteLink(linkName(uid)); err != nil {
			return err
		}
	}
	veth := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: linkName(uid), MTU: m.cfg.MTU, HardwareAddr: hardwareAddr(uid, 0), TxQLen: 1000},
		PeerName:         podLink,
		PeerHardwareAddr: hardwareAddr(uid, 1),
		PeerNamespace:    netlink.NsFd(ns),
		PeerMTU:          uint32(m.cfg.MTU),
	}
	if err := node.LinkAdd(veth); err != nil {
		return fmt.Errorf("create veth pair: %w", err)
	}
	return nil
}

func podSide(pod *netlink.Handle, uid string, ip netip.Addr) error {
	lo, err := pod.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := pod.LinkSetUp(lo); err != nil {
		return err
	}
	eth, err := pod.LinkByName(podLink)
	if err != nil {
		return err
	}
	if err := pod.AddrReplace(eth, &netlink.Addr{IPNet: hostNet(ip)}); err != nil {
		return fmt.Errorf("set address: %w", err)
	}
	if err := pod.LinkSetUp(eth); err != nil {
		return err
	}
	if err := pod.NeighSet(neighbour(eth, gateway, hardwareAddr(uid, 0))); err != nil {
		return fmt.Errorf("set neighbour: %w", err)
	}
	onLink := &netlink.Route{LinkIndex: eth.Attrs().Index, Dst: hostNet(gateway), Scope: netlink.SCOPE_LINK}
	if err := pod.RouteReplace(onLink); err != nil {
		return fmt.Errorf("set route to the gateway: %w", err)
	}
	def := &netlink.Route{LinkIndex: eth.Attrs().Index, Gw: gateway.AsSlice(), Src: ip.AsSlice()}
	if err := pod.RouteReplace(def); err != nil {
		return fmt.Errorf("set default route: %w", err)
	}
	return nil
}

func (m *Manager) nodeSide(node *netlink.Handle, uid string, ip netip.Addr) error {
	link, err := node.LinkByName(linkName(uid))
	if err != nil {
		return err
	}
	if err := m.inNode(func() error { return setInterface(link.Attrs().Name) }); err != nil {
		return err
	}
	if err := node.LinkSetUp(link); err != nil {
		return err
	}
	if err := node.NeighSet(neighbour(link, ip, hardwareAddr(uid, 1))); err != nil {
		return fmt.Errorf("set neighbour: %w", err)
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: hostNet(ip), Scope: netlink.SCOPE_LINK, Protocol: routeProtocol}
	if err := node.RouteReplace(route); err != nil {
		return fmt.Errorf("set route to the pod: %w", err)
	}
	return nil
}

func neighbour(link netlink.Link, ip netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: mac}
}

// hostNet is the network of one address.
func hostNet(ip netip.Addr) *net.IPNet {
	return &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}
}

// setInterface turns forwarding on for one interface, never for the host, and
// IPv6 off where no pod uses it. The caller is in the node's namespace.
func setInterface(name string) error {
	if err := setForwarding(name); err != nil {
		return err
	}
	return writeSysctl("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", "1")
}

func setForwarding(name string) error {
	return writeSysctl("/proc/sys/net/ipv4/conf/"+name+"/forwarding", "1")
}

// writeSysctl leaves alone what is set already: /proc/sys may be read-only.
func writeSysctl(path, value string) error {
	old, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(path, "/proc/sys/net/ipv6/") {
		return nil // a kernel without IPv6
	}
	if err == nil && strings.TrimSpace(string(old)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s: %w", path, err)
	}
	return nil
}

func (m *Manager) deleteLink(name string) error {
	node, err := m.handle()
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer node.Close()
	return deleteLinkBy(node, name)
}

func deleteLinkBy(node *netlink.Handle, name string) error {
	link, err := node.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) || isNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := node.LinkDel(link); err != nil && !isNotExist(err) {
		return err
	}
	return nil
}

// removeStrayLinks removes every link that has the name of a pod's.
func (m *Manager) removeStrayLinks() error {
	node, err := m.handle()
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer node.Close()
	links, err := node.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	var errs []error
	for _, l := range links {
		name := l.Attrs().Name
		if l.Type() == "veth" && strings.HasPrefix(name, linkPrefix) && len(name) == unix.IFNAMSIZ-1 {
			errs = append(errs, deleteLinkBy(node, name))
		}
	}
	return errors.Join(errs...)
}
