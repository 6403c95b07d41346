package controllers

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// namespaceBatch is how many objects of a namespace one command deletes.
const namespaceBatch = 20

// planNamespaces empties the namespaces that are terminating, and removes each
// one when nothing is left in it. Nothing can appear meanwhile: every creation
// depends on its namespace being live.
func planNamespaces(w *world) (*plan, error) {
	p := &plan{}
	namespaces, err := list[*corev1.Namespace](w, resNamespaces, "")
	if err != nil {
		return nil, err
	}
	for _, ns := range namespaces {
		if ns.DeletionTimestamp == nil && ns.Status.Phase != corev1.NamespaceTerminating {
			continue
		}
		left, err := w.emptyNamespace(p, ns)
		if err != nil {
			return nil, err
		}
		if left == 0 {
			p.add(finalize(ns))
		}
	}
	return p, nil
}

// kicksNamespaces: a namespace changed, or something may have left one.
func kicksNamespaces(e fsm.Event) bool {
	return e.Object.Key.Resource == resNamespaces || (e.Deleted && e.Object.Key.Namespace != "")
}

// emptyNamespace deletes everything in a namespace, pods gracefully, and
// returns how many objects there still are.
func (w *world) emptyNamespace(p *plan, ns *corev1.Namespace) (left int, err error) {
	for _, kind := range resource.All() {
		if !kind.Namespaced {
			continue
		}
		c := (&change{}).same(ns)
		for stored := range w.view.List(kind.GroupResource(), ns.Name) {
			left++
			decoded, err := w.decoder.Decode(stored)
			if err != nil {
				return left, err
			}
			obj, ok := decoded.(object)
			if !ok || obj.GetDeletionTimestamp() != nil {
				continue
			}
			c.delete(obj, w.now)
			if len(c.ops) >= namespaceBatch {
				p.add(c)
				c = (&change{}).same(ns)
			}
		}
		p.add(c)
	}
	return left, nil
}

// finalize removes a namespace that is empty, unless somebody else's finalizer
// still holds it.
func finalize(ns *corev1.Namespace) *change {
	updated := ns.DeepCopy()
	updated.Spec.Finalizers = slices.DeleteFunc(updated.Spec.Finalizers, func(f corev1.FinalizerName) bool {
		return f == corev1.FinalizerKubernetes
	})
	if len(updated.Spec.Finalizers) == 0 && len(updated.Finalizers) == 0 {
		return (&change{}).remove(ns)
	}
	c := &change{}
	if !apiequality.Semantic.DeepEqual(ns, updated) {
		c.update(ns, updated)
	}
	return c
}
