package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// subPathDir holds the mounts of sub-paths, beside the volumes. A volume's
// name never begins with a dot.
const subPathDir = ".subpaths"

// Mounts returns the container's mounts. Setup must have succeeded. expand
// replaces $(VAR) in a subPathExpr.
func (m *Manager) Mounts(pod *corev1.Pod, c *corev1.Container, expand func(string) (string, error)) ([]Mount, error) {
	var out []Mount
	for i := range c.VolumeMounts {
		vm := &c.VolumeMounts[i]
		mount, err := m.mount(pod, c, i, expand)
		if err != nil {
			return nil, fmt.Errorf("mount %q on %s: %w", vm.Name, vm.MountPath, err)
		}
		out = append(out, mount)
	}
	return out, nil
}

func (m *Manager) mount(pod *corev1.Pod, c *corev1.Container, i int, expand func(string) (string, error)) (Mount, error) {
	vm := &c.VolumeMounts[i]
	at := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == vm.Name })
	if at < 0 {
		return Mount{}, fmt.Errorf("%w: the pod has no such volume", ErrInvalid)
	}
	v := &pod.Spec.Volumes[at]
	out := Mount{Source: m.path(pod, v), Target: vm.MountPath, ReadOnly: vm.ReadOnly}
	if !filepath.IsAbs(out.Target) {
		out.Target = "/" + out.Target
	}
	if v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil {
		out.ReadOnly = true
	}
	sub := vm.SubPath
	if vm.SubPathExpr != "" {
		var err error
		if sub, err = expand(vm.SubPathExpr); err != nil {
			return Mount{}, err
		}
	}
	if sub == "" {
		return out, nil
	}
	source, err := m.subPath(pod, c.Name, i, out.Source, sub, out.ReadOnly)
	out.Source = source
	return out, err
}

// subPath pins a path inside a volume by a mount of its own. Containers can
// write links into a volume, so the path is resolved by an os.Root, and the
// mount is made from the descriptor that it found: nothing can be swapped in
// between.
func (m *Manager) subPath(pod *corev1.Pod, container string, i int, volume, sub string, readOnly bool) (string, error) {
	if !filepath.IsLocal(sub) {
		return "", fmt.Errorf("%w: sub-path %q leaves the volume", ErrInvalid, sub)
	}
	root, err := os.OpenRoot(volume)
	if err != nil {
		return "", err
	}
	defer root.Close()
	if _, err := root.Stat(sub); errors.Is(err, fs.ErrNotExist) && !readOnly {
		if err := makeSubPath(root, sub); err != nil {
			return "", err
		}
	}
	f, err := root.Open(sub)
	if err != nil {
		return "", fmt.Errorf("sub-path: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("sub-path: %w", err)
	}
	target := filepath.Join(m.memoryDir(string(pod.UID)), subPathDir, container, strconv.Itoa(i))
	if err := remakeTarget(target, st.IsDir()); err != nil {
		return "", err
	}
	if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), target, "", unix.MS_BIND, ""); err != nil {
		return "", fmt.Errorf("pin sub-path: %w", err)
	}
	return target, nil
}

// makeSubPath makes a missing directory that every user may write to, as the
// volume itself is.
func makeSubPath(root *os.Root, sub string) error {
	if err := root.MkdirAll(sub, 0o755); err != nil {
		return fmt.Errorf("make sub-path: %w", err)
	}
	st, err := root.Stat(".")
	if err != nil {
		return err
	}
	return root.Chmod(sub, st.Mode()&(os.ModePerm|os.ModeSetgid))
}

func remakeTarget(target string, dir bool) error {
	if err := unmountBelow(target); err != nil {
		return err
	}
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	if dir {
		return os.Mkdir(target, 0o700)
	}
	return os.WriteFile(target, nil, 0o600)
}

// unmountBelow unmounts path and everything below it, the deepest first.
func unmountBelow(path string) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		at := unescapeMount(fields[4])
		if at == path || strings.HasPrefix(at, path+"/") {
			points = append(points, at)
		}
	}
	slices.SortStableFunc(points, func(a, b string) int { return len(b) - len(a) })
	var errs []error
	for _, p := range points {
		if err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

// unescapeMount undoes the octal escapes of mountinfo.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
