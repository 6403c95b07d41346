package fsm

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// Object is one version of one object. It is immutable: it is shared by every
// view, event and cache, and none of its fields or bytes may be changed.
type Object struct {
	Key Key
	// UID tells this object from others that bore the name before or after.
	UID string
	// Created and Modified are the revisions of the object's creation and of
	// this version. Modified is its resourceVersion.
	Created  uint64
	Modified uint64
	// Deleting says that the object is on its way out (a deletion timestamp,
	// a terminating namespace). Preconditions can ask for its absence.
	Deleting bool
	// Data is the encoded object, as in the command.
	Data []byte
}

// Verb is what an operation does. Its values are part of the log format.
type Verb uint8

const (
	Create Verb = iota + 1
	Update
	Delete
)

func (v Verb) String() string {
	switch v {
	case Create:
		return "create"
	case Update:
		return "update"
	case Delete:
		return "delete"
	}
	return fmt.Sprintf("verb(%d)", uint8(v))
}

// Op changes one object. Create needs the key to be absent; Update and Delete
// need an object with this UID. An Update to equal bytes is a no-op: it takes
// no revision and makes no event.
type Op struct {
	Verb     Verb
	Key      Key
	UID      string
	Deleting bool
	Data     []byte
}

// Precondition is something a decision depended on. With Absent there must be
// no such object. Otherwise the object must exist, and UID and Revision must
// match where they are set; Live asks that it is not Deleting.
type Precondition struct {
	Key      Key
	Absent   bool
	UID      string
	Revision uint64
	Live     bool
}

// RequestID names a request, so that applying it twice has the effect of
// applying it once. The zero value is no ID.
type RequestID struct {
	// Nonce is drawn once by the replica that received the request.
	Nonce [16]byte
	// Birth is the store's revision at which the ID was drawn. It bounds how
	// long the ID must be remembered.
	Birth uint64
	// Sub names one of several commands that a request is split into, by what
	// it does and not by its ordinal: "delete/UID".
	Sub string
}

// NewRequestID draws an ID at the given revision.
func NewRequestID(birth uint64) RequestID {
	id := RequestID{Birth: birth}
	_, _ = rand.Read(id.Nonce[:]) // never fails: crypto/rand ends the process instead
	return id
}

// IsZero reports whether there is no ID.
func (id RequestID) IsZero() bool { return id.Nonce == [16]byte{} }

// WithSub returns the ID of a part of the request.
func (id RequestID) WithSub(sub string) RequestID {
	id.Sub = sub
	return id
}

func (id RequestID) String() string {
	s := fmt.Sprintf("%s@%d", hex.EncodeToString(id.Nonce[:]), id.Birth)
	if id.Sub != "" {
		s += "/" + id.Sub
	}
	return s
}

// Command is the unit of decision: all of its operations happen, or none.
type Command struct {
	// ID is zero for commands that may be planned again at any time, such as
	// those of controllers.
	ID RequestID
	// Term is the term of leadership in which the decision's view was taken.
	Term uint64
	// Level is the lowest level at which the command can be applied; zero is 1.
	// It is that of the whole entry, and so not part of the command's own bytes.
	Level uint8
	// Time is the cluster time of the proposal, in nanoseconds since 1970.
	Time int64
	Pre  []Precondition
	Ops  []Op
}

// Code is the outcome of a command.
type Code uint8

const (
	// OK: applied now, or (Result.Duplicate) before.
	OK Code = iota + 1
	// StaleTerm: planned in another term than the entry's. Nothing changed.
	StaleTerm
	// Expired: the request ID is older than the table of outcomes, so whether
	// it was applied is not known. Nothing changed now.
	Expired
	// Conflict: a precondition or an operation did not fit the state.
	// Read again and plan again. Nothing changed.
	Conflict
	// Malformed: the command can never be applied. Nothing changed.
	Malformed
)

func (c Code) String() string {
	switch c {
	case OK:
		return "OK"
	case StaleTerm:
		return "StaleTerm"
	case Expired:
		return "Expired"
	case Conflict:
		return "Conflict"
	case Malformed:
		return "Malformed"
	}
	return fmt.Sprintf("code(%d)", uint8(c))
}

// Result is what applying a command gave. Store.Apply returns one for each
// command of the entry.
type Result struct {
	Code Code
	// Duplicate says that the request had been applied before; Objects are
	// those of the first time.
	Duplicate bool
	// FailedKey and Detail say what a Conflict or a Malformed was about.
	FailedKey Key
	Detail    string
	// Objects holds for each operation the object after it; for a Delete its
	// last state, with the revision of the deletion.
	Objects []*Object
	// Revision of the store after the command.
	Revision uint64
}
