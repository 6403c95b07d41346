package cluster

import (
	"fmt"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/fsm"
)

// machine is the state machine as Raft sees it. It also notes where the
// configuration was last changed: Raft compares that index in order to refuse a
// change that was decided on another configuration, and tells it nobody (its
// GetConfiguration always gives 0, which turns the comparison off).
type machine struct {
	*fsm.Store
	steps *snapshots    // notes what snapshots cost; nil: nobody does
	index atomic.Uint64 // of the last configuration that was applied; 0: it is in the snapshot
}

// Snapshot is the store's. No entry is applied until it returns.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	defer m.steps.timed("stop")()
	return m.Store.Snapshot()
}

// Restore is the store's.
func (m *machine) Restore(r io.ReadCloser) error {
	defer m.steps.timed("restore")()
	return m.Store.Restore(r)
}

// ApplyBatch applies entries, of commands and of configurations.
func (m *machine) ApplyBatch(logs []*raft.Log) []any {
	out := m.Store.ApplyBatch(logs)
	for _, l := range logs {
		if l.Type == raft.LogConfiguration {
			m.index.Store(l.Index)
		}
	}
	return out
}

// configuration is what a change of the members is decided on.
type configuration struct {
	index   uint64 // binds the change to it
	servers []raft.Server
}

// configuration returns the latest configuration of a leader whose state is
// complete. The index is read first: a change in between makes it too small, and
// Raft refuses what is decided then.
func (n *Node) configuration() (configuration, error) {
	index := n.machine.index.Load()
	snapshots, err := n.files.snapshots.List()
	if err != nil {
		return configuration{}, fmt.Errorf("look for the configuration in the snapshots: %w", err)
	}
	for _, s := range snapshots {
		index = max(index, s.ConfigurationIndex)
	}
	if index == 0 {
		return configuration{}, fmt.Errorf("%w: it has not applied the configuration", ErrNotLeader)
	}
	return configuration{index, n.servers()}, nil
}
