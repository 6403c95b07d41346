package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// Config says where a store is and what it may do.
type Config struct {
	// Dir is the store's directory; it is created.
	Dir string
	// InsecureRegistries are HOST[:PORT] of registries to be spoken to over
	// plain HTTP when they do not answer HTTPS.
	InsecureRegistries []string
	// MaxLayerBytes bounds what one layer may unpack to.
	MaxLayerBytes int64
	// Logger may be nil.
	Logger hclog.Logger
}

// DefaultConfig returns the settings for a store in dir.
func DefaultConfig(dir string) Config {
	return Config{Dir: dir, MaxLayerBytes: 32 << 30}
}

// Validate reports settings that cannot work.
func (c *Config) Validate() error {
	if !filepath.IsAbs(c.Dir) {
		return fmt.Errorf("image directory %q: must be an absolute path", c.Dir)
	}
	if c.MaxLayerBytes <= 0 {
		return fmt.Errorf("largest layer %d bytes: must be positive", c.MaxLayerBytes)
	}
	return nil
}

// Store is the images of one node. It is safe for concurrent use, also by
// several processes that open the same directory.
type Store struct {
	cfg    Config
	logger hclog.Logger
	refs   refTable
	pulls  keyedMutex // one pull of a reference at a time
}

// Open opens the store in dir with the default settings.
func Open(dir string) (*Store, error) { return New(DefaultConfig(dir)) }

// New opens a store, creates what is missing and removes what an interrupted
// import left in staging.
func New(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	s := &Store{cfg: cfg, logger: cfg.Logger}
	s.refs.path = filepath.Join(cfg.Dir, "refs.json")
	s.refs.lockPath = filepath.Join(cfg.Dir, ".lock")
	for _, d := range []string{"", "blobs/sha256", "layers", "tmp"} {
		if err := os.MkdirAll(filepath.Join(cfg.Dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("create image store: %w", err)
		}
	}
	if err := s.removeAbandoned(); err != nil {
		return nil, err
	}
	if _, err := s.refs.load(); err != nil {
		return nil, err
	}
	return s, nil
}

// Lookup returns the image a reference stands for, or ErrNotPresent.
func (s *Store) Lookup(ref string) (*Image, error) {
	full, err := Normalize(ref)
	if err != nil {
		return nil, err
	}
	t, err := s.refs.load()
	if err != nil {
		return nil, err
	}
	rec, ok := t.find(full)
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrNotPresent, full)
	}
	return s.open(full, rec)
}

// open builds the Image of a record and checks that its layers are there.
func (s *Store) open(full string, rec record) (*Image, error) {
	data, err := os.ReadFile(s.blobPath(rec.Config))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNotPresent, full, err)
	}
	var cf v1.ConfigFile
	if err := json.Unmarshal(data, &cf); err != nil {
		return nil, fmt.Errorf("image configuration %s: %w", rec.Config, err)
	}
	img := &Image{Ref: full, Digest: rec.Manifest, ID: rec.Config, Config: cf.Config, Size: rec.Size}
	for _, diff := range slices.Backward(rec.Layers) {
		path, err := s.layerPath(diff)
		if err != nil {
			return nil, err
		}
		if _, err := os.Lstat(path); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrNotPresent, full, err)
		}
		// An overlay refuses the same directory twice, and below another
		// layer that contains all of it it shows nothing.
		if !slices.Contains(img.Layers, path) {
			img.Layers = append(img.Layers, path)
		}
	}
	return img, nil
}

// List returns the references in the store, sorted.
func (s *Store) List() ([]string, error) {
	t, err := s.refs.load()
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, len(t.Refs))
	for ref := range t.Refs {
		out = append(out, ref)
	}
	slices.Sort(out)
	return out, nil
}

// Remove forgets a reference. Its layers stay until Prune.
func (s *Store) Remove(ref string) error {
	full, err := Normalize(ref)
	if err != nil {
		return err
	}
	return s.refs.update(func(t *table) error {
		if _, ok := t.Refs[full]; !ok {
			return fmt.Errorf("%w: %s", ErrNotPresent, full)
		}
		delete(t.Refs, full)
		return nil
	})
}

