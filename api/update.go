package api

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// errModified is the cause of a 409 that clients know to retry on.
var errModified = errors.New("the object has been modified; please apply your changes to the latest version and try again")

// updateAction replaces an object, or its status, by that of the body.
type updateAction struct{ answersObject }

func (a *updateAction) decide(w *write, v *fsm.View) (*plan, error) {
	obj, err := w.bodyObject()
	if err != nil {
		return nil, err
	}
	live, old, err := w.liveObject(v)
	if apierrors.IsNotFound(err) && w.createsOnUpdate(obj) {
		return w.create(v, obj)
	}
	if err != nil {
		return nil, err
	}
	return w.replace(v, live, old, obj)
}

// createsOnUpdate says whether a PUT of obj, which does not exist, makes it. One
// that names a version meant an object that is gone.
func (w *write) createsOnUpdate(obj runtime.Object) bool {
	m, err := meta.Accessor(obj)
	return err == nil && m.GetResourceVersion() == "" && w.info.Kind.CreateOnUpdate && w.info.Subresource == ""
}

// replace plans the replacement of live, whose typed form is old, by obj, which
// is the caller's own and may have come from outside. With the subresource
// status only the status is taken from obj. Planning against equal content
// changes nothing.
func (w *write) replace(v *fsm.View, live *fsm.Object, old, obj runtime.Object) (*plan, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if err := w.fillNames(m); err != nil {
		return nil, err
	}
	if err := w.checkVersion(live, m); err != nil {
		return nil, err
	}
	kind := w.info.Kind
	kind.Default(obj)
	trackUpdate(w.options.manager, obj, old)
	status := w.info.Subresource == "status"
	var errs field.ErrorList
	var reservations []fsm.Op
	if status {
		kind.PrepareForStatusUpdate(obj, old)
		errs = kind.ValidateStatusUpdate(obj, old)
	} else {
		kind.PrepareForUpdate(obj, old)
		reservations, errs = w.allocate(v, obj, old)
		errs = append(errs, kind.ValidateUpdate(obj, old)...)
	}
	if err := w.s.authorizeObject(w.caller, w.info, old, obj); err != nil {
		return nil, err
	}
	if err := w.invalid(w.info.Name, errs); err != nil {
		return nil, err
	}
	return w.commit(v, live, obj, reservations)
}

// commit plans the storing of obj over live. obj has passed validation. When
// nothing holds a deleted object any more, it is removed.
func (w *write) commit(v *fsm.View, live *fsm.Object, obj runtime.Object, more []fsm.Op) (*plan, error) {
	op, err := resource.UpdateOp(obj)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if err := w.checkSize(op); err != nil {
		return nil, err
	}
	p := &plan{live: live, pre: []fsm.Precondition{unchanged(live)}}
	if isReleased(obj) {
		p.ops, err = w.removal(v, live)
		return p, err
	}
	if bytes.Equal(op.Data, live.Data) && op.Deleting == live.Deleting {
		return p, nil
	}
	p.ops = append([]fsm.Op{op}, more...)
	return p, nil
}

// checkVersion compares the UID and the resourceVersion that obj brings with
// those of the live object: a difference is a 409. It fills in what is missing,
// if the kind allows updates without a version.
func (w *write) checkVersion(live *fsm.Object, obj metav1.Object) error {
	if uid := obj.GetUID(); uid != "" && string(uid) != live.UID {
		return apierrors.NewConflict(w.info.groupResource(), w.info.Name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", uid, live.UID))
	}
	version := obj.GetResourceVersion()
	if version == "" || version == "0" {
		if !w.info.Kind.UnconditionalUpdate {
			return w.invalid(w.info.Name, field.ErrorList{field.Invalid(field.NewPath("metadata", "resourceVersion"), version, "must be specified for an update")})
		}
		obj.SetResourceVersion(resource.FormatRevision(live.Modified))
		return nil
	}
	revision, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return w.invalid(w.info.Name, field.ErrorList{field.Invalid(field.NewPath("metadata", "resourceVersion"), version, "must be a number")})
	}
	if revision != live.Modified {
		return apierrors.NewConflict(w.info.groupResource(), w.info.Name, errModified)
	}
	return nil
}

// isReleased says that an object is deleted and nothing holds it any longer: no
// finalizer, no grace period, and for a namespace no content.
func isReleased(obj runtime.Object) bool {
	m, err := meta.Accessor(obj)
	if err != nil || m.GetDeletionTimestamp() == nil || len(m.GetFinalizers()) > 0 {
		return false
	}
	if grace := m.GetDeletionGracePeriodSeconds(); grace != nil && *grace > 0 {
		return false
	}
	if ns, ok := obj.(*corev1.Namespace); ok {
		return len(ns.Spec.Finalizers) == 0
	}
	return true
}
