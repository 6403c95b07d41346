package runtime

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAdoption kills an agent, a real process, and lets another adopt its pod.
func TestAdoption(t *testing.T) {
	c := testConfig(t)
	out := t.TempDir()
	c.Logger = nil
	conf, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	agent := exec.Command("/proc/self/exe")
	agent.Env = append(os.Environ(), "RUNTIME_TEST_AGENT="+string(conf), "RUNTIME_TEST_LAYER="+built.layer, "RUNTIME_TEST_OUT="+out)
	agent.Stderr = os.Stderr
	stdout, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if line != "started\n" {
		t.Fatalf("agent said %q, %v", line, err)
	}
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := agent.Wait(); err == nil {
		t.Fatal("the agent was not killed")
	}

	r := openRuntime(t, c)
	pods := r.Pods(context.Background())
	if len(pods) != 1 || !pods[0].Alive || len(pods[0].Containers) != 1 {
		t.Fatalf("%+v", pods)
	}
	s := pods[0].Containers[0]
	if s.State != Running || s.PID == 0 || s.Labels["hash"] != "abc" || s.Attempt != 0 {
		t.Errorf("%+v", s)
	}
	// It goes on, in the same process, and it was not started a second time.
	size := func() int64 {
		st, err := os.Stat(filepath.Join(out, "count"))
		if err != nil {
			return 0
		}
		return st.Size()
	}
	deadline := time.After(20 * time.Second)
	for before := size(); size() <= before; {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			t.Fatal("the container does not count any more")
		}
	}
	if !alive(s.PID) {
		t.Errorf("process %d is dead", s.PID)
	}
	if b, err := os.ReadFile(filepath.Join(out, "count")); err != nil || bytes.Count(b, []byte("start")) != 1 {
		t.Errorf("started %d times, %v", bytes.Count(b, []byte("start")), err)
	}
	// The adopted pod is a full one.
	start(t, r, guest("more", "exit", "3"))
	if s := waitExit(t, r, "more"); s.ExitCode != 3 {
		t.Errorf("%+v", s)
	}
	if err := r.RemovePod(testContext(t), "uid-1", 0); err != nil {
		t.Fatal(err)
	}
	if alive(pods[0].PID) {
		t.Errorf("shim %d is alive", pods[0].PID)
	}
}

// TestExitWhileAway: a container that ends while no agent runs is known after.
func TestExitWhileAway(t *testing.T) {
	c := testConfig(t)
	r := openRuntime(t, c)
	createPod(t, r)
	start(t, r, guest("a", "polite"))
	awaitLine(t, r, "a", "ready")
	s, _ := find(r, "uid-1", "a")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(s.PID, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20000); err != nil {
		t.Fatal(err)
	}
	r2 := openRuntime(t, c)
	if s := waitExit(t, r2, "a"); s.ExitCode != 0 || s.Reason != "Completed" {
		t.Errorf("%+v", s)
	}
	if got := readLog(t, r2, "a", LogOptions{}); got != "ready\nbye\n" {
		t.Errorf("%q", got)
	}
}

