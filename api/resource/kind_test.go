package resource

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestTableOfKinds(t *testing.T) {
	want := []string{
		"configmaps", "events", "namespaces", "nodes", "pods", "secrets", "services", "serviceaccounts",
		"deployments.apps", "replicasets.apps", "leases.coordination.k8s.io", "endpointslices.discovery.k8s.io",
	}
	var got []string
	for _, k := range All() {
		got = append(got, k.GroupResource())
	}
	if !slices.Equal(got, want) {
		t.Fatalf("kinds %v, want %v", got, want)
	}
	names := map[string]string{}
	for _, k := range All() {
		for _, name := range append([]string{k.Resource, k.Singular}, k.ShortNames...) {
			if other := names[name]; other != "" {
				t.Errorf("%q names %s and %s", name, other, k.Resource)
			}
			names[name] = k.Resource
		}
	}
}

func TestKindsAreComplete(t *testing.T) {
	for _, k := range All() {
		t.Run(k.Resource, func(t *testing.T) {
			obj := k.New()
			if obj.GetObjectKind().GroupVersionKind() != k.GVK {
				t.Errorf("New gives %s", obj.GetObjectKind().GroupVersionKind())
			}
			if got := k.NewList().GetObjectKind().GroupVersionKind().Kind; got != k.GVK.Kind+"List" {
				t.Errorf("NewList gives %s", got)
			}
			if ForObject(obj) != k || ByKind(k.GVK) != k || ByResource(k.GVR()) != k || ByGroupResource(k.GroupResource()) != k {
				t.Error("a look-up gives another kind")
			}
			for _, verb := range []string{"create", "delete", "get", "list", "patch", "update", "watch"} {
				if !k.Supports(verb) {
					t.Errorf("no verb %s", verb)
				}
			}
			if !slices.IsSorted(k.Verbs) {
				t.Errorf("verbs %v are not sorted", k.Verbs)
			}
			if k.HasStatus != (k.Subresource("status") != nil) || k.HasStatus != (k.PrepareForStatusUpdate != nil) || k.HasStatus != (k.ValidateStatusUpdate != nil) {
				t.Error("the parts of /status do not fit together")
			}
			if (k.Scale != nil) != (k.Subresource("scale") != nil) {
				t.Error("the parts of /scale do not fit together")
			}
			if row := k.Row(obj, now); len(row) != len(k.Columns) { // also must not panic on an empty object
				t.Errorf("%d cells for %d columns", len(row), len(k.Columns))
			}
			for _, c := range k.Columns {
				if c.Name == "" || c.Type == "" || c.Description == "" {
					t.Errorf("column %+v is not described", c)
				}
			}
			if !slices.IsSorted(k.FieldLabels) || !slices.Contains(k.FieldLabels, "metadata.name") {
				t.Errorf("field labels %v", k.FieldLabels)
			}
		})
	}
}

func TestUnknownKinds(t *testing.T) {
	if ByResource(schema.GroupVersionResource{Version: "v1", Resource: "bindings"}) != nil ||
		ByGroupResource("deployments") != nil || ByKind(schema.GroupVersionKind{Version: "v1", Kind: "Binding"}) != nil ||
		ForObject(&metav1.Status{}) != nil {
		t.Error("found a kind that is not in the table")
	}
}

// TestSamplesAreValid: what defaulting and preparation make of a plain
// manifest passes validation, as it is and as an update of itself, and
// defaulting it again changes nothing.
func TestSamplesAreValid(t *testing.T) {
	for resource, obj := range samples(t) {
		k := ForObject(obj)
		if errs := k.Validate(obj); len(errs) > 0 {
			t.Errorf("%s: %v", resource, errs.ToAggregate())
		}
		obj.SetResourceVersion("7")
		again := obj.DeepCopyObject().(object)
		k.Default(again)
		k.PrepareForUpdate(again, obj)
		if errs := k.ValidateUpdate(again, obj); len(errs) > 0 {
			t.Errorf("%s: update: %v", resource, errs.ToAggregate())
		}
		before, err := Encode(obj)
		if err != nil {
			t.Fatal(err)
		}
		after, err := Encode(again)
		if err != nil {
			t.Fatal(err)
		}
		if string(before) != string(after) {
			t.Errorf("%s: an update to the same is not the same", resource)
		}
		if k.HasStatus {
			k.PrepareForStatusUpdate(again, obj)
			if errs := k.ValidateStatusUpdate(again, obj); len(errs) > 0 {
				t.Errorf("%s: status update: %v", resource, errs.ToAggregate())
			}
		}
		wantGeneration := int64(0)
		if k.HasGeneration {
			wantGeneration = 1
		}
		if obj.GetGeneration() != wantGeneration {
			t.Errorf("%s: generation %d after creation", resource, obj.GetGeneration())
		}
	}
}

func TestKeys(t *testing.T) {
	if got := deploymentKind.Key("default", "web").String(); got != "deployments.apps/default/web" {
		t.Error(got)
	}
	if got := nodeKind.Key("ignored", "w1").String(); got != "nodes/w1" {
		t.Error(got)
	}
}
