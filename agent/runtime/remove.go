package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/shepherd-project/shepherd/agent/runtime/shim"
)

// StopContainer sends the stop signal, waits for the grace period, then kills.
// It returns when the container has exited; at once (nil) if it had. A second
// call while the first waits can shorten the grace.
func (r *Runtime) StopContainer(ctx context.Context, podUID, name string, grace time.Duration) error {
	p, err := r.get(podUID)
	if err != nil {
		return err
	}
	r.mu.Lock()
	c, s := p.client, p.containers[name]
	known, exited := s != nil, s != nil && s.State == shim.Exited
	r.mu.Unlock()
	if !known {
		return fmt.Errorf("container %s: %w", name, ErrNotFound)
	}
	if exited || c == nil {
		return nil
	}
	if _, err := c.call(ctx, shim.TypeStop, shim.StopRequest{Name: name, Grace: grace}); err != nil {
		return fmt.Errorf("stop container %s: %w", name, err)
	}
	return nil
}

// SignalContainer sends a signal to the container's first process.
func (r *Runtime) SignalContainer(ctx context.Context, podUID, name string, signal int) error {
	p, err := r.get(podUID)
	if err != nil {
		return err
	}
	c, err := p.alive()
	if err != nil {
		return err
	}
	if _, err := c.call(ctx, shim.TypeSignal, shim.SignalRequest{Name: name, Signal: signal}); err != nil {
		return fmt.Errorf("signal container %s: %w", name, err)
	}
	return nil
}

// RemovePod stops all containers at once (grace for all of them), then removes
// the pod's processes, mounts, cgroups, directories and logs. Nil for an
// unknown pod (whose logs it removes too). A second call while the first waits
// can shorten the grace.
func (r *Runtime) RemovePod(ctx context.Context, podUID string, grace time.Duration) error {
	if err := checkName("pod UID", podUID); err != nil {
		return err
	}
	p, err := r.get(podUID)
	if errors.Is(err, ErrNotFound) {
		return r.removeLogs(podUID)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	p.removing = true
	c := p.client
	var names []string
	for n, s := range p.containers {
		if s.State != shim.Exited {
			names = append(names, n)
		}
	}
	r.mu.Unlock()
	if c != nil {
		var wg sync.WaitGroup
		for _, n := range names {
			wg.Go(func() {
				if _, err := c.call(ctx, shim.TypeStop, shim.StopRequest{Name: n, Grace: grace}); err != nil {
					r.log.Debug("stop before removal", "pod", podUID, "container", n, "error", err) // killed below
				}
			})
		}
		wg.Wait()
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("remove pod: %w", err) // it stays listed; call again
		}
	}
	if err := p.take(ctx); err != nil {
		return fmt.Errorf("remove pod: %w", err)
	}
	defer p.release()
	if err := p.destroy(ctx); err != nil {
		return fmt.Errorf("remove pod: %w", err)
	}
	r.forget(p)
	return r.removeLogs(podUID)
}

// destroy ends the shim and removes all of the pod but its logs. The pod's
// turn must be held. It can be called again after an error.
func (p *pod) destroy(ctx context.Context) error {
	p.r.mu.Lock()
	c, proc := p.client, p.process
	p.client = nil
	p.r.mu.Unlock()
	if c != nil {
		// Politely first: the shim undoes its own mounts. What it does not
		// manage is done below without it.
		if _, err := c.call(ctx, shim.TypeShutdown, struct{}{}); err != nil && !errors.Is(err, errShimGone) {
			p.r.log.Warn("a shim did not shut down", "pod", p.uid(), "error", err)
		}
		if err := ignoreClosed(c.Close()); err != nil {
			p.r.log.Debug("close connection to shim", "pod", p.uid(), "error", err)
		}
	}
	if g := p.group(); g.Exists() {
		if err := g.Kill(ctx); err != nil {
			return err
		}
		if proc != nil {
			select {
			case <-proc.done:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := g.Remove(); err != nil {
			return err
		}
	}
	if err := unmountBelow(p.dir()); err != nil {
		return err
	}
	// The intent goes last: while it is there, a new agent cleans up.
	if err := os.RemoveAll(p.r.layerDir(p.uid())); err != nil {
		return err
	}
	return os.RemoveAll(p.dir())
}

// logDirs finds the log directories of a pod; names of pods can differ, the UID cannot.
func (r *Runtime) logDirs() (map[string]string, error) {
	entries, err := os.ReadDir(r.logsDir())
	if err != nil {
		return nil, ignoreMissing(err)
	}
	out := make(map[string]string, len(entries))
	for _, e := range entries {
		if i := strings.LastIndexByte(e.Name(), '_'); i > 0 && e.IsDir() {
			out[filepath.Join(r.logsDir(), e.Name())] = e.Name()[i+1:]
		}
	}
	return out, nil
}

func (r *Runtime) removeLogs(podUID string) error {
	dirs, err := r.logDirs()
	if err != nil {
		return fmt.Errorf("remove logs: %w", err)
	}
	for dir, uid := range dirs {
		if uid == podUID {
			if err := os.RemoveAll(dir); err != nil {
				return fmt.Errorf("remove logs: %w", err)
			}
		}
	}
	return nil
}

// PruneLogs removes the log directories of pods that are not listed and for
// which keep returns false.
func (r *Runtime) PruneLogs(ctx context.Context, keep func(podUID string) bool) error {
	dirs, err := r.logDirs()
	if err != nil {
		return fmt.Errorf("prune logs: %w", err)
	}
	for dir, uid := range dirs {
		if err := ctx.Err(); err != nil {
			return err
		}
		r.mu.Lock()
		listed := r.pods[uid] != nil
		r.mu.Unlock()
		if listed || keep(uid) {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("prune logs: %w", err)
		}
	}
	return nil
}
