package api

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

// Ownership of fields (metadata.managedFields) is tracked between defaulting
// and allocation: what the server allocates must not become the client's. Until
// the first server-side apply on an object nothing is recorded, which spares
// most of a write's CPU; what an object carries is kept. These two functions
// are where a field manager goes.

// trackCreate records that manager has made obj. An object brings no entries
// that it does not need: empty ones are a request to reset.
func trackCreate(_ string, obj runtime.Object) { resetManagedFields(obj) }

// trackUpdate records that manager has changed old into obj. A client that
// sends no managedFields keeps those of the live object; an explicit list, also
// an empty one, replaces them.
func trackUpdate(_ string, obj, old runtime.Object) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return // every stored kind has metadata
	}
	before, err := meta.Accessor(old)
	if err != nil {
		return
	}
	if m.GetManagedFields() == nil {
		m.SetManagedFields(before.GetManagedFields())
		return
	}
	resetManagedFields(obj)
}

// resetManagedFields drops a list of managedFields without content ([] or [{}]).
func resetManagedFields(obj runtime.Object) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return
	}
	for _, entry := range m.GetManagedFields() {
		if entry.Manager != "" || entry.Operation != "" || entry.FieldsV1 != nil {
			return
		}
	}
	m.SetManagedFields(nil)
}
