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
	// Most objects fit, and are hashed without any garbage.
	b := make([]byte, 0, 4096)
	b = binary.BigEndian.AppendUint64(b, o.Created)
	b = binary.BigEndian.AppendUint64(b, o.Modified)
	var deleting byte
	if o.Deleting {
		deleting = 1
	}
	b = append(b, deleting)
	b = binary.BigEndian.AppendUint64(b, uint64(len(o.Data)))
	for _, part := range [...]string{o.Key.Resource, o.Key.Namespace, o.Key.Name, o.UID} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	b = append(b, o.Data...)
	sum := sha256.Sum256(b)
	return Hash{binary.BigEndian.Uint64(sum[:8]), binary.BigEndian.Uint64(sum[8:16])}
}
