// Package scheduler decides which node a pod goes to. It is pure: it looks at
// the nodes and pods that it is given, draws ties from the caller's random
// source, and touches nothing else.
package scheduler

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// State is the cluster as one scheduling pass sees it, with the placements of
// that pass booked as they are made. It is not safe for concurrent use and
// never changes the objects that it was built from.
type State struct {
	nodes  []*node
	byName map[string]*node
}

// New builds the state from every node and pod. Pods that have finished claim
// nothing; those that are terminating do until they are gone.
func New(nodes []*corev1.Node, pods []*corev1.Pod) *State {
	s := &State{byName: make(map[string]*node, len(nodes))}
	for _, object := range nodes {
		n := newNode(object)
		s.nodes = append(s.nodes, n)
		s.byName[object.Name] = n
	}
	for _, pod := range pods {
		if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		if n := s.byName[pod.Spec.NodeName]; n != nil {
			n.add(pod)
		}
	}
	return s
}

// FitError says why no node can take a pod, in the words of kube-scheduler.
type FitError struct {
	Nodes   int            // how many nodes there are
	Reasons map[string]int // reason -> on how many nodes
}

// Error gives the reasons in alphabetical order, so that equal states give
// equal messages.
func (e *FitError) Error() string {
	if e.Nodes == 0 {
		return "no nodes available to schedule pods"
	}
	parts := make([]string, 0, len(e.Reasons))
	for reason, count := range e.Reasons {
		parts = append(parts, fmt.Sprintf("%d %s", count, reason))
	}
	sort.Strings(parts)
	return fmt.Sprintf("0/%d nodes are available: %s.", e.Nodes, strings.Join(parts, ", "))
}

// Place picks the best node for the pod and books the pod there. The error is
// a *FitError when no node can take it.
func (s *State) Place(pod *corev1.Pod, random *rand.Rand) (*corev1.Node, error) {
	r := newRequest(pod)
	preferred, err := preference(pod)
	if err != nil {
		return nil, err
	}
	fit := &FitError{Nodes: len(s.nodes), Reasons: map[string]int{}}
	var best *node
	var bestScore score
	ties := 0
	for _, n := range s.nodes {
		if reasons := n.filter(r); len(reasons) > 0 {
			for _, reason := range reasons {
				fit.Reasons[reason]++
			}
			continue
		}
		rated := n.score(r, preferred)
		switch {
		case best == nil || rated.better(bestScore):
			best, bestScore, ties = n, rated, 1
		case !bestScore.better(rated):
			// The k-th equal node replaces the choice with probability 1/k.
			if ties++; random.IntN(ties) == 0 {
				best = n
			}
		}
	}
	if best == nil {
		return nil, fit
	}
	best.add(pod)
	return best.object, nil
}

// preference returns the function that weighs a node by the pod's preferred
// node affinity.
func preference(pod *corev1.Pod) (func(*corev1.Node) int64, error) {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil ||
		len(affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) == 0 {
		return func(*corev1.Node) int64 { return 0 }, nil
	}
	terms, err := nodeaffinity.NewPreferredSchedulingTerms(
		affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	if err != nil {
		return nil, fmt.Errorf("preferred node affinity: %w", err)
	}
	return terms.Score, nil
}
