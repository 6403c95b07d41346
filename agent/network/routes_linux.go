package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// NodeRoute says by which address another node's pods are reached.
type NodeRoute struct {
	PodCIDR netip.Prefix
	NodeIP  netip.Addr
}

// SyncRoutes makes the routes to other nodes' pods exactly those given. A
// route that cannot be set does not keep the others from being set.
func (m *Manager) SyncRoutes(ctx context.Context, want []NodeRoute) error {
	node, err := m.handle()
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer node.Close()
	have, err := ownRoutes(node)
	if err != nil {
		return err
	}
	var errs []error
	wanted := map[string]bool{}
	for _, r := range want {
		if err := ctx.Err(); err != nil {
			return err
		}
		wanted[prefixNet(r.PodCIDR).String()] = true
		if err := m.setRoute(node, r, have); err != nil {
			errs = append(errs, fmt.Errorf("route to %s through %s: %w", r.PodCIDR, r.NodeIP, err))
		}
	}
	for _, r := range have {
		if r.Gw == nil || wanted[r.Dst.String()] {
			continue
		}
		if err := node.RouteDel(&r); err != nil && !isNotExist(err) {
			errs = append(errs, fmt.Errorf("remove route to %s: %w", r.Dst, err))
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) setRoute(node *netlink.Handle, r NodeRoute, have []netlink.Route) error {
	if !r.PodCIDR.IsValid() || !r.NodeIP.Is4() {
		return errors.New("not an IPv4 route")
	}
	path, err := node.RouteGet(r.NodeIP.AsSlice())
	if err != nil {
		return err
	}
	if len(path) == 0 {
		return unix.ENETUNREACH
	}
	if path[0].Gw != nil {
		return fmt.Errorf("the node is behind a router (%s): its pods can be reached only on one network", path[0].Gw)
	}
	link, err := node.LinkByIndex(path[0].LinkIndex)
	if err != nil {
		return err
	}
	// Packets for this node's pods come in here.
	if err := m.inNode(func() error { return setForwarding(link.Attrs().Name) }); err != nil {
		return err
	}
	dst := prefixNet(r.PodCIDR)
	for _, h := range have {
		if h.Dst.String() == dst.String() && h.Gw.Equal(r.NodeIP.AsSlice()) && h.LinkIndex == link.Attrs().Index {
			return nil
		}
	}
	return node.RouteReplace(&netlink.Route{
		LinkIndex: link.Attrs().Index, Dst: dst, Gw: r.NodeIP.AsSlice(), Protocol: routeProtocol,
	})
}

// rejectUnused answers for addresses of the node's range that no pod has, so
// that their packets do not wander between this node and its router.
func (m *Manager) rejectUnused(cidr netip.Prefix) error {
	node, err := m.handle()
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer node.Close()
	err = node.RouteReplace(&netlink.Route{Dst: prefixNet(cidr), Type: unix.RTN_UNREACHABLE, Protocol: routeProtocol, Priority: 4096})
	if err != nil {
		return fmt.Errorf("route for unused addresses of %s: %w", cidr, err)
	}
	return nil
}

func ownRoutes(node *netlink.Handle) ([]netlink.Route, error) {
	list, err := node.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	own := list[:0]
	for _, r := range list {
		if r.Dst != nil {
			own = append(own, r)
		}
	}
	return own, nil
}

func (m *Manager) removeRoutes() error {
	node, err := m.handle()
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer node.Close()
	routes, err := ownRoutes(node)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range routes {
		if err := node.RouteDel(&r); err != nil && !isNotExist(err) {
			errs = append(errs, fmt.Errorf("remove route to %s: %w", r.Dst, err))
		}
	}
	return errors.Join(errs...)
}

func prefixNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
