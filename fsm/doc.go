// Package fsm is the replicated state machine: the ground floor that every
// other package stands on.
//
// # State
//
// The state is a map from Key to Object. An Object is encoded bytes, exactly
// those of the command that wrote it: Apply never defaults, converts or
// re-encodes, so replicas of different versions agree. Beside the objects the
// state holds the revision counter, the restore epoch, the cluster time and a
// bounded table of the outcomes of recent requests.
//
// # Commands and entries
//
// A Raft entry is a versioned envelope of a list of commands. A Command is a
// list of operations that happen all or not at all, under preconditions. Its
// planning term must be the term of the log entry that carries it, so a
// decision of a deposed leader is never applied.
//
// # Revisions
//
// One counter serves all objects. Each changed object takes the next value; it
// is the object's resourceVersion. Failures, no-ops and duplicates take none.
//
// # Reading
//
// A View is an immutable state; a Cursor reads the events between two of them.
// The root and the events of an entry are published together.
//
// Nothing in this package reads a clock, draws randomness while applying,
// does I/O of its own, or acts differently on a leader.
package fsm
