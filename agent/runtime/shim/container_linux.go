package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	killTimeout  = 30 * time.Second // for a killed process to be gone
	drainTimeout = 2 * time.Second  // for output that is left after the last process
)

// container is one attempt.
type container struct {
	pod   *pod
	spec  *ContainerSpec
	child *child
	log   *logFile
	done  chan struct{} // closed when status is final

	copies  sync.WaitGroup
	streams []*os.File // what the copies read from

	// Guarded by pod.mu.
	status  Status
	stopped bool // told to end before its program ran
}

// start runs an attempt until its program was executed.
func (p *pod) start(spec *ContainerSpec) error {
	c := &container{pod: p, spec: spec, done: make(chan struct{})}
	c.status = Status{Name: spec.Name, Attempt: spec.Attempt, State: Created}
	previous, err := p.add(c)
	if err != nil {
		return err
	}
	if err := c.launch(); err != nil {
		p.takeBack(c, previous)
		return err
	}
	return nil
}

// launch starts the attempt; on failure everything of it is undone.
func (c *container) launch() (err error) {
	defer func() {
		if err != nil {
			c.abort()
		}
	}()
	if c.log, err = openLog(c.spec.LogPath, c.spec.LogMaxBytes, c.spec.LogMaxFiles); err != nil {
		return err
	}
	conn, err := c.spawn()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.f.SetDeadline(time.Now().Add(c.spec.StartTimeout)); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	if err := WriteJSON(conn, TypeInit, 0, c.spec); err != nil {
		return c.died(err)
	}
	if err := c.awaitReady(conn); err != nil {
		return err
	}
	// The intent is on record before the image's program can do anything.
	if err := WriteRecord(filepath.Join(c.spec.StateDir, StateName), c.snapshot()); err != nil {
		return err
	}
	if err := WriteFrame(conn, Frame{Type: TypeGo}); err != nil {
		return c.died(err)
	}
	if err := awaitExec(conn); err != nil {
		return err
	}
	c.pod.update(c, func(s *Status) { s.State, s.StartedAt = Running, time.Now() })
	go c.watch()
	return nil
}

// spawn clones the container's first process into its cgroup.
func (c *container) spawn() (*sock, error) {
	conn, theirs, err := socketpair()
	if err != nil {
		return nil, err
	}
	defer unix.Close(theirs)
	files, closeFiles, err := c.openStreams()
	if err != nil {
		conn.Close()
		return nil, err
	}
	defer closeFiles()
	st := stage{name: stageInit, files: append(files, uintptr(theirs)), flags: unix.CLONE_NEWNS, cgroup: -1, pidns: -1}
	switch c.spec.PIDMode {
	case PIDPrivate:
		st.flags |= unix.CLONE_NEWPID
	case PIDPod:
		st.pidns = c.pod.pausePIDFD
	}
	if dir := c.spec.Cgroup.Unified; dir != "" {
		if st.cgroup, err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			conn.Close()
			return nil, &os.PathError{Op: "open cgroup", Path: dir, Err: err}
		}
		defer unix.Close(st.cgroup)
	}
	if c.child, err = c.pod.children.start(st); err != nil {
		conn.Close()
		return nil, err
	}
	c.pod.update(c, func(s *Status) { s.PID = c.child.pid })
	if c.cancelled() {
		conn.Close()
		return nil, step("start", errors.New("stopped meanwhile"))
	}
	if c.spec.Cgroup.Unified == "" {
		if err := c.spec.Cgroup.Join(c.child.pid); err != nil {
			conn.Close()
			return nil, err
		}
	}
	return conn, nil
}

// openStreams makes descriptors 0 to 2 of the container and starts the copies
// to its log. A terminal's copy starts when its descriptor has come.
func (c *container) openStreams() (files []uintptr, closeAll func(), err error) {
	closeAll = func() {
		for _, f := range files {
			unix.Close(int(f))
		}
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: "/dev/null", Err: err}
	}
	files = []uintptr{uintptr(null)}
	for _, name := range []string{"stdout", "stderr"} {
		if c.spec.TTY {
			fd, err := unix.FcntlInt(uintptr(null), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				closeAll()
				return nil, nil, os.NewSyscallError("dup", err)
			}
			files = append(files, uintptr(fd))
			continue
		}
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			closeAll()
			return nil, nil, os.NewSyscallError("pipe", err)
		}
		files = append(files, uintptr(pipe[1]))
		c.copyStream(name, pipe[0])
	}
	return files, closeAll, nil
}

