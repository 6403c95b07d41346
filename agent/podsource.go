package agent

import (
	"context"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// podSource is the pods that are bound to this node, as the server has them.
type podSource struct {
	revisions *revisions
	changed   chan struct{}

	mu     sync.Mutex
	pods   map[types.UID]*corev1.Pod // never changed once they are here
	synced bool                      // a list has arrived
}

func newPodSource(rev *revisions) *podSource {
	return &podSource{revisions: rev, changed: make(chan struct{}, 1), pods: map[types.UID]*corev1.Pod{}}
}

// snapshot returns the pods and whether they were ever listed.
func (s *podSource) snapshot() (map[types.UID]*corev1.Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.pods), s.synced
}

func (s *podSource) follow(client *client, node string) *follower {
	selector := fields.OneTermEqualSelector("spec.nodeName", node).String()
	pods := client.Pods(metav1.NamespaceAll)
	return &follower{
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return pods.List(ctx, o)
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return pods.Watch(ctx, o)
		},
		replace: s.replace,
		apply:   s.apply,
	}
}

func (s *podSource) replace(revision string, items []runtime.Object) error {
	if err := s.revisions.see(revision, true); err != nil {
		return err
	}
	pods := map[types.UID]*corev1.Pod{}
	for _, item := range items {
		if pod, ok := item.(*corev1.Pod); ok {
			pods[pod.UID] = pod
		}
	}
	s.mu.Lock()
	s.pods, s.synced = pods, true
	s.mu.Unlock()
	kick(s.changed)
	return nil
}

func (s *podSource) apply(kind watch.EventType, obj runtime.Object) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	if err := s.revisions.see(pod.ResourceVersion, false); err != nil {
		return err
	}
	s.mu.Lock()
	if kind == watch.Deleted {
		delete(s.pods, pod.UID)
	} else {
		s.pods[pod.UID] = pod
	}
	s.mu.Unlock()
	kick(s.changed)
	return nil
}
