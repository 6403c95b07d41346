package cluster

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

const (
	logFile = "raft.db"
	// openTimeout is how long to wait for a file that another process holds,
	// such as a predecessor that is just ending.
	openTimeout = 2 * time.Second
)

var keyServerID = []byte("ShepherdServerID")

// storage is where a node keeps its log, votes and snapshots.
type storage struct {
	log       raft.LogStore
	stable    raft.StableStore
	snapshots raft.SnapshotStore
	closer    io.Closer // nil if the caller brought the stores
	calls     *diskCalls

	// What log and snapshots are made of.
	bounded *boundedLog
	kept    *snapshots
}

// HasState reports whether a data directory holds a server's log, so that
// there is something to continue.
func HasState(dataDir string) (bool, error) {
	info, err := os.Stat(filepath.Join(dataDir, logFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, describe("look into", dataDir, err)
	}
	return info.Size() > 0, nil
}

func openStorage(cfg *Config, logger hclog.Logger) (*storage, error) {
	s := &storage{log: cfg.Log, stable: cfg.Stable, snapshots: cfg.Snapshots}
	if s.log == nil || s.stable == nil || s.snapshots == nil {
		if err := s.openFiles(cfg, logger); err != nil {
			return nil, err
		}
	}
	err := s.claim(cfg.ID)
	if err == nil {
		s.calls = newDiskCalls()
		s.stable = &timedStable{s.stable, s.calls}
		err = s.bound(cfg)
	}
	if errors.Is(err, ErrDamaged) {
		err = describe("use", filepath.Join(cfg.DataDir, logFile), err)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// bound makes the log one of bounded size, and with no gap.
func (s *storage) bound(cfg *Config) (err error) {
	if s.kept, err = newSnapshots(s.snapshots); err != nil {
		return err
	}
	if s.bounded, err = newBoundedLog(&timedLog{s.log, s.calls}, cfg, s.kept); err != nil {
		return err
	}
	s.log, s.snapshots = newLogCache(s.bounded, cachedEntries, cachedBytes), s.kept
	return nil
}

func (s *storage) openFiles(cfg *Config, logger hclog.Logger) error {
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return describe("create", cfg.DataDir, err)
	}
	if s.snapshots == nil {
		snapshots, err := raft.NewFileSnapshotStoreWithLogger(cfg.DataDir, cfg.SnapshotsKept, logger.Named("snapshot"))
		if err != nil {
			return describe("open snapshots in", cfg.DataDir, err)
		}
		s.snapshots = snapshots
	}
	if s.log != nil && s.stable != nil {
		return nil
	}
	path := filepath.Join(cfg.DataDir, logFile)
	db, err := raftboltdb.New(raftboltdb.Options{
		Path: path,
		BoltOptions: &bbolt.Options{
			Timeout:        openTimeout,
			NoFreelistSync: true,
			FreelistType:   bbolt.FreelistMapType,
			OpenFile:       openChecked,
		},
		MsgpackUseNewTimeFormat: true,
	})
	if err != nil {
		return describe("open", path, err)
	}
	s.closer = db
	if s.log == nil {
		s.log = db
	}
	if s.stable == nil {
		s.stable = db
	}
	return nil
}

// claim ties the stores to one server: an ID must never vote from another
// server's disk, nor from an empty one.
func (s *storage) claim(id string) error {
	have, err := s.stable.Get(keyServerID)
	if err != nil && err.Error() != "not found" {
		return fmt.Errorf("read server ID: %w", err)
	}
	if len(have) > 0 {
		if string(have) != id {
			return fmt.Errorf("%w: it is that of %s, not %s", ErrForeignData, have, id)
		}
		return s.checkTerm()
	}
	if err := s.checkNew(); err != nil {
		return err
	}
	if err := s.stable.Set(keyServerID, []byte(id)); err != nil {
		return fmt.Errorf("write server ID: %w", err)
	}
	return nil
}

// checkNew returns ErrDamaged if there is a log or a term, but nobody whose they are.
func (s *storage) checkNew() error {
	last, err := s.log.LastIndex()
	if err != nil {
		return fmt.Errorf("find the last entry: %w", err)
	}
	term, err := s.term()
	if err != nil {
		return err
	}
	if last > 0 || term > 0 {
		return damaged("it ends in term %d with entry %d, and does not say whose votes it holds", term, last)
	}
	return nil
}

// checkTerm returns ErrDamaged if the log is of a later term than the one that
// is written down before anything is logged or voted for in it.
func (s *storage) checkTerm() error {
	last, err := s.log.LastIndex()
	if err != nil || last == 0 {
		return err
	}
	var entry raft.Log
	if err := s.log.GetLog(last, &entry); err != nil {
		return damaged("entry %d: %w", last, err)
	}
	term, err := s.term()
	if err == nil && term < entry.Term {
		err = damaged("its last entry is of term %d, and it knows of term %d only: its votes are lost", entry.Term, term)
	}
	return err
}

// term is the latest that this server has taken part in, 0 for none.
func (s *storage) term() (uint64, error) {
	term, err := s.stable.GetUint64([]byte(keyTerm))
	if err != nil && err.Error() != "not found" { // as Raft itself tells
		return 0, fmt.Errorf("read the term: %w", err)
	}
	return term, nil
}

// Close closes what the node opened.
func (s *storage) Close() error {
	if s.closer == nil {
		return nil
	}
	if err := s.closer.Close(); err != nil {
		return fmt.Errorf("close log: %w", err)
	}
	return nil
}

// describe turns the usual reasons why files cannot be opened into a sentence
// that says what to do.
func describe(what, path string, err error) error {
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("cannot %s %s: the file is held by another process; is a server running with this data directory? (%w)", what, path, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("cannot %s %s: no space is left on that file system (%w)", what, path, err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("cannot %s %s: the file system is read-only (%w)", what, path, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("cannot %s %s: wrong owner or mode, %s and this process runs as user %d (%w)", what, path, owner(path), os.Geteuid(), err)
	case errors.Is(err, ErrDamaged):
		return fmt.Errorf("cannot %s %s: %w; votes and entries may be missing, so this server must not go on with it: empty the data directory %s "+
			"and start the server with the command that it joined with. If no other server is left, restore a backup", what, path, err, filepath.Dir(path))
	}
	return fmt.Errorf("cannot %s %s: %w", what, path, err)
}

// owner says who owns the path, or the nearest directory above that exists.
func owner(path string) string {
	for {
		info, err := os.Stat(path)
		if err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				return fmt.Sprintf("%s belongs to user %d with mode %v", path, st.Uid, info.Mode())
			}
			return fmt.Sprintf("%s has mode %v", path, info.Mode())
		}
		parent := filepath.Dir(path)
		if parent == path {
			return "its owner is unknown"
		}
		path = parent
	}
}
