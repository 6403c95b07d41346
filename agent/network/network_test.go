package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const isolated = "SHEPHERD_NETWORK_TEST_ISOLATED"

// TestMain runs the tests in mount and network namespaces of their own, so
// that even a killed run leaves nothing behind.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(isolated) != "" {
		if os.Getenv(isolated) != "" {
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				fmt.Fprintln(os.Stderr, "make mounts private:", err)
				os.Exit(1)
			}
		}
		os.Exit(m.Run())
	}
	runtime.LockOSThread() // the death signal follows the thread
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), isolated+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func requireNetNS(t *testing.T) {
	t.Helper()
	if os.Getenv(isolated) == "" {
		t.Skip("makes network namespaces: needs root")
	}
}

// newNode makes a node: a namespace with a link up.
func newNode(t *testing.T, name string) (*Manager, netns.NsHandle) {
	t.Helper()
	requireNetNS(t)
	run := t.TempDir()
	path := filepath.Join(run, "node")
	if err := ensureNetNS(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeNetNS(path); err != nil {
			t.Error(err)
		}
	})
	ns, err := netns.GetFromPath(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	m := reopen(t, run, name, ns)
	t.Cleanup(func() {
		if err := m.Cleanup(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return m, ns
}

func reopen(t *testing.T, run, name string, ns netns.NsHandle) *Manager {
	t.Helper()
	m, err := New(Config{RunDir: run, NodeName: name})
	if err != nil {
		t.Fatal(err)
	}
	m.node = &ns
	return m
}

// join connects two nodes with a cable and gives them addresses.
func join(t *testing.T, a, b netns.NsHandle, ipA, ipB string) {
	t.Helper()
	h, err := netlink.NewHandleAt(a, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	err = h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "cable"}, PeerName: "cable", PeerNamespace: netlink.NsFd(b)})
	if err != nil {
		t.Fatal(err)
	}
	for ns, ip := range map[netns.NsHandle]string{a: ipA, b: ipB} {
		h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
		if err != nil {
			t.Fatal(err)
		}
		link, err := h.LinkByName("cable")
		if err != nil {
			t.Fatal(err)
		}
		addr, err := netlink.ParseAddr(ip)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(h.AddrAdd(link, addr), h.LinkSetUp(link)); err != nil {
			t.Fatal(err)
		}
		h.Close()
	}
}

// serve answers TCP connections in a namespace with the caller's address.
func serve(t *testing.T, path string, ip netip.Addr) string {
	t.Helper()
	ns, err := netns.GetFromPath(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var ln net.Listener
	err = inNetNS(ns, func() (err error) {
		ln, err = net.Listen("tcp", netip.AddrPortFrom(ip, 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, c.RemoteAddr().(*net.TCPAddr).IP)
			c.Close()
		}
	}()
	return ln.Addr().String()
}

// ask dials from a namespace and returns what the server saw as the source.
func ask(t *testing.T, ns netns.NsHandle, addr string) (string, error) {
	t.Helper()
	var got string
	err := inNetNS(ns, func() error {
		c, err := net.DialTimeout("tcp", addr, 3*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		buf := make([]byte, 64)
		n, err := c.Read(buf)
		got = string(buf[:n])
		return err
	})
	return got, err
}

func mustAdd(t *testing.T, m *Manager, uid string) (string, netip.Addr) {
	t.Helper()
	path, ip, err := m.AddPod(t.Context(), uid)
	if err != nil {
		t.Fatal(err)
	}
	return path, ip
}

func TestPodsTalkOnOneNodeAndAcross(t *testing.T) {
	a, nsA := newNode(t, "a")
	b, nsB := newNode(t, "b")
	join(t, nsA, nsB, "192.0.2.1/24", "192.0.2.2/24")
	cidrA, cidrB := netip.MustParsePrefix("10.42.1.0/24"), netip.MustParsePrefix("10.42.2.0/24")
	if err := errors.Join(a.Configure(cidrA), b.Configure(cidrB)); err != nil {
		t.Fatal(err)
	}
	routesA := []NodeRoute{{cidrB, netip.MustParseAddr("192.0.2.2")}}
	routesB := []NodeRoute{{cidrA, netip.MustParseAddr("192.0.2.1")}}
	for range 2 { // the second time changes nothing
		if err := errors.Join(a.SyncRoutes(t.Context(), routesA), b.SyncRoutes(t.Context(), routesB)); err != nil {
			t.Fatal(err)
		}
	}
	path1, ip1 := mustAdd(t, a, "pod-1")
	path2, ip2 := mustAdd(t, a, "pod-2")
	path3, ip3 := mustAdd(t, b, "pod-3")
	if !cidrA.Contains(ip1) || !cidrA.Contains(ip2) || !cidrB.Contains(ip3) || ip1 == ip2 {
		t.Fatalf("addresses %s %s %s", ip1, ip2, ip3)
	}
	for _, c := range []struct {
		from, to string
		src, dst netip.Addr
	}{
		{path1, path2, ip1, ip2}, {path1, path3, ip1, ip3}, {path3, path2, ip3, ip2}, {path1, path1, ip1, ip1},
	} {
		ns, err := netns.GetFromPath(c.from)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ask(t, ns, serve(t, c.to, c.dst))
		ns.Close()
		if err != nil || got != c.src.String() {
			t.Errorf("%s to %s: the server saw %q, %v", c.src, c.dst, got, err)
		}
	}
	// From a node to its own and to the other's pods: probes, and the demo.
	for _, dst := range []string{serve(t, path1, ip1), serve(t, path3, ip3)} {
		if got, err := ask(t, nsA, dst); err != nil || got != "192.0.2.1" {
			t.Errorf("node to %s: %q, %v", dst, got, err)
		}
	}
	// A node that left takes its route along.
	if err := a.SyncRoutes(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, nsA, serve(t, path3, ip3)); err == nil {
		t.Error("the other node's pod is still reachable")
	}
	// The host's own forwarding switch was not touched.
	err := inNetNS(nsA, func() error {
		v, err := os.ReadFile("/proc/sys/net/ipv4/conf/all/forwarding")
		if err == nil && strings.TrimSpace(string(v)) != "0" {
			err = fmt.Errorf("forwarding for all interfaces is %s", v)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestRecoverAndRemove(t *testing.T) {
	m, ns := newNode(t, "a")
	cidr := netip.MustParsePrefix("10.42.1.0/24")
	if _, _, err := m.AddPod(t.Context(), "early"); !errors.Is(err, ErrNotConfigured) {
		t.Fatalf("error %v, want ErrNotConfigured", err)
	}
	if err := m.Configure(cidr); err != nil {
		t.Fatal(err)
	}
	path, ip := mustAdd(t, m, "one")
	addr := serve(t, path, ip)

	// A restarted agent gives the same pod the same address and leaves its
	// connections alone.
	again := reopen(t, m.cfg.RunDir, "a", ns)
	if err := again.Configure(netip.MustParsePrefix("10.99.0.0/24")); !errors.Is(err, ErrRangeChanged) {
		t.Fatalf("error %v, want ErrRangeChanged", err)
	}
	if err := again.Configure(cidr); err != nil {
		t.Fatal(err)
	}
	if p, got := mustAdd(t, again, "one"); got != ip || p != path {
		t.Fatalf("address %s at %s, was %s at %s", got, p, ip, path)
	}
	self, err := netns.GetFromPath(path)
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	if _, err := ask(t, self, addr); err != nil {
		t.Fatal(err)
	}
	// A link that was lost is made again.
	if err := again.deleteLink(linkName("one")); err != nil {
		t.Fatal(err)
	}
	mustAdd(t, again, "one")
	if _, other := mustAdd(t, again, "two"); other == ip {
		t.Fatalf("address %s given twice", ip)
	}
	for range 2 { // removing is idempotent
		if err := again.RemovePod(t.Context(), "one"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("namespace left: %v", err)
	}
	if _, got := mustAdd(t, again, "three"); got == ip {
		t.Errorf("the address just released was given at once")
	}
	if err := again.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	links, _ := h.LinkList()
	routes, _ := ownRoutes(h)
	entries, _ := os.ReadDir(filepath.Join(m.cfg.RunDir, "netns"))
	records, _ := os.ReadDir(filepath.Join(m.cfg.RunDir, "network"))
	for _, l := range links { // the kernel brings fallback tunnel devices along
		if strings.HasPrefix(l.Attrs().Name, linkPrefix) {
			t.Errorf("link %s left", l.Attrs().Name)
		}
	}
	if len(routes)+len(entries)+len(records) != 0 {
		t.Errorf("left: %d routes, %d namespaces, %d records", len(routes), len(entries), len(records))
	}
}

func TestManyAtOnce(t *testing.T) {
	m, _ := newNode(t, "a")
	if err := m.Configure(netip.MustParsePrefix("10.42.1.0/28")); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[netip.Addr]string{}
	full := 0
	for i := range 16 {
		wg.Go(func() {
			uid := fmt.Sprintf("pod-%d", i)
			_, ip, err := m.AddPod(t.Context(), uid)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, ErrExhausted):
				full++
			case err != nil:
				t.Error(err)
			case seen[ip] != "":
				t.Errorf("%s given to %s and %s", ip, seen[ip], uid)
			default:
				seen[ip] = uid
			}
		})
	}
	wg.Wait()
	if len(seen) != 13 || full != 3 { // 16 less network, gateway's place and broadcast
		t.Errorf("%d addresses given, %d refused", len(seen), full)
	}
}

func TestBadInput(t *testing.T) {
	if _, err := New(Config{RunDir: "relative"}); err == nil {
		t.Error("a relative run directory was taken")
	}
	m, err := New(Config{RunDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"", "..", "a/b"} {
		if _, _, err := m.AddPod(t.Context(), uid); err == nil {
			t.Errorf("UID %q was taken", uid)
		}
	}
	for _, cidr := range []string{"10.42.1.1/24", "10.42.1.0/31", "fd00::/64"} {
		if err := m.Configure(netip.MustParsePrefix(cidr)); err == nil {
			t.Errorf("range %s was taken", cidr)
		}
	}
}
