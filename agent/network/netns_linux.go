package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ensureNetNS makes a network namespace that lives at path, unless one does.
func ensureNetNS(path string) error {
	if isNetNS(path) {
		return nil
	}
	if err := removeNetNS(path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o400)
	if err != nil {
		return err
	}
	f.Close()
	errs := make(chan error, 1)
	go func() {
		// The thread changes its namespace and is never unlocked: it ends
		// with this goroutine and cannot run anything else.
		runtime.LockOSThread()
		errs <- bindNewNetNS(path)
	}()
	if err := <-errs; err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

func bindNewNetNS(path string) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	self := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
	if err := unix.Mount(self, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", self, err)
	}
	return nil
}

func isNetNS(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// removeNetNS unmounts and removes path. The namespace itself lives on while
// a process is in it.
func removeNetNS(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// inNode runs fn where the node's links are.
func (m *Manager) inNode(fn func() error) error {
	if m.node == nil {
		return fn()
	}
	return inNetNS(*m.node, fn)
}

// inNetNS runs fn on a thread that is in ns and ends afterwards.
func inNetNS(ns netns.NsHandle, fn func() error) error {
	errs := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(ns), unix.CLONE_NEWNET); err != nil {
			errs <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		errs <- fn()
	}()
	return <-errs
}
