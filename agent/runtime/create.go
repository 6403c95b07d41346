package runtime

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shepherd-project/shepherd/agent/runtime/cgroup"
	"github.com/shepherd-project/shepherd/agent/runtime/shim"
	"golang.org/x/sys/unix"
)

const (
	recordVersion = 1
	// shimMemory is added to a pod's memory limit: the shim is in its cgroup.
	shimMemory   = 16 << 20
	defaultShm   = 64 << 20
	maxHostname  = 63
	defaultHosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
)

func (c *PodConfig) validate() error {
	for what, s := range map[string]string{"pod UID": c.UID, "namespace": c.Namespace, "pod name": c.Name} {
		if err := checkName(what, s); err != nil {
			return err
		}
	}
	if c.HostNetwork && c.NetNS != "" {
		return fmt.Errorf("%w: a network namespace and the host's", ErrInvalid)
	}
	if c.HostPID && c.SharePIDNamespace {
		return fmt.Errorf("%w: a shared PID namespace and the host's", ErrInvalid)
	}
	if len(c.Hostname) > maxHostname {
		return fmt.Errorf("%w: hostname %q is longer than %d characters", ErrInvalid, c.Hostname, maxHostname)
	}
	for name := range c.Sysctls {
		if err := c.checkSysctl(name); err != nil {
			return err
		}
	}
	return nil
}

// checkSysctl allows what is per namespace, where the namespace is the pod's own.
func (c *PodConfig) checkSysctl(name string) error {
	bad := fmt.Errorf("%w: sysctl %q is not the pod's own", ErrInvalid, name)
	if strings.ContainsAny(name, "/\x00") || strings.Contains(name, "..") {
		return bad
	}
	switch {
	case strings.HasPrefix(name, "net."):
		if c.HostNetwork {
			return bad
		}
	case strings.HasPrefix(name, "kernel.shm"), strings.HasPrefix(name, "kernel.msg"),
		name == "kernel.sem", strings.HasPrefix(name, "fs.mqueue."):
		if c.HostIPC {
			return bad
		}
	default:
		return bad
	}
	return nil
}

// CreatePod starts a pod without containers. A dead pod of that UID is replaced
// (its logs are kept); ErrExists if it is alive.
func (r *Runtime) CreatePod(ctx context.Context, c PodConfig) error {
	if err := c.validate(); err != nil {
		return err
	}
	if c.Hostname == "" {
		c.Hostname = c.Name[:min(len(c.Name), maxHostname)]
	}
	p := newPod(r, podRecord{Version: recordVersion, BootID: r.bootID, CreatedAt: time.Now(), Config: c})
	p.turn <- struct{}{}
	defer p.release()
	old, err := r.claim(p)
	if err != nil {
		return err
	}
	if old != nil {
		if err := old.take(ctx); err != nil {
			r.forget(p)
			return err
		}
		defer old.release()
	}
	if err := p.create(ctx); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
		defer cancel()
		err = errors.Join(fmt.Errorf("create pod: %w", err), p.destroy(clean))
		r.forget(p)
		return err
	}
	return nil
}

// claim puts p into the table in the place of a dead pod, which it returns.
func (r *Runtime) claim(p *pod) (*pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	old := r.pods[p.uid()]
	if old != nil && (old.client != nil || old.removing || old.creating) {
		return nil, fmt.Errorf("pod %s: %w", p.uid(), ErrExists)
	}
	p.creating = true
	r.pods[p.uid()] = p
	return old, nil
}

func (r *Runtime) forget(p *pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.creating = false
	if r.pods[p.uid()] == p {
		delete(r.pods, p.uid())
	}
	r.notify()
}

// create makes the pod, its intent first.
func (p *pod) create(ctx context.Context) error {
	if err := p.destroy(ctx); err != nil { // what an earlier life left
		return err
	}
	if err := os.Mkdir(p.dir(), 0o700); err != nil {
		return err
	}
	if err := shim.WriteRecord(filepath.Join(p.dir(), podFile), p.record); err != nil {
		return err
	}
	if err := p.writeFiles(); err != nil {
		return err
	}
	limits := p.record.Config.Resources
	if limits.MemoryLimit > 0 {
		limits.MemoryLimit += shimMemory
	}
	if err := p.group().Create(limits); err != nil {
		return err
	}
	own := p.group().Child(shimGroup)
	if err := own.Create(cgroup.Resources{}); err != nil {
		return err
	}
	conn, proc, err := p.startShim(own)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.r.cfg.StartTimeout)
	defer cancel()
	if err := p.handOver(ctx, conn, proc.pid, own); err != nil {
		return errors.Join(err, p.shimOutput(), ignoreClosed(conn.Close()))
	}
	if err := p.connect(ctx, conn, proc); err != nil {
		return err
	}
	p.r.mu.Lock()
	p.creating = false
	p.r.mu.Unlock()
	return nil
}

