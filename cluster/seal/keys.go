package seal

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// MaxKeys is how many data keys a cluster can have had. They are all kept:
	// a log, a snapshot or a backup of any age can be opened.
	MaxKeys = 256
	// MaxEncoded bounds the encoded form of Keys, in bytes.
	MaxEncoded = 64 << 10

	secretSize  = 32
	keysVersion = 1
)

var (
	// ErrNoKey is wrapped when something is sealed with a key that is not there.
	ErrNoKey = errors.New("data key is missing")
	// ErrKeys is wrapped when encoded keys are damaged, or contradict others.
	ErrKeys = errors.New("unusable data keys")
	// ErrTooMany is returned when one more key would be too many.
	ErrTooMany = fmt.Errorf("there are %d data keys already", MaxKeys)
)

// Key is one data key. Its text form hides the secret.
type Key struct {
	ID      uint32
	Created time.Time // cluster time
	secret  [secretSize]byte
}

// NewKey draws a key.
func NewKey(now time.Time) Key {
	k := Key{Created: now.UTC()}
	var id [4]byte
	for k.ID == 0 {
		_, _ = rand.Read(id[:]) // never fails: crypto/rand ends the process instead
		k.ID = binary.BigEndian.Uint32(id[:])
	}
	_, _ = rand.Read(k.secret[:])
	return k
}

func (k Key) String() string { return fmt.Sprintf("data key %d", k.ID) }

// GoString hides the secret from %#v.
func (k Key) GoString() string { return k.String() }

// Keys are the data keys of a cluster, oldest first. They are immutable; the
// zero value has none.
type Keys struct {
	// Initial is the key that the cluster has sealed with from its first entry,
	// 0 if it began without.
	Initial uint32
	list    []Key
}

// Begin returns the keys of a new cluster.
func Begin(now time.Time) Keys {
	k := NewKey(now)
	return Keys{Initial: k.ID, list: []Key{k}}
}

// Get finds a key.
func (k Keys) Get(id uint32) (Key, bool) {
	i := slices.IndexFunc(k.list, func(key Key) bool { return key.ID == id })
	if i < 0 {
		return Key{}, false
	}
	return k.list[i], true
}

// Len is the number of keys.
func (k Keys) Len() int { return len(k.list) }

// Newest is the key that was made last.
func (k Keys) Newest() (Key, bool) {
	if len(k.list) == 0 {
		return Key{}, false
	}
	return k.list[len(k.list)-1], true
}

// With returns these keys and one more.
func (k Keys) With(key Key) (Keys, error) { return k.Merge(Keys{list: []Key{key}}) }

// Merge returns these keys and those. It fails if they contradict each other.
func (k Keys) Merge(o Keys) (Keys, error) {
	all := Keys{Initial: k.Initial, list: slices.Clone(k.list)}
	if all.Initial == 0 {
		all.Initial = o.Initial
	}
	if o.Initial != 0 && o.Initial != all.Initial {
		return Keys{}, fmt.Errorf("%w: they are of another cluster, which began with key %d and not with %d", ErrKeys, o.Initial, all.Initial)
	}
	for _, key := range o.list {
		switch have, ok := k.Get(key.ID); {
		case !ok:
			all.list = append(all.list, key)
		case have.secret != key.secret:
			return Keys{}, fmt.Errorf("%w: there are two different keys with the ID %d", ErrKeys, key.ID)
		}
	}
	if len(all.list) > MaxKeys {
		return Keys{}, ErrTooMany
	}
	slices.SortStableFunc(all.list, func(a, b Key) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

// The encoded form: JSON, so that its version can be told whatever it holds.
type keysText struct {
	Version int       `json:"version"`
	Initial uint32    `json:"initial,omitempty"`
	Keys    []keyText `json:"keys"`
}

type keyText struct {
	ID      uint32    `json:"id"`
	Created time.Time `json:"created"`
	Secret  []byte    `json:"secret"`
}

// Encode is the form for files and links. It holds the secrets.
func (k Keys) Encode() []byte {
	out := keysText{Version: keysVersion, Initial: k.Initial, Keys: []keyText{}}
	for _, key := range k.list {
		out.Keys = append(out.Keys, keyText{ID: key.ID, Created: key.Created, Secret: key.secret[:]})
	}
	text, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		panic(err) // numbers, times that were parsed or made now, and bytes always encode
	}
	return append(text, '\n')
}

// Decode is the reverse of Encode.
func Decode(text []byte) (Keys, error) {
	if len(text) > MaxEncoded {
		return Keys{}, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrKeys, len(text), MaxEncoded)
	}
	var in keysText
	if err := json.Unmarshal(text, &in); err != nil {
		return Keys{}, fmt.Errorf("%w: %w", ErrKeys, err)
	}
	if in.Version != keysVersion {
		return Keys{}, fmt.Errorf("%w: format %d, this build knows %d", ErrKeys, in.Version, keysVersion)
	}
	keys := Keys{Initial: in.Initial}
	for _, k := range in.Keys {
		if k.ID == 0 || len(k.Secret) != secretSize || k.Created.Year() < 0 || k.Created.Year() > 9999 {
			return Keys{}, fmt.Errorf("%w: key %d has a secret of %d bytes and was made in %d", ErrKeys, k.ID, len(k.Secret), k.Created.Year())
		}
		var err error
		if keys, err = keys.With(Key{ID: k.ID, Created: k.Created.UTC(), secret: [secretSize]byte(k.Secret)}); err != nil {
			return Keys{}, err
		}
	}
	if _, ok := keys.Get(in.Initial); in.Initial != 0 && !ok {
		return Keys{}, fmt.Errorf("%w: the first one, %d, is missing", ErrKeys, in.Initial)
	}
	return keys, nil
}
