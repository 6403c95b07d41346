package shim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// execMain enters a running container and becomes one more of its processes.
func execMain() int {
	conn, err := newSock(syncFD, "shim")
	if err != nil {
		return 1
	}
	return report(conn, runExec(conn))
}

func runExec(conn *sock) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return step("set non-dumpable", err)
	}
	f, err := expect(conn, TypeInit)
	if err != nil {
		return step("read specification", err)
	}
	var s ExecSpec
	if err := f.Decode(&s); err != nil {
		return step("read specification", err)
	}
	const target = syncFD + 1 // pidfd of the container's first process
	// Threads share root and working directory; this one must not, to move.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return step("unshare file system state", err)
	}
	if err := unix.Setns(target, unix.CLONE_NEWNS|unix.CLONE_NEWCGROUP); err != nil {
		return step("enter the container", err)
	}
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return step("open root", err)
	}
	if s.TTY {
		if err := openTerminal(conn, s.Size, false); err != nil {
			return step("open terminal", err)
		}
	}
	prog, err := prepare(&s.Process, rootDir(fd))
	if err != nil {
		return err
	}
	return prog.become()
}

// exec runs one process in a container; the connection is its own.
func (p *pod) exec(a *sock, f Frame) {
	var s ExecSpec
	if err := f.Decode(&s); err != nil {
		_ = reply(a, f.ID, err) // the connection ends either way
		return
	}
	x := &execution{pod: p, agent: a, spec: &s}
	err := x.launch()
	if rerr := reply(a, f.ID, err); err != nil || rerr != nil {
		x.abort()
		return
	}
	x.run()
}

// execution is one process that an agent runs in a container.
type execution struct {
	pod   *pod
	agent *sock
	spec  *ExecSpec
	child *child

	stdin    *os.File // nil: /dev/null or closed
	terminal *os.File
	outputs  map[Type]*os.File
}

func (x *execution) launch() error {
	c, err := x.pod.get(x.spec.Container)
	if err != nil {
		return err
	}
	if c.snapshot().State != Running {
		return &Error{Code: CodeNotRunning, Message: "container " + x.spec.Container + " is not running"}
	}
	target, err := unix.PidfdOpen(c.child.pid, 0)
	if err != nil {
		return &Error{Code: CodeNotRunning, Message: "container " + x.spec.Container + " has ended"}
	}
	defer unix.Close(target)
	conn, theirs, err := socketpair()
	if err != nil {
		return err
	}
	defer conn.Close()
	files, err := x.openStreams()
	defer func() {
		for _, f := range files {
			unix.Close(int(f))
		}
	}()
	files = append(files, uintptr(theirs))
	if err != nil {
		return err
	}
	x.child, err = x.pod.children.start(stage{
		name: stageExec, files: append(files, uintptr(target)), cgroup: -1, pidns: target,
	})
	if err != nil {
		return err
	}
	if err := c.spec.Cgroup.Join(x.child.pid); err != nil {
		return err
	}
	if err := conn.f.SetDeadline(time.Now().Add(c.spec.StartTimeout)); err != nil {
		return err
	}
	// Its own copies of the other end must be closed, or the end is never seen.
	for _, f := range files {
		unix.Close(int(f))
	}
	files = nil
	if err := WriteJSON(conn, TypeInit, 0, x.spec); err != nil {
		return step("exec", err)
	}
	return x.awaitExec(conn)
}

func (x *execution) awaitExec(conn *sock) error {
	for {
		f, err := ReadFrame(conn)
		switch {
		case err == nil && f.Type == TypeTerminal:
			fd := conn.takeFD()
			if err := unix.SetNonblock(fd, true); err != nil {
				return fmt.Errorf("terminal: %w", err)
			}
			x.terminal = os.NewFile(uintptr(fd), "terminal")
			x.stdin = x.terminal
			x.outputs = map[Type]*os.File{TypeStdout: x.terminal}
		case err == nil:
			return failure(f)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return step("exec", errors.New("timed out"))
		default:
			return nil
		}
	}
}

// openStreams makes descriptors 0 to 2. What it returns is the caller's to
// close, also with an error.
func (x *execution) openStreams() (files []uintptr, err error) {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/null", Err: err}
	}
	pipe := func(mine int) (*os.File, error) {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return nil, os.NewSyscallError("pipe", err)
		}
		files = append(files, uintptr(fds[1-mine]))
		if err := unix.SetNonblock(fds[mine], true); err != nil {
			return nil, os.NewSyscallError("set nonblocking", err)
		}
		return os.NewFile(uintptr(fds[mine]), "pipe"), nil
	}
	if x.spec.Stdin && !x.spec.TTY {
		defer unix.Close(null)
		if x.stdin, err = pipe(1); err != nil {
			return files, err
		}
	} else {
		files = append(files, uintptr(null))
	}
	x.outputs = map[Type]*os.File{}
	for _, t := range []Type{TypeStdout, TypeStderr} {
		if x.outputs[t], err = pipe(0); err != nil {
			return files, err
		}
	}
	return files, nil
}

func (x *execution) abort() {
	if x.child != nil {
		if _, err := x.pod.children.signal(x.child.pid, unix.SIGKILL); err != nil {
			fmt.Fprintf(os.Stderr, "exec: %v\n", err)
		}
	}
	for _, f := range x.outputs {
		f.Close()
	}
	if x.stdin != nil && x.stdin != x.terminal {
		x.stdin.Close()
	}
}

// run moves bytes until the process has ended. An agent that goes away takes
// its process with it.
func (x *execution) run() {
	defer x.abort()
	// The agent may read as slowly as it likes: only this process waits.
	if err := x.agent.f.SetWriteDeadline(time.Time{}); err != nil {
		return
	}
	go x.readAgent()
	var copies sync.WaitGroup
	for t, f := range x.outputs {
		copies.Go(func() { x.copyOutput(t, f) })
	}
	ws := <-x.child.done
	drained := make(chan struct{})
	go func() { copies.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(drainTimeout): // a child of it holds the streams
		for _, f := range x.outputs {
			_ = f.SetReadDeadline(time.Now()) // closed next
		}
	}
	e := ExecExit{Code: ws.ExitStatus()}
	if ws.Signaled() {
		e.Signal = int(ws.Signal())
		e.Code = 128 + e.Signal
	}
	_ = WriteJSON(x.agent, TypeExecExit, 0, e) // an agent that is gone does not ask
}

func (x *execution) copyOutput(t Type, f *os.File) {
	buf := make([]byte, 32<<10)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			if WriteFrame(x.agent, Frame{Type: t, Payload: buf[:n]}) != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (x *execution) readAgent() {
	for {
		f, err := ReadFrame(x.agent)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				_, _ = x.pod.children.signal(x.child.pid, unix.SIGKILL) // nobody is left to tell
			}
			return
		}
		switch f.Type {
		case TypeStdin:
			if x.stdin != nil {
				if _, err := x.stdin.Write(f.Payload); err != nil && !errors.Is(err, io.EOF) {
					continue // it does not read any more; its exit will tell
				}
			}
		case TypeCloseStdin:
			if x.stdin != nil && x.terminal == nil {
				if err := x.stdin.Close(); err != nil {
					fmt.Fprintf(os.Stderr, "exec: %v\n", err)
				}
			}
		case TypeResize:
			var size Winsize
			if x.terminal != nil && f.Decode(&size) == nil {
				if err := setWinsize(int(x.terminal.Fd()), size); err != nil {
					fmt.Fprintf(os.Stderr, "exec: %v\n", err)
				}
			}
		}
	}
}
