package shim

import (
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// children reaps every process whose parent the shim is or, as subreaper,
// becomes, and hands on the ends of those that it started itself.
type children struct {
	mu      sync.Mutex // held from fork to registration: no exit is missed, no reused PID is hit
	waiting map[int]chan unix.WaitStatus
}

func newChildren() *children {
	c := &children{waiting: map[int]chan unix.WaitStatus{}}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	go func() {
		for range ended {
			c.reap()
		}
	}()
	return c
}

func (c *children) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if ch := c.waiting[pid]; ch != nil {
			delete(c.waiting, pid)
			ch <- ws
		}
	}
}

// child is a process that the shim started.
type child struct {
	pid  int
	done chan unix.WaitStatus // receives once
}

// stage describes one more run of the shim's own binary.
type stage struct {
	name   string
	files  []uintptr // become descriptors 0, 1, ...
	flags  uintptr   // namespaces to make
	cgroup int       // descriptor of a v2 group to start in; -1: the shim's own
	pidns  int       // pidfd of a process whose PID namespace to start in; -1: the shim's own
}

// start runs a stage.
func (c *children) start(s stage) (*child, error) {
	attr := &syscall.ProcAttr{
		Files: s.files,
		Sys:   &syscall.SysProcAttr{Setsid: true, Cloneflags: s.flags},
	}
	if s.cgroup >= 0 {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, s.cgroup
	}
	type result struct {
		child *child
		err   error
	}
	out := make(chan result, 1)
	go func() {
		if s.pidns >= 0 {
			// The thread's children would stay in that namespace: it ends with this goroutine.
			runtime.LockOSThread()
			if err := unix.Setns(s.pidns, unix.CLONE_NEWPID); err != nil {
				out <- result{nil, os.NewSyscallError("setns pid", err)}
				return
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		pid, err := syscall.ForkExec("/proc/self/exe", []string{s.name}, attr)
		if err != nil {
			out <- result{nil, os.NewSyscallError("fork", err)}
			return
		}
		ch := make(chan unix.WaitStatus, 1)
		c.waiting[pid] = ch
		out <- result{&child{pid: pid, done: ch}, nil}
	}()
	r := <-out
	return r.child, r.err
}

// signal sends a signal to a child that was not reaped yet; false: it was.
func (c *children) signal(pid int, sig unix.Signal) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[pid] == nil {
		return false, nil
	}
	return true, os.NewSyscallError("kill", unix.Kill(pid, sig))
}