// Prune removes layers that no reference needs and that inUse does not name;
// inUse are paths from Image.Layers of running containers. It returns how many
// layers went.
func (s *Store) Prune(ctx context.Context, inUse []string) (int, error) {
	removed := 0
	err := s.refs.update(func(t *table) error {
		keep := map[string]bool{}
		for _, p := range inUse {
			keep[filepath.Base(p)] = true
		}
		for _, rec := range t.Refs {
			for _, diff := range rec.Layers {
				keep[hexOf(diff)] = true
			}
		}
		entries, err := os.ReadDir(filepath.Join(s.cfg.Dir, "layers"))
		if err != nil {
			return fmt.Errorf("list layers: %w", err)
		}
		for _, e := range entries {
			if keep[e.Name()] {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := s.discard(filepath.Join(s.cfg.Dir, "layers", e.Name())); err != nil {
				return err
			}
			removed++
		}
		return nil
	})
	return removed, err
}

// discard moves a directory out of sight first, so that a crash on the way
// never leaves half a layer under its final name.
func (s *Store) discard(path string) error {
	st, err := s.stage()
	if err != nil {
		return err
	}
	defer st.close()
	if err := os.Rename(path, filepath.Join(st.dir, "gone")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove layer: %w", err)
	}
	return nil
}

func (s *Store) blobPath(digest string) string {
	return filepath.Join(s.cfg.Dir, "blobs", "sha256", hexOf(digest))
}

// layerPath returns where the layer with this diff ID is or will be.
func (s *Store) layerPath(diffID string) (string, error) {
	if h, err := v1.NewHash(diffID); err != nil || h.Algorithm != "sha256" {
		return "", fmt.Errorf("%w: layer digest %q is not a sha256 digest", ErrArchive, diffID)
	}
	return filepath.Join(s.cfg.Dir, "layers", hexOf(diffID)), nil
}

func hexOf(digest string) string {
	h, err := v1.NewHash(digest)
	if err != nil {
		return "invalid"
	}
	return h.Hex
}

// staging is a directory for one import. The lock on it tells other processes
// that it is in use.
type staging struct {
	dir  string
	lock *os.File
}

func (s *Store) stage() (*staging, error) {
	dir, err := os.MkdirTemp(filepath.Join(s.cfg.Dir, "tmp"), "stage-")
	if err != nil {
		return nil, fmt.Errorf("create staging directory: %w", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open staging directory: %w", err), os.RemoveAll(dir))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock staging directory: %w", err), f.Close(), os.RemoveAll(dir))
	}
	return &staging{dir: dir, lock: f}, nil
}

// close removes what is left of the staging directory.
func (st *staging) close() {
	os.RemoveAll(st.dir)
	st.lock.Close()
}

// sync flushes the file system that holds the staging directory.
func (st *staging) sync() error {
	if err := unix.Syncfs(int(st.lock.Fd())); err != nil {
		return fmt.Errorf("flush image: %w", err)
	}
	return nil
}

// removeAbandoned clears staging directories whose owner is gone.
func (s *Store) removeAbandoned() error {
	tmp := filepath.Join(s.cfg.Dir, "tmp")
	entries, err := os.ReadDir(tmp)
	if err != nil {
		return fmt.Errorf("list staging: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(tmp, e.Name())
		f, err := os.Open(path)
		if err != nil {
			continue // its owner removed it meanwhile
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			err = os.RemoveAll(path)
		}
		f.Close()
		if err != nil {
			return fmt.Errorf("remove staging: %w", err)
		}
	}
	return nil
}

// keyedMutex is a mutex per key. The zero value is ready for use.
type keyedMutex struct {
	mu    sync.Mutex
	locks map[string]*keyLock
}

type keyLock struct {
	ch   chan struct{} // capacity one: whoever puts a token in holds it
	refs int
}

// lock waits for the key's mutex or the context's end. The returned function
// unlocks it.
func (k *keyedMutex) lock(ctx context.Context, key string) (func(), error) {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = map[string]*keyLock{}
	}
	l := k.locks[key]
	if l == nil {
		l = &keyLock{ch: make(chan struct{}, 1)}
		k.locks[key] = l
	}
	l.refs++
	k.mu.Unlock()
	release := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.refs--; l.refs == 0 {
			delete(k.locks, key)
		}
	}
	select {
	case l.ch <- struct{}{}:
		return func() { <-l.ch; release() }, nil
	case <-ctx.Done():
		release()
		return nil, ctx.Err()
	}
}
