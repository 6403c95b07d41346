package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shepherd-project/shepherd/agent/runtime/shim"
	"golang.org/x/sys/unix"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Limits that every container has unless it names its own. A high soft limit
// makes programs that close "all" descriptors slow.
var defaultRlimits = []Rlimit{{Type: "RLIMIT_NOFILE", Soft: 65536, Hard: 1 << 20}, {Type: "RLIMIT_CORE", Soft: 0, Hard: unix.RLIM_INFINITY}}

var maskedPaths = []string{
	"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
	"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
	"/sys/devices/virtual/powercap",
}

var readOnlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

// containerRecord is the intent to run an attempt, written before anything else of it.
type containerRecord struct {
	Version   int             `json:"version"`
	CreatedAt time.Time       `json:"createdAt"`
	Config    ContainerConfig `json:"config"` // fields by their Go names
}

func (c *ContainerConfig) validate() error {
	if err := checkName("container name", c.Name); err != nil {
		return err
	}
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
	}
	switch {
	case c.Attempt < 0:
		return invalid("attempt %d", c.Attempt)
	case len(c.RootLayers) == 0:
		return invalid("no root layers")
	case len(c.Args) == 0 || c.Args[0] == "":
		return invalid("no command")
	case c.Cwd != "" && !path.IsAbs(c.Cwd):
		return invalid("working directory %q is not absolute", c.Cwd)
	}
	for _, s := range slices.Concat(c.Args, c.Env, []string{c.Cwd, c.User}) {
		if strings.IndexByte(s, 0) >= 0 {
			return invalid("NUL byte in %q", s)
		}
	}
	for _, m := range c.Mounts {
		switch {
		case !path.IsAbs(m.Target) || path.Clean(m.Target) == "/":
			return invalid("mount target %q", m.Target)
		case m.Type == "bind" && !filepath.IsAbs(m.Source):
			return invalid("mount source %q is not absolute", m.Source)
		case m.Type != "bind" && m.Type != "tmpfs":
			return invalid("mount type %q", m.Type)
		}
	}
	for _, l := range c.Rlimits {
		if !shim.KnownRlimit(l.Type) || l.Soft > l.Hard {
			return invalid("resource limit %s %d:%d", l.Type, l.Soft, l.Hard)
		}
	}
	if _, err := signalNumber(c.StopSignal); err != nil {
		return err
	}
	return nil
}

