package cluster

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/cluster/seal"
)

// sealedStore stands between Raft and the state machine: it opens entries and
// snapshots, and seals snapshots. What it cannot open halts the state machine,
// for to skip it would let replicas part.
type sealedStore struct {
	*machine
	keys   *keychain
	opener seal.Opener // Raft applies on one goroutine
	failed error       // of the last restore; read when Raft did not start
}

var (
	_ raft.BatchingFSM        = (*sealedStore)(nil)
	_ raft.ConfigurationStore = (*sealedStore)(nil)
)

func newSealedStore(m *machine, keys *keychain) *sealedStore {
	return &sealedStore{machine: m, keys: keys}
}

// Apply is the state machine's, for an entry that may be sealed.
func (s *sealedStore) Apply(l *raft.Log) any {
	select {
	case <-s.Halted():
		return s.Err() // a missing key is not waited for again
	default:
	}
	plain, err := s.open(l)
	if err != nil {
		s.Halt(err)
		return s.Err()
	}
	opened := *l
	opened.Data = plain // used again for the next one: commands do not alias it
	return s.Store.Apply(&opened)
}

func (s *sealedStore) open(l *raft.Log) ([]byte, error) {
	plain, err := s.opener.Open(l.Data, s.keys.ring.Get)
	if errors.Is(err, seal.ErrNoKey) {
		if err := s.keys.await(seal.KeyOf(l.Data)); err != nil {
			return nil, fmt.Errorf("entry %d: %w", l.Index, err)
		}
		plain, err = s.opener.Open(l.Data, s.keys.ring.Get)
	}
	if err != nil {
		return nil, fmt.Errorf("entry %d: %w: the disk, or somebody who can write to it, changed it; "+
			"move this server's data directory away and join again as a new server", l.Index, err)
	}
	return plain, nil
}

// ApplyBatch is the state machine's, for entries that may be sealed.
func (s *sealedStore) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	for i, l := range logs {
		if l.Type == raft.LogCommand {
			out[i] = s.Apply(l)
		} else {
			out[i] = s.machine.ApplyBatch(logs[i : i+1])[0]
		}
	}
	return out
}

// Snapshot is the state machine's, to be sealed with the key in use.
func (s *sealedStore) Snapshot() (raft.FSMSnapshot, error) {
	key, err := s.keys.current()
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	plain, err := s.machine.Snapshot()
	if err != nil || key.ID == 0 {
		return plain, err
	}
	return &sealedSnapshot{FSMSnapshot: plain, key: key}, nil
}

// Restore is the state machine's, for a snapshot that may be sealed.
func (s *sealedStore) Restore(r io.ReadCloser) error {
	plain, err := seal.NewReader(r, s.find)
	if err != nil {
		err = fmt.Errorf("restore snapshot: %w", err)
		if errors.Is(err, seal.ErrNoKey) && s.keys.raft.Load() != nil {
			s.Halt(err) // else Raft has it sent again and again
		}
		return s.note(errors.Join(err, r.Close()))
	}
	return s.note(s.machine.Restore(struct {
		io.Reader
		io.Closer
	}{plain, r}))
}

// find is the ring's Get that asks the other servers first for what is missing.
func (s *sealedStore) find(id uint32) (seal.Key, bool) {
	if _, ok := s.keys.ring.Get(id); !ok {
		if err := s.keys.await(id); err != nil {
			s.keys.logger.Error("a snapshot cannot be opened", "error", err)
		}
	}
	return s.keys.ring.Get(id)
}

// note keeps why the last restore failed: Raft does not say it when it cannot start.
func (s *sealedStore) note(err error) error {
	s.failed = err
	return err
}

// sealedSnapshot seals another one while that is being written.
type sealedSnapshot struct {
	raft.FSMSnapshot
	key seal.Key
}

// Persist streams the snapshot into the sink.
func (s *sealedSnapshot) Persist(sink raft.SnapshotSink) error {
	return s.FSMSnapshot.Persist(&sealedSink{SnapshotSink: sink, w: seal.NewWriter(sink, s.key)})
}

type sealedSink struct {
	raft.SnapshotSink
	w *seal.Writer
}

func (s *sealedSink) Write(p []byte) (int, error) { return s.w.Write(p) }

// Close writes what is left. Without that the snapshot is none, and is dropped.
func (s *sealedSink) Close() error {
	if err := s.w.Close(); err != nil {
		return errors.Join(err, s.SnapshotSink.Cancel())
	}
	return s.SnapshotSink.Close()
}
