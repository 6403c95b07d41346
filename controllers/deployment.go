package controllers

import (
	"fmt"
	"math"
	"sort"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const kindDeployment = "Deployment"

// rollout is one step of one Deployment. It works on copies; step collects
// what differs from what was read into one command, which also names every
// ReplicaSet that was looked at, so that a step is taken whole from the state
// it was decided on, or not at all.
type rollout struct {
	*replication
	read *appsv1.Deployment // as it is in the view
	next *appsv1.Deployment // as it will be
	// sets are the ReplicaSets of the view, oldest first, in working copies.
	sets []*appsv1.ReplicaSet
	base map[types.UID]*appsv1.ReplicaSet // the versions read
	// created and removed are what the step adds and drops.
	created *appsv1.ReplicaSet
	removed map[types.UID]bool
	counted map[types.UID]counts
	hashed  *appsv1.ReplicaSet // the set with the Deployment's template, if any
}

// deployment plans the next step of a Deployment. It returns the change and
// which ReplicaSets it touches.
func (r *replication) deployment(d *appsv1.Deployment) (*change, map[types.UID]bool) {
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err == nil && selector.Empty() {
		err = fmt.Errorf("selector is empty")
	}
	if err != nil {
		r.plan.problem(describe(d, err))
		return &change{}, nil
	}
	if c, touched := r.claimSets(d, selector); len(touched) > 0 {
		return c, touched
	}
	ro := &rollout{replication: r, read: d, next: d.DeepCopy(), base: map[types.UID]*appsv1.ReplicaSet{},
		removed: map[types.UID]bool{}, counted: map[types.UID]counts{}}
	for _, set := range r.setsOf[d.UID] {
		ro.base[set.UID] = set
		ro.sets = append(ro.sets, set.DeepCopy())
		ro.counted[set.UID] = ro.countSet(set)
	}
	sort.SliceStable(ro.sets, func(i, j int) bool { return older(ro.sets[i], ro.sets[j]) })
	ro.hashed = ro.findNewSet()
	if d.DeletionTimestamp != nil {
		ro.syncStatus(false)
	} else {
		ro.advance()
	}
	return ro.change()
}

// claimSets adopts ReplicaSets that match and have no controller, and releases
// those that no longer match.
func (r *replication) claimSets(d *appsv1.Deployment, selector labels.Selector) (*change, map[types.UID]bool) {
	c, touched := &change{}, map[types.UID]bool{}
	if d.DeletionTimestamp != nil {
		return c, touched
	}
	c.live(d)
	for _, set := range r.setsOf[d.UID] {
		if set.DeletionTimestamp == nil && !selector.Matches(labels.Set(set.Labels)) {
			released := set.DeepCopy()
			disowned(released, d.UID)
			c.update(set, released)
			touched[set.UID] = true
		}
	}
	for _, set := range r.orphanSets[d.Namespace] {
		if set.DeletionTimestamp == nil && selector.Matches(labels.Set(set.Labels)) {
			adopted := set.DeepCopy()
			ownedBy(adopted, d, kindDeployment)
			c.update(set, adopted)
			touched[set.UID] = true
		}
	}
	return c, touched
}

// advance decides the step of a Deployment that is not being deleted.
func (ro *rollout) advance() {
	ro.markPaused()
	if ro.next.Spec.Paused {
		ro.ensureNewSet(false)
		ro.scale()
		ro.cleanUp()
		ro.syncStatus(false)
		return
	}
	if ro.scaling() {
		ro.ensureNewSet(false)
		ro.scale()
		ro.syncStatus(false)
		return
	}
	if ro.next.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		ro.recreate()
	} else {
		ro.roll()
	}
	if ro.complete(&ro.next.Status) {
		ro.cleanUp()
	}
	ro.syncStatus(true)
}

