package api

import (
	"fmt"
	"net/http"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

var scaleGVK = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

// scaleAction changes the number of replicas through a Scale.
type scaleAction struct {
	decoded  bool
	body     *autoscalingv1.Scale // of a PUT
	warnings []string
	err      error
}

func (a *scaleAction) decide(w *write, v *fsm.View) (*plan, error) {
	live, old, err := w.liveObject(v)
	if err != nil {
		return nil, err
	}
	before, err := scaleOf(w.info.Kind, old)
	if err != nil {
		return nil, err
	}
	scale, err := a.wanted(w, before)
	if err != nil {
		return nil, err
	}
	if err := w.fillNames(scale); err != nil {
		return nil, err
	}
	obj := old.DeepCopyObject()
	if err := w.checkScaleVersion(live, scale); err != nil {
		return nil, err
	}
	if scale.Spec.Replicas < 0 {
		return nil, apierrors.NewInvalid(scaleGVK.GroupKind(), w.info.Name, field.ErrorList{
			field.Invalid(field.NewPath("spec", "replicas"), scale.Spec.Replicas, "must be greater than or equal to 0")})
	}
	w.info.Kind.Scale.Set(obj, scale.Spec.Replicas)
	w.info.Kind.PrepareForUpdate(obj, old)
	trackUpdate(w.options.manager, obj, old)
	if err := w.invalid(w.info.Name, w.info.Kind.ValidateUpdate(obj, old)); err != nil {
		return nil, err
	}
	return w.commit(v, live, obj, nil)
}

// wanted is the Scale that the request asks for: the body of a PUT, or before
// with the body of a PATCH applied.
func (a *scaleAction) wanted(w *write, before *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
	if w.info.Verb == "patch" {
		patchType, err := w.patchType()
		if err != nil {
			return nil, err
		}
		after := &autoscalingv1.Scale{}
		if err := w.applyPatch(patchType, before, scaleGVK, after); err != nil {
			return nil, err
		}
		return after, nil
	}
	if !a.decoded {
		a.decoded, a.body = true, &autoscalingv1.Scale{}
		a.warnings, a.err = decodeBody(w.header("Content-Type"), w.req.Body, a.body, scaleGVK, w.options.validation)
	}
	w.warnings = append(w.warnings, a.warnings...)
	if a.err != nil {
		return nil, a.err
	}
	return a.body.DeepCopy(), nil
}

func (a *scaleAction) answer(w *write, o outcome) (int, runtime.Object, error) {
	obj, err := resource.Decode(o.objects[0])
	if err != nil {
		return 0, nil, err
	}
	scale, err := scaleOf(w.info.Kind, obj)
	return http.StatusOK, scale, err
}

// checkScaleVersion is checkVersion without the need for a version: a Scale may
// always be written unconditionally.
func (w *write) checkScaleVersion(live *fsm.Object, scale *autoscalingv1.Scale) error {
	if scale.ResourceVersion == "" {
		scale.ResourceVersion = resource.FormatRevision(live.Modified)
	}
	return w.checkVersion(live, scale)
}

// scaleOf returns the Scale of an object, which is only read.
func scaleOf(kind *resource.Kind, obj runtime.Object) (*autoscalingv1.Scale, error) {
	if kind.Scale == nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("%s has no scale", kind.GVK.Kind))
	}
	scale, err := kind.Scale.Get(obj)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("scale of %s: %w", kind.GVK.Kind, err))
	}
	scale.SetGroupVersionKind(scaleGVK)
	return scale, nil
}
