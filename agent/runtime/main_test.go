package runtime

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// built holds what TestMain builds: the shim and a root file system with the guest.
var built struct{ dir, shim, layer string }

func TestMain(m *testing.M) {
	if os.Getenv("RUNTIME_TEST_AGENT") != "" {
		agentMain()
		return
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "runtime-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	built.dir, built.shim, built.layer = dir, filepath.Join(dir, "shepherd-shim"), filepath.Join(dir, "layer")
	if err := os.MkdirAll(filepath.Join(built.layer, "etc"), 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for out, src := range map[string]string{built.shim: "../../cmd/shepherd-shim", filepath.Join(built.layer, "guest"): "./testdata/guest"} {
		cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", out, src)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if b, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", src, err, b)
			return 1
		}
	}
	files := map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1001:web:/home/web:/bin/sh\n",
		"etc/group":  "root:x:0:\nweb:x:1001:\nextra:x:1002:other,web\n",
		"broken":     "#!/no/such/interpreter\n",
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(built.layer, name), []byte(data), 0o755); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	for _, d := range []string{"tmp", "out"} {
		if err := os.Mkdir(filepath.Join(built.layer, d), 0o1777); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes namespaces, mounts and cgroups")
	}
}

// testConfig is the configuration of a machine of its own.
func testConfig(t testing.TB) Config {
	needRoot(t)
	dir := t.TempDir()
	c := DefaultConfig()
	c.RunDir, c.DataDir = filepath.Join(dir, "run"), filepath.Join(dir, "data")
	c.CgroupRoot = "shepherd-test-" + strings.ToLower(rand.Text()[:8])
	c.ShimPath = built.shim
	c.BootIDPath = filepath.Join(dir, "boot_id")
	if err := os.WriteFile(c.BootIDPath, []byte("boot-one\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if testing.Verbose() {
		c.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: os.Stderr})
	}
	t.Cleanup(func() {
		r, err := New(c)
		if err != nil {
			t.Error(err)
			return
		}
		if err := r.Cleanup(testContext(t)); err != nil {
			t.Errorf("cleanup: %v", err)
		}
		if r.root.Exists() {
			t.Error("the cgroup root is left")
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func openRuntime(t testing.TB, c Config) *Runtime {
	t.Helper()
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := r.Recover(testContext(t)); err != nil {
		t.Fatal(err)
	}
	return r
}

// newRuntime is a Runtime with one pod, "uid-1".
func newRuntime(t testing.TB, edit ...func(*PodConfig)) *Runtime {
	t.Helper()
	r := openRuntime(t, testConfig(t))
	createPod(t, r, edit...)
	return r
}

func createPod(t testing.TB, r *Runtime, edit ...func(*PodConfig)) {
	t.Helper()
	c := PodConfig{UID: "uid-1", Namespace: "default", Name: "web", Hostname: "web-host"}
	for _, e := range edit {
		e(&c)
	}
	if err := r.CreatePod(testContext(t), c); err != nil {
		t.Fatal(err)
	}
}

func guest(name string, args ...string) ContainerConfig {
	return ContainerConfig{Name: name, RootLayers: []string{built.layer}, Args: append([]string{"/guest"}, args...)}
}

func start(t testing.TB, r *Runtime, c ContainerConfig) {
	t.Helper()
	if err := r.StartContainer(testContext(t), "uid-1", c); err != nil {
		t.Fatal(err)
	}
}

func find(r *Runtime, uid, name string) (ContainerStatus, bool) {
	for _, p := range r.Pods(context.Background()) {
		for _, c := range p.Containers {
			if p.UID == uid && c.Name == name {
				return c, true
			}
		}
	}
	return ContainerStatus{}, false
}

// waitFor waits for a change after which ok holds.
func waitFor(t testing.TB, r *Runtime, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-r.Changed():
		case <-deadline:
			t.Fatalf("waited too long: %s (%+v)", what, r.Pods(context.Background()))
		}
	}
}

func waitExit(t testing.TB, r *Runtime, name string) ContainerStatus {
	t.Helper()
	var s ContainerStatus
	waitFor(t, r, name+" exits", func() bool {
		s, _ = find(r, "uid-1", name)
		return s.State == Exited
	})
	return s
}

func readLog(t testing.TB, r *Runtime, name string, o LogOptions) string {
	t.Helper()
	l, err := r.Logs(testContext(t), "uid-1", name, o)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b, err := io.ReadAll(l)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// output runs a container to its end and returns what it printed.
func output(t testing.TB, r *Runtime, c ContainerConfig) string {
	t.Helper()
	start(t, r, c)
	waitExit(t, r, c.Name)
	return readLog(t, r, c.Name, LogOptions{})
}

// awaitLine waits for a container to print a line.
func awaitLine(t testing.TB, r *Runtime, name, want string) {
	t.Helper()
	l, err := r.Logs(testContext(t), "uid-1", name, LogOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var got strings.Builder
	buf := make([]byte, 1024)
	for !strings.Contains(got.String(), want) {
		n, err := l.Read(buf)
		got.Write(buf[:n])
		if err != nil {
			t.Fatalf("%q never came: %v, got %q", want, err, got.String())
		}
	}
}

// census counts what a pod leaves when it leaks.
func census(t testing.TB, r *Runtime) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	inRun := strings.Count(string(mounts), filepath.Dir(r.cfg.RunDir))
	groups, err := r.root.Children()
	if err != nil {
		t.Fatal(err)
	}
	pids, err := r.root.Procs()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	pods, _ := os.ReadDir(r.podsDir())
	layers, _ := os.ReadDir(r.layersDir())
	fds, _ := os.ReadDir("/proc/self/fd")
	return fmt.Sprintf("mounts %d groups %d processes %d pods %d layers %d descriptors %d",
		inRun, len(groups), len(pids), len(pods), len(layers), len(fds))
}
