package controllers

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// systemNamespaces exist in every cluster.
var systemNamespaces = []string{"default", "kube-system", "kube-public", "kube-node-lease"}

const (
	kubernetesService = "kubernetes"
	defaultAccount    = "default"
)

// planBootstrap makes what every cluster has: the system's namespaces, the
// default service account of each namespace, and service default/kubernetes
// with the addresses of the API servers.
func planBootstrap(w *world) (*plan, error) {
	p := &plan{}
	live := w.liveNamespaces()
	for _, name := range systemNamespaces {
		if _, ok := live[name]; ok {
			continue
		}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		w.born(ns)
		p.add((&change{}).create(ns))
	}
	for name, isLive := range live {
		if isLive && w.view.Get(fsm.Key{Resource: resServiceAccounts, Namespace: name, Name: defaultAccount}) == nil {
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: defaultAccount}}
			w.born(account)
			p.add((&change{}).namespace(name).create(account))
		}
	}
	if !live[metav1.NamespaceDefault] {
		return p, nil // its creation kicks the next pass
	}
	service, ok, err := get[*corev1.Service](w, resServices, metav1.NamespaceDefault, kubernetesService)
	if err != nil {
		return nil, err
	}
	if !ok {
		p.add(w.createKubernetesService())
		return p, nil
	}
	if service.DeletionTimestamp == nil {
		return p, w.planServerEndpoints(p, service)
	}
	return p, nil
}

// born fills an object about to be created: defaults, UID, times, the first
// generation.
func (w *world) born(obj object) {
	k := resource.ForObject(obj)
	if k == nil {
		return // CreateOp reports it
	}
	k.Default(obj)
	resource.SetCreated(obj, resource.NewUID(w.rand), w.now)
	k.PrepareForCreate(obj)
}

// createKubernetesService plans service default/kubernetes with its cluster IP,
// the first address of the range.
func (w *world) createKubernetesService() *change {
	ip := w.config.ServiceCIDR.Addr().Next().String()
	port := int32(9876)
	if groups := serversByPort(w.servers); len(groups) > 0 {
		port = groups[0].port
	}
	single := corev1.IPFamilyPolicySingleStack
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: kubernetesService,
			Labels: map[string]string{"component": "apiserver", "provider": kubernetesService}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: &single,
			Ports: []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, TargetPort: intPort(port)}},
		},
	}
	w.born(service)
	c := (&change{}).namespace(metav1.NamespaceDefault).create(service)
	if w.view.Get(clusterIPKey(ip)) == nil {
		c.reserve(clusterIPKey(ip), service)
	}
	return c
}

// serverGroup is the addresses that share a port.
type serverGroup struct {
	port      int32
	addresses []string
}

// serversByPort groups HOST:PORT addresses, the largest group first. Names that
// are no IP addresses cannot be endpoints and are left out.
func serversByPort(servers []string) []serverGroup {
	var groups []serverGroup
	for _, server := range servers {
		address, err := netip.ParseAddrPort(server)
		if err != nil || address.Port() == 0 || !address.Addr().Unmap().Is4() {
			continue
		}
		i := slices.IndexFunc(groups, func(g serverGroup) bool { return g.port == int32(address.Port()) })
		if i < 0 {
			i = len(groups)
			groups = append(groups, serverGroup{port: int32(address.Port())})
		}
		if ip := address.Addr().Unmap().String(); !slices.Contains(groups[i].addresses, ip) {
			groups[i].addresses = append(groups[i].addresses, ip)
		}
	}
	sort.SliceStable(groups, func(i, j int) bool {
		if len(groups[i].addresses) != len(groups[j].addresses) {
			return len(groups[i].addresses) > len(groups[j].addresses)
		}
		return groups[i].port < groups[j].port
	})
	for i := range groups {
		slices.Sort(groups[i].addresses)
	}
	return groups
}

// planServerEndpoints keeps one slice for each port that API servers listen on:
// "kubernetes" for the most common one, "kubernetes-PORT" for others. With no
// usable address known, nothing is changed.
func (w *world) planServerEndpoints(p *plan, service *corev1.Service) error {
	groups := serversByPort(w.servers)
	if len(groups) == 0 {
		return nil
	}
	wanted := map[string]bool{}
	for i, group := range groups {
		name := kubernetesService
		if i > 0 {
			name += "-" + strconv.Itoa(int(group.port))
		}
		wanted[name] = true
		slice := serverSlice(name, group)
		current, ok, err := get[*discoveryv1.EndpointSlice](w, resEndpointSlices, metav1.NamespaceDefault, name)
		if err != nil {
			return err
		}
		c := &change{}
		if !ok {
			w.born(slice)
			c.namespace(metav1.NamespaceDefault).exists(service).create(slice)
		} else if !apiequality.Semantic.DeepEqual(current.Endpoints, slice.Endpoints) ||
			!apiequality.Semantic.DeepEqual(current.Ports, slice.Ports) {
			updated := current.DeepCopy()
			updated.Endpoints, updated.Ports = slice.Endpoints, slice.Ports
			touch(updated)
			c.update(current, updated)
		}
		p.add(c)
	}
	return w.dropServerSlices(p, wanted)
}

func (w *world) dropServerSlices(p *plan, wanted map[string]bool) error {
	all, err := list[*discoveryv1.EndpointSlice](w, resEndpointSlices, metav1.NamespaceDefault)
	if err != nil {
		return err
	}
	for _, slice := range all {
		if slice.Labels[discoveryv1.LabelManagedBy] == bootstrapManager && !wanted[slice.Name] {
			p.add((&change{}).remove(slice))
		}
	}
	return nil
}

// bootstrapManager is the managed-by label of the API servers' own slices.
const bootstrapManager = "apiserver.shepherd"

func serverSlice(name string, group serverGroup) *discoveryv1.EndpointSlice {
	protocol, portName, ready := corev1.ProtocolTCP, "https", true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{
			discoveryv1.LabelServiceName: kubernetesService,
			discoveryv1.LabelManagedBy:   bootstrapManager,
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Protocol: &protocol, Port: &group.port}},
	}
	for _, address := range group.addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{address},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return slice
}

// touch counts a change of an object's content, for kinds that count it.
func touch(obj object) {
	if k := resource.ForObject(obj); k != nil && k.HasGeneration {
		obj.SetGeneration(obj.GetGeneration() + 1)
	}
}

// describe names an object in a problem.
func describe(obj object, err error) error {
	return fmt.Errorf("%s: %w", keyOf(obj), err)
}
