package runtime

import (
	"context"
	"errors"
	"io"
	"time"
)

var errSkeleton = errors.New("runtime: under construction")

// Runtime runs pods on this machine. All its methods may be called at once
// from several goroutines; calls for one pod wait for each other, except
// Pods, Logs, Stats and Exec.
type Runtime struct{ changed chan struct{} }

// New opens the runtime; nothing is started and nothing is touched but its
// directories. Call Recover next.
func New(c Config) (*Runtime, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Runtime{changed: make(chan struct{}, 1)}, nil
}

// Recover adopts the pods that outlived the last agent without restarting
// anything, and cleans up after those that did not. A pod whose shim died is
// killed and listed with Alive false, its containers Exited, until RemovePod or
// CreatePod. After a reboot nothing is listed.
func (r *Runtime) Recover(ctx context.Context) error { return errSkeleton }

// CreatePod starts a pod without containers. A dead pod of that UID is replaced
// (its logs are kept); ErrExists if it is alive.
func (r *Runtime) CreatePod(ctx context.Context, p PodConfig) error { return errSkeleton }

// StartContainer starts one attempt of a container and returns when its program
// was executed. A failed start leaves nothing behind and is not listed; its
// cause is a *StartError when the container itself is at fault.
// ErrExists: an attempt is running, or that attempt has been used.
func (r *Runtime) StartContainer(ctx context.Context, podUID string, c ContainerConfig) error {
	return errSkeleton
}

// StopContainer sends the stop signal, waits for the grace period, then kills.
// It returns when the container has exited; at once (nil) if it had.
func (r *Runtime) StopContainer(ctx context.Context, podUID, name string, grace time.Duration) error {
	return errSkeleton
}

// SignalContainer sends a signal to the container's first process.
func (r *Runtime) SignalContainer(ctx context.Context, podUID, name string, signal int) error {
	return errSkeleton
}

// RemovePod stops all containers at once (grace for all of them), then removes
// the pod's processes, mounts, cgroups, directories and logs. Nil for an unknown pod.
func (r *Runtime) RemovePod(ctx context.Context, podUID string, grace time.Duration) error {
	return errSkeleton
}

// Pods returns a copy of the state of every pod, by UID. It never blocks on a pod.
func (r *Runtime) Pods(ctx context.Context) []PodStatus { return nil }

// Changed receives after any change that Pods would show; changes coalesce, and
// the channel serves one reader.
func (r *Runtime) Changed() <-chan struct{} { return r.changed }

// Logs opens the log of a container of a pod that is listed or whose logs are
// still on disk. The caller closes it. With Follow, it ends when the container
// has exited and all was read.
func (r *Runtime) Logs(ctx context.Context, podUID, container string, o LogOptions) (io.ReadCloser, error) {
	return nil, errSkeleton
}

// Stats reads the counters of a running container.
func (r *Runtime) Stats(ctx context.Context, podUID, container string) (Stats, error) {
	return Stats{}, errSkeleton
}

// Exec runs a process in a running container and returns its exit code.
func (r *Runtime) Exec(ctx context.Context, podUID, container string, e ExecConfig) (int, error) {
	return 0, errSkeleton
}

// PruneLogs removes the log directories of pods that are not listed and for
// which keep returns false.
func (r *Runtime) PruneLogs(ctx context.Context, keep func(podUID string) bool) error {
	return errSkeleton
}

// Cleanup kills every pod and removes everything that this runtime ever made on
// the machine, whatever the records say. It works on a Runtime that was not recovered.
func (r *Runtime) Cleanup(ctx context.Context) error { return errSkeleton }

// Close lets go of the pods: they keep running.
func (r *Runtime) Close() error { return nil }
