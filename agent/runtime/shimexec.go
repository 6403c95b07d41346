package runtime

import (
	"errors"
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// sealShim copies the shim's binary into sealed memory. Every shim and every
// container's init runs from it: no container can write to it, and replacing
// the file on disk does not reach pods halfway.
func sealShim(path string) (*os.File, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open shim: %w", err)
	}
	defer src.Close()
	const name = "shepherd-shim"
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("seal shim: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := io.Copy(f, src); err != nil {
		return nil, errors.Join(fmt.Errorf("seal shim: %w", err), f.Close())
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(fmt.Errorf("seal shim: %w", err), f.Close())
	}
	return f, nil
}

// launch says how to start a shim.
type launch struct {
	files    []uintptr // descriptors 0 to 3
	netns    string    // path of the network namespace; "": inherit, or make one with flags
	flags    uintptr   // namespaces to make
	cgroupFD int       // v2 group to start in; -1: none
}

// startShim starts the sealed binary and returns it by PID and pidfd.
func startShim(binary *os.File, l launch) (pid, pidfd int, err error) {
	attr := &syscall.ProcAttr{
		Dir:   "/",
		Files: l.files,
		Env:   []string{"GOTRACEBACK=single"},
		Sys:   &syscall.SysProcAttr{Setsid: true, Cloneflags: l.flags, PidFD: &pidfd},
	}
	if l.cgroupFD >= 0 {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, l.cgroupFD
	}
	path := "/proc/self/fd/" + strconv.Itoa(int(binary.Fd()))
	err = inNetNS(l.netns, func() error {
		pid, err = syscall.ForkExec(path, []string{"shepherd-shim"}, attr)
		return os.NewSyscallError("fork", err)
	})
	if err != nil {
		return 0, -1, fmt.Errorf("start shim: %w", err)
	}
	return pid, pidfd, nil
}

// inNetNS runs f on a thread that is in the network namespace at path.
func inNetNS(path string, f func() error) error {
	if path == "" {
		return f()
	}
	there, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer there.Close()
	goruntime.LockOSThread()
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		goruntime.UnlockOSThread()
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer here.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		goruntime.UnlockOSThread()
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	err = f()
	if back := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, fmt.Errorf("leave network namespace: %w", back)) // the thread stays locked and dies
	}
	goruntime.UnlockOSThread()
	return err
}

// process is a shim that may or may not be our child.
type process struct {
	pid  int
	f    *os.File
	done chan struct{} // closed when it has ended
}

// watchProcess owns pidfd and reaps the process if it is a child. No thread
// waits for it: the poller does.
func watchProcess(pid, pidfd int) (*process, error) {
	if err := unix.SetNonblock(pidfd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("watch shim: %w", err), unix.Close(pidfd))
	}
	f := os.NewFile(uintptr(pidfd), "pidfd")
	rc, err := f.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch shim: %w", err), f.Close())
	}
	p := &process{pid: pid, f: f, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		defer f.Close()
		_ = rc.Read(func(fd uintptr) bool { return pidfdEnded(int(fd)) })
		// ECHILD: another agent's child; its parent or init reaps it.
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}()
	return p, nil
}

func pidfdEnded(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return n > 0 || err != nil && err != unix.EINTR
}
