package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/seal"
	"github.com/shepherd-project/shepherd/fsm"
)

// Timing holds every period and bound of a node. Scale multiplies all of the
// durations: the one knob for slow links.
type Timing struct {
	Scale float64

	Heartbeat   time.Duration // a follower without contact for that long calls an election
	Election    time.Duration // a candidate without a result for that long tries again
	LeaderLease time.Duration // a leader without a majority for that long steps down
	Commit      time.Duration // how long an idle leader waits before it tells followers the commit index
	Transport   time.Duration // bound of one Raft RPC, and of connecting to a peer

	Forward time.Duration // bound of Forward over all leaders
	Propose time.Duration // bound of one proposal, from enqueuing to its result
	Read    time.Duration // bound of ReadIndex over all leaders
	Round   time.Duration // bound of asking a majority once
	Promote time.Duration // how often a leader looks whether a non-voter has caught up
	Status  time.Duration // bound of asking the members for their state

	Snapshot time.Duration // how often to look whether the log should be compacted

	Compare time.Duration // how often a server compares its state with that of the others

	Ping     time.Duration // how often the failure detector asks each peer whether it is there
	Silence  time.Duration // a peer that has not answered for that long is lost
	Standby  time.Duration // how long the next in rank waits for the first to stand for election
	Patience time.Duration // and how long for an election that has begun

	DiskStall time.Duration // a leader gives up when a call to its log hangs for that long, if others can go on
}

// Config is what a Node needs. Fields without a default must be set.
type Config struct {
	// ID is the server's Raft ID: its name plus a random suffix drawn once per
	// data directory, never used again with an empty disk.
	ID string
	// Name is what people call the server.
	Name string
	// Address is the host:port that the other servers reach it at.
	Address string
	// DataDir holds the log, votes and snapshots. Not used if Log, Stable and
	// Snapshots are all set.
	DataDir string
	// Bootstrap makes this server the only member of a new cluster, if the
	// data directory is empty. It is ignored otherwise.
	Bootstrap bool

	// Store is the state machine. The node is the only one to apply to it.
	Store *fsm.Store
	// Keys are the data keys that log entries and snapshots are sealed with. Nil:
	// nothing is sealed, and nothing sealed can be read.
	Keys *seal.Ring
	// Transport carries Raft's RPCs; see NewTransport. The node closes it.
	Transport raft.Transport
	// DialLink opens a link to the server at an address.
	DialLink func(ctx context.Context, address string) (net.Conn, error)
	// LinkListener accepts the links of other servers, whose role it has
	// checked. The node closes it.
	LinkListener net.Listener

	// Handler is the leader's half of every forwarded request. It runs only on
	// a leader whose state is complete, once at a time for one attempt of a
	// request, and under a context that the client cannot cancel.
	Handler func(ctx context.Context, req *wire.Request) *wire.Response
	// LinkHandler serves all paths on links that are not under /link/. Nil: none.
	LinkHandler http.Handler
	// Agent tells which node's agent makes a request on the API port.
	Agent func(*http.Request) (node string, ok bool)
	// Admin tells whether a request on the API port may see the status and
	// transfer leadership.
	Admin func(*http.Request) bool
	// Member tells whether a request on the API port may see the server list:
	// agents and administrators. Nil: whoever Agent or Admin knows.
	Member func(*http.Request) bool

	// Log, Stable and Snapshots replace the files in DataDir. A Log or Stable
	// that has a Close method is closed with the node only if it was opened by
	// it.
	Log       raft.LogStore
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore

	// Wall reads this host's wall clock, which may be wrong and may jump: all
	// that depends on it is by how much cluster time moves on over a time in
	// which the whole cluster was down. Waiting and ages go by the monotonic
	// clock, of package time. Nil: time.Now.
	Wall func() time.Time

	Timing Timing
	// FailureDetector calls an election as soon as a majority has lost the
	// leader, instead of waiting for Timing.Heartbeat. It needs a Transport
	// made by NewTransport.
	FailureDetector bool
	// GiveUp is called, at most once, when this server leads, its disk hangs and
	// the others can go on without it: it must close the server's listener and
	// connections at once and then end the process, which may not succeed while
	// the disk hangs. The node is of no use afterwards; Shutdown may not return.
	// Nil: such a leader stays. It needs FailureDetector.
	GiveUp func(error)
	// DeadServerGrace is how long a voter may be dead before the leader removes
	// it, as long as three are left; DeadJoinerGrace is the same for servers that
	// have no vote yet. Zero: never.
	DeadServerGrace, DeadJoinerGrace time.Duration
	// MaxBatch and MaxBatchBytes bound the commands in one log entry.
	MaxBatch      int
	MaxBatchBytes int
	// MaxPending bounds the commands that wait for a place in an entry.
	MaxPending int
	// MaxForwards bounds the forwarded requests that a leader handles at once.
	MaxForwards int
	// SnapshotThreshold entries, or SnapshotBytes of them (twice the size of the
	// last snapshot, if that is more), after a snapshot the next one is due.
	SnapshotThreshold, SnapshotBytes uint64
	// TrailingLogs entries are kept before a snapshot for followers that lag, or
	// as many as TrailingBytes hold.
	TrailingLogs, TrailingBytes uint64
	SnapshotsKept               int

	Logger     hclog.Logger          // nil: silent
	Registerer prometheus.Registerer // nil: no metrics are registered
}

