package shim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// The stages that the shim's binary runs as, told by its first argument.
const (
	stageInit  = "shepherd-init"
	stageExec  = "shepherd-exec"
	stagePause = "shepherd-pause"
)

const syncFD = 3 // a stage's end of the socket to the shim

// initMain sets a container up and becomes its program. It must run on the
// process's main thread, locked. It returns only on failure, which the shim
// has been told.
func initMain() int {
	conn, err := newSock(syncFD, "shim")
	if err != nil {
		return 1
	}
	err = runInit(conn)
	return report(conn, err)
}

// report tells the shim why a stage failed; nobody else would hear it.
func report(conn *sock, err error) int {
	var se *StepError
	if !errors.As(err, &se) {
		se = &StepError{Step: "start", Message: err.Error()}
	}
	if werr := WriteJSON(conn, TypeFailed, 0, se); werr != nil {
		fmt.Fprintf(os.Stderr, "%v (and the shim is gone: %v)\n", err, werr)
	}
	return 1
}

func expect(conn io.Reader, t Type) (Frame, error) {
	f, err := ReadFrame(conn)
	if err != nil {
		return f, err
	}
	if f.Type != t {
		return f, fmt.Errorf("frame type %d, want %d", f.Type, t)
	}
	return f, nil
}

func runInit(conn *sock) error {
	// A container's processes must not look into this one while it is still ours.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return step("set non-dumpable", err)
	}
	f, err := expect(conn, TypeInit)
	if err != nil {
		return step("read specification", err)
	}
	var s ContainerSpec
	if err := f.Decode(&s); err != nil {
		return step("read specification", err)
	}
	// The shim has put this process into its cgroup by now: make it the root.
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return step("make cgroup namespace", err)
	}
	if _, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0); err != nil && err != unix.ENOSYS {
		return step("join session keyring", err)
	}
	root, err := enterRoot(&s)
	if err != nil {
		return err
	}
	if s.TTY {
		if err := openTerminal(conn, s.Size, true); err != nil {
			return step("open terminal", err)
		}
	}
	prog, err := prepare(&s.Process, root)
	if err != nil {
		return err
	}
	if err := WriteFrame(conn, Frame{Type: TypeReady}); err != nil {
		return step("report", err)
	}
	if _, err := expect(conn, TypeGo); err != nil {
		return step("wait for the shim", err)
	}
	return prog.become()
}

// openTerminal makes a terminal of the container's own devpts the standard
// streams and sends its other side to the shim.
func openTerminal(conn *sock, size Winsize, console bool) error {
	master, err := unix.Open("/dev/pts/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open ptmx: %w", err)
	}
	defer unix.Close(master)
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return fmt.Errorf("unlock terminal: %w", err)
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return fmt.Errorf("name terminal: %w", err)
	}
	name := "/dev/pts/" + strconv.Itoa(n)
	slave, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	if err := setWinsize(slave, size); err != nil {
		return err
	}
	if err := conn.sendFD(TypeTerminal, master); err != nil {
		return err
	}
	for fd := range 3 {
		if err := unix.Dup3(slave, fd, 0); err != nil {
			return fmt.Errorf("dup: %w", err)
		}
	}
	if err := unix.Close(slave); err != nil {
		return err
	}
	if err := unix.IoctlSetInt(0, unix.TIOCSCTTY, 0); err != nil {
		return fmt.Errorf("take terminal: %w", err)
	}
	if !console {
		return nil
	}
	if err := unix.Symlink(name, "/dev/console"); err != nil {
		return fmt.Errorf("link console: %w", err)
	}
	return nil
}

func setWinsize(fd int, size Winsize) error {
	if size.Rows == 0 || size.Cols == 0 {
		return nil
	}
	ws := unix.Winsize{Row: size.Rows, Col: size.Cols}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &ws); err != nil {
		return fmt.Errorf("set terminal size: %w", err)
	}
	return nil
}
