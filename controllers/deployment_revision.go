package controllers

import (
	"hash/fnv"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/shepherd-project/shepherd/fsm"
)

// Annotations that kubectl and other clients read.
const (
	revisionAnnotation        = "deployment.kubernetes.io/revision"
	revisionHistoryAnnotation = "deployment.kubernetes.io/revision-history"
	desiredAnnotation         = "deployment.kubernetes.io/desired-replicas"
	maxReplicasAnnotation     = "deployment.kubernetes.io/max-replicas"
)

// ownAnnotations are not copied from a Deployment to its ReplicaSets.
var ownAnnotations = map[string]bool{
	corev1.LastAppliedConfigAnnotation: true,
	revisionAnnotation:                 true,
	revisionHistoryAnnotation:          true,
	desiredAnnotation:                  true,
	maxReplicasAnnotation:              true,
	appsv1.DeprecatedRollbackTo:        true,
}

// findNewSet returns the oldest ReplicaSet with the Deployment's template.
func (ro *rollout) findNewSet() *appsv1.ReplicaSet {
	for _, set := range ro.sets {
		if set.DeletionTimestamp == nil && sameTemplate(&set.Spec.Template, &ro.next.Spec.Template) {
			return set
		}
	}
	return nil
}

// sameTemplate compares pod templates without the hash label.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	strip := func(t *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
		if _, ok := t.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; !ok {
			return t
		}
		t = t.DeepCopy()
		delete(t.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
		return t
	}
	return apiequality.Semantic.DeepEqual(strip(a), strip(b))
}

// ensureNewSet brings the new ReplicaSet's metadata up to date, or plans its
// creation if create is set.
func (ro *rollout) ensureNewSet(create bool) {
	revision := int64(1)
	for _, set := range ro.old() {
		revision = max(revision, revisionOf(set)+1)
	}
	if ro.hashed == nil {
		if create {
			ro.createNewSet(revision)
		}
		return
	}
	set := ro.hashed
	set.Spec.MinReadySeconds = ro.next.Spec.MinReadySeconds
	ro.copyAnnotations(set)
	if old := revisionOf(set); old < revision {
		if set.Annotations[revisionAnnotation] != "" {
			history := set.Annotations[revisionAnnotation]
			if earlier := set.Annotations[revisionHistoryAnnotation]; earlier != "" {
				history = trimHistory(earlier + "," + history)
			}
			set.Annotations[revisionHistoryAnnotation] = history
		}
		set.Annotations[revisionAnnotation] = strconv.FormatInt(revision, 10)
	}
	ro.setRevision(set.Annotations[revisionAnnotation])
	if _, ok := progressDeadline(ro.next); ok && deploymentCondition(&ro.next.Status, appsv1.DeploymentProgressing) == nil {
		ro.setCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonFoundSet,
			"Found new replica set "+strconv.Quote(set.Name))
	}
}

// createNewSet plans the ReplicaSet for the Deployment's template. Its name is
// a hash of the template, so it cannot be created twice.
func (ro *rollout) createNewSet(revision int64) {
	hash, err := templateHash(&ro.next.Spec.Template, ro.next.Status.CollisionCount)
	if err != nil {
		ro.plan.problem(describe(ro.read, err))
		return
	}
	name := ro.next.Name + "-" + hash
	if !ro.live[ro.next.Namespace] {
		return
	}
	if ro.view.Get(fsm.Key{Resource: resReplicaSets, Namespace: ro.next.Namespace, Name: name}) != nil {
		// The name belongs to another template, or to a set on its way out.
		collisions := value(ro.next.Status.CollisionCount, 0) + 1
		ro.next.Status.CollisionCount = &collisions
		return
	}
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: ro.next.Namespace, Name: name},
		Spec: appsv1.ReplicaSetSpec{
			MinReadySeconds: ro.next.Spec.MinReadySeconds,
			Selector:        ro.next.Spec.Selector.DeepCopy(),
			Template:        *ro.next.Spec.Template.DeepCopy(),
		},
	}
	set.Spec.Template.Labels = withLabel(set.Spec.Template.Labels, hash)
	set.Spec.Selector.MatchLabels = withLabel(set.Spec.Selector.MatchLabels, hash)
	set.Labels = maps.Clone(set.Spec.Template.Labels)
	ownedBy(set, ro.next, kindDeployment)
	size := ro.wanted()
	if ro.next.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		size = ro.newSize()
	}
	set.Annotations = map[string]string{}
	ro.copyAnnotations(set)
	set.Annotations[revisionAnnotation] = strconv.FormatInt(revision, 10)
	ro.setReplicas(set, size)
	ro.born(set)
	ro.created, ro.hashed = set, set
	ro.setRevision(set.Annotations[revisionAnnotation])
	if _, ok := progressDeadline(ro.next); ok {
		ro.setCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonNewSet,
			"Created new replica set "+strconv.Quote(set.Name))
	}
}

