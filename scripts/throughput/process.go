package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// processes are a peer's servers.
type processes struct{ cmds []*exec.Cmd }

// start starts one server, which dies with this program. Its output goes to a
// file unless it is given a place.
func (p *processes) start(log string, cmd *exec.Cmd) error {
	f, err := os.Create(log)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd.Stderr = f
	if cmd.Stdout == nil {
		cmd.Stdout = f
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmds = append(p.cmds, cmd)
	return nil
}

func (p *processes) stop() {
	for _, cmd := range p.cmds {
		_ = cmd.Process.Kill() // the measurement is over
		_ = cmd.Wait()
	}
	p.cmds = nil
}

// ticks is the kernel's clock of processes: USER_HZ, which is 100 everywhere.
const ticks = 100

// cpu is the processor time that all servers have used so far.
func (p *processes) cpu() (sum time.Duration, err error) {
	for _, cmd := range p.cmds {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil {
			return 0, err
		}
		_, after, _ := bytes.Cut(text, []byte(") ")) // the name may have blanks
		f := bytes.Fields(after)
		if len(f) < 13 {
			return 0, fmt.Errorf("/proc/%d/stat has %d fields", cmd.Process.Pid, len(f))
		}
		for _, field := range f[11:13] { // utime and stime
			n, err := strconv.ParseInt(string(field), 10, 64)
			if err != nil {
				return 0, err
			}
			sum += time.Duration(n) * time.Second / ticks
		}
	}
	return sum, nil
}

// freeAddress is a loopback address that nobody listens at.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// poll tries until it works.
func poll(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}
