package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const defaultMode = 0o644

// file is one file of a volume that is made from objects.
type file struct {
	data []byte
	mode os.FileMode
}

// payload returns the files, by path, of a volume made from objects.
func (m *Manager) payload(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, info Info) (map[string]file, error) {
	files := map[string]file{}
	switch {
	case v.ConfigMap != nil:
		s := v.ConfigMap
		return files, m.configMap(ctx, pod, s.Name, s.Items, s.Optional, mode(s.DefaultMode), files)
	case v.Secret != nil:
		s := v.Secret
		return files, m.secret(ctx, pod, s.SecretName, s.Items, s.Optional, mode(s.DefaultMode), files)
	case v.DownwardAPI != nil:
		return files, downward(pod, v.DownwardAPI.Items, mode(v.DownwardAPI.DefaultMode), info, files)
	}
	def := mode(v.Projected.DefaultMode)
	for _, s := range v.Projected.Sources {
		var err error
		switch {
		case s.ConfigMap != nil:
			err = m.configMap(ctx, pod, s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional, def, files)
		case s.Secret != nil:
			err = m.secret(ctx, pod, s.Secret.Name, s.Secret.Items, s.Secret.Optional, def, files)
		case s.DownwardAPI != nil:
			err = downward(pod, s.DownwardAPI.Items, def, info, files)
		default:
			err = fmt.Errorf("%w: projection", ErrUnsupported)
		}
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

func mode(m *int32) os.FileMode {
	if m == nil {
		return defaultMode
	}
	return os.FileMode(*m) & os.ModePerm
}

func (m *Manager) configMap(ctx context.Context, pod *corev1.Pod, name string, items []corev1.KeyToPath, optional *bool, def os.FileMode, files map[string]file) error {
	data := map[string][]byte{}
	cm, err := m.cfg.Objects.ConfigMap(ctx, pod.Namespace, name)
	switch {
	case err == nil:
		for k, v := range cm.Data {
			data[k] = []byte(v)
		}
		for k, v := range cm.BinaryData {
			data[k] = v
		}
	case !apierrors.IsNotFound(err) || !isTrue(optional):
		return fmt.Errorf("config map %q: %w", name, err)
	}
	return project("config map "+name, data, items, isTrue(optional), def, files)
}

func (m *Manager) secret(ctx context.Context, pod *corev1.Pod, name string, items []corev1.KeyToPath, optional *bool, def os.FileMode, files map[string]file) error {
	data := map[string][]byte{}
	s, err := m.cfg.Objects.Secret(ctx, pod.Namespace, name)
	switch {
	case err == nil:
		data = s.Data
	case !apierrors.IsNotFound(err) || !isTrue(optional):
		return fmt.Errorf("secret %q: %w", name, err)
	}
	return project("secret "+name, data, items, isTrue(optional), def, files)
}

func isTrue(b *bool) bool { return b != nil && *b }

// project chooses the keys of an object that become files: all, or the items.
func project(what string, data map[string][]byte, items []corev1.KeyToPath, optional bool, def os.FileMode, files map[string]file) error {
	if len(items) == 0 {
		for k, v := range data {
			if err := add(files, k, file{v, def}); err != nil {
				return err
			}
		}
		return nil
	}
	for _, item := range items {
		v, ok := data[item.Key]
		if !ok {
			if optional {
				continue
			}
			return fmt.Errorf("%s has no key %q", what, item.Key)
		}
		f := file{v, def}
		if item.Mode != nil {
			f.mode = mode(item.Mode)
		}
		if err := add(files, item.Path, f); err != nil {
			return err
		}
	}
	return nil
}

func downward(pod *corev1.Pod, items []corev1.DownwardAPIVolumeFile, def os.FileMode, info Info, files map[string]file) error {
	for _, item := range items {
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = info.Field(pod, item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			value, err = info.Resource(pod, item.ResourceFieldRef.ContainerName, item.ResourceFieldRef)
		default:
			err = ErrInvalid
		}
		if err != nil {
			return fmt.Errorf("downward API file %q: %w", item.Path, err)
		}
		f := file{[]byte(value), def}
		if item.Mode != nil {
			f.mode = mode(item.Mode)
		}
		if err := add(files, item.Path, f); err != nil {
			return err
		}
	}
	return nil
}

func add(files map[string]file, path string, f file) error {
	if !filepath.IsLocal(path) || strings.HasPrefix(path, "..") {
		return fmt.Errorf("%w: file path %q", ErrInvalid, path)
	}
	files[filepath.Clean(path)] = f
	return nil
}

const (
	dataLink = "..data"
	nextLink = "..data_next"
)

// writePayload makes dir show exactly files. The files are written to a new
// directory, and one rename of the link "..data" switches over; the names in
// dir are links through it. Unchanged files are left alone.
func writePayload(dir string, files map[string]file, gid *int64) error {
	current := filepath.Join(dir, dataLink)
	if same(current, files) {
		return nil
	}
	fresh, err := os.MkdirTemp(dir, "..v")
	if err != nil {
		return err
	}
	if err := fill(fresh, files, gid); err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	old, err := os.Readlink(current)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	next := filepath.Join(dir, nextLink)
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Base(fresh), next); err != nil {
		return err
	}
	if err := os.Rename(next, current); err != nil {
		return err
	}
	if err := linkNames(dir, files); err != nil {
		return err
	}
	if old != "" {
		return os.RemoveAll(filepath.Join(dir, filepath.Base(old)))
	}
	return nil
}

func fill(dir string, files map[string]file, gid *int64) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for name, f := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.data, 0o600); err != nil {
			return err
		}
		m := f.mode
		if gid != nil {
			if err := os.Chown(path, -1, int(*gid)); err != nil {
				return err
			}
			m |= 0o040
		}
		if err := os.Chmod(path, m); err != nil { // whatever the umask is
			return err
		}
	}
	return nil
}

// linkNames makes the visible links and removes those of files that went.
func linkNames(dir string, files map[string]file) error {
	want := map[string]bool{}
	for name := range files {
		first, _, _ := strings.Cut(name, "/")
		want[first] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		if want[e.Name()] {
			delete(want, e.Name())
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	for name := range want {
		if err := os.Symlink(filepath.Join(dataLink, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// same says whether dir holds exactly files.
func same(dir string, files map[string]file) bool {
	target, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	n := 0
	err = filepath.WalkDir(target, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(target, p)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(p)
		want, ok := files[rel]
		if err != nil || !ok || !bytes.Equal(data, want.data) {
			return fs.SkipAll
		}
		n++
		return nil
	})
	return err == nil && n == len(files)
}