// templateHash is a name for a pod template; collisions makes it another one.
func templateHash(template *corev1.PodTemplateSpec, collisions *int32) (string, error) {
	data, err := template.Marshal()
	if err != nil {
		return "", err
	}
	sum := fnv.New32a()
	sum.Write(data)
	if collisions != nil {
		sum.Write([]byte(strconv.Itoa(int(*collisions))))
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(sum.Sum32()), 10)), nil
}

func withLabel(labels map[string]string, hash string) map[string]string {
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	return labels
}

// copyAnnotations copies the Deployment's annotations to a ReplicaSet, but for
// those that each has of its own.
func (ro *rollout) copyAnnotations(set *appsv1.ReplicaSet) {
	if set.Annotations == nil {
		set.Annotations = map[string]string{}
	}
	for key, text := range ro.next.Annotations {
		if !ownAnnotations[key] {
			set.Annotations[key] = text
		}
	}
}

// annotateSize records the Deployment's size at the time that a ReplicaSet got
// its own.
func (ro *rollout) annotateSize(set *appsv1.ReplicaSet) {
	if set.Annotations == nil {
		set.Annotations = map[string]string{}
	}
	surge, _ := bounds(ro.next)
	set.Annotations[desiredAnnotation] = strconv.Itoa(int(ro.wanted()))
	set.Annotations[maxReplicasAnnotation] = strconv.Itoa(int(ro.wanted() + surge))
}

func (ro *rollout) setRevision(revision string) {
	if ro.next.Annotations == nil {
		ro.next.Annotations = map[string]string{}
	}
	ro.next.Annotations[revisionAnnotation] = revision
}

// revisionOf reads a ReplicaSet's revision; one that cannot be read is 0.
func revisionOf(set *appsv1.ReplicaSet) int64 {
	revision, err := strconv.ParseInt(set.Annotations[revisionAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return revision
}

// trimHistory keeps the list of former revisions short.
func trimHistory(history string) string {
	const most = 2000
	parts := strings.Split(history, ",")
	for len(strings.Join(parts, ",")) > most {
		parts = parts[1:]
	}
	return strings.Join(parts, ",")
}

// cleanUp removes old ReplicaSets without pods beyond revisionHistoryLimit, the
// lowest revisions first.
func (ro *rollout) cleanUp() {
	old := slices.DeleteFunc(ro.old(), func(set *appsv1.ReplicaSet) bool { return set.DeletionTimestamp != nil })
	excess := len(old) - int(value(ro.next.Spec.RevisionHistoryLimit, 10))
	sort.SliceStable(old, func(i, j int) bool { return revisionOf(old[i]) < revisionOf(old[j]) })
	for _, set := range old[:max(0, min(excess, len(old)))] {
		if replicas(set) == 0 && set.Status.Replicas == 0 && len(ro.podsOf[set.UID]) == 0 {
			ro.removed[set.UID] = true
		}
	}
}
