package histories

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// verb is what an operation asks for.
type verb string

const (
	verbCreate verb = "create"
	verbUpdate verb = "update" // with a version it is conditional
	verbPatch  verb = "patch"  // a merge patch of Data.P alone; with a version it is conditional
	verbDelete verb = "delete" // with a version it is conditional; a deletion of the collection counts as one of every object
	verbGet    verb = "get"    // a list counts as a get of every key
)

// data is the content of a ConfigMap: V is written by creates and updates, P by
// patches. Every write brings a value of its own.
type data struct{ V, P string }

// operation is what a client asked for.
type operation struct {
	Verb    verb
	Key     string
	Data    data
	Version uint64 // the condition; 0 for none
}

// answer is what it was told.
type answer struct {
	Is      is
	UID     string
	Version uint64
	Data    data
}

// is the kind of an answer.
type is string

const (
	isOK       is = "ok"
	isExists   is = "exists"    // 409 AlreadyExists
	isNotFound is = "not found" // 404
	isConflict is = "conflict"  // 409 Conflict
	isUnknown  is = "unknown"   // it may have happened, or not, or may still
	isRefused  is = "refused"   // it has surely not happened
)

// object is the state of one key. A UID or a version that nobody has been told
// yet, because the answer was lost, is empty.
type object struct {
	exists  bool
	uid     string
	version uint64
	data    data
}

// matches reports whether an answer can be about this very state.
func (o object) matches(a answer) bool {
	return o.exists && (o.uid == "" || o.uid == a.UID) && (o.version == 0 || o.version == a.Version) && o.data == a.Data
}

// model is what Kubernetes promises of one object, strictly consistent.
var model = porcupine.Model{
	Partition: byKey,
	Init:      func() any { return object{} },
	Step: func(state, input, output any) (bool, any) {
		return step(state.(object), input.(operation), output.(answer))
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
}

func byKey(history []porcupine.Operation) (parts [][]porcupine.Operation) {
	index := make(map[string]int)
	for _, op := range history {
		key := op.Input.(operation).Key
		i, ok := index[key]
		if !ok {
			i = len(parts)
			index[key], parts = i, append(parts, nil)
		}
		parts[i] = append(parts[i], op)
	}
	return parts
}

// step says whether the answer is right in that state, and what follows. What
// may or may not have happened is taken to happen at its place in the order,
// which may be the very end, where nobody sees it.
func step(was object, op operation, a answer) (bool, object) {
	switch a.Is {
	case isExists:
		return op.Verb == verbCreate && was.exists, was
	case isNotFound:
		return op.Verb != verbCreate && !was.exists, was
	case isConflict:
		// Whoever named a version had been told of it, and so had the model.
		return op.Version != 0 && was.exists && was.version != op.Version, was
	}
	if op.Verb == verbGet {
		return was.matches(a), object{true, a.UID, a.Version, a.Data}
	}
	possible := was.exists != (op.Verb == verbCreate) && (op.Version == 0 || was.version == op.Version)
	next := was.after(op)
	if a.Is == isUnknown {
		if !possible {
			next = was
		}
		return true, next
	}
	if !possible {
		return false, was
	}
	if op.Verb == verbDelete {
		told := a.Version == 0 || a.Version > was.version && a.Data == was.data // not every deletion tells what it removed
		return told && (was.uid == "" || was.uid == a.UID), next
	}
	ok := next.matches(a) && a.Version > was.version
	next.uid, next.version = a.UID, a.Version
	return ok, next
}

// after is the state once op has been carried out.
func (o object) after(op operation) object {
	switch op.Verb {
	case verbCreate:
		return object{exists: true, data: op.Data}
	case verbUpdate:
		return object{exists: true, uid: o.uid, data: op.Data}
	case verbPatch:
		return object{exists: true, uid: o.uid, data: data{V: o.data.V, P: op.Data.P}}
	}
	return object{}
}
