package controllers

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// replication is one pass over all Deployments, ReplicaSets and their pods.
type replication struct {
	*world
	plan *plan
	live map[string]bool

	// Pods by their controller; those without one by namespace.
	podsOf     map[types.UID][]*corev1.Pod
	orphanPods map[string][]*corev1.Pod
	// ReplicaSets likewise.
	setsOf     map[types.UID][]*appsv1.ReplicaSet
	orphanSets map[string][]*appsv1.ReplicaSet
}

// planReplication turns Deployments into ReplicaSets and ReplicaSets into pods.
// A Deployment and its ReplicaSets make one chain: first the Deployment's step,
// all of it one command, then the pods of each ReplicaSet that the step left
// alone.
func planReplication(w *world) (*plan, error) {
	r := &replication{world: w, plan: &plan{}, live: w.liveNamespaces(),
		podsOf: map[types.UID][]*corev1.Pod{}, orphanPods: map[string][]*corev1.Pod{},
		setsOf: map[types.UID][]*appsv1.ReplicaSet{}, orphanSets: map[string][]*appsv1.ReplicaSet{}}
	pods, err := list[*corev1.Pod](w, resPods, "")
	if err != nil {
		return nil, err
	}
	sets, err := list[*appsv1.ReplicaSet](w, resReplicaSets, "")
	if err != nil {
		return nil, err
	}
	deployments, err := list[*appsv1.Deployment](w, resDeployments, "")
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		if ref := controllerOf(pod); ref != nil {
			r.podsOf[ref.UID] = append(r.podsOf[ref.UID], pod)
		} else {
			r.orphanPods[pod.Namespace] = append(r.orphanPods[pod.Namespace], pod)
		}
	}
	for _, set := range sets {
		if ref := controllerOf(set); ref != nil {
			r.setsOf[ref.UID] = append(r.setsOf[ref.UID], set)
		} else {
			r.orphanSets[set.Namespace] = append(r.orphanSets[set.Namespace], set)
		}
	}
	done := map[types.UID]bool{}
	for _, d := range deployments {
		step, changed := r.deployment(d)
		chain := []*change{step}
		for _, set := range r.setsOf[d.UID] {
			done[set.UID] = true
			if !changed[set.UID] {
				chain = append(chain, r.replicaSet(set)...)
			}
		}
		for uid := range changed {
			done[uid] = true
		}
		r.plan.add(chain...)
	}
	for _, set := range sets {
		if !done[set.UID] {
			r.plan.add(r.replicaSet(set)...)
		}
	}
	return r.plan, nil
}

// ownedBy adds a controller reference.
func ownedBy(obj, owner metav1.Object, kind string) {
	yes := true
	obj.SetOwnerReferences(append(obj.GetOwnerReferences(), metav1.OwnerReference{
		APIVersion: appsv1.SchemeGroupVersion.String(), Kind: kind, Name: owner.GetName(), UID: owner.GetUID(),
		Controller: &yes, BlockOwnerDeletion: &yes,
	}))
}

// disowned removes the references to an owner.
func disowned(obj metav1.Object, owner types.UID) {
	var rest []metav1.OwnerReference
	for _, ref := range obj.GetOwnerReferences() {
		if ref.UID != owner {
			rest = append(rest, ref)
		}
	}
	obj.SetOwnerReferences(rest)
}
