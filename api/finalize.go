package api

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shepherd-project/shepherd/fsm"
)

// finalizeAction is the only writer of a namespace's spec.finalizers. Taking
// away the last one ends a namespace that is being deleted.
type finalizeAction struct{ answersObject }

func (a *finalizeAction) decide(w *write, v *fsm.View) (*plan, error) {
	obj, err := w.bodyObject()
	if err != nil {
		return nil, err
	}
	live, old, err := w.liveObject(v)
	if err != nil {
		return nil, err
	}
	wanted, ok := obj.(*corev1.Namespace)
	if !ok {
		return nil, errMethodNotAllowed(w.info.groupResource(), w.info.Verb)
	}
	if err := w.fillNames(wanted); err != nil {
		return nil, err
	}
	if err := w.checkVersion(live, metav1.Object(wanted)); err != nil {
		return nil, err
	}
	var errs field.ErrorList
	for i, finalizer := range wanted.Spec.Finalizers {
		for _, message := range validation.IsQualifiedName(string(finalizer)) {
			errs = append(errs, field.Invalid(specPath.Child("finalizers").Index(i), finalizer, message))
		}
	}
	if err := w.invalid(w.info.Name, errs); err != nil {
		return nil, err
	}
	ns := old.DeepCopyObject().(*corev1.Namespace)
	ns.Spec.Finalizers = wanted.Spec.Finalizers
	return w.commit(v, live, ns, nil)
}
