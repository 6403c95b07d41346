package resource

import (
	"reflect"
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// object is what every typed kind is.
type object interface {
	runtime.Object
	metav1.Object
}

// typed is a kind's behaviour over its own Go type. Fields may be nil.
type typed[T object] struct {
	// name checks metadata.name.
	name apivalidation.ValidateNameFunc
	// defaults fills what the client left out.
	defaults func(obj T)
	// create drops the status and sets the server's own fields.
	create func(obj T)
	// update runs after status, system metadata and generation were kept.
	update func(new, old T)
	// setStatus copies the status; it makes the kind have one.
	setStatus func(dst, src T)
	// statusUpdate runs after everything but the status was kept.
	statusUpdate func(new, old T)
	// spec is what the generation counts the changes of.
	spec func(obj T) any

	validate             func(obj T) field.ErrorList
	validateUpdate       func(new, old T) field.ErrorList
	validateStatusUpdate func(new, old T) field.ErrorList

	// fields adds to metadata.name and metadata.namespace; its keys on an
	// empty object are the supported labels.
	fields func(obj T) fields.Set

	columns []metav1.TableColumnDefinition
	row     func(obj T, now time.Time) []any

	deleting    func(obj T) bool
	gracePeriod func(obj T, asked *int64) int64
}

var metadataPath = field.NewPath("metadata")

// define completes a Kind from the functions over its Go type.
func define[T object](k Kind, newObject func() T, newList func() runtime.Object, t typed[T]) *Kind {
	k.New = func() runtime.Object {
		obj := newObject()
		obj.GetObjectKind().SetGroupVersionKind(k.GVK)
		return obj
	}
	k.NewList = func() runtime.Object {
		list := newList()
		list.GetObjectKind().SetGroupVersionKind(k.GVK.GroupVersion().WithKind(k.GVK.Kind + "List"))
		return list
	}
	if k.Verbs == nil {
		k.Verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	}
	k.HasStatus = t.setStatus != nil
	if k.HasStatus {
		k.Subresources = append([]Subresource{{Name: "status", GVK: k.GVK, Verbs: []string{"get", "patch", "update"}}}, k.Subresources...)
	}
	k.HasGeneration = t.spec != nil
	k.Default = func(obj runtime.Object) {
		if t.defaults != nil {
			t.defaults(obj.(T))
		}
	}
	definePrepare(&k, t)
	defineValidation(&k, t)
	defineReading(&k, newObject, t)
	return &k
}

func definePrepare[T object](k *Kind, t typed[T]) {
	k.PrepareForCreate = func(obj runtime.Object) {
		o := obj.(T)
		o.SetSelfLink("")
		o.SetGeneration(0)
		if t.spec != nil {
			o.SetGeneration(1)
		}
		if t.create != nil {
			t.create(o)
		}
	}
	k.PrepareForUpdate = func(new, old runtime.Object) {
		n, o := new.(T), old.(T)
		keepSystemMetadata(n, o)
		if t.setStatus != nil {
			t.setStatus(n, o.DeepCopyObject().(T))
		}
		if t.update != nil {
			t.update(n, o)
		}
		if t.spec != nil && !apiequality.Semantic.DeepEqual(t.spec(n), t.spec(o)) {
			n.SetGeneration(o.GetGeneration() + 1)
		}
	}
	if t.setStatus == nil {
		return
	}
	k.PrepareForStatusUpdate = func(new, old runtime.Object) {
		n, o := new.(T), old.(T)
		result := o.DeepCopyObject().(T)
		t.setStatus(result, n)
		result.SetManagedFields(n.GetManagedFields())
		result.SetResourceVersion(n.GetResourceVersion())
		reflect.ValueOf(new).Elem().Set(reflect.ValueOf(result).Elem())
		if t.statusUpdate != nil {
			t.statusUpdate(n, o)
		}
	}
}

// keepSystemMetadata keeps what only the server sets. A UID or a creation time
// that the client did send stays, for validation to refuse when it differs.
func keepSystemMetadata(n, o metav1.Object) {
	n.SetSelfLink("")
	n.SetGeneration(o.GetGeneration())
	if n.GetUID() == "" {
		n.SetUID(o.GetUID())
	}
	if t := n.GetCreationTimestamp(); t.IsZero() {
		n.SetCreationTimestamp(o.GetCreationTimestamp())
	}
	if n.GetDeletionTimestamp().IsZero() && o.GetDeletionTimestamp() != nil {
		n.SetDeletionTimestamp(o.GetDeletionTimestamp().DeepCopy())
	}
	if n.GetDeletionGracePeriodSeconds() == nil && o.GetDeletionGracePeriodSeconds() != nil {
		seconds := *o.GetDeletionGracePeriodSeconds()
		n.SetDeletionGracePeriodSeconds(&seconds)
	}
}

func defineValidation[T object](k *Kind, t typed[T]) {
	namespaced := k.Namespaced
	name := t.name
	if name == nil {
		name = apivalidation.NameIsDNSSubdomain
	}
	k.Validate = func(obj runtime.Object) field.ErrorList {
		errs := apivalidation.ValidateObjectMetaAccessor(obj.(T), namespaced, name, metadataPath)
		if t.validate != nil {
			errs = append(errs, t.validate(obj.(T))...)
		}
		return errs
	}
	k.ValidateUpdate = func(new, old runtime.Object) field.ErrorList {
		n, o := new.(T), old.(T)
		errs := apivalidation.ValidateObjectMetaAccessorUpdate(n, o, metadataPath)
		if t.validate != nil {
			errs = append(errs, t.validate(n)...)
		}
		if t.validateUpdate != nil {
			errs = append(errs, t.validateUpdate(n, o)...)
		}
		return errs
	}
	if t.setStatus == nil {
		return
	}
	k.ValidateStatusUpdate = func(new, old runtime.Object) field.ErrorList {
		errs := apivalidation.ValidateObjectMetaAccessorUpdate(new.(T), old.(T), metadataPath)
		if t.validateStatusUpdate != nil {
			errs = append(errs, t.validateStatusUpdate(new.(T), old.(T))...)
		}
		return errs
	}
}

func defineReading[T object](k *Kind, newObject func() T, t typed[T]) {
	namespaced := k.Namespaced
	k.Fields = func(obj runtime.Object) fields.Set {
		o := obj.(T)
		set := fields.Set{}
		if t.fields != nil {
			set = t.fields(o)
		}
		set["metadata.name"] = o.GetName()
		if namespaced {
			set["metadata.namespace"] = o.GetNamespace()
		}
		return set
	}
	for label := range k.Fields(newObject()) {
		k.FieldLabels = append(k.FieldLabels, label)
	}
	slices.Sort(k.FieldLabels)
	k.Columns = t.columns
	k.Row = func(obj runtime.Object, now time.Time) []any { return t.row(obj.(T), now) }
	k.Deleting = func(obj runtime.Object) bool {
		o := obj.(T)
		return o.GetDeletionTimestamp() != nil || (t.deleting != nil && t.deleting(o))
	}
	if t.gracePeriod != nil {
		k.GracePeriod = func(obj runtime.Object, asked *int64) int64 { return t.gracePeriod(obj.(T), asked) }
	}
}
