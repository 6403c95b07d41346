package shim

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// step gives an error the name of what was being done.
func step(name string, err error) error {
	if err == nil {
		return nil
	}
	var se *StepError
	if errors.As(err, &se) {
		return err
	}
	e := &StepError{Step: name, Message: err.Error()}
	errors.As(err, &e.Errno)
	return e
}

// option is one parameter of a new file system; a flag has no value.
type option struct{ key, value string }

// newFS makes a file system that is mounted nowhere yet.
func newFS(fstype string, attrs int, options ...option) (int, error) {
	fs, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen %s: %w", fstype, err)
	}
	defer unix.Close(fs)
	for _, o := range options {
		if o.value == "" {
			err = unix.FsconfigSetFlag(fs, o.key)
		} else {
			err = unix.FsconfigSetString(fs, o.key, o.value)
		}
		if err != nil {
			return -1, fmt.Errorf("fsconfig %s %s=%s: %w", fstype, o.key, o.value, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("create %s: %w", fstype, err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return -1, fmt.Errorf("fsmount %s: %w", fstype, err)
	}
	return fd, nil
}

// cloneTree detaches a copy of what is mounted at path (relative to dir), with
// the given attributes set on all of it. Its changes stay its own.
func cloneTree(dir int, path string, flags uint, attrs uint64) (int, error) {
	fd, err := unix.OpenTree(dir, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|flags)
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	attr := unix.MountAttr{Attr_set: attrs, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|flags&unix.AT_RECURSIVE, &attr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("mount_setattr: %w", err)
	}
	return fd, nil
}

// attach mounts mnt on the file that target refers to and closes both.
func attach(mnt, target int) error {
	defer unix.Close(mnt)
	defer unix.Close(target)
	if err := unix.MoveMount(mnt, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// rootDir resolves paths inside a container's root: no symbolic link and no
// magic link of procfs leads out of it.
type rootDir int

func (r rootDir) open(p string, flags uint64, resolve uint64) (int, error) {
	return unix.Openat2(int(r), p, &unix.OpenHow{
		Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | resolve,
	})
}

// target opens what is to be mounted on, made as a directory or an empty file
// when it is missing.
func (r rootDir) target(p string, dir bool) (int, error) {
	p = path.Clean("/" + p)
	if p == "/" {
		return -1, errors.New("the root itself cannot be mounted on")
	}
	var err error
	if dir {
		err = r.mkdirAll(p)
	} else {
		err = r.createFile(p)
	}
	if err != nil {
		return -1, err
	}
	fd, err := r.open(p, unix.O_PATH, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", p, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("stat %s: %w", p, err)
	}
	if isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR; isDir != dir {
		unix.Close(fd)
		if dir {
			return -1, fmt.Errorf("%s: %w", p, unix.ENOTDIR)
		}
		return -1, fmt.Errorf("%s: %w", p, unix.EISDIR)
	}
	return fd, nil
}

// maxLinks is how many dangling links are followed before giving up.
const maxLinks = 16

// mkdirAll makes p and its parents, each resolved inside the root. A link that
// leads nowhere gets its target made: images have /var/run without a /run.
func (r rootDir) mkdirAll(p string) error { return r.mkdirAllLinks(p, maxLinks) }

func (r rootDir) mkdirAllLinks(p string, links int) error {
	done := "/"
	for part := range strings.SplitSeq(strings.Trim(path.Clean("/"+p), "/"), "/") {
		parent := done
		done = path.Join(parent, part)
		fd, err := r.open(done, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err == nil {
			unix.Close(fd)
			continue
		}
		if err != unix.ENOENT {
			return fmt.Errorf("open %s: %w", done, err)
		}
		link := ""
		err = r.inParent(parent, func(dir int) error {
			err := unix.Mkdirat(dir, part, 0o755)
			if err == unix.EEXIST {
				buf := make([]byte, unix.PathMax)
				n, rerr := unix.Readlinkat(dir, part, buf)
				if rerr != nil {
					return err
				}
				link = string(buf[:n])
				return nil
			}
			return err
		})
		if err == nil && link != "" {
			if links == 0 {
				err = unix.ELOOP
			} else if !path.IsAbs(link) {
				link = path.Join(parent, link)
			}
			if err == nil {
				err = r.mkdirAllLinks(link, links-1)
			}
		}
		if err != nil {
			return fmt.Errorf("make %s: %w", done, err)
		}
	}
	return nil
}

func (r rootDir) createFile(p string) error {
	fd, err := r.open(p, unix.O_PATH, 0)
	if err == nil {
		return unix.Close(fd)
	}
	if err != unix.ENOENT {
		return fmt.Errorf("open %s: %w", p, err)
	}
	parent, name := path.Split(p)
	if parent != "/" {
		if err := r.mkdirAll(parent); err != nil {
			return err
		}
	}
	err = r.inParent(parent, func(dir int) error {
		fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
	if err != nil {
		return fmt.Errorf("make %s: %w", p, err)
	}
	return nil
}

func (r rootDir) inParent(parent string, f func(dir int) error) error {
	fd, err := r.open("/"+parent, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

// readFile reads a file of the image, at most max bytes of it.
func (r rootDir) readFile(p string, max int64) ([]byte, error) {
	fd, err := r.open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: p, Err: err}
	}
	f := os.NewFile(uintptr(fd), p)
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, &os.PathError{Op: "read", Path: p, Err: errors.New("not a regular file")}
	}
	b := make([]byte, min(st.Size(), max))
	n, err := readFull(f, b)
	return b[:n], err
}

func readFull(f *os.File, b []byte) (n int, err error) {
	for n < len(b) {
		m, err := f.Read(b[n:])
		n += m
		if m == 0 || err != nil {
			return n, err
		}
	}
	return n, nil
}
