package shim

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// program is a process that is ready to become another.
type program struct {
	spec *Process
	id   identity
	env  []string
	path string
}

// prepare does all that needs the file system: user, working directory,
// standard streams, resource limits. It runs as root inside the container.
func prepare(p *Process, root rootDir) (*program, error) {
	g := &program{spec: p}
	var err error
	if g.id, err = lookupUser(root.readFile, p.User, p.Groups); err != nil {
		return nil, step("find user", err)
	}
	g.env = slices.Clone(p.Env)
	if _, ok := lookupEnv(g.env, "HOME"); !ok {
		g.env = append(g.env, "HOME="+g.id.home)
	}
	if err := enterCwd(p.Cwd, root); err != nil {
		return nil, step("enter working directory", err)
	}
	for fd := range 3 {
		// A program that opens /dev/stdout anew needs to own it.
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return nil, step("hand over streams", err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFIFO || p.TTY {
			if err := unix.Fchown(fd, int(g.id.uid), -1); err != nil {
				return nil, step("hand over streams", err)
			}
		}
	}
	for _, r := range p.Rlimits {
		if err := setRlimit(r); err != nil {
			return nil, step("set "+r.Type, err)
		}
	}
	if g.path, err = findProgram(p.Args[0], g.env); err != nil {
		return nil, step("exec", err)
	}
	return g, nil
}

func enterCwd(cwd string, root rootDir) error {
	if cwd == "" {
		cwd = "/"
	}
	if !path.IsAbs(cwd) {
		return fmt.Errorf("%q is not absolute", cwd)
	}
	if cwd = path.Clean(cwd); cwd != "/" {
		if err := root.mkdirAll(cwd); err != nil {
			return err
		}
	}
	fd, err := root.open(cwd, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", cwd, err)
	}
	defer unix.Close(fd)
	if err := unix.Fchdir(fd); err != nil {
		return err
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Getcwd(buf)
	if err != nil {
		return err
	}
	if n == 0 || buf[0] != '/' {
		return errors.New("it is outside the container")
	}
	return nil
}

// findProgram looks a name up as execvp(3) does.
func findProgram(name string, env []string) (string, error) {
	if name == "" {
		return "", errors.New("the command is empty")
	}
	if strings.Contains(name, "/") {
		return name, nil // execve says what is wrong with it
	}
	search, _ := lookupEnv(env, "PATH")
	denied := false
	for dir := range strings.SplitSeq(search, ":") {
		if dir == "" {
			dir = "."
		}
		p := path.Join(dir, name)
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if st.Mode&0o111 != 0 {
			return p, nil
		}
		denied = true
	}
	if denied {
		return "", fmt.Errorf("%q in PATH is not executable: %w", name, unix.EACCES)
	}
	return "", fmt.Errorf("%q not found in PATH: %w", name, unix.ENOENT)
}

func lookupEnv(env []string, key string) (string, bool) {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], key+"="); ok {
			return v, true
		}
	}
	return "", false
}

// become gives up privileges and executes the program. It returns only errors.
//
// Every call is for this thread alone: execve makes it the only one. Order:
// no_new_privs, capabilities, close-on-exec, seccomp last. A filter without
// no_new_privs needs CAP_SYS_ADMIN and therefore goes before the capabilities.
func (g *program) become() error {
	if g.spec.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return step("set no_new_privs", err)
		}
	} else if err := setSeccomp(g.spec.Seccomp); err != nil {
		return step("set seccomp filter", err)
	}
	if err := dropBounding(g.spec.Capabilities); err != nil {
		return step("drop capabilities", err)
	}
	if err := g.id.assume(); err != nil {
		return step("change user", err)
	}
	if err := setCapabilities(g.spec.Capabilities, g.id.uid); err != nil {
		return step("set capabilities", err)
	}
	// Umask and ignored signals are inherited: give the program the usual ones.
	unix.Umask(0o022)
	if err := resetSignals(); err != nil {
		return step("reset signals", err)
	}
	if err := unix.CloseRange(3, ^uint(0)>>33, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return step("close descriptors", err)
	}
	if g.spec.NoNewPrivileges {
		if err := setSeccomp(g.spec.Seccomp); err != nil {
			return step("set seccomp filter", err)
		}
	}
	err := syscall.Exec(g.path, g.spec.Args, g.env)
	if err == syscall.ENOENT {
		var st unix.Stat_t
		if unix.Stat(g.path, &st) == nil {
			return step("exec", fmt.Errorf("%q: its interpreter is missing: %w", g.path, err))
		}
	}
	return step("exec", fmt.Errorf("%q: %w", g.path, err))
}

