package runtime

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestExitCodes(t *testing.T) {
	r := newRuntime(t)
	start(t, r, guest("a", "exit", "0"))
	if s := waitExit(t, r, "a"); s.ExitCode != 0 || s.Reason != "Completed" || s.StartedAt.IsZero() || s.FinishedAt.Before(s.StartedAt) {
		t.Errorf("%+v", s)
	}
	start(t, r, guest("b", "exit", "42"))
	if s := waitExit(t, r, "b"); s.ExitCode != 42 || s.Reason != "Error" || s.Signal != 0 {
		t.Errorf("%+v", s)
	}
	// The same attempt again, then the next one.
	if err := r.StartContainer(testContext(t), "uid-1", guest("b", "exit", "1")); !errors.Is(err, ErrExists) {
		t.Errorf("used attempt: %v", err)
	}
	next := guest("b", "echo", "second")
	next.Attempt = 1
	if got := output(t, r, next); got != "second\n" {
		t.Errorf("log %q", got)
	}
	if s, _ := find(r, "uid-1", "b"); s.Attempt != 1 {
		t.Errorf("%+v", s)
	}
}

func TestEnvironmentAndUser(t *testing.T) {
	r := newRuntime(t)
	c := guest("env", "env")
	c.Env = []string{"A=b c", "PATH=/x"}
	got := output(t, r, c)
	for _, want := range []string{"A=b c\n", "PATH=/x\n", "HOSTNAME=web-host\n", "HOME=/root\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
	for user, want := range map[string]string{
		"":         "uid=0 gid=0 groups=[] cwd=/ host=web-host pid=1",
		"web":      "uid=1000 gid=1001 groups=[1002] cwd=/ host=web-host pid=1",
		"7":        "uid=7 gid=0 groups=[] cwd=/ host=web-host pid=1",
		"7:8":      "uid=7 gid=8 groups=[] cwd=/ host=web-host pid=1",
		"web:1005": "uid=1000 gid=1005 groups=[] cwd=/ host=web-host pid=1",
	} {
		c := guest("id"+strings.ReplaceAll(user, ":", "-"), "id")
		c.User = user
		if got := output(t, r, c); got != want+"\n" {
			t.Errorf("user %q: %q, want %q", user, got, want)
		}
	}
	c = guest("cwd", "id")
	c.Cwd, c.Groups = "/made/here", []uint32{9}
	if got := output(t, r, c); !strings.Contains(got, "groups=[9] cwd=/made/here") {
		t.Error(got)
	}
}

func TestIsolation(t *testing.T) {
	r := newRuntime(t)
	c := guest("try", "try")
	c.CapAdd = nil
	got := output(t, r, c)
	for _, want := range []string{
		"mount: operation not permitted", "unshare: operation not permitted", "reboot: operation not permitted",
		"open-disk: open /disk: permission denied", "open-dev-disk: open /dev/disk: permission denied",
		"chmod-null: chmod /dev/null: read-only file system", "write-null: <nil>",
		"sysctl: open /proc/sys/kernel/hostname: read-only file system",
		"masked file: 0 <nil>", "masked directory: 0 <nil>", "shm: <nil>", "vsock: operation not permitted", "unknown: function not implemented",
		"NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t00000000a80425fb", "CapBnd:\t00000000a80425fb", "CapInh:\t0000000000000000",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if st, err := os.Stat("/dev/null"); err != nil || st.Mode().Perm() == 0 {
		t.Errorf("the machine's /dev/null: %v %v", st.Mode(), err)
	}
	c = guest("user", "try")
	c.User = "web"
	if got := output(t, r, c); !strings.Contains(got, "CapEff:\t0000000000000000") || !strings.Contains(got, "CapPrm:\t0000000000000000") {
		t.Error(got)
	}
	c = guest("escalate", "try")
	c.AllowPrivilegeEscalation, c.CapDrop, c.CapAdd = true, []string{"ALL"}, []string{"cap_chown"}
	if got := output(t, r, c); !strings.Contains(got, "NoNewPrivs:\t0") || !strings.Contains(got, "Seccomp:\t2") || !strings.Contains(got, "CapEff:\t0000000000000001") {
		t.Error(got)
	}
	c = guest("privileged", "try")
	c.Privileged = true
	if got := output(t, r, c); !strings.Contains(got, "mount: <nil>") || !strings.Contains(got, "Seccomp:\t0") {
		t.Error(got)
	}
}

func TestNamespaces(t *testing.T) {
	r := newRuntime(t)
	parse := func(s string) map[string]string {
		m := map[string]string{}
		for line := range strings.Lines(s) {
			f := strings.Fields(line)
			m[f[0]] = f[1]
		}
		return m
	}
	a, b := parse(output(t, r, guest("a", "ns"))), parse(output(t, r, guest("b", "ns")))
	for _, n := range []string{"pid", "mnt", "cgroup", "net", "ipc", "uts"} {
		host, err := os.Readlink("/proc/self/ns/" + n)
		if err != nil || a[n] == host || a[n] == "" {
			t.Errorf("%s: %s, host %s %v", n, a[n], host, err)
		}
	}
	for _, n := range []string{"net", "ipc", "uts"} {
		if a[n] != b[n] {
			t.Errorf("%s is not shared: %s %s", n, a[n], b[n])
		}
	}
	start(t, r, guest("lo", "cat", "/sys/class/net/lo/operstate", "/etc/hostname", "/proc/self/cgroup"))
	waitExit(t, r, "lo")
	if got := readLog(t, r, "lo", LogOptions{}); !strings.HasPrefix(got, "unknown\nweb-host\n") || strings.Contains(got, "pod-uid-1") {
		t.Errorf("%q", got)
	}
}

func TestSharedPIDNamespace(t *testing.T) {
	r := newRuntime(t, func(c *PodConfig) { c.SharePIDNamespace = true })
	start(t, r, guest("a", "sleep"))
	got := output(t, r, guest("b", "id"))
	if strings.Contains(got, "pid=1\n") {
		t.Error(got)
	}
	// A child that is left behind dies with its container.
	start(t, r, guest("d", "daemon"))
	waitExit(t, r, "d")
	if s, _ := find(r, "uid-1", "a"); s.State != Running {
		t.Errorf("%+v", s)
	}
}

func TestMounts(t *testing.T) {
	r := newRuntime(t)
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "in"), []byte("from the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := guest("a", "write", "/deep/rw/out", "x")
	c.Mounts = []Mount{
		{Type: "bind", Source: filepath.Join(src, "in"), Target: "/deep/rw/file", ReadOnly: true},
		{Type: "bind", Source: src, Target: "/deep/rw"},
		{Type: "tmpfs", Target: "/scratch", Size: 1 << 20},
	}
	start(t, r, c)
	if s := waitExit(t, r, "a"); s.ExitCode != 0 {
		t.Errorf("%+v %s", s, readLog(t, r, "a", LogOptions{}))
	}
	if b, err := os.ReadFile(filepath.Join(src, "out")); err != nil || string(b) != "x" {
		t.Errorf("%q %v", b, err)
	}
	c = guest("ro", "write", "/deep/x", "x")
	c.Mounts = []Mount{{Type: "bind", Source: src, Target: "/deep", ReadOnly: true}}
	if got := output(t, r, c); !strings.Contains(got, "read-only file system") {
		t.Error(got)
	}
	c = guest("roroot", "write", "/x", "x")
	c.ReadOnlyRoot = true
	if got := output(t, r, c); !strings.Contains(got, "read-only file system") {
		t.Error(got)
	}
	if _, err := os.Stat(filepath.Join(built.layer, "deep")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the layer was changed: %v", err)
	}
}

func TestHostileInput(t *testing.T) {
	r := newRuntime(t)
	layer := t.TempDir()
	outside := t.TempDir()
	for link, to := range map[string]string{
		"data": outside, "up": "../../../../../../" + outside, "self": "/proc/self/fd", "dangling": "/nowhere/x", "etcfile": "/guest",
	} {
		if err := os.Symlink(to, filepath.Join(layer, link)); err != nil {
			t.Fatal(err)
		}
	}
	src := t.TempDir()
	mount := func(target string) func(*ContainerConfig) {
		return func(c *ContainerConfig) { c.Mounts = []Mount{{Type: "bind", Source: src, Target: target}} }
	}
	for name, test := range map[string]struct {
		edit func(*ContainerConfig)
		want string // "" = it starts, confined
	}{
		"absolute-link":       {mount("/data/sub"), ""},
		"relative-link":       {mount("/up/sub"), ""},
		"proc-target":         {mount("/proc/self/attr"), "inside /proc"},
		"proc-link":           {mount("/self"), "mount /self"},
		"file-target":         {mount("/etcfile"), "not a directory"},
		"dangling":            {mount("/dangling"), ""},
		"missing-source":      {func(c *ContainerConfig) { c.Mounts = []Mount{{Type: "bind", Source: "/no/such", Target: "/m"}} }, "no such file"},
		"missing-binary":      {func(c *ContainerConfig) { c.Args = []string{"/no/such"} }, `exec: "/no/such": no such file or directory`},
		"missing-in-path":     {func(c *ContainerConfig) { c.Args = []string{"nope"} }, `"nope" not found in PATH`},
		"not-executable":      {func(c *ContainerConfig) { c.Args = []string{"/etc/hosts"} }, "permission denied"},
		"missing-interpreter": {func(c *ContainerConfig) { c.Args = []string{"/broken"} }, "interpreter is missing"},
		"directory":           {func(c *ContainerConfig) { c.Args = []string{"/etc"} }, "permission denied"},
		"file-cwd":            {func(c *ContainerConfig) { c.Cwd = "/guest" }, "enter working directory"},
		"proc-cwd":            {func(c *ContainerConfig) { c.Cwd = "/proc/self/fd/7" }, "enter working directory"},
		"unknown-user":        {func(c *ContainerConfig) { c.User = "nobody-here" }, `no user "nobody-here"`},
		"missing-layer":       {func(c *ContainerConfig) { c.RootLayers = []string{"/no/such"} }, "layer /no/such"},
		"unknown-cap":         {func(c *ContainerConfig) { c.CapAdd = []string{"FLY"} }, "unknown capability"},
		"root-target":         {mount("/../"), "mount target"},
		"name":                {func(c *ContainerConfig) { c.Name = "../x" }, "container name"},
	} {
		c := guest(name, "exit", "0")
		c.RootLayers = []string{layer, built.layer}
		test.edit(&c)
		err := r.StartContainer(testContext(t), "uid-1", c)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		var se *StartError
		if test.want != "" && !errors.Is(err, ErrInvalid) && !errors.As(err, &se) {
			t.Errorf("%s: no StartError in %v", name, err)
		}
		if test.want == "" && err == nil {
			waitExit(t, r, name)
		} else if s, ok := find(r, "uid-1", c.Name); ok {
			t.Errorf("%s: listed as %+v", name, s)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside: %v %v", left, err)
	}
	// A failed start uses nothing up.
	start(t, r, guest("missing-binary", "exit", "0"))
}

func TestLimits(t *testing.T) {
	r := newRuntime(t)
	c := guest("oom", "oom")
	c.Resources.MemoryLimit = 32 << 20
	start(t, r, c)
	if s := waitExit(t, r, "oom"); !s.OOMKilled || s.Reason != "OOMKilled" || s.ExitCode != 137 || s.OOMKills == 0 {
		t.Errorf("%+v", s)
	}
	c = guest("forks", "forks")
	c.Resources.PidsLimit = 20
	if got := output(t, r, c); !strings.HasPrefix(got, "started ") || len(got) > len("started 99\n") {
		t.Error(got)
	}
	c = guest("tiny", "exit", "0")
	c.Resources.MemoryLimit = 128 << 10
	if err := r.StartContainer(testContext(t), "uid-1", c); err == nil || !strings.Contains(err.Error(), "memory limit is too small") {
		t.Errorf("tiny: %v", err)
	}
	c = guest("cpu", "sleep")
	c.Resources = Resources{CPURequest: 500, CPULimit: 250, MemoryLimit: 64 << 20}
	start(t, r, c)
	awaitLine(t, r, "cpu", "ready")
	s, err := r.Stats(testContext(t), "uid-1", "cpu")
	if err != nil || s.CPUUsage <= 0 || s.MemoryUsage == 0 || s.MemoryLimit != 64<<20 || s.Pids == 0 {
		t.Errorf("%+v %v", s, err)
	}
}

func TestStop(t *testing.T) {
	r := newRuntime(t)
	start(t, r, guest("polite", "polite"))
	awaitLine(t, r, "polite", "ready")
	if err := r.StopContainer(testContext(t), "uid-1", "polite", 30*time.Second); err != nil {
		t.Fatal(err)
	}
	if s, _ := find(r, "uid-1", "polite"); s.State != Exited || s.ExitCode != 0 {
		t.Errorf("%+v", s)
	}
	start(t, r, guest("stubborn", "stubborn"))
	awaitLine(t, r, "stubborn", "ready")
	begin := time.Now()
	if err := r.StopContainer(testContext(t), "uid-1", "stubborn", 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if s, _ := find(r, "uid-1", "stubborn"); s.State != Exited || s.ExitCode != 137 || s.Signal != 9 || s.OOMKilled {
		t.Errorf("%+v", s)
	}
	if d := time.Since(begin); d < 300*time.Millisecond {
		t.Errorf("killed after %v", d)
	}
	if err := r.StopContainer(testContext(t), "uid-1", "stubborn", 0); err != nil {
		t.Error(err)
	}
	if err := r.StopContainer(testContext(t), "uid-1", "other", 0); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}
