package controllers

import (
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// Resources as they are named in keys.
const (
	resNamespaces      = "namespaces"
	resNodes           = "nodes"
	resPods            = "pods"
	resServices        = "services"
	resServiceAccounts = "serviceaccounts"
	resEvents          = "events"
	resDeployments     = "deployments.apps"
	resReplicaSets     = "replicasets.apps"
	resEndpointSlices  = "endpointslices.discovery.k8s.io"
	resLeases          = "leases.coordination.k8s.io"
)

// world is all that a planner may look at. The objects that it gives out are
// shared: a planner copies what it changes.
type world struct {
	now     time.Time // cluster time
	view    *fsm.View
	decoder *resource.Decoder
	rand    *rand.Rand
	config  *Config
	// servers are the HOST:PORT addresses of the API servers.
	servers []string
	// ages says how long ago each node was heard of; nil when that is not
	// known, and then no node is judged. since is when this generation of
	// controllers began: a node without an age was not heard of since.
	ages  map[string]time.Duration
	since time.Time
}

// list returns the objects of a resource in a namespace, or in all for "".
func list[T runtime.Object](w *world, groupResource, namespace string) ([]T, error) {
	return resource.List[T](w.decoder, w.view, groupResource, namespace)
}

// get returns an object and whether it exists.
func get[T runtime.Object](w *world, groupResource, namespace, name string) (T, bool, error) {
	return resource.Get[T](w.decoder, w.view, groupResource, namespace, name)
}

// liveNamespaces returns the names of the namespaces that take new objects.
func (w *world) liveNamespaces() map[string]bool {
	live := map[string]bool{}
	for o := range w.view.List(resNamespaces, "") {
		live[o.Key.Name] = !o.Deleting
	}
	return live
}

// podsByNamespace lists all pods by namespace, ordered by name.
func (w *world) podsByNamespace() (map[string][]*corev1.Pod, error) {
	pods, err := list[*corev1.Pod](w, resPods, "")
	if err != nil {
		return nil, err
	}
	byNamespace := map[string][]*corev1.Pod{}
	for _, pod := range pods {
		byNamespace[pod.Namespace] = append(byNamespace[pod.Namespace], pod)
	}
	return byNamespace, nil
}
