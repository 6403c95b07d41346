package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// eventTimeout is how long an agent may leave an event unread before its
// connection is closed. It finds the state when it connects again.
const eventTimeout = 5 * time.Second

// pod is the state of a shim.
type pod struct {
	children   *children
	spec       PodSpec
	record     Record
	pausePIDFD int // of the process that holds the shared PID namespace; -1: none

	// mu also orders what the agents are told: a change and its events are one step.
	mu         sync.Mutex
	containers map[string]*container // the latest attempt of each
	agents     map[*sock]bool
	closing    bool
}

func newPod() *pod {
	return &pod{children: newChildren(), pausePIDFD: -1, containers: map[string]*container{}, agents: map[*sock]bool{}}
}

// add registers a new attempt and returns the one that it replaces.
func (p *pod) add(c *container) (*container, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return nil, &Error{Code: CodeNotRunning, Message: "the pod is being shut down"}
	}
	old := p.containers[c.spec.Name]
	if old != nil {
		if old.status.State != Exited {
			return nil, &Error{Code: CodeExists, Message: fmt.Sprintf("container %s is %s", c.spec.Name, old.status.State)}
		}
		if old.status.Attempt >= c.spec.Attempt {
			return nil, &Error{Code: CodeExists, Message: fmt.Sprintf("attempt %d of container %s has been used", c.spec.Attempt, c.spec.Name)}
		}
	}
	p.containers[c.spec.Name] = c
	return old, nil
}

// takeBack forgets an attempt that could not be started.
func (p *pod) takeBack(c, previous *container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.status.State = Gone
	if previous != nil {
		p.containers[c.spec.Name] = previous
		p.tellLocked(previous.status)
	} else {
		delete(p.containers, c.spec.Name)
		p.tellLocked(c.status)
	}
	close(c.done)
}

// update changes a container's status and tells the agents.
func (p *pod) update(c *container, f func(*Status)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&c.status)
	p.tellLocked(c.status)
}

func (p *pod) tellLocked(s Status) {
	for a := range p.agents {
		if err := a.f.SetWriteDeadline(time.Now().Add(eventTimeout)); err == nil {
			err = WriteJSON(a, TypeEvent, 0, s)
			if err == nil {
				continue
			}
		}
		delete(p.agents, a)
		a.Close() // its reader sees the end
	}
}

// hello registers an agent for events and tells it the state, in one step.
func (p *pod) hello(a *sock, id uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.agents[a] = true
	r := Reply{Pod: &p.record}
	for _, c := range p.containers {
		r.Containers = append(r.Containers, c.status)
	}
	slices.SortFunc(r.Containers, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return WriteJSON(a, TypeReply, id, r)
}

func (p *pod) get(name string) (*container, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.containers[name]
	if c == nil {
		return nil, &Error{Code: CodeNotFound, Message: "no container " + name}
	}
	return c, nil
}

// setup makes what the containers share.
func (p *pod) setup(s PodSpec) error {
	p.spec = s
	start, err := StartTime(os.Getpid())
	if err != nil {
		return err
	}
	p.record = Record{Version: Version, UID: s.UID, BootID: s.BootID, PID: os.Getpid(), StartTime: start}
	if s.Hostname != "" {
		if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
			return fmt.Errorf("set hostname: %w", err)
		}
	}
	if s.Loopback {
		if err := loopbackUp(); err != nil {
			return fmt.Errorf("bring up lo: %w", err)
		}
	}
	for name, value := range s.Sysctls {
		path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return fmt.Errorf("set sysctl %s: %w", name, err)
		}
	}
	if s.ShmBytes > 0 {
		dir := filepath.Join(s.Dir, ShmName)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make shm: %w", err)
		}
		options := fmt.Sprintf("mode=1777,size=%d", s.ShmBytes)
		if err := unix.Mount("shm", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
			return fmt.Errorf("mount shm: %w", err)
		}
	}
	if s.SharePID {
		if err := p.startPause(); err != nil {
			return fmt.Errorf("make PID namespace: %w", err)
		}
	}
	l, err := listen(s.Dir, SocketName)
	if err != nil {
		return err
	}
	if err := WriteRecord(filepath.Join(s.Dir, RecordName), p.record); err != nil {
		return err
	}
	go p.accept(l)
	return nil
}

func (p *pod) accept(l *listener) {
	for {
		a, err := l.accept()
		if err != nil {
			fmt.Fprintf(os.Stderr, "accept: %v\n", err)
			time.Sleep(100 * time.Millisecond) // out of descriptors, perhaps
			continue
		}
		go p.serve(a)
	}
}

// startPause starts the first process of the shared PID namespace.
func (p *pod) startPause() error {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(null)
	n := uintptr(null)
	c, err := p.children.start(stage{name: stagePause, files: []uintptr{n, n, n}, flags: unix.CLONE_NEWPID, cgroup: -1, pidns: -1})
	if err != nil {
		return err
	}
	p.pausePIDFD, err = unix.PidfdOpen(c.pid, 0)
	return err
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
}

// shutdown kills every container and takes the pod's own mounts away.
func (p *pod) shutdown() error {
	p.mu.Lock()
	p.closing = true
	var all []*container
	for _, c := range p.containers {
		all = append(all, c)
	}
	p.mu.Unlock()
	var wg sync.WaitGroup
	errs := make([]error, len(all))
	for i, c := range all {
		wg.Go(func() { errs[i] = c.stop(0) })
	}
	wg.Wait()
	if p.pausePIDFD >= 0 {
		if err := unix.PidfdSendSignal(p.pausePIDFD, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
			errs = append(errs, fmt.Errorf("kill pause: %w", err))
		}
	}
	if p.spec.ShmBytes > 0 {
		if err := unix.Unmount(filepath.Join(p.spec.Dir, ShmName), unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmount shm: %w", err))
		}
	}
	return errors.Join(errs...)
}
