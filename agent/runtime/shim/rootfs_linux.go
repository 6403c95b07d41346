package shim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	hidden   = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	procType = 0x9fa0 // PROC_SUPER_MAGIC
)

// source is a host's tree that was taken before the pivot.
type source struct {
	mount Mount
	fd    int
	dir   bool
}

// enterRoot builds the container's root in this process's own mount namespace
// and makes it the root of the process. It returns a descriptor of it.
//
// Order: take what comes from the host as detached trees; mount the overlay;
// pivot; only then mount inside. After the pivot no path leads to the host.
func enterRoot(s *ContainerSpec) (rootDir, error) {
	// Slave: what the machine unmounts meanwhile must not stay busy here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return -1, step("make mounts private", err)
	}
	sources, err := openSources(s)
	if err != nil {
		return -1, err
	}
	devices, err := openDevices(s)
	if err != nil {
		return -1, step("open devices", err)
	}
	if err := mountOverlay(s); err != nil {
		return -1, step("mount root", err)
	}
	if err := pivot(s.Rootfs); err != nil {
		return -1, step("pivot root", err)
	}
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, step("open root", err)
	}
	root := rootDir(fd)
	proc, err := mountKernelFS(s, root)
	if err != nil {
		return -1, err
	}
	if err := mountDev(s, root, devices); err != nil {
		return -1, step("mount /dev", err)
	}
	for _, src := range sources {
		if err := mountSource(root, src); err != nil {
			return -1, step("mount "+src.mount.Target, err)
		}
	}
	if err := setOOMScore(proc, s.OOMScoreAdj); err != nil {
		return -1, step("set oom_score_adj", err)
	}
	if err := maskPaths(s, root); err != nil {
		return -1, step("mask paths", err)
	}
	unix.Close(proc)
	if s.ReadOnlyRoot {
		if err := unix.MountSetattr(-1, "/", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return -1, step("make root read-only", err)
		}
	}
	return root, nil
}

func openSources(s *ContainerSpec) ([]source, error) {
	out := make([]source, 0, len(s.Mounts))
	for _, m := range s.Mounts {
		if m.Type != "bind" {
			out = append(out, source{mount: m, fd: -1, dir: true})
			continue
		}
		var attrs uint64
		if !s.Privileged {
			attrs = unix.MOUNT_ATTR_NODEV
		}
		if m.ReadOnly {
			attrs |= unix.MOUNT_ATTR_RDONLY
		}
		if m.NoExec {
			attrs |= unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NOSUID
		}
		fd, err := cloneTree(unix.AT_FDCWD, m.Source, unix.AT_RECURSIVE, attrs)
		if err != nil {
			return nil, step("mount "+m.Target, fmt.Errorf("source %s: %w", m.Source, err))
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return nil, step("mount "+m.Target, err)
		}
		out = append(out, source{m, fd, st.Mode&unix.S_IFMT == unix.S_IFDIR})
	}
	return out, nil
}

// mountOverlay names the layers by descriptor: no length of paths, and no
// character in them, can break the option string.
func mountOverlay(s *ContainerSpec) error {
	var lower strings.Builder
	name := func(path string) (string, error) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", fmt.Errorf("layer %s: %w", path, err)
		}
		return "/proc/self/fd/" + strconv.Itoa(fd), nil // closed by exec
	}
	for i, l := range s.Layers {
		p, err := name(l)
		if err != nil {
			return err
		}
		if i > 0 {
			lower.WriteByte(':')
		}
		lower.WriteString(p)
	}
	upper, err := name(s.Upper)
	if err != nil {
		return err
	}
	work, err := name(s.Work)
	if err != nil {
		return err
	}
	options := "lowerdir=" + lower.String() + ",upperdir=" + upper + ",workdir=" + work
	if len(options) >= 4000 {
		return fmt.Errorf("%d layers: too many", len(s.Layers))
	}
	var flags uintptr = unix.MS_NODEV
	if s.Privileged {
		flags = 0
	}
	// volatile: the layer dies with the container, nobody needs its fsync.
	err = unix.Mount("overlay", s.Rootfs, "overlay", flags, options+",volatile")
	if err == unix.EINVAL {
		err = unix.Mount("overlay", s.Rootfs, "overlay", flags, options)
	}
	if err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	return nil
}

func pivot(rootfs string) error {
	if err := unix.Chdir(rootfs); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	// The old root now lies over the new one.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach old root: %w", err)
	}
	return unix.Chdir("/")
}

