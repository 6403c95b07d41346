package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// refsVersion is the version of refs.json that this code writes.
const refsVersion = 1

// record is what the table keeps of one image.
type record struct {
	Manifest string   `json:"manifest"` // digest of the manifest
	Config   string   `json:"config"`   // digest of the configuration
	Layers   []string `json:"layers"`   // diff IDs, bottom first
	Size     int64    `json:"size"`
}

// importedFile tells an archive in the import directory from a newer one of
// the same name.
type importedFile struct {
	Size    int64 `json:"size"`
	ModTime int64 `json:"modTime"` // Unix nanoseconds
	// Error is why it was refused, empty when it was imported.
	Error string `json:"error,omitempty"`
}

// table is the content of refs.json.
type table struct {
	Version  int                     `json:"version"`
	Refs     map[string]record       `json:"refs"`
	Imported map[string]importedFile `json:"imported,omitempty"`
}

// find returns the record of a normalised reference. A reference by digest
// also matches an image that came under a tag of the same repository.
func (t *table) find(full string) (record, bool) {
	if rec, ok := t.Refs[full]; ok {
		return rec, true
	}
	repo, digest, ok := strings.Cut(full, "@")
	if !ok {
		return record{}, false
	}
	for ref, rec := range t.Refs {
		if rec.Manifest == digest && (strings.HasPrefix(ref, repo+":") || strings.HasPrefix(ref, repo+"@")) {
			return rec, true
		}
	}
	return record{}, false
}

// refTable is refs.json with a cache of its content. Writers of several
// processes exclude each other by a lock file.
type refTable struct {
	path, lockPath string

	mu     sync.Mutex
	cached *table      // never changed once it is here
	stat   os.FileInfo // of the file that cached was read from
}

// load returns the current table, which must not be changed.
func (r *refTable) load() (*table, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.loadLocked()
}

func (r *refTable) loadLocked() (*table, error) {
	f, err := os.Open(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return &table{Version: refsVersion, Refs: map[string]record{}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open image table: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat image table: %w", err)
	}
	// The file is only ever replaced, never written in place.
	if r.cached != nil && os.SameFile(st, r.stat) && st.ModTime().Equal(r.stat.ModTime()) {
		return r.cached, nil
	}
	var t table
	if err := json.NewDecoder(f).Decode(&t); err != nil {
		return nil, fmt.Errorf("read image table %s: %w", r.path, err)
	}
	if t.Version != refsVersion {
		return nil, fmt.Errorf("image table %s has version %d, this program reads version %d", r.path, t.Version, refsVersion)
	}
	if t.Refs == nil {
		t.Refs = map[string]record{}
	}
	r.cached, r.stat = &t, st
	return r.cached, nil
}

// update changes the table by fn, under the lock of all processes. When fn
// fails nothing is written.
func (r *refTable) update(fn func(*table) error) error {
	lock, err := os.OpenFile(r.lockPath, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open image lock: %w", err)
	}
	defer lock.Close()
	if err := flock(lock); err != nil {
		return fmt.Errorf("lock image table: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	old, err := r.loadLocked()
	if err != nil {
		return err
	}
	t := old.clone()
	if err := fn(t); err != nil {
		return err
	}
	data, err := json.MarshalIndent(t, "", " ")
	if err != nil {
		return fmt.Errorf("encode image table: %w", err)
	}
	if err := writeFileAtomic(r.path, data); err != nil {
		return fmt.Errorf("write image table: %w", err)
	}
	r.cached = nil
	return nil
}

func flock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (t *table) clone() *table {
	c := &table{Version: refsVersion, Refs: map[string]record{}, Imported: map[string]importedFile{}}
	for k, v := range t.Refs {
		c.Refs[k] = v
	}
	for k, v := range t.Imported {
		c.Imported[k] = v
	}
	return c
}

// writeFileAtomic replaces path by data: after a crash there is either the
// old content or the new.
func writeFileAtomic(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
