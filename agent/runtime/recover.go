package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/shepherd-project/shepherd/agent/runtime/shim"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// recoverAtOnce is how many pods are recovered at the same time.
const recoverAtOnce = 8

// Recover adopts the pods that outlived the last agent without restarting
// anything, and cleans up after those that did not. A pod whose shim died is
// killed and listed with Alive false, its containers Exited, until RemovePod or
// CreatePod. After a reboot nothing is listed. Logs are always kept.
//
// An error says what could not be cleaned up; the other pods are recovered.
func (r *Runtime) Recover(ctx context.Context) error {
	entries, err := os.ReadDir(r.podsDir())
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	errs := make([]error, len(entries))
	var g errgroup.Group
	g.SetLimit(recoverAtOnce)
	for i, e := range entries {
		g.Go(func() error {
			if err := r.recoverPod(ctx, e.Name()); err != nil {
				errs[i] = fmt.Errorf("recover pod %s: %w", e.Name(), err)
			}
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs
	return errors.Join(append(errs, r.removeStrays(ctx))...)
}

func (r *Runtime) recoverPod(ctx context.Context, uid string) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if err := checkName("pod directory", uid); err != nil {
		return err
	}
	if p, err := r.get(uid); err == nil {
		r.log.Debug("pod is known already", "pod", p.uid())
		return nil
	}
	var rec podRecord
	err := shim.ReadRecord(filepath.Join(r.podDir(uid), podFile), &rec)
	if err == nil && rec.Version != recordVersion {
		return fmt.Errorf("record of version %d: this agent knows %d", rec.Version, recordVersion)
	}
	rec.Config.UID = uid
	p := newPod(r, rec)
	if err != nil || rec.BootID != r.bootID {
		r.log.Info("removing what a pod left before the reboot", "pod", uid)
		return p.destroy(ctx)
	}
	var id shim.Record
	if err := shim.ReadRecord(filepath.Join(p.dir(), shim.RecordName), &id); err != nil {
		r.log.Warn("removing a pod that was never complete", "pod", uid, "error", err)
		return p.destroy(ctx)
	}
	if err := p.adopt(ctx, id); err != nil {
		r.log.Error("the shim of a pod is dead: killing its containers", "pod", uid, "error", err)
		if err := p.bury(ctx); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods[uid] = p
	return nil
}

// adopt connects to the shim that the record names.
func (p *pod) adopt(ctx context.Context, id shim.Record) error {
	if id.Version != shim.Version || id.BootID != p.r.bootID {
		return fmt.Errorf("a shim of version %d and boot %s", id.Version, id.BootID)
	}
	pidfd, err := unix.PidfdOpen(id.PID, 0)
	if err != nil {
		return fmt.Errorf("process %d: %w", id.PID, err)
	}
	// The descriptor pins the process; the start time says whether it is the shim.
	if start, err := shim.StartTime(id.PID); err != nil || start != id.StartTime {
		return errors.Join(fmt.Errorf("process %d is another one now", id.PID), err, unix.Close(pidfd))
	}
	conn, err := dialShim(ctx, p.dir())
	if err != nil {
		return errors.Join(err, unix.Close(pidfd))
	}
	proc, err := watchProcess(id.PID, pidfd)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	if err := p.connect(ctx, conn, proc); err != nil {
		return err
	}
	p.r.log.Info("adopted a pod", "pod", p.uid(), "pid", id.PID)
	return nil
}

// removeStrays removes cgroups and layers that belong to no pod, or to no
// running attempt of one.
func (r *Runtime) removeStrays(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	var errs []error
	groups, err := r.root.Children()
	if err != nil {
		return err
	}
	for _, name := range groups {
		uid, ours := strings.CutPrefix(name, groupPrefix)
		if !ours {
			continue
		}
		g := r.root.Child(name)
		p, err := r.get(uid)
		if err != nil {
			errs = append(errs, g.Kill(ctx), g.Remove())
			continue
		}
		inside, err := g.Children()
		errs = append(errs, err)
		for _, c := range inside {
			if c != shimGroup && !p.running(c) {
				errs = append(errs, g.Child(c).Kill(ctx), g.Child(c).Remove())
			}
		}
	}
	layers, err := os.ReadDir(r.layersDir())
	errs = append(errs, ignoreMissing(err))
	for _, e := range layers {
		if _, err := r.get(e.Name()); err != nil {
			errs = append(errs, os.RemoveAll(filepath.Join(r.layersDir(), e.Name())))
		}
	}
	return errors.Join(errs...)
}

// running tells whether a cgroup's name is that of an attempt that has not ended.
func (p *pod) running(group string) bool {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	for _, c := range p.containers {
		if c.State != shim.Exited && groupName(c.Name, c.Attempt) == group {
			return true
		}
	}
	return false
}

// Cleanup kills every pod and removes everything that this runtime ever made on
// the machine, logs included, whatever the records say. It works on a Runtime
// that was not recovered.
func (r *Runtime) Cleanup(ctx context.Context) error {
	r.mu.Lock()
	var known []*pod
	for _, p := range r.pods {
		p.removing = true
		known = append(known, p)
	}
	r.mu.Unlock()
	var errs []error
	for _, p := range known {
		if err := p.take(ctx); err != nil {
			return fmt.Errorf("clean up: %w", err)
		}
		errs = append(errs, p.destroy(ctx))
		r.forget(p)
		p.release()
	}
	if r.root.Exists() {
		groups, err := r.root.Children()
		errs = append(errs, err)
		for _, name := range groups {
			if strings.HasPrefix(name, groupPrefix) {
				errs = append(errs, r.root.Child(name).Kill(ctx), r.root.Child(name).Remove())
			}
		}
		// The root may be shared or given by someone: gone only when empty.
		if left, err := r.root.Children(); err == nil && len(left) == 0 {
			if pids, err := r.root.Procs(); err == nil && len(pids) == 0 {
				errs = append(errs, r.root.Remove())
			}
		}
	}
	errs = append(errs, unmountBelow(r.podsDir()))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clean up: %w", err) // the records stay for the next try
	}
	for _, dir := range []string{r.layersDir(), r.logsDir(), r.podsDir()} {
		errs = append(errs, os.RemoveAll(dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	return nil
}
