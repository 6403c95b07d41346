package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// epochBits: a restore or recovery adds 2^36 to the cluster's revisions.
const epochBits = 36

var (
	// errStale refuses a view that is older than one already acted on.
	errStale = errors.New("the server's view is older than what this agent has acted on")
	// errEpoch holds back kills after the cluster was restored.
	errEpoch = errors.New("the cluster was restored from a backup: pods that it does not know are kept until an administrator confirms")
)

// revisions remembers, over restarts, the highest revision that the agent has
// acted on. It is safe for concurrent use.
type revisions struct {
	path string

	mu      sync.Mutex
	acted   uint64 // highest revision acted on
	epoch   uint64 // restore epoch in which kills are allowed
	written string
}

// openRevisions reads what an earlier run has left. The file holds the
// revision and the confirmed epoch as two decimal numbers.
func openRevisions(path string) (*revisions, error) {
	r := &revisions{path: path}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read last revision: %w", err)
	}
	fields := strings.Fields(string(data))
	if len(fields) != 2 {
		return nil, fmt.Errorf("last revision %s: want two numbers, got %q", path, data)
	}
	acted, err1 := strconv.ParseUint(fields[0], 10, 64)
	epoch, err2 := strconv.ParseUint(fields[1], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("last revision %s: %w", path, err)
	}
	r.acted, r.epoch, r.written = acted, epoch, string(data)
	return r, nil
}

// see takes note of a revision. For a list, an older one than before is
// refused with errStale.
func (r *revisions) see(revision string, list bool) error {
	rev, err := strconv.ParseUint(revision, 10, 64)
	if err != nil {
		return fmt.Errorf("resource version %q is not a number", revision)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if rev < r.acted {
		if list {
			return fmt.Errorf("%w (%d, was at %d)", errStale, rev, r.acted)
		}
		return nil
	}
	if r.acted == 0 {
		r.epoch = rev >> epochBits
	}
	r.acted = rev
	return nil
}

// mayKill returns errEpoch while pods that the cluster does not know must be
// kept.
func (r *revisions) mayKill() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.acted>>epochBits != r.epoch {
		return errEpoch
	}
	return nil
}

// confirm allows kills in the given restore epoch.
func (r *revisions) confirm(epoch uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if epoch == r.acted>>epochBits {
		r.epoch = epoch
	}
}

// save writes the revision to disk if it has changed.
func (r *revisions) save() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf("%d %d\n", r.acted, r.epoch)
	if r.acted == 0 || text == r.written {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(r.path), 0o700); err != nil {
		return fmt.Errorf("keep last revision: %w", err)
	}
	// Not flushed: after a crash of the machine no pod runs that an older
	// view could kill.
	tmp := r.path + ".new"
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return fmt.Errorf("keep last revision: %w", err)
	}
	if err := os.Rename(tmp, r.path); err != nil {
		return fmt.Errorf("keep last revision: %w", err)
	}
	r.written = text
	return nil
}