// writeFiles makes the files that every container of the pod sees under /etc.
func (p *pod) writeFiles() error {
	c := &p.record.Config
	hosts, resolv := c.Hosts, []byte(c.ResolvConf)
	if hosts == "" {
		hosts = defaultHosts
	}
	if c.ResolvConf == "" {
		var err error
		if resolv, err = os.ReadFile("/etc/resolv.conf"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("copy resolv.conf: %w", err)
		}
	}
	for name, data := range map[string][]byte{
		"hosts": []byte(hosts), "resolv.conf": resolv, "hostname": []byte(p.hostname() + "\n"),
	} {
		if err := os.WriteFile(filepath.Join(p.dir(), name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (p *pod) hostname() string {
	if p.record.Config.HostNetwork {
		if name, err := os.Hostname(); err == nil {
			return name
		}
	}
	return p.record.Config.Hostname
}

// startShim starts the shim in the pod's namespaces and cgroup. It does
// nothing before it is told, and ends if the agent dies before that.
func (p *pod) startShim(own cgroup.Group) (net.Conn, *process, error) {
	c := &p.record.Config
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	defer null.Close()
	output, err := os.OpenFile(filepath.Join(p.dir(), shimLog), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer output.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "shim"), os.NewFile(uintptr(fds[1]), "agent")
	defer ours.Close()
	defer theirs.Close()
	l := launch{files: []uintptr{null.Fd(), output.Fd(), output.Fd(), theirs.Fd()}, netns: c.NetNS, cgroupFD: -1}
	if !c.HostIPC {
		l.flags |= unix.CLONE_NEWIPC
	}
	if !c.HostNetwork {
		l.flags |= unix.CLONE_NEWUTS
		if c.NetNS == "" {
			l.flags |= unix.CLONE_NEWNET
		}
	}
	if own.Unified != "" {
		if l.cgroupFD, err = unix.Open(own.Unified, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return nil, nil, &os.PathError{Op: "open", Path: own.Unified, Err: err}
		}
		defer unix.Close(l.cgroupFD)
	}
	pid, pidfd, err := startShim(p.r.binary, l)
	if err != nil {
		return nil, nil, err
	}
	proc, err := watchProcess(pid, pidfd)
	if err != nil {
		return nil, nil, err
	}
	conn, err := net.FileConn(ours)
	return conn, proc, err
}

// handOver moves the shim out of the agent's cgroup and tells it its pod.
func (p *pod) handOver(ctx context.Context, conn net.Conn, pid int, own cgroup.Group) error {
	c := &p.record.Config
	spec := shim.PodSpec{
		UID: c.UID, Dir: p.dir(), BootID: p.record.BootID, Sysctls: c.Sysctls, SharePID: c.SharePIDNamespace,
		Loopback: c.NetNS == "" && !c.HostNetwork, Cgroup: own,
	}
	if !c.HostNetwork {
		spec.Hostname = c.Hostname
	}
	if !c.HostIPC {
		if spec.ShmBytes = c.ShmBytes; spec.ShmBytes == 0 {
			spec.ShmBytes = defaultShm
		}
	}
	if own.Unified == "" {
		if err := own.Join(pid); err != nil {
			return err
		}
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if err := shim.WriteJSON(conn, shim.TypeCreate, 1, spec); err != nil {
		return fmt.Errorf("hand the pod to its shim: %w", err)
	}
	f, err := shim.ReadFrame(conn)
	if err != nil {
		return fmt.Errorf("wait for the shim: %w", err)
	}
	var reply shim.Reply
	if err := f.Decode(&reply); err != nil {
		return err
	}
	if reply.Error != nil {
		return shimError(reply.Error)
	}
	return conn.SetDeadline(time.Time{})
}

// shimOutput is what a shim that failed said last.
func (p *pod) shimOutput() error {
	b, err := os.ReadFile(filepath.Join(p.dir(), shimLog))
	if err != nil || len(b) == 0 {
		return err
	}
	return fmt.Errorf("the shim said: %s", strings.TrimSpace(string(b[max(0, len(b)-2000):])))
}
