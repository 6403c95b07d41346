package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Group names one control group: a directory of the unified hierarchy, or one
// in each v1 hierarchy. It is a plain value, holds no descriptors and may be
// sent to another process.
type Group struct {
	Unified string            `json:"unified,omitempty"`
	V1      map[string]string `json:"v1,omitempty"` // "cpu,cpuacct" -> directory

	depth int // of Unified below the mount point
}

// Child names a group below g.
func (g Group) Child(name string) Group {
	if g.Unified != "" {
		return Group{Unified: filepath.Join(g.Unified, name), depth: g.depth + 1}
	}
	c := Group{V1: make(map[string]string, len(g.V1))}
	for key, dir := range g.V1 {
		c.V1[key] = filepath.Join(dir, name)
	}
	return c
}

// dirs are all directories of the group.
func (g Group) dirs() []string {
	if g.Unified != "" {
		return []string{g.Unified}
	}
	ds := make([]string, 0, len(g.V1))
	for _, d := range g.V1 {
		ds = append(ds, d)
	}
	return ds
}

// procsDir is the directory whose cgroup.procs is asked for the members.
func (g Group) procsDir() string {
	if g.Unified != "" {
		return g.Unified
	}
	return controllerDir(g.V1, "pids")
}

// Create makes the group (its parents too) with its limits. An existing group
// gets the limits.
func (g Group) Create(r Resources) error {
	for _, d := range g.dirs() {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("create cgroup: %w", err)
		}
	}
	if g.Unified != "" {
		if err := g.delegate(); err != nil {
			return err
		}
	}
	for _, s := range g.settings(r) {
		err := write(s.path, s.value)
		if err != nil && !(s.optional && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission))) {
			return fmt.Errorf("limit cgroup: %w", err)
		}
	}
	return nil
}

// delegate enables the needed controllers in every ancestor that lacks them.
func (g Group) delegate() error {
	if have, err := enabled(filepath.Join(g.Unified, "cgroup.controllers")); err == nil && containsAll(have, needed) {
		return nil
	}
	var up []string // nearest first
	for dir, i := g.Unified, 0; i < g.depth; i++ {
		dir = filepath.Dir(dir)
		up = append(up, dir)
	}
	for i := len(up) - 1; i >= 0; i-- {
		file := filepath.Join(up[i], "cgroup.subtree_control")
		have, err := enabled(file)
		if err != nil {
			return fmt.Errorf("enable controllers: %w", err)
		}
		if containsAll(have, needed) {
			continue
		}
		if err := write(file, "+"+strings.Join(needed, " +")); err != nil {
			return fmt.Errorf("enable controllers: %w", err)
		}
	}
	return nil
}

type setting struct {
	path, value string
	optional    bool // the file is missing on some kernels
}

const cpuPeriod = 100_000 // microseconds

func (g Group) settings(r Resources) []setting {
	var out []setting
	add := func(optional bool, controller, file string, value int64) {
		dir := g.Unified
		if dir == "" {
			dir = controllerDir(g.V1, controller)
		}
		out = append(out, setting{filepath.Join(dir, file), strconv.FormatInt(value, 10), optional})
	}
	if g.Unified != "" {
		if r.MemoryLimit > 0 {
			add(false, "memory", "memory.max", r.MemoryLimit)
			add(true, "memory", "memory.swap.max", 0)
			add(true, "memory", "memory.oom.group", 1)
		}
		if r.CPURequest > 0 {
			add(false, "cpu", "cpu.weight", sharesToWeight(shares(r.CPURequest)))
		}
		if r.CPULimit > 0 {
			out = append(out, setting{filepath.Join(g.Unified, "cpu.max"), fmt.Sprintf("%d %d", quota(r.CPULimit), cpuPeriod), false})
		}
		if r.PidsLimit > 0 {
			add(false, "pids", "pids.max", r.PidsLimit)
		}
		return out
	}
	if r.MemoryLimit > 0 {
		add(false, "memory", "memory.limit_in_bytes", r.MemoryLimit)
		add(true, "memory", "memory.memsw.limit_in_bytes", r.MemoryLimit)
	}
	if r.CPURequest > 0 {
		add(false, "cpu", "cpu.shares", shares(r.CPURequest))
	}
	if r.CPULimit > 0 {
		add(true, "cpu", "cpu.cfs_period_us", cpuPeriod)
		add(false, "cpu", "cpu.cfs_quota_us", quota(r.CPULimit))
	}
	if r.PidsLimit > 0 {
		add(false, "pids", "pids.max", r.PidsLimit)
	}
	return out
}

// shares turns thousandths of a CPU into v1's weight (1024 a CPU, at least 2).
func shares(milli int64) int64 { return min(max(milli*1024/1000, 2), 262144) }

// sharesToWeight maps [2, 262144] onto [1, 10000], as Kubernetes does.
func sharesToWeight(shares int64) int64 { return 1 + (shares-2)*9999/262142 }

func quota(milli int64) int64 { return max(milli*cpuPeriod/1000, 1000) }

// Join moves a process into the group.
func (g Group) Join(pid int) error {
	for _, d := range g.dirs() {
		if err := write(filepath.Join(d, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	return nil
}

// Exists tells whether any of the group's directories is there.
func (g Group) Exists() bool {
	for _, d := range g.dirs() {
		if _, err := os.Lstat(d); err == nil {
			return true
		}
	}
	return false
}

// Children names the groups directly below g.
func (g Group) Children() ([]string, error) {
	seen := map[string]bool{}
	var names []string
	for _, d := range g.dirs() {
		entries, err := os.ReadDir(d)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && !seen[e.Name()] {
				seen[e.Name()] = true
				names = append(names, e.Name())
			}
		}
	}
	return names, nil
}

// removeTimeout is how long a group may stay busy after its last process has
// left the lists: the kernel lets go of a dying process a moment later.
const removeTimeout = 10 * time.Second

// Remove removes the group and all below it. A group with processes: EBUSY.
func (g Group) Remove() error {
	names, err := g.Children()
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range names {
		errs = append(errs, g.Child(n).Remove())
	}
	if err := errors.Join(errs...); err != nil {
		return err // the group is busy as long as one below it is there
	}
	for _, d := range g.dirs() {
		errs = append(errs, g.rmdir(d))
	}
	return errors.Join(errs...)
}

func (g Group) rmdir(dir string) error {
	deadline := time.Now().Add(removeTimeout)
	for wait := 500 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		err := syscall.Rmdir(dir)
		if err == nil || err == syscall.ENOENT {
			return nil
		}
		if err == syscall.EBUSY && time.Now().Before(deadline) {
			if pids, perr := g.Procs(); perr == nil && len(pids) == 0 {
				time.Sleep(wait)
				continue
			}
		}
		return &fs.PathError{Op: "remove cgroup", Path: dir, Err: err}
	}
}

// write writes one value in one write, as the kernel wants it.
func write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