// mountKernelFS mounts /proc, /sys and /sys/fs/cgroup. It returns procfs.
func mountKernelFS(s *ContainerSpec, root rootDir) (int, error) {
	proc, err := newFS("proc", hidden)
	if err != nil {
		return -1, step("mount /proc", err)
	}
	keep, err := unix.FcntlInt(uintptr(proc), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, step("mount /proc", err)
	}
	if err := attachAt(root, "/proc", proc); err != nil {
		return -1, step("mount /proc", err)
	}
	attrs := hidden
	if !s.Privileged {
		attrs |= unix.MOUNT_ATTR_RDONLY
	}
	sys, err := newFS("sysfs", attrs)
	if err != nil {
		return -1, step("mount /sys", err)
	}
	if err := attachAt(root, "/sys", sys); err != nil {
		return -1, step("mount /sys", err)
	}
	if err := mountCgroup(s, root, attrs); err != nil {
		return -1, step("mount /sys/fs/cgroup", err)
	}
	return keep, nil
}

// attachAt mounts on a directory of the image that must not be a link.
func attachAt(root rootDir, p string, mnt int) error {
	if err := root.mkdirAll(p); err != nil {
		return err
	}
	fd, err := root.open(p, unix.O_PATH|unix.O_DIRECTORY, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return fmt.Errorf("open %s: %w", p, err)
	}
	return attach(mnt, fd)
}

func mountCgroup(s *ContainerSpec, root rootDir, attrs int) error {
	const at = "/sys/fs/cgroup"
	if s.Cgroup.Unified != "" {
		mnt, err := newFS("cgroup2", attrs)
		if err != nil {
			return err
		}
		return attachAt(root, at, mnt)
	}
	dir, err := newFS("tmpfs", hidden, option{"mode", "755"})
	if err != nil {
		return err
	}
	if err := attachAt(root, at, dir); err != nil {
		return err
	}
	for key := range s.Cgroup.V1 {
		var options []option
		for c := range strings.SplitSeq(key, ",") {
			options = append(options, option{c, ""})
		}
		mnt, err := newFS("cgroup", attrs, options...)
		if err != nil {
			return err
		}
		if err := attachAt(root, at+"/"+key, mnt); err != nil {
			return err
		}
	}
	return unix.MountSetattr(-1, at, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

func mountSource(root rootDir, src source) error {
	m := src.mount
	fd := src.fd
	if m.Type == "tmpfs" {
		attrs := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
		if m.ReadOnly {
			attrs |= unix.MOUNT_ATTR_RDONLY
		}
		if m.NoExec {
			attrs |= unix.MOUNT_ATTR_NOEXEC
		}
		mode := m.Mode
		if mode == 0 {
			mode = 0o1777
		}
		options := []option{{"mode", strconv.FormatUint(uint64(mode), 8)}}
		if m.Size > 0 {
			options = append(options, option{"size", strconv.FormatInt(m.Size, 10)})
		}
		var err error
		if fd, err = newFS("tmpfs", attrs, options...); err != nil {
			return err
		}
	}
	target, err := root.target(m.Target, src.dir)
	if err != nil {
		unix.Close(fd)
		return err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(target, &st); err != nil {
		return errors.Join(err, unix.Close(target), unix.Close(fd))
	}
	if st.Type == procType {
		return errors.Join(errors.New("target is inside /proc"), unix.Close(target), unix.Close(fd))
	}
	return attach(fd, target)
}

// maskPaths hides files and directories of the kernel and makes others
// read-only. A path that does not exist needs neither.
func maskPaths(s *ContainerSpec, root rootDir) error {
	each := func(paths []string, f func(fd int, st *unix.Stat_t) error) error {
		for _, p := range paths {
			fd, err := root.open(p, unix.O_PATH, unix.RESOLVE_NO_SYMLINKS)
			if err == unix.ENOENT {
				continue
			}
			var st unix.Stat_t
			if err == nil {
				err = unix.Fstat(fd, &st)
			}
			if err == nil {
				err = f(fd, &st)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
		}
		return nil
	}
	err := each(s.ReadOnlyPaths, func(fd int, _ *unix.Stat_t) error {
		mnt, err := cloneTree(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, unix.MOUNT_ATTR_RDONLY|hidden)
		if err != nil {
			return err
		}
		return attach(mnt, fd)
	})
	if err != nil {
		return err
	}
	return each(s.MaskedPaths, func(fd int, st *unix.Stat_t) error {
		var mnt int
		var err error
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			mnt, err = newFS("tmpfs", hidden|unix.MOUNT_ATTR_RDONLY, option{"size", "4k"}, option{"mode", "755"})
		} else {
			mnt, err = cloneTree(int(root), "dev/null", unix.AT_SYMLINK_NOFOLLOW, unix.MOUNT_ATTR_RDONLY)
		}
		if err != nil {
			return err
		}
		return attach(mnt, fd)
	})
}

// setOOMScore writes through the procfs that was just made, so that no mount
// of the image can stand in its place.
func setOOMScore(proc, score int) error {
	if score == 0 {
		return nil
	}
	fd, err := unix.Openat(proc, "self/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(strconv.Itoa(score)))
	if err == unix.EACCES && score < 0 {
		return nil // lowering needs CAP_SYS_RESOURCE, which the machine withholds
	}
	return err
}
