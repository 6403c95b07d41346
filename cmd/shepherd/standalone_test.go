package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestStandalone runs a whole cluster in one process, on a machine without a
// route to anywhere, and cleans up after it.
func TestStandalone(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: the agent makes namespaces and cgroups")
	}
	bin := t.TempDir()
	build := exec.Command("go", "build", "-o", bin, "github.com/shepherd-project/shepherd/cmd/shepherd-shim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the shim: %v\n%s", err, out)
	}
	dir := t.TempDir()
	args := []string{
		"--data-dir", filepath.Join(dir, "data"), "--run-dir", filepath.Join(dir, "run"), "--shim", filepath.Join(bin, "shepherd-shim"),
		"--cgroup-root", "/shepherd-test-" + strconv.Itoa(os.Getpid()), "--name", "solo", "--node-name", "solo",
	}
	isolated := func(cmd *exec.Cmd) {
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNET | syscall.CLONE_NEWNS
		cmd.Env = append(cmd.Env, ownNetwork+"=1")
	}
	p := start(t, isolated, append([]string{"--mode", "standalone"}, args...)...)
	eventually(t, 20*time.Second, "standalone", func() error {
		for _, want := range []string{"agent started", "controller started: name=scheduler", "reconciled: name=scheduler", "reconciled: name=replication", "reconciled: name=node"} {
			if !strings.Contains(p.out.String(), want) {
				return &unexpected{"no " + want}
			}
		}
		return nil
	})
	busy := start(t, isolated, append([]string{"cleanup"}, args...)...)
	if code := busy.wait(20 * time.Second); code != 1 || !strings.Contains(busy.out.String(), "stop the agent first") {
		t.Errorf("cleanup beside an agent: exit %d: %s", code, busy.out)
	}
	compact := []string{"compact", "--data-dir", filepath.Join(dir, "data")}
	busy = start(t, isolated, compact...)
	if code := busy.wait(20 * time.Second); code != 1 || !strings.Contains(busy.out.String(), "stop the server first") {
		t.Errorf("compact beside a server: exit %d: %s", code, busy.out)
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(15 * time.Second); code != 0 {
		t.Errorf("SIGTERM: exit %d", code)
	}
	for _, want := range []string{"controllers stopped", "server stopped", "shepherd cleanup"} {
		if !strings.Contains(p.out.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	smaller := start(t, isolated, compact...)
	if code := smaller.wait(20 * time.Second); code != 0 || !strings.Contains(smaller.out.String(), "bytes after") {
		t.Errorf("compact: exit %d: %s", code, smaller.out)
	}
	clean := start(t, isolated, append([]string{"cleanup"}, args...)...)
	if code := clean.wait(20 * time.Second); code != 0 {
		t.Errorf("cleanup: exit %d: %s", code, clean.out)
	}
}
