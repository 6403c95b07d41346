package api

import (
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// listOptions are the query of a list or a watch, parsed and checked.
type listOptions struct {
	metav1.ListOptions
	revision uint64 // of ResourceVersion; 0 when it is unset or "0"
	selector selector
}

// parseListOptions reads the query of a list or a watch of the kind. The error
// is the client's, ready for writeError.
func parseListOptions(info requestInfo) (listOptions, error) {
	var o listOptions
	if err := resource.ParameterCodec.DecodeParameters(info.Query, schema.GroupVersion{Version: "v1"}, &o.ListOptions); err != nil {
		return o, apierrors.NewBadRequest(err.Error())
	}
	o.Watch = info.Verb == "watch"
	var err error
	if o.revision, err = parseRevision(o.ResourceVersion); err != nil {
		return o, err
	}
	errs := validation.ValidateListOptions(&internalversion.ListOptions{
		Watch: o.Watch, ResourceVersion: o.ResourceVersion, ResourceVersionMatch: o.ResourceVersionMatch,
		Continue: o.Continue, Limit: o.Limit, SendInitialEvents: o.SendInitialEvents,
	}, true)
	if len(errs) > 0 {
		return o, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	o.selector, err = parseSelector(info, o.ListOptions)
	return o, err
}

// parseRevision reads a resourceVersion; "" and "0" are 0.
func parseRevision(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	rev, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version %q", text))
	}
	return rev, nil
}

// selector chooses objects by name, labels and fields.
type selector struct {
	kind      *resource.Kind
	namespace string // "" is all
	name      string // "" is all
	labels    labels.Selector
	fields    fields.Selector
}

func parseSelector(info requestInfo, o metav1.ListOptions) (selector, error) {
	sel := selector{kind: info.Kind, namespace: info.Namespace}
	var err error
	if sel.labels, err = labels.Parse(o.LabelSelector); err != nil {
		return sel, apierrors.NewBadRequest(err.Error())
	}
	if sel.fields, err = info.Kind.ParseFieldSelector(o.FieldSelector); err != nil {
		return sel, apierrors.NewBadRequest(err.Error())
	}
	if name, ok := sel.fields.RequiresExactMatch("metadata.name"); ok {
		sel.name = name
	}
	return sel, nil
}

// empty says whether the selector lets every object of the namespace pass.
func (s selector) empty() bool { return s.labels.Empty() && s.fields.Empty() }

// hasKey says whether the object's key alone lets it pass. It is cheap and
// comes first.
func (s selector) hasKey(k fsm.Key) bool {
	return (s.namespace == "" || k.Namespace == s.namespace) && (s.name == "" || k.Name == s.name)
}

// matches says whether the object passes. It decodes only where it must.
func (s selector) matches(d *resource.Decoder, o *fsm.Object) (bool, error) {
	if !s.hasKey(o.Key) {
		return false, nil
	}
	if s.empty() {
		return true, nil
	}
	obj, err := d.Decode(o)
	if err != nil {
		return false, err
	}
	return s.matchesObject(obj)
}

func (s selector) matchesObject(obj runtime.Object) (bool, error) {
	if !s.labels.Empty() {
		m, ok := obj.(metav1.Object)
		if !ok {
			return false, fmt.Errorf("%T has no labels", obj)
		}
		if !s.labels.Matches(labels.Set(m.GetLabels())) {
			return false, nil
		}
	}
	return s.fields.Empty() || s.fields.Matches(s.kind.Fields(obj)), nil
}
