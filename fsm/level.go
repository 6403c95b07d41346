package fsm

import (
	"fmt"
	"strconv"
)

// A cluster is upgraded one server at a time, and meanwhile replicas of two
// builds apply the same log. So what a command may mean has a level. A build
// knows how to apply all levels up to its own; the state says up to which one
// commands may be proposed, 1 at first. It is raised by a command, once every
// server can apply more, and never falls. The level of an entry's commands is
// the version of the entry: whoever does not know it halts.
//
// A new meaning (a verb, a precondition, a field, another order of checks, a
// format of snapshots) takes the next level, and is proposed only where
// View.Level has reached it.

// Level is the highest command level that this build can apply.
const Level = 1

// LevelKey holds the level of the state, as a decimal number.
var LevelKey = Key{Resource: ReservationResource, Name: "commandlevel/current"}

// LevelData is the data of the object at LevelKey.
func LevelData(level uint8) []byte { return strconv.AppendUint(nil, uint64(level), 10) }

// parseLevel returns 0 for what is no level.
func parseLevel(data []byte) uint8 {
	v, err := strconv.ParseUint(string(data), 10, 8)
	if err != nil || string(LevelData(uint8(v))) != string(data) {
		return 0
	}
	return uint8(v)
}

// Level is up to which level commands may be proposed.
func (v *View) Level() uint8 {
	if o := v.Get(LevelKey); o != nil {
		return parseLevel(o.Data)
	}
	return 1
}

// MaxLevel is the highest level that this store can apply.
func (s *Store) MaxLevel() uint8 { return s.cfg.Level }

// TooOld is the error of a build that cannot apply what has the level.
func TooOld(what string, level uint64, max uint8) error {
	return fmt.Errorf("%w: %s of command level %d, and this build can apply level %d at most; "+
		"run a build that can apply level %d, as the other servers do", ErrUnknownVersion, what, level, max, level)
}

// checkLevel finds the change of level, among events, to one that this build
// does not know.
func checkLevel(events []Event, max uint8) error {
	for i := range events {
		if e := &events[i]; e.Object.Key == LevelKey {
			if l := parseLevel(e.Object.Data); l > max {
				return TooOld("the cluster's state is", uint64(l), max)
			}
		}
	}
	return nil
}

// checkRestored is checkLevel for a whole state.
func checkRestored(objects *objectTree, max uint8) error {
	if o, ok := objects.Get(&Object{Key: LevelKey}); ok {
		return checkLevel([]Event{{Object: o}}, max)
	}
	return nil
}

// malformedLevel returns what is wrong with an operation on LevelKey, or "".
func (op *Op) malformedLevel() string {
	switch {
	case op.Verb == Delete:
		return "the command level is never deleted"
	case parseLevel(op.Data) == 0:
		return "is no command level"
	}
	return ""
}
