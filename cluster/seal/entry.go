package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
)

const (
	saltSize  = 16
	nonceSize = 12
	tagSize   = 16

	// plainEntry is the length of an entry's own header: version and key ID.
	plainEntry  = 5
	entryHeader = plainEntry + saltSize + 8

	// Overhead is what sealing adds to an entry, in bytes.
	Overhead = entryHeader - plainEntry + tagSize

	// maxSealed and maxSealedBytes bound the use of one subkey, far below where
	// AES-GCM wears out.
	maxSealed      = 1 << 32
	maxSealedBytes = 1 << 40
	// maxOpeners bounds the subkeys kept for opening.
	maxOpeners = 64
)

// ErrDamaged is wrapped when something sealed is not as it was: a bit was
// changed, it was cut short, or it is not sealed at all.
var ErrDamaged = errors.New("sealed data is damaged")

// derive makes the subkey of a salt for one use.
func derive(key Key, salt []byte, use string) cipher.AEAD {
	sub, err := hkdf.Key(sha256.New, key.secret[:], salt, "shepherd "+use+" v1", 32)
	if err == nil {
		var block cipher.Block
		if block, err = aes.NewCipher(sub); err == nil {
			var aead cipher.AEAD
			if aead, err = cipher.NewGCM(block); err == nil {
				return aead
			}
		}
	}
	panic(err) // all lengths are constants that these take
}

func newSalt() (salt [saltSize]byte) {
	_, _ = rand.Read(salt[:]) // never fails: crypto/rand ends the process instead
	return salt
}

// KeyOf is the ID of the key that an entry is sealed with, 0 if it is plain.
func KeyOf(entry []byte) uint32 {
	if len(entry) < plainEntry {
		return 0
	}
	return binary.BigEndian.Uint32(entry[1:])
}

// Sealer seals entries. Safe for concurrent use.
type Sealer struct {
	mu      sync.Mutex
	key     uint32
	salt    [saltSize]byte
	aead    cipher.AEAD
	counter uint64 // the next nonce
	bytes   uint64
}

// Seal returns the entry sealed with the key. The entry must be a plain one.
func (s *Sealer) Seal(key Key, entry []byte) ([]byte, error) {
	if len(entry) < plainEntry || KeyOf(entry) != 0 {
		return nil, fmt.Errorf("seal an entry of %d bytes: it is not a plain one", len(entry))
	}
	aead, salt, counter := s.next(key, len(entry))
	out := make([]byte, entryHeader, len(entry)+Overhead)
	out[0] = entry[0]
	binary.BigEndian.PutUint32(out[1:], key.ID)
	copy(out[plainEntry:], salt[:])
	binary.BigEndian.PutUint64(out[plainEntry+saltSize:], counter)
	nonce := entryNonce(out)
	return aead.Seal(out, nonce[:], entry[plainEntry:], out[:entryHeader]), nil
}

// next takes a nonce.
func (s *Sealer) next(key Key, size int) (cipher.AEAD, [saltSize]byte, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.key != key.ID || s.counter >= maxSealed || s.bytes+uint64(size) > maxSealedBytes {
		s.key, s.salt, s.counter, s.bytes = key.ID, newSalt(), 0, 0
		s.aead = derive(key, s.salt[:], "entry")
	}
	counter := s.counter
	s.counter++
	s.bytes += uint64(size)
	return s.aead, s.salt, counter
}

func entryNonce(entry []byte) (nonce [nonceSize]byte) {
	copy(nonce[nonceSize-8:], entry[plainEntry+saltSize:entryHeader])
	return nonce
}

// Opener opens entries. Not for concurrent use.
type Opener struct {
	subkeys map[subkey]cipher.AEAD
	scratch []byte
}

type subkey struct {
	key  uint32
	salt [saltSize]byte
}

// Open returns the plain entry, which is good until the next call. A plain entry
// is returned as it is; ErrNoKey and ErrDamaged are wrapped.
func (o *Opener) Open(entry []byte, get func(uint32) (Key, bool)) ([]byte, error) {
	id := KeyOf(entry)
	if id == 0 {
		return entry, nil
	}
	if len(entry) < entryHeader+tagSize {
		return nil, fmt.Errorf("%w: a sealed entry of %d bytes", ErrDamaged, len(entry))
	}
	name := subkey{key: id, salt: [saltSize]byte(entry[plainEntry:])}
	aead, ok := o.subkeys[name]
	if !ok {
		key, ok := get(id)
		if !ok {
			return nil, fmt.Errorf("%w: key %d", ErrNoKey, id)
		}
		aead = derive(key, name.salt[:], "entry")
		if len(o.subkeys) >= maxOpeners || o.subkeys == nil {
			o.subkeys = make(map[subkey]cipher.AEAD)
		}
		o.subkeys[name] = aead
	}
	nonce := entryNonce(entry)
	plain := append(o.scratch[:0], entry[0], 0, 0, 0, 0)
	plain, err := aead.Open(plain, nonce[:], entry[entryHeader:], entry[:entryHeader])
	if err != nil {
		return nil, fmt.Errorf("%w: an entry sealed with key %d does not open", ErrDamaged, id)
	}
	o.scratch = plain
	return plain, nil
}
