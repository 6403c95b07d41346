package fsm

import "fmt"

// EpochBits is how far a restore epoch is shifted in a revision: each new
// epoch moves the revisions forward by at least 2^36.
const EpochBits = 36

// Rebase begins a new restore epoch: the revision of the state and of every
// object moves forward by 2^36 for each epoch, so that each exceeds all that a
// lost timeline gave out, and a write that names one of those conflicts.
// Cursors and kept revisions end, and requests of before are forgotten and
// refused. It is for a store that no Raft applies to, before its state is
// written as a snapshot. On an error nothing changes.
func (s *Store) Rebase(epoch uint64) error {
	now := s.next.epoch
	if epoch <= now {
		return fmt.Errorf("restore epoch %d does not come after %d", epoch, now)
	}
	step := epoch - now
	if step > (1<<63-1-s.next.revision&(1<<63-1))>>EpochBits || s.next.revision >= 1<<63 {
		return fmt.Errorf("restore epoch %d is too far from %d: revisions would overflow", epoch, now)
	}
	meta := s.next
	meta.epoch = epoch
	meta.revision += step << EpochBits
	meta.horizon = meta.revision
	meta.hash = Hash{}
	moved := newObjectTree()
	s.objects.Scan(func(o *Object) bool {
		n := *o
		n.Created += step << EpochBits
		n.Modified += step << EpochBits
		meta.hash = meta.hash.plus(n.hash())
		moved.Set(&n)
		return true
	})
	s.reset(moved, outcomes{tree: newOutcomeTree()}, meta)
	return nil
}
