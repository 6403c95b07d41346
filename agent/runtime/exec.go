package runtime

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"

	"github.com/shepherd-project/shepherd/agent/runtime/shim"
)

// Stats reads the counters of a running container.
func (r *Runtime) Stats(_ context.Context, podUID, container string) (Stats, error) {
	p, err := r.get(podUID)
	if err != nil {
		return Stats{}, err
	}
	attempt, err := p.runningAttempt(container)
	if err != nil {
		return Stats{}, err
	}
	return p.group().Child(groupName(container, attempt)).Stats()
}

func (p *pod) runningAttempt(container string) (int, error) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	c := p.containers[container]
	switch {
	case c == nil:
		return 0, fmt.Errorf("container %s: %w", container, ErrNotFound)
	case c.State != shim.Running || p.client == nil:
		return 0, fmt.Errorf("container %s: %w", container, ErrNotRunning)
	}
	return c.Attempt, nil
}

// Exec runs a process in a running container and returns its exit code
// (128+signal when a signal ended it). The process has what its container has,
// and is killed when ctx ends. Stdin is read until its end or the process's.
func (r *Runtime) Exec(ctx context.Context, podUID, container string, e ExecConfig) (int, error) {
	p, err := r.get(podUID)
	if err != nil {
		return 0, err
	}
	attempt, err := p.runningAttempt(container)
	if err != nil {
		return 0, err
	}
	spec, err := p.execSpec(container, attempt, &e)
	if err != nil {
		return 0, err
	}
	conn, err := dialShim(ctx, p.dir())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	code, err := runExec(conn, spec, &e)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return 0, fmt.Errorf("exec in %s: %w", container, err)
	}
	return code, nil
}

// execSpec is what the container's own process got, with another command.
func (p *pod) execSpec(container string, attempt int, e *ExecConfig) (*shim.ExecSpec, error) {
	if len(e.Args) == 0 || e.Args[0] == "" {
		return nil, fmt.Errorf("%w: no command", ErrInvalid)
	}
	for _, s := range append(append([]string{}, e.Args...), e.Env...) {
		if strings.IndexByte(s, 0) >= 0 {
			return nil, fmt.Errorf("%w: NUL byte in %q", ErrInvalid, s)
		}
	}
	var rec containerRecord
	if err := shim.ReadRecord(filepath.Join(p.r.attemptDir(p.uid(), container, attempt), containerFile), &rec); err != nil {
		return nil, err
	}
	c := rec.Config
	c.Args, c.TTY = e.Args, e.TTY
	c.Env = append(c.Env, e.Env...)
	if e.Cwd != "" {
		c.Cwd = e.Cwd
	}
	if e.User != "" {
		c.User = e.User
	}
	process, err := p.processSpec(&c)
	if err != nil {
		return nil, err
	}
	return &shim.ExecSpec{Container: container, Process: process, Stdin: e.Stdin != nil}, nil
}

func runExec(conn net.Conn, spec *shim.ExecSpec, e *ExecConfig) (int, error) {
	if err := shim.WriteJSON(conn, shim.TypeExec, 1, spec); err != nil {
		return 0, err
	}
	f, err := shim.ReadFrame(conn)
	if err != nil {
		return 0, err
	}
	var reply shim.Reply
	if err := f.Decode(&reply); err != nil {
		return 0, err
	}
	if reply.Error != nil {
		return 0, shimError(reply.Error)
	}
	var wmu sync.Mutex
	write := func(f shim.Frame) error {
		wmu.Lock()
		defer wmu.Unlock()
		return shim.WriteFrame(conn, f)
	}
	done := make(chan struct{})
	defer close(done)
	// Both end when the connection or its source does; a Stdin that blocks is
	// its owner's to close.
	if e.Stdin != nil {
		go sendStdin(write, e.Stdin)
	}
	if e.Resize != nil {
		go sendSizes(conn, &wmu, e.Resize, done)
	}
	return receiveOutput(conn, e)
}

func sendStdin(write func(shim.Frame) error, in io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 && write(shim.Frame{Type: shim.TypeStdin, Payload: buf[:n]}) != nil {
			return
		}
		if err != nil {
			_ = write(shim.Frame{Type: shim.TypeCloseStdin}) // the reader of output sees a lost connection
			return
		}
	}
}

func sendSizes(conn net.Conn, wmu *sync.Mutex, sizes <-chan Winsize, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case s, ok := <-sizes:
			if !ok {
				return
			}
			wmu.Lock()
			err := shim.WriteJSON(conn, shim.TypeResize, 0, s)
			wmu.Unlock()
			if err != nil {
				return
			}
		}
	}
}

func receiveOutput(conn net.Conn, e *ExecConfig) (int, error) {
	for {
		f, err := shim.ReadFrame(conn)
		if err != nil {
			return 0, err
		}
		var to io.Writer
		switch f.Type {
		case shim.TypeStdout:
			to = e.Stdout
		case shim.TypeStderr:
			to = e.Stderr
		case shim.TypeExecExit:
			var x shim.ExecExit
			err := f.Decode(&x)
			return x.Code, err
		}
		if to != nil {
			if _, err := to.Write(f.Payload); err != nil {
				return 0, err
			}
		}
	}
}
