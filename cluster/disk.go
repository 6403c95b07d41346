package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// disk stands between Raft and its files. A full disk is a matter of hours and
// of somebody who frees space, so nothing that fails here may end the process:
//
//	log    a leader whose entry cannot be written steps down by itself; from
//	       then on this server does not stand for election for a while, so
//	       that one with a good disk leads. A follower's write is tried again
//	       with the leader's next entries.
//	term   Raft panics when it cannot store its term. The write is tried again
//	       until it succeeds: a server that waits in it answers no vote and
//	       accepts no entry, which is what a server without its disk may do.
//	vote   fails, and the vote is not given.
//
// Safe for concurrent use.
type disk struct {
	raft.LogStore
	raft.StableStore
	logger hclog.Logger
	retry  time.Duration // between two attempts to write the term
	rest   time.Duration // for how long a failure keeps this server from standing for election
	ending context.Context
	barred func() error // why this server must never lead; nil if it may
	pace   *pace
	letGo  atomic.Bool // a term was not written because the node stops: nothing else may be

	mu     sync.Mutex
	failed time.Time // the last failure
	why    error     // of that; nil if there was none
	cause  error     // the same, nil after a success
}

// errDisk is why this server does not ask for votes.
var errDisk = errors.New("the log could not be written a moment ago")

// keyTerm is the key that Raft keeps its term under. A test asks the library.
const keyTerm = "CurrentTerm"

// newDisk watches over the stores. ending ends when the node stops.
func newDisk(ending context.Context, s *storage, t Timing, barred func() error, logger hclog.Logger) *disk {
	return &disk{LogStore: s.log, StableStore: s.stable, logger: logger.Named("disk"),
		retry: t.Round, rest: 4 * t.Election, ending: ending, barred: barred, pace: newPace(t, logger)}
}

// StoreLog writes one entry.
func (d *disk) StoreLog(l *raft.Log) error { return d.StoreLogs([]*raft.Log{l}) }

// StoreLogs writes entries.
func (d *disk) StoreLogs(logs []*raft.Log) error {
	if d.letGo.Load() {
		return ErrStopped
	}
	return d.note("write entries", func() error { return d.LogStore.StoreLogs(logs) })
}

// IsMonotonic makes Raft drop the whole old log once a snapshot of the leader
// is installed. Otherwise it keeps TrailingLogs of it, and what follows the
// snapshot comes after a gap (https://github.com/hashicorp/raft/issues/697).
func (d *disk) IsMonotonic() bool { return true }

// Set writes a part of the vote.
func (d *disk) Set(key, value []byte) error {
	if d.letGo.Load() {
		return ErrStopped
	}
	return d.note("write "+string(key), func() error { return d.StableStore.Set(key, value) })
}

// SetUint64 writes the term, for as long as that takes, or a part of the vote.
//
// A term that waits while the node stops is let go: Raft must not wait for ever
// for its own end. It is not on the disk then, and nothing that is promised in
// it can be: votes and entries are refused from there on.
func (d *disk) SetUint64(key []byte, value uint64) error {
	for !d.letGo.Load() {
		err := d.note("write "+string(key), func() error { return d.StableStore.SetUint64(key, value) })
		if err == nil || string(key) != keyTerm {
			return err
		}
		again := time.NewTimer(d.retry)
		select {
		case <-again.C:
		case <-d.ending.Done():
			again.Stop()
			d.letGo.Store(true)
		}
	}
	if string(key) == keyTerm {
		return nil
	}
	return ErrStopped
}

// note writes and keeps in mind how that ended, and how long it took. It returns
// the write's error as it is: the library compares some.
func (d *disk) note(what string, write func() error) error {
	begun := time.Now()
	err := write()
	if err == nil {
		d.pace.wrote(time.Since(begun))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err != nil:
		if d.cause == nil {
			d.logger.Error("cannot "+what+"; this server takes no part until it can", "error", err)
		}
		d.failed, d.why, d.cause = time.Now(), err, err
	case d.cause != nil:
		d.logger.Info("the disk can be written again", "after", d.cause)
		d.cause = nil
	}
	return err
}

// problem is what is wrong with the disk, or nil.
func (d *disk) problem() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cause == nil {
		return nil
	}
	return fmt.Errorf("the log cannot be written: %w", d.cause)
}

// maxReason bounds what is told to others about a failure, in bytes.
const maxReason = 200

// lately is why a write has failed a moment ago, "" if none has. Where the disk
// is full a small one may succeed between two that fail.
func (d *disk) lately() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.why == nil || time.Since(d.failed) >= 2*d.rest {
		return ""
	}
	text := d.why.Error()
	return text[:min(len(text), maxReason)]
}

// unwritable says why no write can be committed now: so many voters cannot write
// to their logs that the others are no majority. It is nil if they are.
func (n *Node) unwritable() error {
	all := voters(n.servers())
	reasons := n.detector.diskFailures()
	if why := n.disk.lately(); why != "" {
		reasons[raft.ServerID(n.cfg.ID)] = why
	}
	var whose []string
	for _, s := range all {
		if why := reasons[s.ID]; why != "" {
			whose = append(whose, ServerName(string(s.ID))+": "+why)
		}
	}
	if len(all)-len(whose) >= majority(len(all)) {
		return nil
	}
	return fmt.Errorf("the logs of %d of %d voters cannot be written: %s", len(whose), len(all), strings.Join(whose, "; "))
}

// fit returns an error while this server should not lead. It never lasts: if
// all disks were bad and are good again, somebody has to try.
func (d *disk) fit() error {
	if err := d.barred(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cause == nil || time.Since(d.failed) >= d.rest {
		return nil
	}
	return fmt.Errorf("%w: %w", errDisk, d.cause)
}

// notWritten reports errors after which nothing of an entry is on the disk:
// the file system refused the write itself. After a failed fsync it may be.
func notWritten(err error) bool {
	var at *fs.PathError
	return errors.As(err, &at) && at.Op == "write" &&
		(errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS))
}
