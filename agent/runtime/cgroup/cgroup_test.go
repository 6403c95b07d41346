package cgroup

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fakeV2 is a directory that looks like a unified hierarchy. The kernel makes
// a group's files with the group, so here they are made when they are written.
func fakeV2(t *testing.T) *Hierarchy {
	t.Helper()
	dir := t.TempDir()
	put(t, filepath.Join(dir, "cgroup.controllers"), "cpuset cpu io memory pids\n")
	put(t, filepath.Join(dir, "cgroup.subtree_control"), "cpu\n")
	h, err := detect(strings.NewReader("30 1 0:26 / " + dir + " rw,relatime - cgroup2 cgroup2 rw\n"))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func put(t *testing.T, path, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestV2Files(t *testing.T) {
	h := fakeV2(t)
	if !h.V2() {
		t.Fatal("not v2")
	}
	g := h.Group("shepherd").Child("pod-1").Child("web.0")
	for _, f := range []string{"memory.max", "memory.swap.max", "memory.oom.group", "cpu.weight", "cpu.max", "pids.max", "cgroup.procs"} {
		put(t, filepath.Join(g.Unified, f), "")
	}
	for _, up := range []string{"../..", ".."} {
		put(t, filepath.Join(g.Unified, up, "cgroup.subtree_control"), "")
	}
	err := g.Create(Resources{MemoryLimit: 64 << 20, CPURequest: 1000, CPULimit: 250, PidsLimit: 30})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Join(77); err != nil {
		t.Fatal(err)
	}
	for f, want := range map[string]string{
		"memory.max": "67108864", "memory.swap.max": "0", "memory.oom.group": "1", "cpu.weight": "39", "cpu.max": "25000 100000",
		"pids.max": "30", "cgroup.procs": "77", "../cgroup.subtree_control": "+cpu +memory +pids", "../../cgroup.subtree_control": "+cpu +memory +pids",
		// The mount's own root lacked controllers: it is the only foreign file written.
		"../../../cgroup.subtree_control": "+cpu +memory +pids\n"[:18],
	} {
		if got := get(t, filepath.Join(g.Unified, f)); strings.TrimSpace(got) != want {
			t.Errorf("%s: %q, want %q", f, got, want)
		}
	}
}

func TestV2Stats(t *testing.T) {
	g := fakeV2(t).Group("a")
	for f, data := range map[string]string{
		"cpu.stat": "usage_usec 1500\nuser_usec 1\n", "memory.current": "5000\n", "memory.max": "max\n",
		"memory.stat": "anon 1\ninactive_file 2000\n", "pids.current": "4\n", "memory.events": "low 0\noom 3\noom_kill 2\n",
	} {
		put(t, filepath.Join(g.Unified, f), data)
	}
	s, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if s.CPUUsage != 1500*time.Microsecond || s.MemoryUsage != 5000 || s.MemoryWorkingSet != 3000 || s.MemoryLimit != 0 || s.Pids != 4 || s.OOMKills != 2 {
		t.Errorf("%+v", s)
	}
}

func TestV2Kill(t *testing.T) {
	g := fakeV2(t).Group("a")
	put(t, filepath.Join(g.Unified, "cgroup.kill"), "")
	put(t, filepath.Join(g.Unified, "cgroup.procs"), "")
	put(t, filepath.Join(g.Unified, "sub/cgroup.procs"), "")
	if err := g.Kill(t.Context()); err != nil || get(t, filepath.Join(g.Unified, "cgroup.kill")) != "1" {
		t.Error(err)
	}
}

func TestDetect(t *testing.T) {
	v2 := t.TempDir()
	put(t, filepath.Join(v2, "cgroup.controllers"), "")
	hybrid := "1 1 0:1 / " + v2 + " rw - cgroup2 cgroup2 rw\n" +
		"2 1 0:2 / /c/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"3 1 0:3 / /c/with\\040space rw shared:1 - cgroup cgroup rw,memory\n" +
		"4 1 0:4 / /c/pids rw - cgroup cgroup rw,pids\n" +
		"5 1 0:5 / /c/systemd rw - cgroup cgroup rw,name=systemd\n"
	h, err := detect(strings.NewReader(hybrid))
	if err != nil {
		t.Fatal(err)
	}
	g := h.Group("x").Child("y")
	if h.V2() || len(g.V1) != 3 || g.V1["cpu,cpuacct"] != "/c/cpu,cpuacct/x/y" || g.V1["memory"] != "/c/with space/x/y" {
		t.Errorf("%+v", g)
	}
	_, err = detect(strings.NewReader("4 1 0:4 / /c/pids rw - cgroup cgroup rw,pids\n"))
	if !errors.Is(err, ErrNoControllers) {
		t.Error(err)
	}
}

func TestWeights(t *testing.T) {
	for milli, want := range map[int64][2]int64{1: {2, 1}, 100: {102, 4}, 1000: {1024, 39}, 1 << 20: {262144, 10000}} {
		if s := shares(milli); s != want[0] || sharesToWeight(s) != want[1] {
			t.Errorf("%d: %d %d, want %v", milli, s, sharesToWeight(s), want)
		}
	}
	if quota(1) != 1000 || quota(1500) != 150000 {
		t.Error(quota(1), quota(1500))
	}
}

// TestReal uses the machine's own hierarchy.
func TestReal(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes cgroups")
	}
	h, err := Detect()
	if err != nil {
		t.Fatal(err)
	}
	root := h.Group("shepherd-cgroup-test-" + filepath.Base(t.TempDir()) + time.Now().Format("150405.000000000"))
	defer func() {
		if err := root.Remove(); err != nil || root.Exists() {
			t.Errorf("remove: %v", err)
		}
	}()
	g := root.Child("a")
	if err := g.Create(Resources{MemoryLimit: 64 << 20, CPURequest: 100, CPULimit: 500, PidsLimit: 10}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := g.Join(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if pids, err := root.Procs(); err != nil || len(pids) != 1 || pids[0] != cmd.Process.Pid {
		t.Errorf("%v %v", pids, err)
	}
	if s, err := g.Stats(); err != nil || s.Pids != 1 || s.MemoryLimit != 64<<20 {
		t.Errorf("%+v %v", s, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := root.Kill(ctx); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it was not killed")
	}
}
