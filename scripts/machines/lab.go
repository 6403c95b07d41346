// Package machines makes several "machines" on one host, for the demo and for
// tests: network namespaces joined by a switch in a namespace of its own, each
// with its own mounts and process IDs. Nothing is made in the host's own
// namespaces, and everything is gone when the process that made it ends,
// however it ends: each machine's processes die with its first one, and that
// one dies with its maker.
//
// It needs root, and the programs sh, mount and sleep.
package machines

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// gateway is the switch's own address in the machines' network.
const gateway = "10.99.0.254"

// initScript is a machine's first process. It has its own mounts and /proc,
// says when it is ready, and waits for orphans as an init does.
const initScript = `mount --make-rprivate / && mount -t proc proc /proc && echo ready && while :; do sleep 100000; done`

// Lab is a switch and the machines on it. Its methods are safe for concurrent use.
type Lab struct {
	sw    *namespace
	maker maker

	mu       sync.Mutex
	machines []*Machine
	closed   bool
}

// New makes a switch without machines.
func New() (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("making machines out of namespaces needs root")
	}
	l := &Lab{maker: newMaker()}
	sw, err := l.start("switch")
	if err != nil {
		l.maker.stop()
		return nil, err
	}
	l.sw = sw
	if err := sw.makeSwitch(); err != nil {
		return nil, errors.Join(fmt.Errorf("make the switch: %w", err), l.Close())
	}
	return l, nil
}

// Add makes a machine with the address 10.99.0.HOST and plugs it in.
func (l *Lab) Add(name string, host byte) (*Machine, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errors.New("the lab is closed")
	}
	ns, err := l.start(name)
	if err != nil {
		return nil, err
	}
	m := &Machine{Name: name, IP: fmt.Sprintf("10.99.0.%d", host), lab: l, ns: ns, port: fmt.Sprintf("port%d", host)}
	if err := m.plugIn(); err != nil {
		return nil, errors.Join(fmt.Errorf("plug in machine %s: %w", name, err), ns.kill())
	}
	l.machines = append(l.machines, m)
	return m, nil
}

// Close ends every process of every machine, and with them the namespaces. It
// is for the caller to wait for the commands that it started.
func (l *Lab) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	var errs []error
	for _, m := range slices.Backward(l.machines) {
		errs = append(errs, m.ns.kill())
	}
	if l.sw != nil {
		errs = append(errs, l.sw.kill())
	}
	l.maker.stop()
	return errors.Join(errs...)
}

// namespace is a set of namespaces, held by its first process.
type namespace struct {
	cmd  *exec.Cmd
	gone chan struct{} // closed when the first process was waited for
}

func (l *Lab) start(name string) (*namespace, error) {
	cmd := exec.Command("sh", "-c", initScript)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := l.maker.do(cmd.Start); err != nil {
		return nil, fmt.Errorf("start machine %s: %w", name, err)
	}
	ns := &namespace{cmd: cmd, gone: make(chan struct{})}
	_, err = out.Read(make([]byte, 16))
	go func() {
		defer close(ns.gone)
		_ = cmd.Wait() // it only ends by a signal
	}()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("machine %s did not come up: %w", name, err), ns.kill())
	}
	return ns, nil
}

func (n *namespace) pid() int { return n.cmd.Process.Pid }

// kill ends the first process; the kernel ends all others with it. It does not
// wait: the first process is not gone before those that others started in its
// namespaces are waited for by them.
func (n *namespace) kill() error {
	if err := n.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// links runs fn with a netlink handle in the namespace.
func (n *namespace) links(fn func(*netlink.Handle) error) error {
	ns, err := netns.GetFromPid(n.pid())
	if err != nil {
		return err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	return fn(h)
}

func (n *namespace) makeSwitch() error {
	return n.links(func(h *netlink.Handle) error {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "switch"}}
		if err := h.LinkAdd(br); err != nil {
			return err
		}
		if err := h.AddrAdd(br, &netlink.Addr{IPNet: ipNet(gateway)}); err != nil {
			return err
		}
		return h.LinkSetUp(br)
	})
}

func ipNet(ip string) *net.IPNet {
	return &net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(24, 32)}
}

// maker runs functions on one thread that lives as long as the lab: a parent
// death signal is sent when the thread that started the child ends.
type maker struct{ work chan func() }

func newMaker() maker {
	m := maker{work: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for fn := range m.work {
			fn()
		}
	}()
	return m
}

func (m maker) do(fn func() error) error {
	done := make(chan error)
	m.work <- func() { done <- fn() }
	return <-done
}

func (m maker) stop() { close(m.work) }
