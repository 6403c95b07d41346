package seal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// Ring is a server's copy of the cluster's keys, kept in a file. Safe for
// concurrent use.
type Ring struct {
	save func(Keys) error // durably

	mu   sync.Mutex
	keys Keys
}

// NewRing returns a ring that holds the keys and hands every new set of them to
// save, which must have stored it durably when it returns. Nil: nothing is stored.
func NewRing(keys Keys, save func(Keys) error) *Ring {
	if save == nil {
		save = func(Keys) error { return nil }
	}
	return &Ring{keys: keys, save: save}
}

// OpenRing reads a file of keys; a missing file is an empty one. write replaces
// it: atomically, durably and readable by nobody else.
func OpenRing(path string, write func(path string, data []byte) error) (*Ring, error) {
	save := func(k Keys) error { return write(path, k.Encode()) }
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return NewRing(Keys{}, save), nil
	case err != nil:
		return nil, fmt.Errorf("read the data keys: %w", err)
	}
	keys, err := Decode(text)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged (%w): restore it from a copy, or move it away to have the keys from the other servers", path, err)
	}
	return NewRing(keys, save), nil
}

// Keys are those of now.
func (r *Ring) Keys() Keys {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keys
}

// Get finds a key.
func (r *Ring) Get(id uint32) (Key, bool) { return r.Keys().Get(id) }

// Add stores further keys. They are durable when it returns.
func (r *Ring) Add(keys Keys) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, err := r.keys.Merge(keys)
	if err != nil {
		return err
	}
	if all.Len() == r.keys.Len() && all.Initial == r.keys.Initial {
		return nil
	}
	if err := r.save(all); err != nil {
		return fmt.Errorf("store the data keys: %w", err)
	}
	r.keys = all
	return nil
}
