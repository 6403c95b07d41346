package cluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/cluster/seal"
)

// RestoreConfig says where and as what a backup is restored.
type RestoreConfig struct {
	DataDir string
	// Name of the server that the directory becomes.
	Name string
	// Address that other servers shall reach it at; its start may change it.
	Address string
	// Epoch is the restore epoch to begin; zero means NextEpoch.
	Epoch uint64
	Now   time.Time
}

// Restored says what a restore has made.
type Restored struct {
	ServerID string
	Epoch    uint64
	Revision uint64
}

// Restore makes an empty data directory that of the only server of the
// backup's cluster, with a new Raft ID, in a new restore epoch. The servers of
// the backup are left behind: they must join anew. The backup's store is used
// up. What it had written is removed when it fails.
func (b *Backup) Restore(cfg RestoreConfig) (_ *Restored, err error) {
	if err := pki.CheckName(cfg.Name); err != nil {
		return nil, fmt.Errorf("server name %q: %w", cfg.Name, err)
	}
	if _, _, err := net.SplitHostPort(cfg.Address); err != nil {
		return nil, fmt.Errorf("server address %q: %w", cfg.Address, err)
	}
	if cfg.Epoch == 0 {
		cfg.Epoch = NextEpoch(b.Header.Epoch, cfg.Now)
	}
	h, err := OpenHome(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	if !h.Empty() {
		return nil, fmt.Errorf("data directory %s holds server %s already: restore into an empty directory, or move that one away first", cfg.DataDir, h.ID())
	}
	out := &Restored{ServerID: NewServerID(cfg.Name), Epoch: cfg.Epoch}
	var old []string
	for _, s := range b.Servers {
		old = append(old, s.ID)
	}
	v := b.Store.View()
	index, term := v.Index()+1, max(v.Term(), 1)
	if err := beginEpoch(b.Store, cfg.Epoch, index, term, b.Servers, sealingKey); err != nil {
		return nil, err
	}
	keys := seal.Begin(cfg.Now) // the backup's own seal is another; nothing is left that the old keys open
	out.Revision = b.Store.View().Revision()
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(filepath.Join(cfg.DataDir, logFile)), os.RemoveAll(filepath.Join(cfg.DataDir, snapshotDir)))
		}
	}()
	if err := b.writeRaft(cfg, keys, out.ServerID, index, term); err != nil {
		return nil, err
	}
	record := serverRecord{Name: cfg.Name, ID: out.ServerID, Address: cfg.Address, Opened: true, Entered: true, LeftBehind: old}
	return out, h.settle(b.CA, record, keys, nil)
}

// snapshotDir is where raft.FileSnapshotStore keeps snapshots.
const snapshotDir = "snapshots"

// writeRaft writes a log without entries and a snapshot of the state, in which
// the server is the only voter.
func (b *Backup) writeRaft(cfg RestoreConfig, keys seal.Keys, id string, index, term uint64) (err error) {
	nc := DefaultConfig()
	nc.ID, nc.DataDir = id, cfg.DataDir
	files, err := openStorage(&nc, hclog.NewNullLogger())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	if err := files.stable.SetUint64([]byte("CurrentTerm"), term); err != nil {
		return fmt.Errorf("write the term: %w", err)
	}
	address, transport := raft.NewInmemTransport(raft.ServerAddress(cfg.Address)) // for its encoding of addresses
	defer func() { err = errors.Join(err, transport.Close()) }()
	one := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(id), Address: address}}}
	sink, err := files.snapshots.Create(raft.SnapshotVersionMax, index, term, one, 1, transport)
	if err != nil {
		return describe("write a snapshot into", cfg.DataDir, err)
	}
	snap, err := b.Store.Snapshot()
	if err != nil {
		return errors.Join(err, sink.Cancel())
	}
	defer snap.Release()
	key, _ := keys.Newest()
	return (&sealedSnapshot{FSMSnapshot: snap, key: key}).Persist(sink) // closes it, or cancels it
}