// DefaultTiming returns the periods that were measured to survive a busy host
// without spurious elections.
func DefaultTiming() Timing {
	return Timing{
		Scale:       1,
		Heartbeat:   500 * time.Millisecond,
		Election:    500 * time.Millisecond,
		LeaderLease: 250 * time.Millisecond,
		Commit:      50 * time.Millisecond,
		Transport:   2 * time.Second,
		Forward:     30 * time.Second,
		Propose:     10 * time.Second,
		Read:        10 * time.Second,
		Round:       500 * time.Millisecond,
		Promote:     50 * time.Millisecond,
		Status:      time.Second,
		Snapshot:    30 * time.Second,
		Compare:     5 * time.Second,
		Ping:        25 * time.Millisecond,
		Silence:     300 * time.Millisecond,
		Standby:     60 * time.Millisecond,
		Patience:    500 * time.Millisecond,
		DiskStall:   2 * time.Second,
	}
}

// DefaultConfig returns a Config in which only what has no default is missing.
func DefaultConfig() Config {
	return Config{
		Timing:            DefaultTiming(),
		FailureDetector:   true,
		DeadServerGrace:   72 * time.Hour,
		DeadJoinerGrace:   time.Hour,
		MaxBatch:          512,
		MaxBatchBytes:     512 << 10,
		MaxPending:        16384,
		MaxForwards:       4096,
		SnapshotThreshold: 8192,
		SnapshotBytes:     64 << 20,
		TrailingLogs:      10240,
		TrailingBytes:     64 << 20,
		SnapshotsKept:     2,
	}
}

// scaled returns the timing with Scale applied to every duration.
func (t Timing) scaled() Timing {
	for _, d := range t.durations() {
		*d.value = time.Duration(float64(*d.value) * t.Scale)
	}
	return t
}

type namedDuration struct {
	name  string
	value *time.Duration
}

func (t *Timing) durations() []namedDuration {
	return []namedDuration{
		{"heartbeat", &t.Heartbeat}, {"election", &t.Election}, {"leaderLease", &t.LeaderLease}, {"commit", &t.Commit},
		{"transport", &t.Transport}, {"forward", &t.Forward}, {"propose", &t.Propose}, {"read", &t.Read},
		{"round", &t.Round}, {"promote", &t.Promote}, {"status", &t.Status}, {"snapshot", &t.Snapshot},
		{"compare", &t.Compare}, {"ping", &t.Ping}, {"silence", &t.Silence}, {"standby", &t.Standby}, {"patience", &t.Patience},
		{"diskStall", &t.DiskStall},
	}
}

