package api

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	corev1 "k8s.io/api/core/v1"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// maxNameDraws is how many random names are tried for a generateName.
const maxNameDraws = 8

// createAction makes the object of the body.
type createAction struct{ answersObject }

func (a *createAction) decide(w *write, v *fsm.View) (*plan, error) {
	obj, err := w.bodyObject()
	if err != nil {
		return nil, err
	}
	return w.create(v, obj)
}

// bodyObject decodes the object in the request's body, which is the caller's
// own. Each plan decodes it anew: a second one is rarer than a copy is cheap.
func (w *write) bodyObject() (runtime.Object, error) {
	obj := w.info.Kind.New()
	warnings, err := decodeBody(w.header("Content-Type"), w.req.Body, obj, w.info.Kind.GVK, w.options.validation)
	w.warnings = append(w.warnings, warnings...)
	if err != nil {
		return nil, err
	}
	return obj, nil
}

// create plans the creation of obj, which is the caller's own.
func (w *write) create(v *fsm.View, obj runtime.Object) (*plan, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if m.GetResourceVersion() != "" {
		return nil, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	if err := w.fillNames(m); err != nil {
		return nil, err
	}
	p := &plan{}
	if w.info.Kind.Namespaced {
		if err := w.needNamespace(v, p, m.GetNamespace(), m.GetName()); err != nil {
			return nil, err
		}
	}
	if err := w.generateName(v, m); err != nil {
		return nil, err
	}
	kind := w.info.Kind
	kind.Default(obj)
	resource.SetCreated(m, w.uid, w.s.now())
	kind.PrepareForCreate(obj)
	trackCreate(w.options.manager, obj)
	if err := w.s.authorizeObject(w.caller, w.info, nil, obj); err != nil {
		return nil, err
	}
	reservations, errs := w.allocate(v, obj, nil)
	errs = append(errs, kind.Validate(obj)...)
	if err := w.invalid(m.GetName(), errs); err != nil {
		return nil, err
	}
	key := kind.Key(m.GetNamespace(), m.GetName())
	if v.Get(key) != nil {
		return nil, apierrors.NewAlreadyExists(w.info.groupResource(), m.GetName())
	}
	op, err := resource.CreateOp(obj)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if err := w.checkSize(op); err != nil {
		return nil, err
	}
	p.ops = append([]fsm.Op{op}, reservations...)
	return p, nil
}

// needNamespace asks that the namespace exists and is not on its way out, now
// and when the command is applied.
func (w *write) needNamespace(v *fsm.View, p *plan, namespace, name string) error {
	key := fsm.Key{Resource: "namespaces", Name: namespace}
	switch ns := v.Get(key); {
	case ns == nil:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, namespace)
	case ns.Deleting:
		err := apierrors.NewForbidden(w.info.groupResource(), name,
			fmt.Errorf("unable to create new content in namespace %s because it is being terminated", namespace))
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
			Type:    corev1.NamespaceTerminatingCause,
			Message: fmt.Sprintf("namespace %s is being terminated", namespace),
			Field:   "metadata.namespace",
		})
		return err
	}
	p.pre = append(p.pre, fsm.Precondition{Key: key, Live: true})
	return nil
}

// generateName draws a free name for an object that has only the beginning of
// one.
func (w *write) generateName(v *fsm.View, m metav1.Object) error {
	base := m.GetGenerateName()
	if m.GetName() != "" || base == "" {
		return nil
	}
	for range maxNameDraws {
		name := resource.GenerateName(&w.s.writes.random, base)
		if v.Get(w.info.Kind.Key(m.GetNamespace(), name)) == nil {
			m.SetName(name)
			return nil
		}
	}
	return apierrors.NewGenerateNameConflict(w.info.groupResource(), base, 1)
}
