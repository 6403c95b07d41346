package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// OOMKills counts the processes of this group (not of those below it on v1)
// that the kernel killed for memory.
func (g Group) OOMKills() (uint64, error) {
	dir, file := g.Unified, "memory.events"
	if dir == "" {
		dir, file = controllerDir(g.V1, "memory"), "memory.oom_control"
	}
	n, err := field(filepath.Join(dir, file), "oom_kill")
	if err != nil {
		return 0, fmt.Errorf("count OOM kills: %w", err)
	}
	return n, nil
}

// Stats reads the group's counters.
func (g Group) Stats() (Stats, error) {
	s := Stats{Time: time.Now()}
	var errs []error
	get := func(n uint64, err error) uint64 {
		errs = append(errs, err)
		return n
	}
	var inactive uint64
	if dir := g.Unified; dir != "" {
		s.CPUUsage = time.Duration(get(field(filepath.Join(dir, "cpu.stat"), "usage_usec"))) * time.Microsecond
		s.MemoryUsage = get(number(filepath.Join(dir, "memory.current")))
		s.MemoryLimit = get(number(filepath.Join(dir, "memory.max")))
		s.Pids = get(number(filepath.Join(dir, "pids.current")))
		inactive = get(field(filepath.Join(dir, "memory.stat"), "inactive_file"))
	} else {
		mem := controllerDir(g.V1, "memory")
		if acct := controllerDir(g.V1, "cpuacct"); acct != "" {
			s.CPUUsage = time.Duration(get(number(filepath.Join(acct, "cpuacct.usage"))))
		}
		s.MemoryUsage = get(number(filepath.Join(mem, "memory.usage_in_bytes")))
		s.MemoryLimit = get(number(filepath.Join(mem, "memory.limit_in_bytes")))
		s.Pids = get(number(filepath.Join(controllerDir(g.V1, "pids"), "pids.current")))
		inactive = get(field(filepath.Join(mem, "memory.stat"), "total_inactive_file"))
	}
	if s.MemoryLimit > math.MaxInt64/2 { // v1 says "none" with a huge number
		s.MemoryLimit = 0
	}
	s.MemoryWorkingSet = s.MemoryUsage - min(inactive, s.MemoryUsage)
	s.OOMKills = get(g.OOMKills())
	if err := errors.Join(errs...); err != nil {
		return Stats{}, fmt.Errorf("read cgroup: %w", err)
	}
	return s, nil
}

// number reads a file with one number; "max" is the highest.
func number(path string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(b))
	if text == "max" {
		return math.MaxUint64, nil
	}
	return strconv.ParseUint(text, 10, 64)
}

// field reads one line "name value" of a file. A missing line is an error.
func field(path, name string) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if k, v, ok := strings.Cut(s.Text(), " "); ok && k == name {
			return strconv.ParseUint(v, 10, 64)
		}
	}
	if err := s.Err(); err != nil {
		return 0, err
	}
	return 0, &fs.PathError{Op: "find " + name + " in", Path: path, Err: fs.ErrNotExist}
}