// signalNumber reads "SIGTERM", "TERM" or "15"; "" is SIGTERM.
func signalNumber(s string) (int, error) {
	if s == "" {
		return int(unix.SIGTERM), nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if n := unix.SignalNum(name); n != 0 {
		return int(n), nil
	}
	var n int
	if _, err := fmt.Sscanf(s, "%d", &n); err == nil && n > 0 && n <= 64 {
		return n, nil
	}
	return 0, fmt.Errorf("%w: signal %q", ErrInvalid, s)
}

// StartContainer starts one attempt of a container and returns when its program
// was executed. A failed start leaves nothing behind and is not listed; its
// cause is a *StartError when the container itself is at fault.
// ErrExists: an attempt is running, or that attempt has been used.
func (r *Runtime) StartContainer(ctx context.Context, podUID string, c ContainerConfig) error {
	if err := c.validate(); err != nil {
		return err
	}
	p, err := r.get(podUID)
	if err != nil {
		return err
	}
	spec, err := p.containerSpec(&c)
	if err != nil {
		return err
	}
	if err := p.take(ctx); err != nil {
		return err
	}
	defer p.release()
	shimConn, err := p.alive()
	if err != nil {
		return err
	}
	if err := p.unused(&c); err != nil {
		return err
	}
	if err := p.prepareAttempt(&c, spec); err != nil {
		return errors.Join(fmt.Errorf("start container %s: %w", c.Name, err), p.discardAttempt(&c))
	}
	// Once asked, the shim finishes, whether the caller waits or not.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.StartTimeout+2*killTimeout)
	defer cancel()
	if _, err := shimConn.call(ctx, shim.TypeStart, spec); err != nil {
		if errors.Is(err, errShimGone) {
			return fmt.Errorf("start container %s: %w", c.Name, errors.Join(err, ErrPodDead))
		}
		return errors.Join(fmt.Errorf("start container %s: %w", c.Name, err), p.discardAttempt(&c))
	}
	return nil
}

// unused refuses an attempt that runs or ran: the shim would too, but by then
// its directories had been touched.
func (p *pod) unused(c *ContainerConfig) error {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	s := p.containers[c.Name]
	if s != nil && (s.State != shim.Exited || s.Attempt >= c.Attempt) {
		return fmt.Errorf("container %s attempt %d: %w (attempt %d is %s)", c.Name, c.Attempt, ErrExists, s.Attempt, s.State)
	}
	return nil
}

// containerSpec resolves a configuration to what the shim carries out.
func (p *pod) containerSpec(c *ContainerConfig) (*shim.ContainerSpec, error) {
	r, uid := p.r, p.uid()
	process, err := p.processSpec(c)
	if err != nil {
		return nil, err
	}
	stop, err := signalNumber(c.StopSignal)
	if err != nil {
		return nil, err
	}
	layer := r.attemptLayer(uid, c.Name, c.Attempt)
	s := &shim.ContainerSpec{
		Name: c.Name, Attempt: c.Attempt, Process: process,
		Layers: c.RootLayers, Upper: filepath.Join(layer, "upper"), Work: filepath.Join(layer, "work"), Rootfs: filepath.Join(layer, "rootfs"),
		Mounts: p.mounts(c), ReadOnlyRoot: c.ReadOnlyRoot, Privileged: c.Privileged, StopSignal: stop,
		Cgroup:   p.group().Child(groupName(c.Name, c.Attempt)),
		StateDir: r.attemptDir(uid, c.Name, c.Attempt),
		LogPath:  filepath.Join(r.logDir(&p.record.Config), c.Name, logName(c.Attempt)), LogMaxBytes: r.cfg.LogMaxBytes,
		LogMaxFiles: r.cfg.LogMaxFiles, StartTimeout: r.cfg.StartTimeout,
	}
	if !c.Privileged && !c.UnmaskedProc {
		s.MaskedPaths, s.ReadOnlyPaths = maskedPaths, readOnlyPaths
	}
	switch {
	case p.record.Config.HostPID:
		s.PIDMode = shim.PIDHost
	case p.record.Config.SharePIDNamespace:
		s.PIDMode = shim.PIDPod
	}
	return s, nil
}

func (p *pod) processSpec(c *ContainerConfig) (shim.Process, error) {
	caps, err := c.capabilities(p.r.capabilities)
	if err != nil {
		return shim.Process{}, err
	}
	s := shim.Process{
		Args: c.Args, Env: slices.Clone(c.Env), Cwd: c.Cwd, User: c.User, Groups: c.Groups, TTY: c.TTY,
		Capabilities: caps, NoNewPrivileges: !c.AllowPrivilegeEscalation && !c.Privileged,
		Rlimits: slices.Clone(c.Rlimits), OOMScoreAdj: c.Resources.OOMScoreAdj,
	}
	if !c.Privileged && !c.SeccompUnconfined {
		if s.Seccomp, err = p.r.filters.filter(caps); err != nil {
			return s, err
		}
	}
	defaults := [][2]string{{"PATH", defaultPath}, {"HOSTNAME", p.hostname()}}
	if c.TTY {
		defaults = append(defaults, [2]string{"TERM", "xterm"})
	}
	for _, d := range defaults {
		if !slices.ContainsFunc(s.Env, func(e string) bool { return strings.HasPrefix(e, d[0]+"=") }) {
			s.Env = append(s.Env, d[0]+"="+d[1])
		}
	}
	for _, d := range defaultRlimits {
		if !slices.ContainsFunc(s.Rlimits, func(l Rlimit) bool { return l.Type == d.Type }) {
			s.Rlimits = append(s.Rlimits, d)
		}
	}
	return s, nil
}

// mounts are the container's own and the pod's, parents before children.
func (p *pod) mounts(c *ContainerConfig) []Mount {
	shm := filepath.Join(p.dir(), shim.ShmName)
	if p.record.Config.HostIPC {
		shm = "/dev/shm"
	}
	out := slices.Clone(c.Mounts)
	for _, m := range []Mount{
		{Type: "bind", Source: filepath.Join(p.dir(), "hosts"), Target: "/etc/hosts"},
		{Type: "bind", Source: filepath.Join(p.dir(), "hostname"), Target: "/etc/hostname"},
		{Type: "bind", Source: filepath.Join(p.dir(), "resolv.conf"), Target: "/etc/resolv.conf"},
		{Type: "bind", Source: shm, Target: "/dev/shm", NoExec: true},
	} {
		if !slices.ContainsFunc(out, func(o Mount) bool { return path.Clean(o.Target) == m.Target }) {
			out = append(out, m)
		}
	}
	depth := func(m Mount) int { return strings.Count(path.Clean(m.Target), "/") }
	slices.SortStableFunc(out, func(a, b Mount) int { return depth(a) - depth(b) })
	return out
}

// prepareAttempt makes the directories and the cgroup of an attempt, its
// intent first, and forgets attempts that nobody can ask about any more.
func (p *pod) prepareAttempt(c *ContainerConfig, s *shim.ContainerSpec) error {
	if err := os.MkdirAll(s.StateDir, 0o700); err != nil {
		return err
	}
	rec := containerRecord{Version: recordVersion, CreatedAt: time.Now(), Config: *c}
	if err := shim.WriteRecord(filepath.Join(s.StateDir, containerFile), rec); err != nil {
		return err
	}
	layer := filepath.Dir(s.Upper)
	if err := os.RemoveAll(layer); err != nil { // a volatile overlay is never mounted again
		return err
	}
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{{layer, 0o700}, {s.Upper, 0o755}, {s.Work, 0o700}, {s.Rootfs, 0o700}, {filepath.Dir(s.LogPath), 0o755}} {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return err
		}
	}
	if s.Cgroup.Exists() { // its counters are another's
		if err := s.Cgroup.Remove(); err != nil {
			return err
		}
	}
	if err := s.Cgroup.Create(c.Resources); err != nil {
		return err
	}
	return p.pruneAttempts(c.Name, c.Attempt)
}

