package scheduler

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
)

// node is one machine with what its pods already claim of it.
type node struct {
	object    *corev1.Node
	ready     bool
	requested corev1.ResourceList
	pods      int64
	ports     []hostPort
	owners    map[types.UID]int
}

// hostPort is a port that a pod holds on the node's own addresses.
type hostPort struct {
	ip       string
	protocol corev1.Protocol
	port     int32
}

// wildcard reports whether the port is held on every address.
func (p hostPort) wildcard() bool {
	return p.ip == "" || p.ip == "0.0.0.0" || p.ip == "::"
}

// conflicts reports whether p and o cannot be bound at the same time.
func (p hostPort) conflicts(o hostPort) bool {
	return p.port == o.port && p.protocol == o.protocol && (p.ip == o.ip || p.wildcard() || o.wildcard())
}

func newNode(object *corev1.Node) *node {
	n := &node{object: object, requested: corev1.ResourceList{}, owners: map[types.UID]int{}}
	for i := range object.Status.Conditions {
		if c := &object.Status.Conditions[i]; c.Type == corev1.NodeReady {
			n.ready = c.Status == corev1.ConditionTrue
		}
	}
	return n
}

// add books a pod's claims on the node.
func (n *node) add(pod *corev1.Pod) {
	n.pods++
	for name, quantity := range Requests(pod) {
		sum := n.requested[name]
		sum.Add(quantity)
		n.requested[name] = sum
	}
	n.ports = append(n.ports, hostPorts(pod)...)
	if owner := controllerUID(pod); owner != "" && pod.DeletionTimestamp == nil {
		n.owners[owner]++
	}
}

// Requests returns what a pod asks of a node: the sum of its containers or
// the largest init container, whichever is more, plus overhead. The caller
// owns the list.
func Requests(pod *corev1.Pod) corev1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
}

// hostPorts lists the ports that a pod binds on its node.
func hostPorts(pod *corev1.Pod) []hostPort {
	var ports []hostPort
	collect := func(containers []corev1.Container) {
		for i := range containers {
			for _, p := range containers[i].Ports {
				number := p.HostPort
				if number == 0 && pod.Spec.HostNetwork {
					number = p.ContainerPort
				}
				if number == 0 {
					continue
				}
				protocol := p.Protocol
				if protocol == "" {
					protocol = corev1.ProtocolTCP
				}
				ports = append(ports, hostPort{ip: p.HostIP, protocol: protocol, port: number})
			}
		}
	}
	collect(pod.Spec.Containers)
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			collect(pod.Spec.InitContainers[i : i+1])
		}
	}
	return ports
}

// controllerUID returns the UID of the object that manages the pod, or "".
func controllerUID(pod *corev1.Pod) types.UID {
	for i := range pod.OwnerReferences {
		if ref := &pod.OwnerReferences[i]; ref.Controller != nil && *ref.Controller {
			return ref.UID
		}
	}
	return ""
}
