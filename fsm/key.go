package fsm

import "strings"

// ReservationResource holds keys that are taken by whoever creates them
// first: cluster IPs, node ports, pod ranges, node names. The name is the
// reserved thing ("clusterip/10.43.0.7"), the data is text about its holder.
const ReservationResource = "reservations.shepherd.internal"

// InternalSuffix ends the resources that the Kubernetes API never serves.
const InternalSuffix = ".shepherd.internal"

// Key names an object. Resource is a schema.GroupResource as a string:
// "pods", "deployments.apps". Namespace is empty for cluster-scoped objects.
type Key struct {
	Resource  string
	Namespace string
	Name      string
}

// Compare orders keys by resource, namespace and name; it is the order of
// every listing.
func (k Key) Compare(o Key) int { return k.compare(&o) }

func (k *Key) compare(o *Key) int {
	switch { // most are equal, and equality is cheap for strings that are shared
	case k.Resource != o.Resource:
		return strings.Compare(k.Resource, o.Resource)
	case k.Namespace != o.Namespace:
		return strings.Compare(k.Namespace, o.Namespace)
	}
	return strings.Compare(k.Name, o.Name)
}

// Internal reports whether the key belongs to Shepherd itself and is hidden
// from the Kubernetes API.
func (k Key) Internal() bool { return strings.HasSuffix(k.Resource, InternalSuffix) }

// String returns "pods/default/web", or "nodes/w1" for a cluster-scoped key.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Resource + "/" + k.Name
	}
	return k.Resource + "/" + k.Namespace + "/" + k.Name
}

// valid reports whether the key can name an object. The API checks names far
// more strictly; this keeps the order of keys unambiguous.
func (k Key) valid() bool {
	return k.Resource != "" && k.Name != "" &&
		len(k.Resource) <= maxKeyPart && len(k.Namespace) <= maxKeyPart && len(k.Name) <= maxKeyPart
}

// maxKeyPart bounds each part of a key, in bytes.
const maxKeyPart = 1024
