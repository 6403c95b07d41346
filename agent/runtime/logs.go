package runtime

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/shepherd-project/shepherd/agent/runtime/shim"
)

// Logs opens the log of a container of a pod that is listed or whose logs are
// still on disk. The caller closes it. With Follow, it ends when the container
// has exited and all was read, and lasts over rotations. ErrNotFound: no such
// log. It also ends, with an error, when ctx does.
func (r *Runtime) Logs(ctx context.Context, podUID, container string, o LogOptions) (io.ReadCloser, error) {
	if err := checkName("container name", container); err != nil {
		return nil, err
	}
	dir, err := r.findLogDir(podUID)
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, container)
	attempt, err := pickAttempt(dir, o)
	if err != nil {
		return nil, fmt.Errorf("log of container %s: %w", container, err)
	}
	path := filepath.Join(dir, logName(attempt))
	files, err := openLogFiles(path)
	if err != nil {
		return nil, fmt.Errorf("log of container %s: %w", container, err)
	}
	l := newLogReader(ctx, path, files, o, func() bool { return r.attemptEnded(podUID, container, attempt) })
	if o.TailLines != nil {
		if err := l.seekTail(*o.TailLines); err != nil {
			return nil, fmt.Errorf("log of container %s: %w", container, err)
		}
	}
	return l, nil
}

func (r *Runtime) findLogDir(podUID string) (string, error) {
	p, err := r.get(podUID)
	if err == nil {
		return r.logDir(&p.record.Config), nil
	}
	dirs, derr := r.logDirs()
	if derr != nil {
		return "", derr
	}
	for dir, uid := range dirs {
		if uid == podUID {
			return dir, nil
		}
	}
	return "", err
}

func pickAttempt(dir string, o LogOptions) (int, error) {
	attempts, err := numbers(dir, ".log")
	if err != nil {
		return 0, err
	}
	n := len(attempts)
	switch {
	case o.Attempt != nil:
		return *o.Attempt, nil // opening it says whether it exists
	case o.Previous && n >= 2:
		return attempts[n-2], nil
	case !o.Previous && n >= 1:
		return attempts[n-1], nil
	}
	return 0, ErrNotFound
}

// attemptEnded tells whether nothing more will be written to the log of an attempt.
func (r *Runtime) attemptEnded(podUID, container string, attempt int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pods[podUID]
	if p == nil {
		return true
	}
	c := p.containers[container]
	return c == nil || c.Attempt != attempt || c.State == shim.Exited
}

// openLogFiles opens the rotated files of a log and the current one, oldest
// first, as one consistent set.
func openLogFiles(path string) ([]*os.File, error) {
	for {
		before, err := shim.RotatedLogs(path)
		if err != nil {
			return nil, ignoreMissingAs(err, ErrNotFound)
		}
		var files []*os.File
		for _, n := range before {
			if f, err := os.Open(shim.RotatedLog(path, n)); err == nil {
				files = append(files, f)
			} else if ignoreMissing(err) != nil {
				return nil, err
			}
		}
		current, err := os.Open(path)
		if err == nil {
			files = append(files, current)
		} else if ignoreMissing(err) != nil {
			closeFiles(files)
			return nil, err
		}
		after, err := shim.RotatedLogs(path)
		if err != nil {
			closeFiles(files)
			return nil, err
		}
		if last(before) != last(after) { // rotated meanwhile
			closeFiles(files)
			continue
		}
		if len(files) == 0 {
			return nil, ErrNotFound
		}
		return files, nil
	}
}

func ignoreMissingAs(err, instead error) error {
	if ignoreMissing(err) == nil {
		return instead
	}
	return err
}

func last(n []int) int {
	if len(n) == 0 {
		return 0
	}
	return n[len(n)-1]
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // read only
	}
}
