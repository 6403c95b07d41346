package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shepherd-project/shepherd/agent/image"
	"github.com/shepherd-project/shepherd/agent/network"
	"github.com/shepherd-project/shepherd/agent/runtime"
	"github.com/shepherd-project/shepherd/agent/volume"
)

const (
	// configRetry is how soon something that is missing is looked for again.
	configRetry = 5 * time.Second
	// volumeRefresh is how often files made from objects are brought up to date.
	volumeRefresh = time.Minute
)

// start does what the plan asks for and returns when to look again.
func (w *podWorker) start(ctx context.Context, pod *corev1.Pod, p *plan) time.Duration {
	st := w.status(ctx)
	alive := st != nil && st.Alive
	if alive {
		w.refreshVolumes(ctx, pod)
	}
	var next time.Duration
	soonest := func(d time.Duration) {
		if d > 0 && (next == 0 || d < next) {
			next = d
		}
	}
	for _, s := range p.starts {
		if ctx.Err() != nil {
			return time.Millisecond
		}
		c := w.container(s.container.Name)
		if wait := time.Until(s.at); wait > 0 {
			w.backOff(pod, s.container.Name, c, wait)
			soonest(wait)
			continue
		}
		img := w.image(pod, s.container, c)
		if img == nil {
			if wait := time.Until(c.pullAt); wait > 0 {
				soonest(wait)
			}
			continue
		}
		if !alive {
			if wait := w.createSandbox(ctx, pod); wait > 0 {
				return wait
			}
			return time.Millisecond // everything is planned anew for the new sandbox
		}
		soonest(w.startContainer(ctx, pod, s, c, img))
	}
	return next
}

