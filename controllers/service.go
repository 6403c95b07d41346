package controllers

import (
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shepherd-project/shepherd/fsm"
)

// sliceManager is the managed-by label of the slices that this controller
// writes; Kubernetes' own controller uses the same.
const sliceManager = "endpointslice-controller.k8s.io"

// errNoClusterIP is the problem of a service when the range is used up.
var errNoClusterIP = errors.New("no cluster IP is free")

// planServices keeps the EndpointSlices of services with a selector, and the
// reservations of cluster IPs.
//
// A slice is a copy of what the pods say, put right by the next pass, and no
// decision that could do harm: its command depends on the service and on the
// slice, but not on the versions of the pods, whose every change would throw
// the whole slice back.
func planServices(w *world) (*plan, error) {
	p := &plan{}
	services, err := list[*corev1.Service](w, resServices, "")
	if err != nil {
		return nil, err
	}
	pods, err := w.podsByNamespace()
	if err != nil {
		return nil, err
	}
	slices, err := list[*discoveryv1.EndpointSlice](w, resEndpointSlices, "")
	if err != nil {
		return nil, err
	}
	live := w.liveNamespaces()
	ours := map[fsm.Key][]*discoveryv1.EndpointSlice{} // by the key of their service
	for _, slice := range slices {
		if slice.Labels[discoveryv1.LabelManagedBy] == sliceManager {
			key := serviceKey(slice.Namespace, slice.Labels[discoveryv1.LabelServiceName])
			ours[key] = append(ours[key], slice)
		}
	}
	addresses := newClusterIPs(w, services)
	for _, service := range services {
		if service.DeletionTimestamp == nil {
			addresses.plan(p, service)
		}
		if selects(service) && service.DeletionTimestamp == nil {
			key := keyOf(service)
			w.planSlices(p, service, pods[service.Namespace], ours[key], live[service.Namespace])
			delete(ours, key)
		}
	}
	w.dropSlices(p, ours)
	return p, nil
}

func serviceKey(namespace, name string) fsm.Key {
	return fsm.Key{Resource: resServices, Namespace: namespace, Name: name}
}

// selects reports whether the service's endpoints come from pods.
func selects(service *corev1.Service) bool {
	return len(service.Spec.Selector) > 0 && service.Spec.Type != corev1.ServiceTypeExternalName
}

// dropSlices removes slices whose service is gone or selects no pods any more.
func (w *world) dropSlices(p *plan, left map[fsm.Key][]*discoveryv1.EndpointSlice) {
	for key, slices := range left {
		c := &change{}
		if o := w.view.Get(key); o == nil {
			if key.Name != "" {
				c.absent(key)
			}
		} else {
			c.pre = append(c.pre, fsm.Precondition{Key: key, UID: o.UID, Revision: o.Modified})
		}
		for _, slice := range slices {
			if slice.DeletionTimestamp == nil {
				c.delete(slice, w.now)
			}
		}
		p.add(c)
	}
}

// clusterIPs knows which cluster IPs are taken.
type clusterIPs struct {
	*world
	used map[string]*corev1.Service
}

func newClusterIPs(w *world, services []*corev1.Service) *clusterIPs {
	a := &clusterIPs{world: w, used: map[string]*corev1.Service{}}
	for _, service := range services {
		for _, ip := range addressesOf(service) {
			if _, taken := a.used[ip]; !taken {
				a.used[ip] = service
			}
		}
	}
	return a
}

// addressesOf lists the cluster IPs that a service has.
func addressesOf(service *corev1.Service) []string {
	ips := service.Spec.ClusterIPs
	if len(ips) == 0 && service.Spec.ClusterIP != "" {
		ips = []string{service.Spec.ClusterIP}
	}
	var real []string
	for _, ip := range ips {
		if ip != "" && ip != corev1.ClusterIPNone {
			real = append(real, ip)
		}
	}
	return real
}

// plan repairs what the API does when it creates a service: the reservations of
// its address and node ports, or an address where there is none.
func (a *clusterIPs) plan(p *plan, service *corev1.Service) {
	for _, ip := range addressesOf(service) {
		if holder := a.used[ip]; holder.UID != service.UID {
			p.problem(describe(service, fmt.Errorf("cluster IP %s is also that of %s", ip, keyOf(holder))))
		}
	}
	for _, key := range held(service) {
		if a.view.Get(key) == nil {
			p.add((&change{}).live(service).reserve(key, service))
		}
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName || service.Spec.ClusterIP != "" {
		return
	}
	ip, ok := a.free()
	if !ok {
		p.problem(describe(service, fmt.Errorf("%w in %s", errNoClusterIP, a.config.ServiceCIDR)))
		return
	}
	a.used[ip] = service
	updated := service.DeepCopy()
	updated.Spec.ClusterIP, updated.Spec.ClusterIPs = ip, []string{ip}
	touch(updated)
	p.add((&change{}).live(service).reserve(clusterIPKey(ip), service).update(service, updated))
}

// free draws an address of the range that nobody holds, but for the first one,
// which is the API's.
func (a *clusterIPs) free() (string, bool) {
	size := uint32(1) << (32 - a.config.ServiceCIDR.Bits())
	first := a.config.ServiceCIDR.Addr().As4()
	base := uint32(first[0])<<24 | uint32(first[1])<<16 | uint32(first[2])<<8 | uint32(first[3])
	// Neither the network, nor the API's address, nor the broadcast address.
	usable := size - 3
	start := a.rand.Uint32N(usable)
	for i := range usable {
		n := base + 2 + (start+i)%usable
		ip := netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}).String()
		if a.used[ip] == nil && a.view.Get(clusterIPKey(ip)) == nil {
			return ip, true
		}
	}
	return "", false
}

// serviceOwner is the reference from a slice to its service.
func serviceOwner(service *corev1.Service) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: service.Name, UID: service.UID,
		Controller: &yes, BlockOwnerDeletion: &yes}}
}
