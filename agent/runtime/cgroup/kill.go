package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Procs lists the processes of the group and of all below it.
func (g Group) Procs() ([]int, error) {
	var pids []int
	err := filepath.WalkDir(g.procsDir(), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && !d.IsDir() {
			return nil
		}
		if err != nil {
			return err
		}
		f, err := os.Open(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return ignoreGone(err)
		}
		defer f.Close()
		s := bufio.NewScanner(f)
		for s.Scan() {
			if pid, err := strconv.Atoi(s.Text()); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return ignoreGone(s.Err())
	})
	if err != nil {
		return nil, fmt.Errorf("list processes of cgroup: %w", err)
	}
	return pids, nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// Kill kills every process of the group and of all below it and returns when
// none is left, or with ctx's error.
func (g Group) Kill(ctx context.Context) error {
	if g.Unified != "" {
		err := write(filepath.Join(g.Unified, "cgroup.kill"), "1")
		if err == nil {
			return g.waitEmpty(ctx, func([]int) {})
		}
	}
	// Without cgroup.kill: nothing may fork any more, then kill until empty.
	if err := g.stopForks(g.procsDir()); err != nil {
		return err
	}
	return g.waitEmpty(ctx, g.signalMembers)
}

func (g Group) stopForks(dir string) error {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return ignoreGone(err)
		}
		return ignoreGone(write(filepath.Join(path, "pids.max"), "0"))
	})
	if err != nil {
		return fmt.Errorf("stop forks: %w", err)
	}
	return nil
}

func (g Group) waitEmpty(ctx context.Context, kill func([]int)) error {
	wait := 500 * time.Microsecond
	for {
		pids, err := g.Procs()
		if err != nil || len(pids) == 0 {
			return err
		}
		kill(pids)
		select {
		case <-ctx.Done():
			return fmt.Errorf("kill cgroup: %d processes left: %w", len(pids), ctx.Err())
		case <-time.After(wait):
			wait = min(2*wait, 20*time.Millisecond)
		}
	}
}

// signalMembers kills the listed processes that are members still once a
// descriptor pins them, so that a reused PID is never hit.
func (g Group) signalMembers(pids []int) {
	fds := map[int]int{}
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			fds[pid] = fd
			defer unix.Close(fd)
		}
	}
	now, err := g.Procs()
	if err != nil {
		return // the caller's loop sees the same error
	}
	for pid, fd := range fds {
		if slices.Contains(now, pid) {
			// ESRCH: it ended by itself, which is as good.
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
	}
}
