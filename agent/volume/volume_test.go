package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const isolated = "SHEPHERD_VOLUME_TEST_ISOLATED"

// TestMain runs the tests in a mount namespace of their own.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(isolated) != "" {
		if os.Getenv(isolated) != "" {
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				fmt.Fprintln(os.Stderr, "make mounts private:", err)
				os.Exit(1)
			}
		}
		os.Exit(m.Run())
	}
	runtime.LockOSThread() // the death signal follows the thread
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), isolated+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type objects struct {
	configMaps map[string]map[string]string
	secrets    map[string]map[string][]byte
}

func (o *objects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	data, ok := o.configMaps[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
	}
	return &corev1.ConfigMap{Data: data}, nil
}

func (o *objects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	data, ok := o.secrets[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
	}
	return &corev1.Secret{Data: data}, nil
}

func newManager(t *testing.T, o *objects) *Manager {
	t.Helper()
	if os.Getenv(isolated) == "" {
		t.Skip("mounts file systems: needs root")
	}
	dir := t.TempDir()
	m, err := New(Config{DataDir: filepath.Join(dir, "data"), RunDir: filepath.Join(dir, "run"), Objects: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Cleanup(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func podWith(volumes ...corev1.Volume) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid-1", Namespace: "ns", Name: "web"}, Spec: corev1.PodSpec{Volumes: volumes}}
}

func mountOf(t *testing.T, m *Manager, pod *corev1.Pod, vm corev1.VolumeMount) (Mount, error) {
	t.Helper()
	c := &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{vm}}
	ms, err := m.Mounts(pod, c, func(s string) (string, error) { return s, nil })
	if err != nil {
		return Mount{}, err
	}
	return ms[0], nil
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestObjectsBecomeFiles(t *testing.T) {
	o := &objects{
		configMaps: map[string]map[string]string{"cm": {"a": "1", "b": "2"}},
		secrets:    map[string]map[string][]byte{"s": {"key": []byte("hush")}},
	}
	m := newManager(t, o)
	mode, optional := int32(0o400), true
	pod := podWith(
		corev1.Volume{Name: "cm", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}},
		corev1.Volume{Name: "all", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: &mode, Sources: []corev1.VolumeProjection{
			{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Items: []corev1.KeyToPath{{Key: "key", Path: "deep/key"}}}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}, Optional: &optional}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}},
		}}}})
	info := Info{Field: func(pod *corev1.Pod, path string) (string, error) { return pod.Name, nil }}
	if err := m.Setup(t.Context(), pod, info); err != nil {
		t.Fatal(err)
	}
	cm, err := mountOf(t, m, pod, corev1.VolumeMount{Name: "cm", MountPath: "/etc/cm"})
	if err != nil || !cm.ReadOnly || cm.Target != "/etc/cm" {
		t.Fatalf("mount %+v, %v", cm, err)
	}
	if got := read(t, cm.Source, "a") + read(t, cm.Source, "b"); got != "12" {
		t.Errorf("config map files %q", got)
	}
	all := m.path(pod, &pod.Spec.Volumes[1])
	if got := read(t, all, "deep/key") + read(t, all, "name"); got != "hushweb" {
		t.Errorf("projected files %q", got)
	}
	if st, err := os.Stat(filepath.Join(all, "deep/key")); err != nil || st.Mode() != 0o400 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}

	// An update switches all files at once; unchanged ones are left alone.
	before, err := os.Readlink(filepath.Join(all, dataLink))
	if err != nil {
		t.Fatal(err)
	}
	o.configMaps["cm"] = map[string]string{"b": "3", "c": "4"}
	if err := m.Setup(t.Context(), pod, info); err != nil {
		t.Fatal(err)
	}
	if got := read(t, cm.Source, "b") + read(t, cm.Source, "c"); got != "34" {
		t.Errorf("after the update: %q", got)
	}
	if _, err := os.Lstat(filepath.Join(cm.Source, "a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a removed key is still there: %v", err)
	}
	if after, _ := os.Readlink(filepath.Join(all, dataLink)); after != before {
		t.Error("an unchanged volume was written again")
	}
	if entries, _ := os.ReadDir(cm.Source); len(entries) != 4 { // b, c, ..data and its target
		t.Errorf("entries %v", entries)
	}

	delete(o.configMaps, "cm")
	if err := m.Setup(t.Context(), pod, info); !apierrors.IsNotFound(err) {
		t.Errorf("error %v, want not found", err)
	}
}