// Validate names every setting that cannot work.
func (t *Timing) Validate() error {
	var errs []error
	if t.Scale < 0.01 || t.Scale > 100 {
		errs = append(errs, fmt.Errorf("timing scale %v is not between 0.01 and 100", t.Scale))
	}
	for _, d := range t.durations() {
		if *d.value < time.Millisecond {
			errs = append(errs, fmt.Errorf("timing %s is %v, at least 1ms is needed", d.name, *d.value))
		}
	}
	if t.LeaderLease > t.Heartbeat {
		errs = append(errs, fmt.Errorf("timing leaderLease %v is longer than heartbeat %v", t.LeaderLease, t.Heartbeat))
	}
	if t.Election < t.Heartbeat {
		errs = append(errs, fmt.Errorf("timing election %v is shorter than heartbeat %v", t.Election, t.Heartbeat))
	}
	if t.DiskStall < 4*t.Ping {
		errs = append(errs, fmt.Errorf("timing diskStall %v is less than four times ping %v", t.DiskStall, t.Ping))
	}
	if t.Silence < 4*t.Ping {
		errs = append(errs, fmt.Errorf("timing silence %v is less than four times ping %v", t.Silence, t.Ping))
	}
	return errors.Join(errs...)
}

// Validate names every field that is missing or cannot work.
func (c *Config) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New(what))
		}
	}
	need(c.ID != "", "server ID is missing")
	need(c.Name != "", "server name is missing")
	need(c.Address != "", "server address is missing")
	need(c.DataDir != "" || c.Log != nil && c.Stable != nil && c.Snapshots != nil, "data directory is missing")
	need(c.Store != nil, "store is missing")
	need(c.Transport != nil, "transport is missing")
	need(c.DialLink != nil, "link dialer is missing")
	need(c.LinkListener != nil, "link listener is missing")
	need(c.Handler != nil, "request handler is missing")
	need(c.DeadServerGrace >= 0 && c.DeadJoinerGrace >= 0, "deadServerGrace and deadJoinerGrace must not be negative")
	need(c.MaxBatch > 0, "maxBatch must be positive")
	need(c.MaxBatchBytes > 0, "maxBatchBytes must be positive")
	need(c.MaxPending > 0, "maxPending must be positive")
	need(c.MaxForwards > 0, "maxForwards must be positive")
	need(c.SnapshotThreshold > 0, "snapshotThreshold must be positive")
	need(c.SnapshotBytes > 0, "snapshotBytes must be positive")
	need(c.TrailingLogs > 0, "trailingLogs must be positive")
	need(c.TrailingBytes > 0, "trailingBytes must be positive")
	need(c.SnapshotsKept > 0, "snapshotsKept must be positive")
	errs = append(errs, c.Timing.Validate())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cluster configuration: %w", err)
	}
	return nil
}

// raftConfig is the part of the configuration that Raft itself wants. t has
// been scaled.
func (c *Config) raftConfig(t Timing) *raft.Config {
	r := raft.DefaultConfig()
	r.LocalID = raft.ServerID(c.ID)
	r.HeartbeatTimeout = t.Heartbeat
	r.ElectionTimeout = t.Election
	r.LeaderLeaseTimeout = t.LeaderLease
	r.CommitTimeout = t.Commit
	r.MaxAppendEntries = 512
	r.BatchApplyCh = true
	r.ShutdownOnRemove = false
	r.SnapshotInterval = t.Snapshot
	r.SnapshotThreshold = c.SnapshotThreshold
	r.TrailingLogs = 1 // boundedLog keeps more
	r.PreVoteDisabled = false
	r.NoLegacyTelemetry = true
	r.Logger = c.Logger.Named("raft")
	return r
}
