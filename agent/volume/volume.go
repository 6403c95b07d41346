// Package volume prepares the volumes of pods on the node: directories, memory
// file systems, and files made from ConfigMaps, Secrets and the pod itself.
//
// A pod's volumes live in two directories named after its UID, one on disk
// and one in the run directory. Files made from objects are replaced as a
// whole by one rename, so a container never reads half of an update.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

var (
	// ErrUnsupported is returned for a kind of volume that this node cannot
	// provide.
	ErrUnsupported = errors.New("unsupported volume")
	// ErrInvalid is returned for a volume or mount that can never work as
	// written.
	ErrInvalid = errors.New("invalid volume")
)

// Objects reads what volumes are made from. Its errors say when an object
// does not exist, in the manner of apimachinery's errors.IsNotFound.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Config says where volumes live.
type Config struct {
	// DataDir holds volumes on disk, RunDir those that must not touch one.
	DataDir, RunDir string
	// Objects reads ConfigMaps and Secrets.
	Objects Objects
}

// Manager makes and removes the volumes of pods. It is safe for concurrent
// use for different pods.
type Manager struct{ cfg Config }

// New returns a manager; nothing is made before Setup.
func New(cfg Config) (*Manager, error) {
	if !filepath.IsAbs(cfg.DataDir) || !filepath.IsAbs(cfg.RunDir) {
		return nil, fmt.Errorf("volume directories %q and %q: must be absolute paths", cfg.DataDir, cfg.RunDir)
	}
	if cfg.Objects == nil {
		return nil, errors.New("volumes: no source of objects")
	}
	return &Manager{cfg: cfg}, nil
}

// Info is what a downward API volume may need besides the pod.
type Info struct {
	PodIP, HostIP string
	// Resource returns the value of a resource field as a string.
	Resource func(pod *corev1.Pod, container string, ref *corev1.ResourceFieldSelector) (string, error)
	// Field returns the value of a pod field as a string.
	Field func(pod *corev1.Pod, path string) (string, error)
}

// Mount is one volume mount of a container, ready for the runtime.
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

func (m *Manager) diskDir(uid string) string   { return filepath.Join(m.cfg.DataDir, uid) }
func (m *Manager) memoryDir(uid string) string { return filepath.Join(m.cfg.RunDir, uid) }

// Setup makes all volumes of the pod, or brings those made from objects up to
// date. It may be called again at any time.
func (m *Manager) Setup(ctx context.Context, pod *corev1.Pod, info Info) error {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if err := m.setup(ctx, pod, v, info); err != nil {
			return fmt.Errorf("volume %q: %w", v.Name, err)
		}
	}
	return nil
}

func (m *Manager) setup(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, info Info) error {
	if err := checkName(v.Name); err != nil {
		return err
	}
	path := m.path(pod, v)
	switch {
	case v.HostPath != nil:
		return checkHostPath(v.HostPath)
	case v.EmptyDir != nil:
		return m.emptyDir(pod, v, path)
	case v.ConfigMap != nil, v.Secret != nil, v.DownwardAPI != nil, v.Projected != nil:
		files, err := m.payload(ctx, pod, v, info)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		return writePayload(path, files, fsGroup(pod))
	}
	return ErrUnsupported
}

// path is where a volume is on this machine.
func (m *Manager) path(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.HostPath != nil:
		return filepath.Clean(v.HostPath.Path)
	case v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumDefault:
		return filepath.Join(m.diskDir(string(pod.UID)), v.Name)
	}
	return filepath.Join(m.memoryDir(string(pod.UID)), v.Name)
}

func checkName(name string) error {
	if name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return fmt.Errorf("%w: name %q", ErrInvalid, name)
	}
	return nil
}

