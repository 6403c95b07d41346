package api

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	kjson "sigs.k8s.io/json"

	"github.com/shepherd-project/shepherd/fsm"
)

const (
	// maxPatchOperations bounds a JSON patch: each costs a walk of the object.
	maxPatchOperations = 10000
	// patchCopyFactor bounds what the copies of a JSON patch may add, in
	// multiples of the largest object: a patch can double a value per operation.
	patchCopyFactor = 4
)

// acceptedPatches is how a 415 lists the patch types.
var acceptedPatches = strings.Join([]string{
	string(types.JSONPatchType), string(types.MergePatchType), string(types.StrategicMergePatchType),
}, ", ")

func init() { jsonpatch.AccumulatedCopySizeLimit = patchCopyFactor * 3 << 20 }

// patchAction changes the live object, or its status, as the body says. Each
// round computes the patch anew, so that it never overwrites what others did.
type patchAction struct{ answersObject }

func (a *patchAction) decide(w *write, v *fsm.View) (*plan, error) {
	patchType, err := w.patchType()
	if err != nil {
		return nil, err
	}
	live, old, err := w.liveObject(v)
	if err != nil {
		return nil, err
	}
	obj := w.info.Kind.New()
	if err := w.applyPatch(patchType, old, w.info.Kind.GVK, obj); err != nil {
		return nil, err
	}
	return w.replace(v, live, old, obj)
}

// patchType is the patch type that the Content-Type names; others are a 415.
func (w *write) patchType() (types.PatchType, error) {
	media, refused := bodyMediaType(w.header("Content-Type"))
	if refused != nil {
		return "", errUnsupportedMediaType(acceptedPatches)
	}
	switch t := types.PatchType(media); t {
	case types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType:
		return t, nil
	case types.ApplyYAMLPatchType:
		err := errUnsupportedMediaType(acceptedPatches)
		err.ErrStatus.Message = "server-side apply is not supported by this server; apply without --server-side. " + err.ErrStatus.Message
		return "", err
	}
	return "", errUnsupportedMediaType(acceptedPatches)
}

// applyPatch applies the request's body to old, an object of kind gvk that is
// only read, and decodes the result into obj, an empty object of that kind.
func (w *write) applyPatch(patchType types.PatchType, old runtime.Object, gvk schema.GroupVersionKind, obj runtime.Object) error {
	before, err := encodeJSON(gvk, old)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	after, strict, err := patchJSON(patchType, before, w.req.Body, obj)
	if err != nil {
		return w.patchError(err)
	}
	if limit := patchCopyFactor * w.s.cfg.MaxRequestBytes; int64(len(after)) > limit {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the patched object would have %d bytes, limit is %d", len(after), limit))
	}
	unknown, err := decodeJSON(after, obj)
	if err != nil {
		return unprocessable(w.info.groupResource(), w.info.Name, fmt.Sprintf("its result cannot be read: %v", err))
	}
	if err := checkKind(obj, gvk); err != nil {
		return err
	}
	warnings, err := strictResult(gvk, append(strict, unknown...), w.options.validation)
	if err != nil {
		return err
	}
	w.warnings = append(w.warnings, warnings...)
	return nil
}

// patchJSON applies a patch to a JSON object. Duplicate keys of the patch are
// returned apart from its errors. like is an object of the patched type, whose
// struct tags say how a strategic patch merges lists.
func patchJSON(patchType types.PatchType, before, patch []byte, like any) (after []byte, strict []error, err error) {
	if patchType == types.JSONPatchType {
		after, err = applyJSONPatch(before, patch)
		return after, nil, err
	}
	var parsed map[string]any
	if strict, err = kjson.UnmarshalStrict(patch, &parsed, kjson.DisallowDuplicateFields); err != nil {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	if parsed == nil {
		return nil, nil, apierrors.NewBadRequest("error decoding patch: it is not an object")
	}
	if patchType == types.MergePatchType {
		after, err = jsonpatch.MergePatch(before, patch)
	} else {
		after, err = strategicpatch.StrategicMergePatch(before, patch, like)
	}
	return after, strict, err
}

func applyJSONPatch(before, patch []byte) ([]byte, error) {
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	if len(operations) > maxPatchOperations {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the JSON patch has %d operations, limit is %d", len(operations), maxPatchOperations))
	}
	after, err := operations.Apply(before)
	var tooLarge *jsonpatch.AccumulatedCopySizeError
	if errors.As(err, &tooLarge) {
		return nil, apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	return after, err
}

// patchError is the answer to a patch that could not be applied: a 400 for one
// that makes no sense, a 422 for one that does not fit the live object.
func (w *write) patchError(err error) error {
	var status *apierrors.StatusError
	switch {
	case errors.As(err, &status):
		return status
	case errors.Is(err, mergepatch.ErrBadJSONDoc), errors.Is(err, mergepatch.ErrBadPatchFormatForPrimitiveList),
		errors.Is(err, mergepatch.ErrBadPatchFormatForRetainKeys), errors.Is(err, mergepatch.ErrBadPatchFormatForSetElementOrderList),
		errors.Is(err, mergepatch.ErrUnsupportedStrategicMergePatchFormat):
		return apierrors.NewBadRequest(err.Error())
	}
	return unprocessable(w.info.groupResource(), w.info.Name, err.Error())
}

// unprocessable is a 422 that is not about one field.
func unprocessable(gr schema.GroupResource, name, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure,
		Code:   http.StatusUnprocessableEntity,
		Reason: metav1.StatusReasonInvalid,
		Details: &metav1.StatusDetails{
			Group: gr.Group, Kind: gr.Resource, Name: name,
		},
		Message: "the patch cannot be applied: " + message,
	}}
}