// TestShimKilled: the containers of a dead shim are killed and reported.
func TestShimKilled(t *testing.T) {
	for name, away := range map[string]bool{"agent watches": false, "agent is away": true} {
		t.Run(name, func(t *testing.T) {
			c := testConfig(t)
			r := openRuntime(t, c)
			createPod(t, r)
			start(t, r, guest("done", "exit", "5"))
			waitExit(t, r, "done")
			start(t, r, guest("a", "sleep"))
			awaitLine(t, r, "a", "ready")
			s, _ := find(r, "uid-1", "a")
			shimPID := r.Pods(context.Background())[0].PID
			if away {
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Kill(shimPID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if away {
				r = openRuntime(t, c)
			}
			waitFor(t, r, "the pod is dead", func() bool {
				pods := r.Pods(context.Background())
				return len(pods) == 1 && !pods[0].Alive
			})
			if alive(s.PID) {
				t.Errorf("process %d of the container is alive", s.PID)
			}
			if s, _ := find(r, "uid-1", "a"); s.State != Exited || s.ExitCode != 137 || s.Reason != "ContainerStatusUnknown" {
				t.Errorf("%+v", s)
			}
			if s, _ := find(r, "uid-1", "done"); s.ExitCode != 5 {
				t.Errorf("%+v", s)
			}
			if err := r.StartContainer(testContext(t), "uid-1", guest("b", "exit", "0")); !errors.Is(err, ErrPodDead) {
				t.Errorf("start in a dead pod: %v", err)
			}
			// The pod can be made again, and its logs are still there.
			createPod(t, r)
			next := guest("a", "echo", "again")
			next.Attempt = 1
			if got := output(t, r, next); got != "again\n" {
				t.Errorf("%q", got)
			}
			if got := readLog(t, r, "a", LogOptions{Previous: true}); got != "ready\n" {
				t.Errorf("%q", got)
			}
		})
	}
}

// alive tells whether a process runs; one that its parent has not reaped does not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

func TestReboot(t *testing.T) {
	c := testConfig(t)
	r := openRuntime(t, c)
	empty := census(t, r)
	createPod(t, r)
	start(t, r, guest("a", "sleep"))
	awaitLine(t, r, "a", "ready")
	s, _ := find(r, "uid-1", "a")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.BootIDPath, []byte("boot-two\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r = openRuntime(t, c)
	if pods := r.Pods(context.Background()); len(pods) != 0 {
		t.Errorf("%+v", pods)
	}
	if alive(s.PID) {
		t.Errorf("process %d is alive", s.PID)
	}
	if got := census(t, r); !sameButDescriptors(got, empty) {
		t.Errorf("left: %s, was %s", got, empty)
	}
	if got := readLog(t, r, "a", LogOptions{}); got != "ready\n" {
		t.Errorf("the log is gone: %q", got)
	}
	if err := r.PruneLogs(testContext(t), func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Logs(testContext(t), "uid-1", "a", LogOptions{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("pruned log: %v", err)
	}
}

func sameButDescriptors(a, b string) bool {
	cut := func(s string) string { return s[:strings.Index(s, "descriptors")] }
	return cut(a) == cut(b)
}

// TestRecoverRubbish: what a crash or an accident left must not stop a start.
func TestRecoverRubbish(t *testing.T) {
	c := testConfig(t)
	r := openRuntime(t, c)
	for name, data := range map[string]string{
		"uid-empty/x": "", "uid-torn/pod.json": `{"version":1,"bootID":"boo`,
		"uid-early/pod.json": `{"version":1,"bootID":"boot-one","config":{"UID":"uid-early"}}`,
		"uid-lies/pod.json":  `{"version":1,"bootID":"boot-one","config":{"UID":"uid-lies"}}`,
		"uid-lies/shim.json": `{"version":1,"uid":"uid-lies","bootID":"boot-one","pid":1,"startTime":7}`,
	} {
		path := filepath.Join(r.podsDir(), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stray := r.root.Child(groupPrefix + "uid-stray").Child("a.0")
	if err := stray.Create(Resources{}); err != nil {
		t.Fatal(err)
	}
	sleeper := exec.Command(filepath.Join(built.layer, "guest"), "sleep")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	if err := stray.Join(sleeper.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = openRuntime(t, c)
	if err := sleeper.Wait(); err == nil {
		t.Error("the stray process lived")
	}
	if stray.Exists() {
		t.Error("the stray cgroup is left")
	}
	pods := r.Pods(context.Background())
	if len(pods) != 1 || pods[0].UID != "uid-lies" || pods[0].Alive {
		t.Errorf("%+v", pods)
	}
	if err := unix.Kill(1, 0); err != nil {
		t.Error(err)
	}
}

// TestCycles: whatever a pod takes comes back.
func TestCycles(t *testing.T) {
	r := openRuntime(t, testConfig(t))
	cycle := func() {
		createPod(t, r)
		start(t, r, guest("a", "sleep"))
		start(t, r, guest("b", "exit", "0"))
		if err := r.RemovePod(testContext(t), "uid-1", 0); err != nil {
			t.Fatal(err)
		}
	}
	cycle()
	before, namespaces := census(t, r), countNamespaces(t)
	for range 30 {
		cycle()
	}
	r.work.Wait()
	if after := census(t, r); after != before {
		t.Errorf("leak: %s, was %s", after, before)
	}
	if after := countNamespaces(t); after > namespaces {
		t.Errorf("leak: %d network namespaces, were %d", after, namespaces)
	}
	if err := r.RemovePod(testContext(t), "uid-1", 0); err != nil {
		t.Errorf("removing twice: %v", err)
	}
}

// countNamespaces counts the network namespaces that processes named as ours live in.
func countNamespaces(t *testing.T) int {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, l := range links {
		exe, _ := os.Readlink(filepath.Join(filepath.Dir(filepath.Dir(l)), "exe"))
		if ns, err := os.Readlink(l); err == nil && strings.Contains(exe, "memfd:shepherd-shim") {
			seen[ns] = true
		}
	}
	return len(seen)
}

func TestCreateTwiceAndCleanup(t *testing.T) {
	c := testConfig(t)
	r := openRuntime(t, c)
	createPod(t, r)
	if err := r.CreatePod(testContext(t), PodConfig{UID: "uid-1", Namespace: "default", Name: "web"}); !errors.Is(err, ErrExists) {
		t.Errorf("second create: %v", err)
	}
	err := r.CreatePod(testContext(t), PodConfig{UID: "uid-2", Namespace: "default", Name: "web", NetNS: "/no/such"})
	if err == nil || !strings.Contains(err.Error(), "/no/such") {
		t.Errorf("missing network namespace: %v", err)
	}
	for _, bad := range []PodConfig{
		{UID: "../x", Namespace: "a", Name: "b"}, {UID: "x", Namespace: "a/b", Name: "b"}, {UID: "x", Namespace: "a", Name: ""},
		{UID: "x", Namespace: "a", Name: "b", Sysctls: map[string]string{"kernel.panic": "1"}},
		{UID: "x", Namespace: "a", Name: "b", Sysctls: map[string]string{"net.../../kernel.panic": "1"}},
	} {
		if err := r.CreatePod(testContext(t), bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if n := len(r.Pods(context.Background())); n != 1 {
		t.Errorf("%d pods", n)
	}
	start(t, r, guest("a", "sleep"))
	s, _ := find(r, "uid-1", "a")
	// Another runtime that knows nothing cleans up after this one.
	other, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Cleanup(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if alive(s.PID) {
		t.Errorf("process %d is alive", s.PID)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(c.RunDir), "*", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestSysctl(t *testing.T) {
	r := newRuntime(t, func(c *PodConfig) { c.Sysctls = map[string]string{"net.ipv4.ip_unprivileged_port_start": "7"} })
	if got := output(t, r, guest("a", "cat", "/proc/sys/net/ipv4/ip_unprivileged_port_start")); got != "7\n" {
		t.Errorf("%q", got)
	}
}
