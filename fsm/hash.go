package fsm

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// Hash is the sum of the hashes of all objects, each over its key, UID,
// revisions, state and bytes. Replicas at the same index have the same hash.
// It finds faults, not forgery: sums of hashes are not collision resistant.
type Hash [2]uint64

func (h Hash) plus(o Hash) Hash  { return Hash{h[0] + o[0], h[1] + o[1]} }
func (h Hash) minus(o Hash) Hash { return Hash{h[0] - o[0], h[1] - o[1]} }

// Bytes returns the hash, big endian.
func (h Hash) Bytes() (b [16]byte) {
	binary.BigEndian.PutUint64(b[:8], h[0])
	binary.BigEndian.PutUint64(b[8:], h[1])
	return b
}

func (h Hash) String() string { return fmt.Sprintf("%016x%016x", h[0], h[1]) }

func (o *Object) hash() Hash {
	s := sha256.New()
	var head [25]byte
	binary.BigEndian.PutUint64(head[0:], o.Created)
	binary.BigEndian.PutUint64(head[8:], o.Modified)
	if o.Deleting {
		head[16] = 1
	}
	binary.BigEndian.PutUint64(head[17:], uint64(len(o.Data)))
	s.Write(head[:])
	var size [4]byte
	for _, part := range [...]string{o.Key.Resource, o.Key.Namespace, o.Key.Name, o.UID} {
		binary.BigEndian.PutUint32(size[:], uint32(len(part)))
		s.Write(size[:])
		s.Write([]byte(part))
	}
	s.Write(o.Data)
	var sum [sha256.Size]byte
	s.Sum(sum[:0])
	return Hash{binary.BigEndian.Uint64(sum[:8]), binary.BigEndian.Uint64(sum[8:16])}
}