// emptyDir makes the directory, a tmpfs for the medium Memory.
func (m *Manager) emptyDir(pod *corev1.Pod, v *corev1.Volume, path string) error {
	switch v.EmptyDir.Medium {
	case corev1.StorageMediumDefault, corev1.StorageMediumMemory:
	default:
		return fmt.Errorf("%w: medium %q", ErrUnsupported, v.EmptyDir.Medium)
	}
	_, err := os.Lstat(path)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	if v.EmptyDir.Medium == corev1.StorageMediumMemory && !isMount(path) {
		options := "mode=0777"
		if limit := v.EmptyDir.SizeLimit; limit != nil && limit.Value() > 0 {
			options += fmt.Sprintf(",size=%d", limit.Value())
		}
		if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
			return fmt.Errorf("mount tmpfs: %w", err)
		}
		fresh = true
	}
	if !fresh {
		return nil
	}
	mode := os.FileMode(0o777)
	if gid := fsGroup(pod); gid != nil {
		if err := os.Chown(path, -1, int(*gid)); err != nil {
			return err
		}
		mode |= os.ModeSetgid
	}
	return os.Chmod(path, mode)
}

func fsGroup(pod *corev1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

// isMount says whether something is mounted on path itself.
func isMount(path string) bool {
	var self, parent unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_MNT_ID, &self) != nil ||
		unix.Statx(unix.AT_FDCWD, filepath.Dir(path), flags, unix.STATX_MNT_ID, &parent) != nil {
		return false
	}
	return self.Mnt_id != parent.Mnt_id
}

// checkHostPath makes or checks what the type of a hostPath volume asks for.
func checkHostPath(v *corev1.HostPathVolumeSource) error {
	if !filepath.IsAbs(v.Path) {
		return fmt.Errorf("%w: host path %q is not absolute", ErrInvalid, v.Path)
	}
	kind := corev1.HostPathUnset
	if v.Type != nil {
		kind = *v.Type
	}
	switch kind {
	case corev1.HostPathDirectoryOrCreate:
		if err := os.MkdirAll(v.Path, 0o755); err != nil {
			return err
		}
	case corev1.HostPathFileOrCreate:
		f, err := os.OpenFile(v.Path, os.O_CREATE|os.O_RDONLY, 0o644)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	st, err := os.Stat(v.Path)
	if err != nil {
		return err
	}
	mode := st.Mode()
	ok := map[corev1.HostPathType]bool{
		corev1.HostPathUnset: true, corev1.HostPathDirectory: mode.IsDir(), corev1.HostPathDirectoryOrCreate: mode.IsDir(),
		corev1.HostPathFile: mode.IsRegular(), corev1.HostPathFileOrCreate: mode.IsRegular(),
		corev1.HostPathSocket: mode&os.ModeSocket != 0, corev1.HostPathCharDev: mode&os.ModeCharDevice != 0,
		corev1.HostPathBlockDev: mode&os.ModeDevice != 0 && mode&os.ModeCharDevice == 0,
	}[kind]
	if !ok {
		return fmt.Errorf("host path %s is not of type %q", v.Path, kind)
	}
	return nil
}

// Remove takes away all volumes of a pod. Host paths are left alone. Nothing
// there is no error.
func (m *Manager) Remove(uid string) error {
	if err := checkName(uid); err != nil {
		return err
	}
	var errs []error
	for _, dir := range []string{m.memoryDir(uid), m.diskDir(uid)} {
		if err := unmountBelow(dir); err != nil {
			// Removing through a mount would delete somebody's files.
			errs = append(errs, err)
			continue
		}
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// Pods returns the UIDs of all pods that have volumes here.
func (m *Manager) Pods() ([]string, error) {
	seen := map[string]bool{}
	var out []string
	for _, dir := range []string{m.cfg.DataDir, m.cfg.RunDir} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list volumes: %w", err)
		}
		for _, e := range entries {
			if !seen[e.Name()] {
				seen[e.Name()] = true
				out = append(out, e.Name())
			}
		}
	}
	return out, nil
}

// Cleanup removes the volumes of every pod.
func (m *Manager) Cleanup() error {
	uids, err := m.Pods()
	errs := []error{err}
	for _, uid := range uids {
		errs = append(errs, m.Remove(uid))
	}
	return errors.Join(errs...)
}
