package shim

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// sock is a stream socket that can carry descriptors. Reads are one goroutine's,
// writes anybody's (whole frames do not mix).
type sock struct {
	f   *os.File
	rc  syscall.RawConn
	fds []int // received with the bytes read so far, not yet taken

	wmu sync.Mutex
}

// newSock owns fd from now on.
func newSock(fd int, name string) (*sock, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("socket %s: %w", name, err)
	}
	unix.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), name)
	rc, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("socket %s: %w", name, err)
	}
	return &sock{f: f, rc: rc}, nil
}

// Read implements io.Reader and keeps received descriptors.
func (s *sock) Read(p []byte) (int, error) {
	var n, oobn int
	var err error
	oob := make([]byte, unix.CmsgSpace(4))
	rerr := s.rc.Read(func(fd uintptr) bool {
		n, oobn, _, _, err = unix.Recvmsg(int(fd), p, oob, unix.MSG_CMSG_CLOEXEC)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if rerr != nil {
		return 0, rerr
	}
	if err != nil {
		return 0, os.NewSyscallError("recvmsg", err)
	}
	if oobn > 0 {
		msgs, perr := unix.ParseSocketControlMessage(oob[:oobn])
		if perr != nil {
			return n, perr
		}
		for i := range msgs {
			if fds, ferr := unix.ParseUnixRights(&msgs[i]); ferr == nil {
				s.fds = append(s.fds, fds...)
			}
		}
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Write implements io.Writer.
func (s *sock) Write(p []byte) (int, error) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	return s.f.Write(p)
}

// takeFD returns the oldest received descriptor, -1 if there is none.
func (s *sock) takeFD() int {
	if len(s.fds) == 0 {
		return -1
	}
	fd := s.fds[0]
	s.fds = s.fds[1:]
	return fd
}

// sendFD sends an empty frame that carries a descriptor.
func (s *sock) sendFD(t Type, fd int) error {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	var frame frameBuffer
	if err := WriteFrame(&frame, Frame{Type: t}); err != nil {
		return err
	}
	var err error
	werr := s.rc.Write(func(to uintptr) bool {
		err = unix.Sendmsg(int(to), frame, unix.UnixRights(fd), nil, 0)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if werr != nil {
		return werr
	}
	return os.NewSyscallError("sendmsg", err)
}

func (s *sock) Close() error {
	for fd := s.takeFD(); fd >= 0; fd = s.takeFD() {
		unix.Close(fd)
	}
	return s.f.Close()
}

type frameBuffer []byte

func (b *frameBuffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

// listener is a unix socket that accepts connections of the same user only.
type listener struct {
	f  *os.File
	rc syscall.RawConn
}

// listen binds dir/name. A directory descriptor keeps the path under the
// kernel's 108 bytes.
func listen(dir, name string) (*listener, error) {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(d)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Unlinkat(d, name, 0); err != nil && err != unix.ENOENT {
		unix.Close(fd)
		return nil, os.NewSyscallError("unlink old socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(d) + "/" + name}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, 16); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("listen", err)
	}
	f := os.NewFile(uintptr(fd), name)
	rc, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &listener{f: f, rc: rc}, nil
}

// accept waits for the next connection of a process of our own user.
func (l *listener) accept() (*sock, error) {
	for {
		var fd int
		var err error
		rerr := l.rc.Read(func(lfd uintptr) bool {
			fd, _, err = unix.Accept4(int(lfd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return err != unix.EAGAIN && err != unix.EINTR
		})
		if rerr != nil {
			return nil, rerr
		}
		if err == unix.ECONNABORTED {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("accept", err)
		}
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || int(cred.Uid) != os.Geteuid() {
			unix.Close(fd)
			continue
		}
		return newSock(fd, "agent")
	}
}

// socketpair makes the two ends of a stream socket; both are close-on-exec.
func socketpair() (ours *sock, theirs int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, os.NewSyscallError("socketpair", err)
	}
	ours, err = newSock(fds[0], "init")
	if err != nil {
		unix.Close(fds[1])
		return nil, -1, err
	}
	return ours, fds[1], nil
}