// assume changes user and groups of this thread. The syscall package's own
// calls would change all threads, which other threads' work makes slow.
func (id identity) assume() error {
	var list unsafe.Pointer
	if len(id.groups) > 0 {
		list = unsafe.Pointer(&id.groups[0])
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(id.groups)), uintptr(list), 0); e != 0 {
		return os.NewSyscallError("setgroups", e)
	}
	g, u := uintptr(id.gid), uintptr(id.uid)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, g, g, g); e != 0 {
		return os.NewSyscallError("setresgid", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, u, u, u); e != 0 {
		return os.NewSyscallError("setresuid", e)
	}
	return nil
}

// lastCapability finds the highest capability that this kernel knows.
func lastCapability() int {
	for c := 0; ; c++ {
		if _, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0); err != nil {
			return c - 1
		}
	}
}

func dropBounding(keep uint64) error {
	for c := range lastCapability() + 1 {
		if keep&(1<<c) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return fmt.Errorf("capability %d: %w", c, err)
		}
	}
	return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
}

// setCapabilities leaves root the given ones; another user has none but what
// a program's file grants it.
func setCapabilities(keep uint64, uid uint32) error {
	if uid != 0 {
		keep = 0
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	lo, hi := uint32(keep), uint32(keep>>32)
	data := [2]unix.CapUserData{{Effective: lo, Permitted: lo}, {Effective: hi, Permitted: hi}}
	return unix.Capset(&hdr, &data[0])
}

func setSeccomp(filter []byte) error {
	if len(filter) == 0 {
		return nil
	}
	const size = int(unsafe.Sizeof(unix.SockFilter{}))
	if len(filter)%size != 0 {
		return errors.New("not an array of instructions")
	}
	prog := make([]unix.SockFilter, len(filter)/size)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&prog[0])), len(filter)), filter)
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	if _, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog))); e != 0 {
		return e
	}
	return nil
}

// resetSignals restores the default of every ignored signal.
func resetSignals() error {
	type sigaction struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}
	const sigIgn = 1
	for sig := uintptr(1); sig <= 64; sig++ {
		if sig == uintptr(unix.SIGKILL) || sig == uintptr(unix.SIGSTOP) {
			continue
		}
		var sa sigaction
		if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&sa)), 8, 0, 0); e != 0 {
			return e
		}
		if sa.handler != sigIgn {
			continue
		}
		sa = sigaction{}
		if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&sa)), 0, 8, 0, 0); e != 0 {
			return e
		}
	}
	return nil
}

var rlimits = map[string]int{
	"RLIMIT_CPU": unix.RLIMIT_CPU, "RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_DATA": unix.RLIMIT_DATA,
	"RLIMIT_STACK": unix.RLIMIT_STACK, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_RSS": unix.RLIMIT_RSS,
	"RLIMIT_NPROC": unix.RLIMIT_NPROC, "RLIMIT_NOFILE": unix.RLIMIT_NOFILE, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK,
	"RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_LOCKS": unix.RLIMIT_LOCKS, "RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING,
	"RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE, "RLIMIT_NICE": unix.RLIMIT_NICE, "RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO,
	"RLIMIT_RTTIME": unix.RLIMIT_RTTIME,
}

// KnownRlimit tells whether setrlimit(2) has a limit of that name.
func KnownRlimit(name string) bool { _, ok := rlimits[name]; return ok }

// setRlimit sets a limit, lowered to what this process may have.
func setRlimit(r Rlimit) error {
	n, ok := rlimits[r.Type]
	if !ok {
		return errors.New("unknown resource limit")
	}
	var now syscall.Rlimit
	if err := syscall.Getrlimit(n, &now); err != nil {
		return err
	}
	want := syscall.Rlimit{Max: r.Hard}
	if r.Hard > now.Max {
		// Raising is for CAP_SYS_RESOURCE; try, a machine may withhold it.
		if syscall.Setrlimit(n, &syscall.Rlimit{Cur: now.Cur, Max: r.Hard}) != nil {
			want.Max = now.Max
		}
	}
	want.Cur = min(r.Soft, want.Max)
	// The syscall package must know of RLIMIT_NOFILE: its Exec would restore
	// the one that the process was started with.
	return syscall.Setrlimit(n, &want)
}