func TestEmptyDirs(t *testing.T) {
	m := newManager(t, &objects{})
	gid := int64(1234)
	pod := podWith(
		corev1.Volume{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		corev1.Volume{Name: "ram", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}})
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &gid}
	for range 2 { // the second time keeps the content
		if err := m.Setup(t.Context(), pod, Info{}); err != nil {
			t.Fatal(err)
		}
		for i := range pod.Spec.Volumes {
			path := m.path(pod, &pod.Spec.Volumes[i])
			st, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if st.Mode() != os.ModeDir|os.ModeSetgid|0o777 || st.Sys().(*syscall.Stat_t).Gid != 1234 {
				t.Errorf("%s: mode %v, group %d", path, st.Mode(), st.Sys().(*syscall.Stat_t).Gid)
			}
			f, err := os.OpenFile(filepath.Join(path, "kept"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			f.WriteString("x")
			f.Close()
		}
	}
	ram := m.path(pod, &pod.Spec.Volumes[1])
	if got := read(t, ram, "kept"); got != "xx" {
		t.Errorf("content %q", got)
	}
	if !isMount(ram) {
		t.Error("the memory volume is no mount")
	}
	if err := m.Remove("uid-1"); err != nil {
		t.Fatal(err)
	}
	if uids, err := m.Pods(); err != nil || len(uids) != 0 {
		t.Errorf("left: %v, %v", uids, err)
	}
}

func TestSubPaths(t *testing.T) {
	m := newManager(t, &objects{})
	outside := t.TempDir()
	pod := podWith(corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	if err := m.Setup(t.Context(), pod, Info{}); err != nil {
		t.Fatal(err)
	}
	volume := m.path(pod, &pod.Spec.Volumes[0])
	if err := errors.Join(os.Symlink(outside, filepath.Join(volume, "evil")), os.Symlink("../../..", filepath.Join(volume, "up"))); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"evil", "evil/x", "up", "../x", "/etc", "a/../../b"} {
		if got, err := mountOf(t, m, pod, corev1.VolumeMount{Name: "v", MountPath: "/x", SubPath: sub}); err == nil {
			t.Errorf("sub-path %q was mounted from %s", sub, got.Source)
		}
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 0 {
		t.Errorf("made outside of the volume: %v", entries)
	}
	for range 2 {
		got, err := mountOf(t, m, pod, corev1.VolumeMount{Name: "v", MountPath: "x", SubPath: "data/sub"})
		if err != nil || got.Target != "/x" {
			t.Fatalf("%+v, %v", got, err)
		}
		if err := os.WriteFile(filepath.Join(got.Source, "f"), []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := read(t, volume, "data/sub/f"); got != "1" {
			t.Errorf("content %q", got)
		}
		if _, err := mountOf(t, m, pod, corev1.VolumeMount{Name: "v", MountPath: "/f", SubPath: "data/sub/f"}); err != nil {
			t.Errorf("a file as sub-path: %v", err)
		}
	}
	if err := m.Remove("uid-1"); err != nil {
		t.Fatal(err)
	}
}

func TestRefused(t *testing.T) {
	m := newManager(t, &objects{})
	kind := corev1.HostPathFile
	for name, v := range map[string]corev1.Volume{
		"name":        {Name: "../x", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		"kind":        {Name: "nfs", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}},
		"medium":      {Name: "huge", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumHugePages}}},
		"relative":    {Name: "h", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "etc"}}},
		"wrong type":  {Name: "h", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc", Type: &kind}}},
		"no such map": {Name: "c", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
	} {
		if err := m.Setup(t.Context(), podWith(v), Info{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := m.Remove(".."); err == nil {
		t.Error("a UID that is no name was taken")
	}
	if _, err := mountOf(t, m, podWith(), corev1.VolumeMount{Name: "none", MountPath: "/x"}); !errors.Is(err, ErrInvalid) {
		t.Errorf("error %v, want ErrInvalid", err)
	}
}
