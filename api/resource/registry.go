package resource

import (
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kinds is the table, in the order of discovery.
var kinds = []*Kind{
	configMapKind,
	eventKind,
	namespaceKind,
	nodeKind,
	podKind,
	secretKind,
	serviceKind,
	serviceAccountKind,
	deploymentKind,
	replicaSetKind,
	leaseKind,
	endpointSliceKind,
}

var (
	byGVR           = map[schema.GroupVersionResource]*Kind{}
	byGroupResource = map[string]*Kind{}
	byGVK           = map[schema.GroupVersionKind]*Kind{}
	byType          = map[reflect.Type]*Kind{}
)

func init() {
	for _, k := range kinds {
		byGVR[k.GVR()] = k
		byGroupResource[k.GroupResource()] = k
		byGVK[k.GVK] = k
		byType[reflect.TypeOf(k.New())] = k
	}
}

// All returns every kind, core first. The slice must not be changed.
func All() []*Kind { return kinds }

// ByResource returns the kind that a URL names, or nil.
func ByResource(gvr schema.GroupVersionResource) *Kind { return byGVR[gvr] }

// ByGroupResource returns the kind of a key's Resource ("deployments.apps"),
// or nil.
func ByGroupResource(groupResource string) *Kind { return byGroupResource[groupResource] }

// ByKind returns the kind of an object's apiVersion and kind, or nil.
func ByKind(gvk schema.GroupVersionKind) *Kind { return byGVK[gvk] }

// ForObject returns the kind of an object by its Go type, or by its apiVersion
// and kind when the type says nothing; nil if it is none of All.
func ForObject(obj runtime.Object) *Kind {
	if k := byType[reflect.TypeOf(obj)]; k != nil {
		return k
	}
	return byGVK[obj.GetObjectKind().GroupVersionKind()]
}
