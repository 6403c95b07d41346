package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// needed are the controllers that a pod's limits and accounting use.
var needed = []string{"cpu", "memory", "pids"}

// ErrNoControllers: neither a v2 mount with the cpu, memory and pids
// controllers nor v1 mounts of all of them were found.
var ErrNoControllers = errors.New("no cgroup hierarchy offers cpu, memory and pids")

// Hierarchy says where the machine's control groups are mounted.
type Hierarchy struct {
	unified string            // v2 mount point, "" when v1 is used
	v1      map[string]string // "cpu,cpuacct" -> mount point
}

// Detect finds the hierarchies of this process's mount namespace, v2 first.
func Detect() (*Hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	defer f.Close()
	return detect(f)
}

func detect(mountinfo io.Reader) (*Hierarchy, error) {
	v1 := map[string]string{}
	s := bufio.NewScanner(mountinfo)
	for s.Scan() {
		before, after, ok := strings.Cut(s.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		point := unescape(left[4])
		switch right[0] {
		case "cgroup2":
			if has, err := enabled(filepath.Join(point, "cgroup.controllers")); err == nil && containsAll(has, needed) {
				return &Hierarchy{unified: point}, nil
			}
		case "cgroup":
			var names []string
			for o := range strings.SplitSeq(right[2], ",") {
				if o == "cpuacct" || slices.Contains(needed, o) {
					names = append(names, o)
				}
			}
			if key := strings.Join(names, ","); key != "" && v1[key] == "" {
				v1[key] = point
			}
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	h := &Hierarchy{v1: v1}
	for _, c := range needed {
		if controllerDir(v1, c) == "" {
			return nil, fmt.Errorf("%w: %s is missing", ErrNoControllers, c)
		}
	}
	return h, nil
}

// V2 tells whether the unified hierarchy is used.
func (h *Hierarchy) V2() bool { return h.unified != "" }

// Group names the group at path (relative to the mount points). It need not exist.
func (h *Hierarchy) Group(path string) Group {
	if h.V2() {
		return Group{Unified: filepath.Join(h.unified, path), depth: strings.Count(filepath.Clean(path), "/") + 1}
	}
	g := Group{V1: map[string]string{}}
	for key, point := range h.v1 {
		g.V1[key] = filepath.Join(point, path)
	}
	return g
}

// controllerDir finds the directory of the hierarchy that carries a controller.
func controllerDir(v1 map[string]string, controller string) string {
	for key, dir := range v1 {
		if slices.Contains(strings.Split(key, ","), controller) {
			return dir
		}
	}
	return ""
}

func enabled(path string) ([]string, error) {
	b, err := os.ReadFile(path)
	return strings.Fields(string(b)), err
}

func containsAll(have, want []string) bool {
	for _, w := range want {
		if !slices.Contains(have, w) {
			return false
		}
	}
	return true
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