// discardAttempt undoes prepareAttempt, except for a log that has content.
func (p *pod) discardAttempt(c *ContainerConfig) error {
	uid := p.uid()
	group := p.group().Child(groupName(c.Name, c.Attempt))
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	var errs []error
	if group.Exists() {
		errs = append(errs, group.Kill(ctx), group.Remove())
	}
	log := filepath.Join(p.r.logDir(&p.record.Config), c.Name, logName(c.Attempt))
	if st, err := os.Stat(log); err == nil && st.Size() == 0 {
		errs = append(errs, os.Remove(log))
	}
	return errors.Join(append(errs,
		os.RemoveAll(p.r.attemptLayer(uid, c.Name, c.Attempt)),
		os.RemoveAll(p.r.attemptDir(uid, c.Name, c.Attempt)))...)
}

// pruneAttempts keeps the records and logs of the attempt before the new one,
// nothing older.
func (p *pod) pruneAttempts(name string, attempt int) error {
	logs := filepath.Join(p.r.logDir(&p.record.Config), name)
	old, err := numbers(logs, ".log")
	if err != nil {
		return err
	}
	old = slices.DeleteFunc(old, func(n int) bool { return n >= attempt })
	for i := 0; i < len(old)-1; i++ {
		if err := removeLog(filepath.Join(logs, logName(old[i]))); err != nil {
			return err
		}
	}
	records := filepath.Join(p.dir(), "containers", name)
	if old, err = numbers(records, ""); err != nil {
		return err
	}
	old = slices.DeleteFunc(old, func(n int) bool { return n >= attempt })
	for i := 0; i < len(old)-1; i++ {
		if err := os.RemoveAll(p.r.attemptDir(p.uid(), name, old[i])); err != nil {
			return err
		}
	}
	return nil
}
