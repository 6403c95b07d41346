package fsm

import (
	"crypto/sha256"
	"encoding/binary"
	"sort"
)

// DigestVersion names what a Digest covers. Digests of different versions say
// nothing about each other.
const DigestVersion = 1

// digestsKept is how many digests a store remembers: replicas that are less
// than that many entries apart can compare themselves.
const digestsKept = 4096

// Digest is the whole state machine after one entry: its objects and
// everything else that decides about later entries. Two replicas that have
// applied the same entry have the same digest and epoch.
type Digest struct {
	Index uint64
	Epoch uint64
	Sum   [16]byte
}

// digest is that of the state being built.
func (s *Store) digest() Digest {
	v := &s.next
	var b [80]byte
	for i, n := range [...]uint64{
		v.hash[0], v.hash[1], v.revision, v.index, v.epoch, v.horizon, uint64(v.time),
		uint64(s.objects.Len()), uint64(len(s.outcomes.queue) - s.outcomes.head), uint64(s.outcomes.bytes),
	} {
		binary.BigEndian.PutUint64(b[8*i:], n)
	}
	sum := sha256.Sum256(b[:])
	return Digest{Index: v.index, Epoch: v.epoch, Sum: [16]byte(sum[:16])}
}

// digests are the last ones, in the order of their entries. Whoever uses it
// holds the store's lock.
type digests struct {
	ring []Digest
	next int // where the following one goes, once the ring is full
}

func (d *digests) add(one Digest) {
	if len(d.ring) < digestsKept {
		d.ring = append(d.ring, one)
		return
	}
	d.ring[d.next] = one
	d.next = (d.next + 1) % digestsKept
}

// at returns the digest after the entry with that index, if it is remembered.
func (d *digests) at(index uint64) (Digest, bool) {
	n := len(d.ring)
	nth := func(i int) Digest { return d.ring[(d.next+i)%n] }
	i := sort.Search(n, func(i int) bool { return nth(i).Index >= index })
	if i == n || nth(i).Index != index {
		return Digest{}, false
	}
	return nth(i), true
}

// Digest is the latest one.
func (s *Store) Digest() Digest {
	s.mu.RLock()
	defer s.mu.RUnlock()
	d, _ := s.digests.at(s.view.Load().index)
	return d
}

// DigestAt returns the digest after the entry with that index. It is known for
// the last few thousand entries that this store has applied itself, and for
// the one that it was restored at.
func (s *Store) DigestAt(index uint64) (Digest, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.digests.at(index)
}

// Distrust makes the store say, by Err, that its state must not be read. It
// goes on applying entries and writing snapshots; nothing undoes it.
func (s *Store) Distrust(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.distrust == nil {
		s.distrust = reason
		s.wakeLocked()
	}
}

// errLocked is what Err returns.
func (s *Store) errLocked() error {
	if s.err != nil {
		return s.err
	}
	return s.distrust
}

// haltedErr is why nothing can be applied any more, or nil.
func (s *Store) haltedErr() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.err
}