func (c *container) copyStream(name string, fd int) {
	if err := unix.SetNonblock(fd, true); err != nil {
		fmt.Fprintf(os.Stderr, "log of %s: %v\n", c.spec.Name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	c.streams = append(c.streams, f)
	c.copies.Go(func() { copyLines(c.log, name, f) })
}

func (c *container) awaitReady(conn *sock) error {
	for {
		f, err := ReadFrame(conn)
		if err != nil {
			return c.died(err)
		}
		switch f.Type {
		case TypeTerminal:
			c.copyStream("stdout", conn.takeFD())
		case TypeReady:
			return nil
		default:
			return failure(f)
		}
	}
}

// awaitExec waits for the socket to be closed by execve.
func awaitExec(conn *sock) error {
	f, err := ReadFrame(conn)
	if err == nil {
		return failure(f)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return step("exec", err)
	}
	return nil // end of file, or a reset when it read less than we sent
}

func failure(f Frame) error {
	se := &StepError{Step: "start"}
	if f.Type != TypeFailed {
		se.Message = fmt.Sprintf("unexpected frame type %d", f.Type)
	} else if err := f.Decode(se); err != nil {
		return err
	}
	return se
}

// died explains the loss of a container's init: err is what its socket said.
func (c *container) died(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return step("start", errors.New("timed out"))
	}
	select {
	case ws := <-c.child.done:
		c.child.done <- ws // for abort
		msg := fmt.Sprintf("its init exited with %d", ws.ExitStatus())
		if ws.Signaled() {
			msg = fmt.Sprintf("its init was killed by signal %d", int(ws.Signal()))
		}
		if n, err := c.spec.Cgroup.OOMKills(); err == nil && n > 0 {
			msg += ": the memory limit is too small to start a container"
		}
		return step("start", errors.New(msg))
	case <-time.After(killTimeout):
		return step("start", fmt.Errorf("lost its init: %w", err))
	}
}

// abort undoes a failed launch: no process, no copy is left.
func (c *container) abort() {
	if c.child != nil {
		c.kill()
		select {
		case <-c.child.done:
		case <-time.After(killTimeout):
			fmt.Fprintf(os.Stderr, "container %s: process %d does not die\n", c.spec.Name, c.child.pid)
		}
	}
	c.drain()
}

// kill kills all processes of the container.
func (c *container) kill() {
	if pid := c.snapshot().PID; pid > 0 {
		if _, err := c.pod.children.signal(pid, unix.SIGKILL); err != nil {
			fmt.Fprintf(os.Stderr, "container %s: %v\n", c.spec.Name, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	if err := c.spec.Cgroup.Kill(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "container %s: %v\n", c.spec.Name, err)
	}
}

// drain waits for the copies; whoever holds a pipe still is cut off.
func (c *container) drain() {
	done := make(chan struct{})
	go func() { c.copies.Wait(); close(done) }()
	timer := time.NewTimer(drainTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		for _, f := range c.streams {
			if err := f.SetReadDeadline(time.Now()); err != nil {
				fmt.Fprintf(os.Stderr, "log of %s: %v\n", c.spec.Name, err)
			}
		}
		<-done
	}
	for _, f := range c.streams {
		if err := f.Close(); err != nil {
			fmt.Fprintf(os.Stderr, "log of %s: %v\n", c.spec.Name, err)
		}
	}
	if c.log != nil {
		dropped := c.log.close()
		c.pod.update(c, func(s *Status) { s.LogDropped = dropped })
	}
}

// watch waits for the end of the first process and makes it the container's.
func (c *container) watch() {
	ws := <-c.child.done
	finished := time.Now()
	oom, err := c.spec.Cgroup.OOMKills()
	if err != nil {
		fmt.Fprintf(os.Stderr, "container %s: %v\n", c.spec.Name, err)
	}
	// With a PID namespace of its own nothing is left by now.
	if pids, err := c.spec.Cgroup.Procs(); err != nil || len(pids) > 0 {
		c.kill()
	}
	c.drain()
	final := c.snapshot()
	final.State, final.PID, final.FinishedAt, final.OOMKills = Exited, 0, finished, oom
	final.ExitCode = ws.ExitStatus()
	if ws.Signaled() {
		final.Signal = int(ws.Signal())
		final.ExitCode = 128 + final.Signal
	}
	switch {
	case final.OOMKilled():
		final.Reason = ReasonOOMKilled
	case final.ExitCode != 0:
		final.Reason = ReasonError
	default:
		final.Reason = ReasonCompleted
	}
	if err := WriteRecord(filepath.Join(c.spec.StateDir, ExitName), final); err != nil {
		fmt.Fprintf(os.Stderr, "container %s: %v\n", c.spec.Name, err)
	}
	c.pod.update(c, func(s *Status) { *s = final })
	close(c.done)
}

func (c *container) snapshot() Status {
	c.pod.mu.Lock()
	defer c.pod.mu.Unlock()
	return c.status
}

// cancel makes a start that is under way fail; false: it is over.
func (c *container) cancel() bool {
	c.pod.mu.Lock()
	defer c.pod.mu.Unlock()
	c.stopped = c.status.State == Created
	return c.stopped
}

func (c *container) cancelled() bool {
	c.pod.mu.Lock()
	defer c.pod.mu.Unlock()
	return c.stopped
}

// stop ends the container: its stop signal, then, after grace, SIGKILL.
func (c *container) stop(grace time.Duration) error {
	if c.cancel() {
		grace = 0
	}
	if grace > 0 {
		if _, err := c.pod.children.signal(c.child.pid, unix.Signal(c.spec.StopSignal)); err != nil {
			return err
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-c.done:
			return nil
		case <-timer.C:
		}
	}
	select {
	case <-c.done:
		return nil
	default:
		c.kill()
	}
	select {
	case <-c.done:
		return nil
	case <-time.After(killTimeout):
		return fmt.Errorf("container %s: its processes do not die", c.spec.Name)
	}
}
