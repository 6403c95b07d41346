package controllers

import (
	"math"
	"sort"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
)

// scaling reports whether the Deployment's size has changed since its
// ReplicaSets got theirs.
func (ro *rollout) scaling() bool {
	for _, set := range ro.all() {
		desired, ok := sizeAnnotation(set, desiredAnnotation)
		if replicas(set) > 0 && ok && desired != ro.wanted() {
			return true
		}
	}
	return false
}

// scale brings the ReplicaSets to the Deployment's size without rolling: a
// single one takes all of it; in the midst of a rollout the difference is
// split in proportion to their sizes.
func (ro *rollout) scale() {
	if set := ro.activeOrLatest(); set != nil {
		if desired, ok := sizeAnnotation(set, desiredAnnotation); !ok || desired != ro.wanted() || replicas(set) != ro.wanted() {
			ro.setReplicas(set, ro.wanted())
		}
		return
	}
	if ro.saturated() {
		for _, set := range ro.old() {
			if replicas(set) > 0 {
				ro.setReplicas(set, 0)
			}
		}
		return
	}
	if ro.next.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		ro.proportion()
	}
}

// activeOrLatest returns the only ReplicaSet with replicas, or, if none has
// any, the new or else the latest one; nil if several have.
func (ro *rollout) activeOrLatest() *appsv1.ReplicaSet {
	var sized []*appsv1.ReplicaSet
	for _, set := range ro.all() {
		if replicas(set) > 0 {
			sized = append(sized, set)
		}
	}
	switch {
	case len(sized) == 1:
		return sized[0]
	case len(sized) > 1:
		return nil
	case ro.hashed != nil:
		return ro.hashed
	}
	if old := ro.old(); len(old) > 0 {
		return old[len(old)-1]
	}
	return nil
}

// saturated reports whether the new ReplicaSet alone is the whole Deployment.
func (ro *rollout) saturated() bool {
	if ro.hashed == nil {
		return false
	}
	desired, ok := sizeAnnotation(ro.hashed, desiredAnnotation)
	return ok && desired == ro.wanted() && replicas(ro.hashed) == ro.wanted() &&
		ro.counted[ro.hashed.UID].available == ro.wanted()
}

// proportion splits the room up to the surge, or what is too much, over the
// ReplicaSets by their sizes; what rounding leaves goes to the largest.
func (ro *rollout) proportion() {
	var sized []*appsv1.ReplicaSet
	for _, set := range ro.all() {
		if replicas(set) > 0 {
			sized = append(sized, set)
		}
	}
	surge, _ := bounds(ro.next)
	allowed := int32(0)
	if ro.wanted() > 0 {
		allowed = ro.wanted() + surge
	}
	room := allowed - total(ro.all(), replicas)
	if room > 0 {
		room = max(0, allowed-total(ro.all(), ro.present)) // pods still to be deleted take up room
	}
	// Growing favours the newer of equal sizes, shrinking takes from the older.
	sort.SliceStable(sized, func(i, j int) bool {
		if a, b := replicas(sized[i]), replicas(sized[j]); a != b {
			return a > b
		}
		if room > 0 {
			return older(sized[j], sized[i])
		}
		return older(sized[i], sized[j])
	})
	sizes, given := make([]int32, len(sized)), int32(0)
	for i, set := range sized {
		share := int32(0)
		if room != 0 {
			share = ro.share(set, room, given)
		}
		given += share
		sizes[i] = replicas(set) + share
	}
	if len(sizes) > 0 && room != 0 {
		sizes[0] += room - given
	}
	for i, set := range sized {
		ro.setReplicas(set, sizes[i])
	}
}

// share is a ReplicaSet's part of the room, of which given is spent.
func (ro *rollout) share(set *appsv1.ReplicaSet, room, given int32) int32 {
	left := room - given
	if replicas(set) == 0 || left == 0 {
		return 0
	}
	part := ro.fraction(set)
	if room > 0 {
		return min(part, left)
	}
	return max(part, left)
}

// fraction is how much a ReplicaSet grows or shrinks with its Deployment.
func (ro *rollout) fraction(set *appsv1.ReplicaSet) int32 {
	if ro.wanted() == 0 {
		return -replicas(set)
	}
	before, ok := sizeAnnotation(set, maxReplicasAnnotation)
	if !ok || before == 0 {
		if before = ro.read.Status.Replicas; before == 0 {
			return 0
		}
	}
	surge, _ := bounds(ro.next)
	size := float64(replicas(set)) * float64(ro.wanted()+surge) / float64(before)
	return int32(math.Round(size)) - replicas(set)
}

// sizeAnnotation reads a number; ok is false if there is none.
func sizeAnnotation(set *appsv1.ReplicaSet, name string) (n int32, ok bool) {
	parsed, err := strconv.ParseInt(set.Annotations[name], 10, 32)
	return int32(parsed), err == nil
}
