package main

import (
	"errors"
	"fmt"
	"net"
	"sort"
	"strings"

	"github.com/vishvananda/netlink"
)

var errNoRoute = errors.New("there is no default route")

// defaultSource is the address that this machine uses towards its default
// route. Two equally good routes are an error: taking one of them would be a
// guess that shows only when the other network fails.
func defaultSource() (string, error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteList(nil, family)
		if err != nil {
			return "", fmt.Errorf("list routes: %w", err)
		}
		if routes = defaultRoutes(routes); len(routes) == 0 {
			continue
		}
		if len(routes) > 1 {
			return "", fmt.Errorf("there are %d equal default routes (%s)", len(routes), describeRoutes(routes))
		}
		return sourceOf(routes[0], family)
	}
	return "", errNoRoute
}

// defaultRoutes are those with the best metric.
func defaultRoutes(all []netlink.Route) []netlink.Route {
	var best []netlink.Route
	for _, r := range all {
		if r.Dst != nil && !(r.Dst.IP.IsUnspecified() && isZero(r.Dst.Mask)) {
			continue
		}
		switch {
		case len(best) == 0 || r.Priority < best[0].Priority:
			best = []netlink.Route{r}
		case r.Priority == best[0].Priority:
			best = append(best, r)
		}
	}
	return best
}

func isZero(m net.IPMask) bool {
	ones, _ := m.Size()
	return ones == 0
}

func describeRoutes(routes []netlink.Route) string {
	var out []string
	for _, r := range routes {
		name := fmt.Sprintf("interface %d", r.LinkIndex)
		if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
			name = link.Attrs().Name
		}
		out = append(out, fmt.Sprintf("via %v on %s", r.Gw, name))
	}
	sort.Strings(out)
	return strings.Join(out, ", ")
}

// sourceOf asks the kernel, which sends nothing for an unconnected protocol.
func sourceOf(r netlink.Route, family int) (string, error) {
	if r.Src != nil {
		return r.Src.String(), nil
	}
	network, probe := "udp4", "192.0.2.1:9" // addresses for documentation: nobody is there
	if family == netlink.FAMILY_V6 {
		network, probe = "udp6", "[2001:db8::1]:9"
	}
	conn, err := net.Dial(network, probe)
	if err != nil {
		return "", fmt.Errorf("find the source address of the default route: %w", err)
	}
	defer conn.Close() // nothing was sent
	local, ok := conn.LocalAddr().(*net.UDPAddr)
	if !ok {
		return "", fmt.Errorf("find the source address of the default route: got %v", conn.LocalAddr())
	}
	return local.IP.String(), nil
}
