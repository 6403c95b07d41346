package resource

import (
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shepherd-project/shepherd/fsm"
)

// Kind is one kind of object that the API serves. Its functions are never nil
// unless their comment says so. They accept objects of the kind's own type
// only and panic on others: the caller decodes by the same kind.
type Kind struct {
	GVK      schema.GroupVersionKind
	Resource string // plural, lower case: "pods"
	Singular string
	// ShortNames and Categories are kubectl's ("po"; "all").
	ShortNames []string
	Categories []string
	Namespaced bool
	// Verbs in discovery's order (alphabetical).
	Verbs        []string
	Subresources []Subresource

	// New and NewList return empty objects with apiVersion and kind set.
	New     func() runtime.Object
	NewList func() runtime.Object

	// HasStatus: the kind has a /status subresource, and writes to the main
	// resource keep the status.
	HasStatus bool
	// HasGeneration: metadata.generation counts the changes of the spec. A
	// deletion counts as one (see SetDeleted).
	HasGeneration bool
	// UnconditionalUpdate: an update without resourceVersion is accepted.
	UnconditionalUpdate bool
	// CreateOnUpdate: a PUT of an absent object creates it.
	CreateOnUpdate bool
	// Scale is nil for kinds without a /scale subresource.
	Scale *Scale

	// Default fills what the client left out. It is idempotent.
	Default func(obj runtime.Object)
	// PrepareForCreate drops what a client may not set on creation (status),
	// sets the first generation and the server's own fields.
	PrepareForCreate func(obj runtime.Object)
	// PrepareForUpdate keeps from old what a write to the main resource may
	// not change (status, system metadata) and counts the generation.
	PrepareForUpdate func(new, old runtime.Object)
	// PrepareForStatusUpdate makes new equal to old but for the status and
	// the managed fields. It is nil without HasStatus.
	PrepareForStatusUpdate func(new, old runtime.Object)

	// Validate checks an object about to be created; ValidateUpdate checks
	// a new version against the old one, immutable fields included.
	// ValidateStatusUpdate is nil without HasStatus.
	Validate             func(obj runtime.Object) field.ErrorList
	ValidateUpdate       func(new, old runtime.Object) field.ErrorList
	ValidateStatusUpdate func(new, old runtime.Object) field.ErrorList

	// FieldLabels are the supported field selectors; Fields returns the value
	// of each. ParseFieldSelector refuses others.
	// FieldAliases maps former names of labels to the present ones.
	FieldLabels  []string
	FieldAliases map[string]string
	Fields       func(obj runtime.Object) fields.Set

	// Columns and Row print the kind as a table; Row's cells match Columns.
	Columns []metav1.TableColumnDefinition
	Row     func(obj runtime.Object, now time.Time) []any

	// Deleting reports whether the object is on its way out.
	Deleting func(obj runtime.Object) bool
	// GracePeriod says how many seconds a deletion may take before the object
	// is removed, given the number asked for (nil: not asked). 0 removes it at
	// once. It is nil for kinds that are always removed at once.
	GracePeriod func(obj runtime.Object, asked *int64) int64
}

// Subresource is an entry of discovery below a kind.
type Subresource struct {
	Name string // "status"
	// GVK of what is read or written through it.
	GVK   schema.GroupVersionKind
	Verbs []string
}

// Scale reads and writes the number of replicas of an object.
type Scale struct {
	Get func(obj runtime.Object) (*autoscalingv1.Scale, error)
	// Set changes spec.replicas of obj.
	Set func(obj runtime.Object, replicas int32)
}

// GroupResource returns the name of the kind in keys: "pods",
// "deployments.apps".
func (k *Kind) GroupResource() string {
	return schema.GroupResource{Group: k.GVK.Group, Resource: k.Resource}.String()
}

// GVR returns group, version and resource.
func (k *Kind) GVR() schema.GroupVersionResource {
	return k.GVK.GroupVersion().WithResource(k.Resource)
}

// Key returns the key of an object in the store. A cluster-scoped kind ignores
// the namespace.
func (k *Kind) Key(namespace, name string) fsm.Key {
	if !k.Namespaced {
		namespace = ""
	}
	return fsm.Key{Resource: k.GroupResource(), Namespace: namespace, Name: name}
}

// Subresource returns the subresource of that name, or nil.
func (k *Kind) Subresource(name string) *Subresource {
	for i := range k.Subresources {
		if k.Subresources[i].Name == name {
			return &k.Subresources[i]
		}
	}
	return nil
}

// Supports reports whether the kind has the verb.
func (k *Kind) Supports(verb string) bool {
	for _, v := range k.Verbs {
		if v == verb {
			return true
		}
	}
	return false
}
