package shim

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// Main is the shim's binary. It returns the exit code. It must be called on
// the process's main thread, locked (see cmd/shepherd-shim).
func Main() int {
	switch os.Args[0] {
	case stageInit:
		return initMain()
	case stageExec:
		return execMain()
	case stagePause:
		return pauseMain()
	}
	return shimMain()
}

func shimMain() int {
	fail := func(err error) int {
		fmt.Fprintf(os.Stderr, "shepherd-shim: %v\n", err)
		return 1
	}
	if err := unix.Fstat(syncFD, new(unix.Stat_t)); err != nil {
		return fail(errors.New("this program is started by the agent"))
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fail(fmt.Errorf("set non-dumpable: %w", err))
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fail(fmt.Errorf("become subreaper: %w", err))
	}
	// Caught, not ignored: what is ignored would be so in the containers too.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGPIPE)
	unix.Umask(0o022)
	conn, err := newSock(syncFD, "agent")
	if err != nil {
		return fail(err)
	}
	f, err := expect(conn, TypeCreate)
	if err != nil {
		return fail(fmt.Errorf("wait for the pod: %w", err))
	}
	var spec PodSpec
	p := newPod()
	if err = f.Decode(&spec); err == nil {
		err = p.setup(spec)
	}
	if err != nil {
		return fail(errors.Join(err, reply(conn, f.ID, err)))
	}
	if err := reply(conn, f.ID, nil); err != nil {
		fmt.Fprintf(os.Stderr, "shepherd-shim: the agent is gone: %v\n", err)
	}
	go p.serve(conn)
	select {}
}

// reply answers a request; a nil err is success.
func reply(a *sock, id uint64, err error) error {
	var r Reply
	if err != nil {
		var e *Error
		var se *StepError
		switch {
		case errors.As(err, &e):
			r.Error = e
		case errors.As(err, &se):
			r.Error = &Error{Code: CodeStep, Message: err.Error(), Step: se}
		default:
			r.Error = &Error{Code: CodeInternal, Message: err.Error()}
		}
	}
	return WriteJSON(a, TypeReply, id, r)
}

// serve answers one agent until its connection ends.
func (p *pod) serve(a *sock) {
	defer func() {
		p.mu.Lock()
		delete(p.agents, a)
		p.mu.Unlock()
		a.Close()
	}()
	for {
		f, err := ReadFrame(a)
		if err != nil {
			return // the agent went away; the containers stay
		}
		switch f.Type {
		case TypeHello:
			if p.hello(a, f.ID) != nil {
				return
			}
		case TypeExec:
			p.exec(a, f)
			return
		case TypeShutdown:
			err := p.shutdown()
			if werr := reply(a, f.ID, err); werr != nil {
				fmt.Fprintf(os.Stderr, "shepherd-shim: %v\n", werr)
			}
			if err == nil {
				os.Exit(0)
			}
		default:
			go p.answer(a, f)
		}
	}
}

func (p *pod) answer(a *sock, f Frame) {
	err := p.handle(f)
	// A failed write is the agent's end; its reader notices.
	if a.f.SetWriteDeadline(time.Now().Add(eventTimeout)) == nil {
		_ = reply(a, f.ID, err)
	}
}

func (p *pod) handle(f Frame) error {
	switch f.Type {
	case TypeStart:
		spec := new(ContainerSpec)
		if err := f.Decode(spec); err != nil {
			return err
		}
		return p.start(spec)
	case TypeStop:
		var r StopRequest
		if err := f.Decode(&r); err != nil {
			return err
		}
		c, err := p.get(r.Name)
		if err != nil {
			return err
		}
		return c.stop(r.Grace)
	case TypeSignal:
		var r SignalRequest
		if err := f.Decode(&r); err != nil {
			return err
		}
		c, err := p.get(r.Name)
		if err != nil {
			return err
		}
		if c.snapshot().State != Running {
			return &Error{Code: CodeNotRunning, Message: "container " + r.Name + " is not running"}
		}
		_, err = p.children.signal(c.child.pid, unix.Signal(r.Signal))
		return err
	}
	return fmt.Errorf("unknown request %d", f.Type)
}

// pauseMain is the first process of a shared PID namespace: it reaps.
func pauseMain() int {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 1
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for {
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != unix.EINTR && (err != nil || pid <= 0) {
				break
			}
		}
		<-ended
	}
}