func (w *podWorker) backOff(pod *corev1.Pod, name string, c *containerState, wait time.Duration) {
	if c.waiting != "CrashLoopBackOff" {
		w.m.events.event(pod, name, corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container %s in pod %s_%s(%s)", name, pod.Name, pod.Namespace, pod.UID)
	}
	c.waiting = "CrashLoopBackOff"
	c.waitMessage = fmt.Sprintf("back-off %v restarting failed container=%s pod=%s_%s(%s)", c.backoff.delay(), name, pod.Name, pod.Namespace, pod.UID)
}

// image returns the container's image once it is here. Until then it says why
// not and takes care that it comes.
func (w *podWorker) image(pod *corev1.Pod, spec *corev1.Container, c *containerState) *image.Image {
	if c.image != nil {
		return c.image
	}
	if c.pull == nil && !w.beginPull(pod, spec, c) {
		return c.image
	}
	select {
	case <-c.pull.done:
	default:
		return nil
	}
	t := c.pull
	c.pull = nil
	if t.err != nil {
		w.pullFailed(pod, spec, c, t.err)
		return nil
	}
	c.pullTry.reset()
	c.image = t.image
	w.m.events.event(pod, spec.Name, corev1.EventTypeNormal, "Pulled", "Successfully pulled image %q in %v", spec.Image, time.Since(t.began).Round(time.Millisecond))
	return c.image
}

// beginPull starts to get the image and reports whether it had to.
func (w *podWorker) beginPull(pod *corev1.Pod, spec *corev1.Container, c *containerState) bool {
	policy := pullPolicy(spec)
	if policy != image.PullAlways {
		img, err := w.m.images.Lookup(spec.Image)
		if err == nil {
			c.image = img
			w.m.events.event(pod, spec.Name, corev1.EventTypeNormal, "Pulled", "Container image %q already present on machine", spec.Image)
			return false
		}
		if errors.Is(err, image.ErrInvalidReference) {
			w.pullFailed(pod, spec, c, err)
			return false
		}
	}
	if time.Now().Before(c.pullAt) {
		if c.waiting != "ErrImageNeverPull" && c.waiting != "InvalidImageName" {
			c.waiting = "ImagePullBackOff"
			c.waitMessage = fmt.Sprintf("Back-off pulling image %q", spec.Image)
		}
		return false
	}
	if policy != image.PullNever {
		w.m.events.event(pod, spec.Name, corev1.EventTypeNormal, "Pulling", "Pulling image %q", spec.Image)
	}
	c.pull = w.m.puller.start(spec.Image, policy, func() { kick(w.wake) })
	return true
}

func (w *podWorker) pullFailed(pod *corev1.Pod, spec *corev1.Container, c *containerState, err error) {
	c.pullAt = time.Now().Add(c.pullTry.next())
	switch {
	case errors.Is(err, image.ErrInvalidReference):
		c.waiting, c.waitMessage = "InvalidImageName", err.Error()
	case pullPolicy(spec) == image.PullNever:
		c.waiting, c.waitMessage = "ErrImageNeverPull", fmt.Sprintf("Container image %q is not present with pull policy of Never", spec.Image)
	default:
		c.waiting, c.waitMessage = "ErrImagePull", err.Error()
		w.m.events.event(pod, spec.Name, corev1.EventTypeWarning, "Failed", "Failed to pull image %q: %v", spec.Image, err)
		return
	}
	w.m.events.event(pod, spec.Name, corev1.EventTypeWarning, c.waiting, "%s", c.waitMessage)
}

func pullPolicy(spec *corev1.Container) image.PullPolicy {
	switch spec.ImagePullPolicy {
	case corev1.PullAlways:
		return image.PullAlways
	case corev1.PullNever:
		return image.PullNever
	}
	return image.PullIfNotPresent
}

// createSandbox makes what the pod's containers share. It returns how long to
// wait after a failure, zero for success.
func (w *podWorker) createSandbox(ctx context.Context, pod *corev1.Pod) time.Duration {
	if wait := time.Until(w.sandboxAt); wait > 0 {
		return wait
	}
	err := w.tryCreateSandbox(ctx, pod)
	if err == nil {
		w.sandbox.reset()
		return 0
	}
	if ctx.Err() != nil {
		return time.Millisecond
	}
	wait := w.sandbox.next()
	if errors.Is(err, network.ErrNotConfigured) {
		wait = time.Second // the node gets its range at any moment
	}
	w.sandboxAt = time.Now().Add(wait)
	w.m.logger.Warn("pod not created, trying again", "pod", pod.Namespace+"/"+pod.Name, "error", err)
	w.m.events.event(pod, "", corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: %v", err)
	return wait
}

func (w *podWorker) tryCreateSandbox(ctx context.Context, pod *corev1.Pod) error {
	cfg := runtime.PodConfig{
		UID: w.uid, Namespace: pod.Namespace, Name: pod.Name, Hostname: hostname(pod),
		HostNetwork: pod.Spec.HostNetwork, HostIPC: pod.Spec.HostIPC, HostPID: pod.Spec.HostPID,
		SharePIDNamespace: isTrue(pod.Spec.ShareProcessNamespace),
	}
	if !pod.Spec.HostNetwork {
		path, _, err := w.m.network.AddPod(ctx, w.uid)
		if err != nil {
			return err
		}
		cfg.NetNS = path
	}
	if pod.Spec.HostNetwork && pod.Spec.Hostname == "" {
		cfg.Hostname = w.m.machine.hostname
	}
	if err := w.setupVolumes(ctx, pod); err != nil {
		return err
	}
	cfg.Hosts = hostsFile(pod, cfg.Hostname, w.podIP(pod))
	cfg.ResolvConf = resolvConf(pod, w.m.cfg.DNS, machineResolvConf)
	if psc := pod.Spec.SecurityContext; psc != nil {
		for _, s := range psc.Sysctls {
			if cfg.Sysctls == nil {
				cfg.Sysctls = map[string]string{}
			}
			cfg.Sysctls[s.Name] = s.Value
		}
	}
	if err := w.m.runtime.CreatePod(ctx, cfg); err != nil && !errors.Is(err, runtime.ErrExists) {
		return err
	}
	// In a new sandbox the init containers run again, before the others.
	for i := range pod.Spec.InitContainers {
		w.container(pod.Spec.InitContainers[i].Name).state = ""
	}
	for i := range pod.Spec.Containers {
		w.container(pod.Spec.Containers[i].Name).earlier = true
	}
	return nil
}

func (w *podWorker) setupVolumes(ctx context.Context, pod *corev1.Pod) error {
	info := volume.Info{
		PodIP: w.podIP(pod), HostIP: w.m.machine.ip.String(),
		Resource: func(pod *corev1.Pod, container string, ref *corev1.ResourceFieldSelector) (string, error) {
			return resourceField(pod, container, ref, w.m.machine.capacity)
		},
		Field: func(pod *corev1.Pod, path string) (string, error) {
			return podField(pod, path, w.podIP(pod), w.m.machine.ip.String())
		},
	}
	if err := w.m.volumes.Setup(ctx, pod, info); err != nil {
		return err
	}
	w.volumesAt = time.Now()
	return nil
}

// refreshVolumes brings the files of a running pod up to date now and then.
// With the server away it keeps what it has.
func (w *podWorker) refreshVolumes(ctx context.Context, pod *corev1.Pod) {
	if time.Since(w.volumesAt) < volumeRefresh || len(pod.Spec.Volumes) == 0 {
		return
	}
	w.volumesAt = time.Now() // whatever comes of it: the next try is due later
	if err := w.setupVolumes(ctx, pod); err != nil && ctx.Err() == nil {
		w.m.logger.Warn("volumes not brought up to date", "pod", pod.Namespace+"/"+pod.Name, "error", err)
	}
}

// startContainer starts one attempt. It returns when to look again, zero when
// the container runs.
func (w *podWorker) startContainer(ctx context.Context, pod *corev1.Pod, s start, c *containerState, img *image.Image) time.Duration {
	name := s.container.Name
	cfg, err := w.containerConfig(ctx, pod, s, img)
	if err != nil {
		if ctx.Err() != nil {
			return time.Millisecond
		}
		if c.waiting != "CreateContainerConfigError" || c.waitMessage != err.Error() {
			w.m.events.event(pod, name, corev1.EventTypeWarning, "Failed", "Error: %v", err)
		}
		c.waiting, c.waitMessage = "CreateContainerConfigError", err.Error()
		return configRetry
	}
	began := time.Now()
	restart := c.state == runtime.Exited
	err = w.m.runtime.StartContainer(ctx, w.uid, cfg)
	switch {
	case err == nil:
	case ctx.Err() != nil, errors.Is(err, runtime.ErrPodDead), errors.Is(err, runtime.ErrNotFound):
		return 200 * time.Millisecond
	case errors.Is(err, runtime.ErrExists):
		c.attempt = max(c.attempt, s.attempt) // used before: the next number then
		return 10 * time.Millisecond
	default:
		w.startFailed(pod, s, c, began, err)
		return time.Millisecond
	}
	c.image = nil // the next attempt looks anew
	c.next(w.uid, s.attempt, began)
	c.state, c.imageID = runtime.Running, img.RepoDigest()
	if restart {
		c.backoff.restarted()
	}
	w.m.events.event(pod, name, corev1.EventTypeNormal, "Created", "Created container: %s", name)
	w.m.events.event(pod, name, corev1.EventTypeNormal, "Started", "Started container %s", name)
	w.postStart(pod, s.container)
	return 0
}

// startFailed counts a start that came to nothing as an attempt that ended at
// once: the same back-off applies.
func (w *podWorker) startFailed(pod *corev1.Pod, s start, c *containerState, began time.Time, err error) {
	w.m.logger.Warn("container not started", "pod", pod.Namespace+"/"+pod.Name, "container", s.container.Name, "error", err)
	w.m.events.event(pod, s.container.Name, corev1.EventTypeWarning, "Failed", "Error: %v", err)
	c.image = nil
	c.next(w.uid, s.attempt, began)
	c.end(128, 0, "StartError", err.Error(), time.Now())
	c.backoff.restarted() // never again at once: it would fail the same way
}

func (w *podWorker) containerConfig(ctx context.Context, pod *corev1.Pod, s start, img *image.Image) (runtime.ContainerConfig, error) {
	source := envSource{objects: w.m.objects, podIP: w.podIP(pod), hostIP: w.m.machine.ip.String(), capacity: w.m.machine.capacity}
	env, err := source.build(ctx, pod, s.container)
	if err != nil {
		return runtime.ContainerConfig{}, err
	}
	mounts, err := w.m.volumes.Mounts(pod, s.container, func(text string) (string, error) { return expand(text, env.lookup), nil })
	if err != nil {
		return runtime.ContainerConfig{}, err
	}
	log, err := makeTerminationLog(w.terminationDir(pod), s.container.Name, s.attempt)
	if err != nil {
		return runtime.ContainerConfig{}, err
	}
	spec := containerSpec{
		pod: pod, container: s.container, image: img, attempt: s.attempt, env: env, mounts: mounts,
		termLog: log, memory: w.m.machine.memory,
	}
	return spec.config()
}
