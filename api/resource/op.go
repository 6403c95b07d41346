package resource

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shepherd-project/shepherd/fsm"
)

// CreateOp returns the operation that creates obj, which must have a name and
// a UID.
func CreateOp(obj runtime.Object) (fsm.Op, error) { return writeOp(fsm.Create, obj) }

// UpdateOp returns the operation that replaces the object of obj's name and
// UID by obj. It carries no precondition on the revision: the caller adds one
// for the version that it read.
func UpdateOp(obj runtime.Object) (fsm.Op, error) { return writeOp(fsm.Update, obj) }

// DeleteOp returns the operation that removes a stored object.
func DeleteOp(o *fsm.Object) fsm.Op {
	return fsm.Op{Verb: fsm.Delete, Key: o.Key, UID: o.UID}
}

func writeOp(verb fsm.Verb, obj runtime.Object) (fsm.Op, error) {
	k := ForObject(obj)
	if k == nil {
		return fsm.Op{}, fmt.Errorf("%s %T: %w", verb, obj, ErrUnknownKind)
	}
	meta, ok := obj.(metav1.Object)
	if !ok || meta.GetName() == "" || meta.GetUID() == "" || k.Namespaced == (meta.GetNamespace() == "") {
		return fsm.Op{}, fmt.Errorf("%s %s: name, UID or namespace is missing or out of place", verb, k.GVK.Kind)
	}
	data, err := Encode(obj)
	if err != nil {
		return fsm.Op{}, fmt.Errorf("%s %s: %w", verb, meta.GetName(), err)
	}
	return fsm.Op{
		Verb:     verb,
		Key:      k.Key(meta.GetNamespace(), meta.GetName()),
		UID:      string(meta.GetUID()),
		Deleting: k.Deleting(obj),
		Data:     data,
	}, nil
}
