package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// device is a node of the host that was taken before the pivot.
type device struct {
	name string
	fd   int
}

// standardDevices are those of the OCI runtime specification.
var standardDevices = []struct {
	name         string
	major, minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
}

// openDevices takes the host's standard devices and checks that they are what
// their names say. They come as read-only mounts: writing to a device is not
// writing to its inode, but changing its mode or owner is, and that would
// change the machine's. All else that the container sees is mounted nodev,
// so a node that it makes, or that an image brings, opens nothing.
func openDevices(s *ContainerSpec) ([]device, error) {
	var out []device
	for _, d := range standardDevices {
		fd, err := cloneTree(unix.AT_FDCWD, "/dev/"+d.name, 0, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
		if err != nil {
			return nil, fmt.Errorf("/dev/%s: %w", d.name, err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return nil, fmt.Errorf("/dev/%s: %w", d.name, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(d.major, d.minor) {
			return nil, fmt.Errorf("/dev/%s is not the character device %d:%d", d.name, d.major, d.minor)
		}
		out = append(out, device{d.name, fd})
	}
	if !s.Privileged {
		return out, nil
	}
	more, err := hostDevices()
	return append(out, more...), err
}

// hostDevices takes every other device of the host, for privileged containers.
func hostDevices() ([]device, error) {
	var out []device
	err := filepath.WalkDir("/dev", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		name := strings.TrimPrefix(path, "/dev/")
		if d.IsDir() {
			if name == "pts" || name == "shm" || name == "mqueue" {
				return fs.SkipDir
			}
			return nil
		}
		if d.Type()&fs.ModeDevice == 0 || name == "ptmx" || name == "console" {
			return nil
		}
		for _, s := range standardDevices {
			if s.name == name {
				return nil
			}
		}
		fd, err := cloneTree(unix.AT_FDCWD, path, 0, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		out = append(out, device{name, fd})
		return nil
	})
	return out, err
}

func mountDev(s *ContainerSpec, root rootDir, devices []device) error {
	attrs := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NODEV
	if s.Privileged {
		attrs = unix.MOUNT_ATTR_NOSUID
	}
	dev, err := newFS("tmpfs", attrs, option{"mode", "755"}, option{"size", "65536k"})
	if err != nil {
		return err
	}
	if err := attachAt(root, "/dev", dev); err != nil {
		return err
	}
	pts, err := newFS("devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC,
		option{"newinstance", ""}, option{"ptmxmode", "0666"}, option{"mode", "0620"}, option{"gid", "5"})
	if err != nil {
		return err
	}
	if err := attachAt(root, "/dev/pts", pts); err != nil {
		return err
	}
	mqueue, err := newFS("mqueue", hidden)
	switch {
	case err == nil:
		err = attachAt(root, "/dev/mqueue", mqueue)
	case errors.Is(err, unix.ENODEV): // a kernel without POSIX message queues
		err = nil
	}
	if err != nil {
		return err
	}
	for _, d := range devices {
		fd, err := root.target("/dev/"+d.name, false)
		if err != nil {
			return err
		}
		if err := attach(d.fd, fd); err != nil {
			return fmt.Errorf("/dev/%s: %w", d.name, err)
		}
	}
	for _, l := range [][2]string{
		{"/proc/self/fd", "/dev/fd"}, {"/proc/self/fd/0", "/dev/stdin"}, {"/proc/self/fd/1", "/dev/stdout"},
		{"/proc/self/fd/2", "/dev/stderr"}, {"pts/ptmx", "/dev/ptmx"},
	} {
		if err := os.Symlink(l[0], l[1]); err != nil {
			return err
		}
	}
	return root.mkdirAll("/dev/shm")
}