// change returns what the step changed.
func (ro *rollout) change() (*change, map[types.UID]bool) {
	c, touched := &change{}, map[types.UID]bool{}
	if ro.created != nil {
		c.namespace(ro.next.Namespace).create(ro.created)
		touched[ro.created.UID] = true
	}
	for _, set := range ro.sets {
		read := ro.base[set.UID]
		switch {
		case ro.removed[set.UID]:
			c.delete(read, ro.now)
		case apiequality.Semantic.DeepEqual(read, set):
			c.same(read)
			continue
		default:
			if !apiequality.Semantic.DeepEqual(read.Spec, set.Spec) {
				touch(set)
			}
			c.update(read, set)
		}
		touched[set.UID] = true
	}
	switch {
	case !apiequality.Semantic.DeepEqual(ro.read, ro.next):
		c.update(ro.read, ro.next)
	case ro.read.DeletionTimestamp == nil:
		c.live(ro.read)
	}
	return c, touched
}

// countSet counts the active pods that a ReplicaSet owns.
func (ro *rollout) countSet(set *appsv1.ReplicaSet) counts {
	var pods []*corev1.Pod
	for _, pod := range ro.podsOf[set.UID] {
		if active(pod) {
			pods = append(pods, pod)
		}
	}
	return ro.count(pods, ro.next.Spec.MinReadySeconds)
}

// all lists every ReplicaSet that will be there after the step.
func (ro *rollout) all() []*appsv1.ReplicaSet {
	var all []*appsv1.ReplicaSet
	for _, set := range ro.sets {
		if !ro.removed[set.UID] {
			all = append(all, set)
		}
	}
	if ro.created != nil {
		all = append(all, ro.created)
	}
	return all
}

// old lists the ReplicaSets of other templates, oldest first.
func (ro *rollout) old() []*appsv1.ReplicaSet {
	var old []*appsv1.ReplicaSet
	for _, set := range ro.all() {
		if set != ro.hashed {
			old = append(old, set)
		}
	}
	return old
}

// wanted is spec.replicas of the Deployment.
func (ro *rollout) wanted() int32 { return value(ro.next.Spec.Replicas, 1) }

func replicas(set *appsv1.ReplicaSet) int32 { return value(set.Spec.Replicas, 1) }

// present is how many pods a ReplicaSet has or is about to have.
func (ro *rollout) present(set *appsv1.ReplicaSet) int32 {
	return max(replicas(set), ro.counted[set.UID].active)
}

// serving is how many of its pods are available and will stay: those beyond
// its replicas are about to be deleted.
func (ro *rollout) serving(set *appsv1.ReplicaSet) int32 {
	return min(replicas(set), ro.counted[set.UID].available)
}

func total(sets []*appsv1.ReplicaSet, of func(*appsv1.ReplicaSet) int32) int32 {
	sum := int32(0)
	for _, set := range sets {
		sum += of(set)
	}
	return sum
}

// bounds returns how many pods there may be over the wanted number, and how
// many may be unavailable. Percentages of the wanted number are rounded up for
// the surge and down for the unavailable ones; both zero would stand still, so
// one may be unavailable then.
func bounds(d *appsv1.Deployment) (surge, unavailable int32) {
	rolling := d.Spec.Strategy.RollingUpdate
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return 0, 0
	}
	wanted := value(d.Spec.Replicas, 1)
	quarter := intstr.FromString("25%")
	surgeText, unavailableText := quarter, quarter
	if rolling != nil {
		surgeText, unavailableText = value(rolling.MaxSurge, quarter), value(rolling.MaxUnavailable, quarter)
	}
	surge, unavailable = scaled(surgeText, wanted, true), scaled(unavailableText, wanted, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, min(unavailable, wanted)
}

// scaled resolves a number or a percentage; what is neither, which validation
// refuses, counts as zero.
func scaled(v intstr.IntOrString, of int32, up bool) int32 {
	n, err := intstr.GetScaledValueFromIntOrPercent(&v, int(of), up)
	if err != nil {
		return 0
	}
	return int32(min(max(n, 0), math.MaxInt32/2))
}

// older orders by creation, then by name.
func older(a, b *appsv1.ReplicaSet) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return a.CreationTimestamp.Before(&b.CreationTimestamp)
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }
