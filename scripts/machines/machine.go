package machines

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Machine is one of a lab's machines.
type Machine struct {
	Name string
	IP   string

	lab  *Lab
	ns   *namespace
	port string // the switch's end of the cable
}

// PID is the process ID, on the host, of the machine's first process.
func (m *Machine) PID() int { return m.ns.pid() }

// Gone is closed when the machine is off and nothing of it is left.
func (m *Machine) Gone() <-chan struct{} { return m.ns.gone }

func (m *Machine) plugIn() error {
	cable := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: m.port},
		PeerName:      "eth0",
		PeerNamespace: netlink.NsPid(m.ns.pid()),
	}
	err := m.lab.sw.links(func(h *netlink.Handle) error {
		sw, err := h.LinkByName("switch")
		if err != nil {
			return err
		}
		if err := h.LinkAdd(cable); err != nil {
			return err
		}
		if err := h.LinkSetMaster(cable, sw); err != nil {
			return err
		}
		return h.LinkSetUp(cable)
	})
	if err != nil {
		return err
	}
	return m.ns.links(func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := h.LinkSetUp(lo); err != nil {
			return err
		}
		eth, err := h.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := h.AddrAdd(eth, &netlink.Addr{IPNet: ipNet(m.IP)}); err != nil {
			return err
		}
		if err := h.LinkSetUp(eth); err != nil {
			return err
		}
		return h.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: net.ParseIP(gateway)})
	})
}

// Unplug cuts the machine off the network; Plug connects it again. Packets are
// dropped, as when a cable is pulled: no connection is told.
func (m *Machine) Unplug() error { return m.setPort(false) }

// Plug is the reverse of Unplug.
func (m *Machine) Plug() error { return m.setPort(true) }

func (m *Machine) setPort(up bool) error {
	return m.lab.sw.links(func(h *netlink.Handle) error {
		port, err := h.LinkByName(m.port)
		if err != nil {
			return fmt.Errorf("machine %s: %w", m.Name, err)
		}
		if up {
			return h.LinkSetUp(port)
		}
		return h.LinkSetDown(port)
	})
}

// nobody is the address of a card that no machine has.
var nobody = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}

// Drop makes this machine's packets to an address of the lab vanish, or arrive
// again. What comes from there arrives: to cut both ways takes two calls.
func (m *Machine) Drop(ip string, drop bool) error {
	return m.ns.links(func(h *netlink.Handle) error {
		eth, err := h.LinkByName("eth0")
		if err != nil {
			return fmt.Errorf("machine %s: %w", m.Name, err)
		}
		neighbour := &netlink.Neigh{LinkIndex: eth.Attrs().Index, Family: unix.AF_INET, IP: net.ParseIP(ip), HardwareAddr: nobody, State: netlink.NUD_PERMANENT}
		if drop {
			return h.NeighSet(neighbour)
		}
		if err := h.NeighDel(neighbour); !errors.Is(err, unix.ENOENT) {
			return err
		}
		return nil // none of its packets were dropped
	})
}

// PowerOff cuts the machine off and ends every process on it at once.
func (m *Machine) PowerOff() error {
	if err := m.Unplug(); err != nil {
		return err
	}
	return m.ns.kill()
}

// Start starts cmd on the machine: in its network, mounts and process IDs. The
// command is the caller's child, to be waited for and killed as usual.
func (m *Machine) Start(cmd *exec.Cmd) error {
	done := make(chan error)
	go func() {
		// The thread has changed namespaces and is not used again: it ends
		// with this goroutine, which never unlocks it.
		runtime.LockOSThread()
		done <- m.startHere(cmd)
	}()
	return <-done
}

func (m *Machine) startHere(cmd *exec.Cmd) error {
	fd, err := unix.PidfdOpen(m.ns.pid(), 0)
	if err != nil {
		return fmt.Errorf("machine %s is off: %w", m.Name, err)
	}
	defer unix.Close(fd)
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNET|unix.CLONE_NEWNS|unix.CLONE_NEWPID); err != nil {
		return fmt.Errorf("enter machine %s: %w", m.Name, err)
	}
	return cmd.Start()
}

// Run is Start and Wait.
func (m *Machine) Run(cmd *exec.Cmd) error {
	if err := m.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}
