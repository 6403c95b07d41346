package controllers

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// garbageBatch is how many objects one command removes or releases.
const garbageBatch = 50

// garbage is one pass over all objects. A UID that is absent from a view will
// never come back, so a deletion for the loss of an owner needs no precondition
// on it. There may be very many objects that own nothing and that nobody owns,
// so only those that can matter are decoded.
type garbage struct {
	*world
	plan       *plan
	objects    []object // that matter
	dependents map[types.UID][]object
}

// planGarbage deletes what has lost its owners, carries out foreground and
// orphaning deletions, releases reservations that nobody holds, and removes
// events and pods that have had their time.
func planGarbage(w *world) (*plan, error) {
	g := &garbage{world: w, plan: &plan{}, dependents: map[types.UID][]object{}}
	for _, kind := range resource.All() {
		if kind.GroupResource() == resEvents {
			continue // they own nothing and nobody owns them
		}
		for stored := range w.view.List(kind.GroupResource(), "") {
			matters, err := concerns(kind, stored)
			if err != nil {
				return nil, err
			}
			if !matters {
				continue
			}
			decoded, err := w.decoder.Decode(stored)
			if err != nil {
				return nil, err
			}
			obj, ok := decoded.(object)
			if !ok {
				continue // no such kind: every one has metadata
			}
			g.objects = append(g.objects, obj)
			for _, ref := range obj.GetOwnerReferences() {
				g.dependents[ref.UID] = append(g.dependents[ref.UID], obj)
			}
		}
	}
	for _, obj := range g.objects {
		switch {
		case obj.GetDeletionTimestamp() != nil && hasFinalizer(obj, metav1.FinalizerOrphanDependents):
			g.orphan(obj)
		case obj.GetDeletionTimestamp() != nil && hasFinalizer(obj, metav1.FinalizerDeleteDependents):
			g.foreground(obj)
		case obj.GetDeletionTimestamp() == nil && len(obj.GetOwnerReferences()) > 0:
			if err := g.judge(obj); err != nil {
				return nil, err
			}
		}
	}
	g.expirePods()
	g.releaseReservations()
	return g.plan, g.expireEvents()
}

// concerns tells the objects that have to be decoded: those that go, those that
// are owned, and the kinds that hold reservations or that expire.
func concerns(kind *resource.Kind, stored *fsm.Object) (bool, error) {
	switch kind.GroupResource() {
	case resNodes, resPods, resServices:
		return true, nil
	}
	if stored.Deleting {
		return true, nil
	}
	return resource.HasOwners(stored)
}

// kicksGarbage: only what leaves, or is about to, makes garbage.
func kicksGarbage(e fsm.Event) bool {
	return (e.Deleted || e.Object.Deleting) && !e.Object.Key.Internal() && e.Object.Key.Resource != resEvents
}

func hasFinalizer(obj object, name string) bool { return slices.Contains(obj.GetFinalizers(), name) }

// standing is what an owner reference amounts to.
type standing int

const (
	solid   standing = iota // the owner is there to stay, or cannot be judged
	waiting                 // the owner is being deleted in the foreground
	absent                  // the owner is gone
)

// stands classifies a reference of obj. An owner is found by the name that the
// reference gives, and known by its UID.
func (g *garbage) stands(obj object, ref *metav1.OwnerReference) (standing, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return solid, nil
	}
	kind := resource.ByKind(gv.WithKind(ref.Kind))
	if kind == nil || (kind.Namespaced && obj.GetNamespace() == "") {
		return solid, nil // not ours to judge
	}
	stored := g.view.Get(kind.Key(obj.GetNamespace(), ref.Name))
	switch {
	case stored == nil || stored.UID != string(ref.UID):
		return absent, nil
	case !stored.Deleting:
		return solid, nil
	}
	owner, err := g.decoder.Decode(stored)
	if err != nil {
		return solid, err
	}
	if going, ok := owner.(object); ok && hasFinalizer(going, metav1.FinalizerDeleteDependents) {
		return waiting, nil
	}
	return solid, nil
}

