package controllers

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

const (
	// podBurst is how many pods of one ReplicaSet are created or deleted in
	// one pass, and podBatch how many by one command.
	podBurst = 500
	podBatch = 50

	kindReplicaSet = "ReplicaSet"
)

// replicaSet plans the pods and the status of a ReplicaSet.
func (r *replication) replicaSet(set *appsv1.ReplicaSet) []*change {
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err == nil && selector.Empty() {
		err = fmt.Errorf("selector is empty")
	}
	if err != nil {
		r.plan.problem(describe(set, err))
		return nil
	}
	if set.DeletionTimestamp != nil {
		return []*change{r.setStatus(set, r.claimed(set, selector))}
	}
	if claims := r.claim(set, selector); len(claims) > 0 {
		return claims // what is owned then is counted by the next pass
	}
	pods := r.claimed(set, selector)
	missing := int(value(set.Spec.Replicas, 1)) - len(pods)
	switch {
	case missing > 0 && r.live[set.Namespace]:
		return r.createPods(set, min(missing, podBurst))
	case missing < 0:
		return r.deletePods(set, pods, min(-missing, podBurst))
	}
	return []*change{r.setStatus(set, pods)}
}

// claimed lists the active pods that the ReplicaSet owns and selects.
func (r *replication) claimed(set *appsv1.ReplicaSet, selector labels.Selector) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range r.podsOf[set.UID] {
		if active(pod) && selector.Matches(labels.Set(pod.Labels)) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// claim adopts the active pods that match and have no controller, and releases
// those that no longer match.
func (r *replication) claim(set *appsv1.ReplicaSet, selector labels.Selector) []*change {
	var changes []*change
	for _, pod := range r.podsOf[set.UID] {
		if pod.DeletionTimestamp == nil && !selector.Matches(labels.Set(pod.Labels)) {
			released := pod.DeepCopy()
			disowned(released, set.UID)
			changes = append(changes, (&change{}).live(set).update(pod, released))
		}
	}
	for _, pod := range r.orphanPods[set.Namespace] {
		if active(pod) && selector.Matches(labels.Set(pod.Labels)) {
			adopted := pod.DeepCopy()
			ownedBy(adopted, set, kindReplicaSet)
			changes = append(changes, (&change{}).live(set).update(pod, adopted))
		}
	}
	return changes
}

// createPods plans n new pods. Their names follow from the ReplicaSet's version
// and the names in use, so that the same decision proposed twice collides with
// itself instead of making twice as many.
func (r *replication) createPods(set *appsv1.ReplicaSet, n int) []*change {
	sum := fnv.New64a()
	sum.Write([]byte(set.UID))
	revision, err := strconv.ParseUint(set.ResourceVersion, 10, 64)
	if err != nil {
		r.plan.problem(describe(set, err))
		return nil
	}
	names := rand.New(rand.NewPCG(sum.Sum64(), revision))
	taken := map[string]bool{}
	var changes []*change
	for n > 0 {
		c := (&change{}).namespace(set.Namespace).live(set)
		for range min(n, podBatch) {
			name := resource.GenerateName(names, set.Name+"-")
			for taken[name] || r.view.Get(fsm.Key{Resource: resPods, Namespace: set.Namespace, Name: name}) != nil {
				name = resource.GenerateName(names, set.Name+"-")
			}
			taken[name] = true
			c.create(r.newPod(set, name))
		}
		n -= podBatch
		changes = append(changes, c)
	}
	return changes
}

func (r *replication) newPod(set *appsv1.ReplicaSet, name string) *corev1.Pod {
	template := set.Spec.Template.DeepCopy()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: set.Namespace, Name: name, GenerateName: set.Name + "-",
			Labels: template.Labels, Annotations: template.Annotations, Finalizers: template.Finalizers,
		},
		Spec: template.Spec,
	}
	ownedBy(pod, set, kindReplicaSet)
	r.born(pod)
	return pod
}

// deletePods plans the deletion of the n pods that are missed least. Each is
// named in the version that the choice was made from.
func (r *replication) deletePods(set *appsv1.ReplicaSet, pods []*corev1.Pod, n int) []*change {
	var changes []*change
	for batch := range slices.Chunk(rankForDeletion(pods)[:n], podBatch) {
		c := (&change{}).same(set)
		for _, pod := range batch {
			c.delete(pod, r.now)
		}
		changes = append(changes, c)
	}
	return changes
}

// setStatus plans the status of a ReplicaSet; the change is empty if nothing
// is new.
func (r *replication) setStatus(set *appsv1.ReplicaSet, pods []*corev1.Pod) *change {
	status := set.Status.DeepCopy()
	counts := r.count(pods, set.Spec.MinReadySeconds)
	status.Replicas = int32(len(pods))
	status.ReadyReplicas, status.AvailableReplicas = counts.ready, counts.available
	status.ObservedGeneration = set.Generation
	status.FullyLabeledReplicas = 0
	wanted := labels.Set(set.Spec.Template.Labels).AsSelectorPreValidated()
	for _, pod := range pods {
		if wanted.Matches(labels.Set(pod.Labels)) {
			status.FullyLabeledReplicas++
		}
	}
	c := &change{}
	if !apiequality.Semantic.DeepEqual(&set.Status, status) {
		updated := set.DeepCopy()
		updated.Status = *status
		c.update(set, updated)
	}
	return c
}

// counts is how far pods have come.
type counts struct{ active, ready, available int32 }

// count looks at active pods, and asks for another pass when one of them is
// about to become available.
func (r *replication) count(pods []*corev1.Pod, minReadySeconds int32) counts {
	c := counts{active: int32(len(pods))}
	for _, pod := range pods {
		if !ready(pod) {
			continue
		}
		c.ready++
		yes, left := available(pod, time.Duration(minReadySeconds)*time.Second, r.now)
		if yes {
			c.available++
		} else if left > 0 {
			r.plan.again(left)
		}
	}
	return c
}
