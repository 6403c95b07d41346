package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/shepherd-project/shepherd/agent/image"
	"github.com/shepherd-project/shepherd/agent/runtime"
	"github.com/shepherd-project/shepherd/agent/volume"
)

// containerSpec turns a container of a pod into what the runtime starts. All
// that needs to be looked up was looked up before.
type containerSpec struct {
	pod       *corev1.Pod
	container *corev1.Container
	image     *image.Image
	attempt   int
	env       *environment
	mounts    []volume.Mount
	termLog   string // file that becomes the termination message
	memory    int64  // bytes of memory of the node
}

func (s *containerSpec) config() (runtime.ContainerConfig, error) {
	c := s.container
	args, err := command(c, s.image.Config.Entrypoint, s.image.Config.Cmd, s.env)
	if err != nil {
		return runtime.ContainerConfig{}, err
	}
	user, err := s.user()
	if err != nil {
		return runtime.ContainerConfig{}, err
	}
	out := runtime.ContainerConfig{
		Name: c.Name, Attempt: s.attempt,
		RootLayers: s.image.Layers,
		Args:       args, Env: mergeEnv(s.image.Config.Env, s.env),
		Cwd: c.WorkingDir, User: user,
		TTY:        c.TTY,
		Resources:  containerResources(s.pod, c, s.memory),
		StopSignal: s.image.Config.StopSignal,
		Labels:     map[string]string{labelImage: c.Image, labelImageID: s.image.RepoDigest()},
		// As upstream: nobody asked for no_new_privs.
		AllowPrivilegeEscalation: true,
	}
	if out.Cwd == "" {
		out.Cwd = s.image.Config.WorkingDir
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		out.StopSignal = string(*c.Lifecycle.StopSignal)
	}
	s.security(&out)
	for _, m := range s.mounts {
		out.Mounts = append(out.Mounts, runtime.Mount{Type: "bind", Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	if s.termLog != "" {
		out.Mounts = append(out.Mounts, runtime.Mount{Type: "bind", Source: s.termLog, Target: terminationPath(c)})
	}
	return out, nil
}

func (s *containerSpec) security(out *runtime.ContainerConfig) {
	if psc := s.pod.Spec.SecurityContext; psc != nil {
		for _, g := range psc.SupplementalGroups {
			out.Groups = append(out.Groups, uint32(g))
		}
		if psc.FSGroup != nil {
			out.Groups = append(out.Groups, uint32(*psc.FSGroup))
		}
		out.SeccompUnconfined = unconfined(psc.SeccompProfile)
	}
	sc := s.container.SecurityContext
	if sc == nil {
		return
	}
	out.Privileged = isTrue(sc.Privileged)
	out.ReadOnlyRoot = isTrue(sc.ReadOnlyRootFilesystem)
	if sc.AllowPrivilegeEscalation != nil {
		out.AllowPrivilegeEscalation = *sc.AllowPrivilegeEscalation
	}
	if sc.SeccompProfile != nil {
		out.SeccompUnconfined = unconfined(sc.SeccompProfile)
	}
	if sc.ProcMount != nil {
		out.UnmaskedProc = *sc.ProcMount == corev1.UnmaskedProcMount
	}
	if sc.Capabilities != nil {
		for _, c := range sc.Capabilities.Add {
			out.CapAdd = append(out.CapAdd, string(c))
		}
		for _, c := range sc.Capabilities.Drop {
			out.CapDrop = append(out.CapDrop, string(c))
		}
	}
}

func unconfined(p *corev1.SeccompProfile) bool {
	return p != nil && p.Type == corev1.SeccompProfileTypeUnconfined
}

// user returns who the container runs as: its own security context first, then
// the pod's, then the image.
func (s *containerSpec) user() (string, error) {
	var uid, gid *int64
	var nonRoot *bool
	if psc := s.pod.Spec.SecurityContext; psc != nil {
		uid, gid, nonRoot = psc.RunAsUser, psc.RunAsGroup, psc.RunAsNonRoot
	}
	if sc := s.container.SecurityContext; sc != nil {
		if sc.RunAsUser != nil {
			uid = sc.RunAsUser
		}
		if sc.RunAsGroup != nil {
			gid = sc.RunAsGroup
		}
		if sc.RunAsNonRoot != nil {
			nonRoot = sc.RunAsNonRoot
		}
	}
	user := s.image.Config.User
	if uid != nil {
		user = strconv.FormatInt(*uid, 10)
	}
	if err := checkNonRoot(isTrue(nonRoot), user); err != nil {
		return "", err
	}
	if gid != nil {
		name, _, _ := strings.Cut(user, ":")
		if name == "" {
			name = "0"
		}
		user = name + ":" + strconv.FormatInt(*gid, 10)
	}
	return user, nil
}

// checkNonRoot refuses users that are, or may be, root where the pod forbids it.
func checkNonRoot(forbidden bool, user string) error {
	if !forbidden {
		return nil
	}
	name, _, _ := strings.Cut(user, ":")
	n, err := strconv.ParseInt(name, 10, 64)
	switch {
	case name == "" || err == nil && n == 0:
		return fmt.Errorf("%w: container has runAsNonRoot and image will run as root", errConfig)
	case err != nil:
		return fmt.Errorf("%w: container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root", errConfig, name)
	}
	return nil
}

// containerResources are the limits of one container, and how soon the kernel
// picks it when memory runs out.
func containerResources(pod *corev1.Pod, c *corev1.Container, memory int64) runtime.Resources {
	r := runtime.Resources{
		MemoryLimit: c.Resources.Limits.Memory().Value(),
		CPURequest:  c.Resources.Requests.Cpu().MilliValue(),
		CPULimit:    c.Resources.Limits.Cpu().MilliValue(),
	}
	switch qosClass(pod) {
	case corev1.PodQOSGuaranteed:
		r.OOMScoreAdj = -997
	case corev1.PodQOSBestEffort:
		r.OOMScoreAdj = 1000
	default:
		r.OOMScoreAdj = 999
		if want := c.Resources.Requests.Memory().Value(); memory > 0 {
			r.OOMScoreAdj = int(min(max(1000-1000*want/memory, 3), 999))
		}
	}
	return r
}

// qosClass is the class that the server has written, or the one that follows
// from the resources.
func qosClass(pod *corev1.Pod) corev1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	any, all := false, true
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			r := &list[i].Resources
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				limit, request := r.Limits[name], r.Requests[name]
				any = any || !limit.IsZero() || !request.IsZero()
				all = all && !limit.IsZero() && (request.IsZero() || request.Cmp(limit) == 0)
			}
		}
	}
	switch {
	case !any:
		return corev1.PodQOSBestEffort
	case all:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

const (
	labelImage   = "shepherd.io/image"
	labelImageID = "shepherd.io/image-id"
	// maxTerminationMessage is how much of the file is reported, in bytes.
	maxTerminationMessage = 4096
)

func terminationPath(c *corev1.Container) string {
	if c.TerminationMessagePath != "" {
		return c.TerminationMessagePath
	}
	return corev1.TerminationMessagePathDefault
}

// makeTerminationLog makes the file that a container may leave its last words
// in, and returns its path.
func makeTerminationLog(dir, container string, attempt int) (string, error) {
	path := terminationLog(dir, container, attempt)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("termination log: %w", err)
	}
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		return "", fmt.Errorf("termination log: %w", err)
	}
	return path, os.Chmod(path, 0o666) // whatever the umask is
}

func terminationLog(dir, container string, attempt int) string {
	return filepath.Join(dir, container, strconv.Itoa(attempt))
}

// readTerminationLog returns a container's last words, without following a
// link that it may have put in their place.
func readTerminationLog(dir, container string, attempt int) string {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return ""
	}
	defer root.Close()
	f, err := root.Open(filepath.Join(container, strconv.Itoa(attempt)))
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, maxTerminationMessage)
	n, _ := f.Read(buf)
	return string(buf[:n])
}