// judge decides about an object by its owners: as long as one is solid it
// stays, and loses its references to the others; without, it goes.
func (g *garbage) judge(obj object) error {
	count := map[standing]int{}
	var keep []metav1.OwnerReference
	refs := obj.GetOwnerReferences()
	for i := range refs {
		s, err := g.stands(obj, &refs[i])
		if err != nil {
			return err
		}
		count[s]++
		if s == solid {
			keep = append(keep, refs[i])
		}
	}
	switch {
	case count[solid] == len(refs):
	case count[solid] > 0:
		updated := obj.DeepCopyObject().(object)
		updated.SetOwnerReferences(keep)
		g.plan.add((&change{}).live(obj).update(obj, updated))
	case count[waiting] > 0 && len(g.dependents[obj.GetUID()]) > 0:
		g.deleteForeground(obj)
	default:
		g.plan.add((&change{}).delete(obj, g.now))
	}
	return nil
}

// deleteForeground deletes an object whose owner waits for it, and its own
// dependents before it. When one of those waits already, they own one another
// in a circle: the object then blocks its owners no more, or none would end.
func (g *garbage) deleteForeground(obj object) {
	updated := obj.DeepCopyObject().(object)
	updated.SetFinalizers(append(updated.GetFinalizers(), metav1.FinalizerDeleteDependents))
	for _, dependent := range g.dependents[obj.GetUID()] {
		if dependent.GetDeletionTimestamp() != nil && hasFinalizer(dependent, metav1.FinalizerDeleteDependents) {
			refs := updated.GetOwnerReferences()
			for i := range refs {
				refs[i].BlockOwnerDeletion = nil
			}
			updated.SetOwnerReferences(refs)
			break
		}
	}
	grace := int64(0)
	if k := resource.ForObject(obj); k != nil && k.GracePeriod != nil {
		grace = k.GracePeriod(obj, nil)
	}
	if resource.SetDeleted(updated, g.now, grace) {
		g.plan.add((&change{}).update(obj, updated))
	}
}

// foreground lets an object go once nothing blocks it any more. Its dependents
// are judged by themselves.
func (g *garbage) foreground(obj object) {
	for _, dependent := range g.dependents[obj.GetUID()] {
		for _, ref := range dependent.GetOwnerReferences() {
			if ref.UID == obj.GetUID() && value(ref.BlockOwnerDeletion, false) {
				return
			}
		}
	}
	g.plan.add(dropFinalizer(obj, metav1.FinalizerDeleteDependents))
}

// orphan releases the dependents of an object, and lets it go when there are
// none.
func (g *garbage) orphan(obj object) {
	dependents := g.dependents[obj.GetUID()]
	if len(dependents) == 0 {
		g.plan.add(dropFinalizer(obj, metav1.FinalizerOrphanDependents))
		return
	}
	for batch := range slices.Chunk(dependents, garbageBatch) {
		c := &change{}
		for _, dependent := range batch {
			released := dependent.DeepCopyObject().(object)
			disowned(released, obj.GetUID())
			c.update(dependent, released)
		}
		g.plan.add(c)
	}
}

// dropFinalizer removes a finalizer from an object that is being deleted, and
// the object with its last one, unless an agent is still to stop it.
func dropFinalizer(obj object, name string) *change {
	updated := obj.DeepCopyObject().(object)
	updated.SetFinalizers(slices.DeleteFunc(updated.GetFinalizers(), func(f string) bool { return f == name }))
	if len(updated.GetFinalizers()) == 0 && value(obj.GetDeletionGracePeriodSeconds(), 0) == 0 {
		return (&change{}).remove(obj)
	}
	return (&change{}).update(obj, updated)
}

// releaseReservations removes those that no object holds. Whoever makes an
// object with an address, a port or a pod range reserves it in the same command, so
// there is no moment at which one is rightly without its holder.
func (g *garbage) releaseReservations() {
	holders := map[fsm.Key]string{}
	for _, obj := range g.objects {
		for _, key := range held(obj) {
			holders[key] = string(obj.GetUID())
		}
	}
	for reservation := range g.view.List(fsm.ReservationResource, "") {
		kind, _, _ := strings.Cut(reservation.Key.Name, "/")
		switch kind + "/" {
		case clusterIPPrefix, nodePortPrefix, podCIDRPrefix:
		default:
			continue // held by something that is no object here
		}
		if holders[reservation.Key] != reservation.UID {
			g.plan.add(&change{
				pre: []fsm.Precondition{{Key: reservation.Key, UID: reservation.UID, Revision: reservation.Modified}},
				ops: []fsm.Op{{Verb: fsm.Delete, Key: reservation.Key, UID: reservation.UID}},
			})
		}
	}
}
