package controllers

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/shepherd-project/shepherd/fsm"
)

// sliceCapacity is how many endpoints one slice holds.
const sliceCapacity = 100

// portGroup is the endpoints whose pods resolve the service's ports alike.
type portGroup struct {
	ports     []discoveryv1.EndpointPort
	endpoints []discoveryv1.Endpoint
}

// planSlices brings the slices of a service in line with its pods. Endpoints
// stay in the slice that they are in, so that a pod's coming or going changes
// one slice.
func (w *world) planSlices(p *plan, service *corev1.Service, pods []*corev1.Pod, current []*discoveryv1.EndpointSlice, live bool) {
	groups := groupEndpoints(service, pods)
	used := map[string]bool{}
	var chain []*change
	for _, signature := range slices.Sorted(maps.Keys(groups)) {
		group := groups[signature]
		var mine []*discoveryv1.EndpointSlice
		for _, slice := range current {
			if slice.DeletionTimestamp == nil && portSignature(slice.Ports) == signature {
				mine = append(mine, slice)
			}
		}
		for i, endpoints := range distribute(group.endpoints, mine) {
			if i < len(mine) {
				if len(endpoints) > 0 || (i == 0 && len(group.endpoints) == 0) {
					used[mine[i].Name] = true
					chain = append(chain, updateSlice(service, mine[i], endpoints))
				}
				continue
			}
			if live {
				name := w.sliceName(service, signature, used)
				used[name] = true
				chain = append(chain, w.createSlice(service, name, group.ports, endpoints))
			}
		}
	}
	for _, slice := range current {
		if !used[slice.Name] && slice.DeletionTimestamp == nil {
			chain = append(chain, (&change{}).exists(service).delete(slice, w.now))
		}
	}
	p.add(chain...)
}

// groupEndpoints resolves the service's ports for each of its pods. There is
// always a group, so that a service without pods has an empty slice.
func groupEndpoints(service *corev1.Service, pods []*corev1.Pod) map[string]*portGroup {
	selector := labels.SelectorFromValidatedSet(service.Spec.Selector)
	groups := map[string]*portGroup{}
	for _, pod := range pods {
		if finished(pod) || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		address, ok := podAddress(pod)
		if !ok {
			continue
		}
		ports := resolvePorts(service, pod)
		signature := portSignature(ports)
		if groups[signature] == nil {
			groups[signature] = &portGroup{ports: ports}
		}
		groups[signature].endpoints = append(groups[signature].endpoints, endpoint(service, pod, address))
	}
	if len(groups) == 0 {
		ports := resolvePorts(service, nil)
		groups[portSignature(ports)] = &portGroup{ports: ports}
	}
	return groups
}

// podAddress returns the pod's IPv4 address, if it has one.
func podAddress(pod *corev1.Pod) (string, bool) {
	for _, ip := range append([]corev1.PodIP{{IP: pod.Status.PodIP}}, pod.Status.PodIPs...) {
		if address, err := netip.ParseAddr(ip.IP); err == nil && address.Is4() {
			return address.String(), true
		}
	}
	return "", false
}

func endpoint(service *corev1.Service, pod *corev1.Pod, address string) discoveryv1.Endpoint {
	serving, terminating := ready(pod), pod.DeletionTimestamp != nil
	isReady := service.Spec.PublishNotReadyAddresses || (serving && !terminating)
	e := discoveryv1.Endpoint{
		Addresses:  []string{address},
		Conditions: discoveryv1.EndpointConditions{Ready: &isReady, Serving: &serving, Terminating: &terminating},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
	}
	if pod.Spec.NodeName != "" {
		node := pod.Spec.NodeName
		e.NodeName = &node
	}
	if pod.Spec.Hostname != "" && pod.Spec.Subdomain == service.Name {
		hostname := pod.Spec.Hostname
		e.Hostname = &hostname
	}
	return e
}

// resolvePorts gives the ports at which a pod serves the service. A named
// target port that the pod does not have is left out; without a pod (nil),
// only numbers are known.
func resolvePorts(service *corev1.Service, pod *corev1.Pod) []discoveryv1.EndpointPort {
	var ports []discoveryv1.EndpointPort
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		protocol := cmp.Or(port.Protocol, corev1.ProtocolTCP)
		number, ok := targetPort(port, protocol, pod)
		if !ok {
			continue
		}
		name := port.Name
		ports = append(ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number, AppProtocol: port.AppProtocol})
	}
	slices.SortStableFunc(ports, func(a, b discoveryv1.EndpointPort) int { return cmp.Compare(*a.Name, *b.Name) })
	return ports
}

func targetPort(port *corev1.ServicePort, protocol corev1.Protocol, pod *corev1.Pod) (int32, bool) {
	if port.TargetPort.Type == intstr.Int {
		return cmp.Or(port.TargetPort.IntVal, port.Port), true
	}
	if port.TargetPort.StrVal == "" {
		return port.Port, true
	}
	if pod == nil {
		return 0, false
	}
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			for _, p := range containers[i].Ports {
				if p.Name == port.TargetPort.StrVal && cmp.Or(p.Protocol, corev1.ProtocolTCP) == protocol {
					return p.ContainerPort, true
				}
			}
		}
	}
	return 0, false
}

// portSignature is equal for equal lists of ports.
func portSignature(ports []discoveryv1.EndpointPort) string {
	parts := make([]string, len(ports))
	for i, p := range ports {
		parts[i] = fmt.Sprintf("%s/%s/%d/%s", value(p.Name, ""), value(p.Protocol, ""), value(p.Port, 0), value(p.AppProtocol, ""))
	}
	return strings.Join(parts, ",")
}

// distribute splits endpoints over slices: each stays where its pod already is,
// the others fill what is free, and the rest makes new slices. The first lists
// belong to the current slices, in order. There is at least one list.
func distribute(endpoints []discoveryv1.Endpoint, current []*discoveryv1.EndpointSlice) [][]discoveryv1.Endpoint {
	at := map[string]int{}
	for i, slice := range current {
		for j := range slice.Endpoints {
			if ref := slice.Endpoints[j].TargetRef; ref != nil {
				at[string(ref.UID)] = i
			}
		}
	}
	lists := make([][]discoveryv1.Endpoint, max(len(current), 1))
	var homeless []discoveryv1.Endpoint
	for _, e := range endpoints {
		if i, ok := at[string(e.TargetRef.UID)]; ok && len(lists[i]) < sliceCapacity {
			lists[i] = append(lists[i], e)
		} else {
			homeless = append(homeless, e)
		}
	}
	for i := 0; len(homeless) > 0; i++ {
		if i == len(lists) {
			lists = append(lists, nil)
		}
		n := min(sliceCapacity-len(lists[i]), len(homeless))
		lists[i] = append(lists[i], homeless[:n]...)
		homeless = homeless[n:]
	}
	for _, l := range lists {
		slices.SortFunc(l, func(a, b discoveryv1.Endpoint) int { return cmp.Compare(a.TargetRef.Name, b.TargetRef.Name) })
	}
	return lists
}

// sliceName is the first free of the names that follow from the service and the
// ports, so that the same slice is not made twice.
func (w *world) sliceName(service *corev1.Service, signature string, used map[string]bool) string {
	for i := 0; ; i++ {
		sum := fnv.New32a()
		sum.Write([]byte(string(service.UID) + "/" + signature + "/" + strconv.Itoa(i)))
		base := service.Name
		if len(base) > 50 {
			base = base[:50]
		}
		name := base + "-" + rand.SafeEncodeString(strconv.FormatUint(uint64(sum.Sum32()), 10))
		if !used[name] && w.view.Get(fsm.Key{Resource: resEndpointSlices, Namespace: service.Namespace, Name: name}) == nil {
			return name
		}
	}
}

func sliceLabels(service *corev1.Service) map[string]string {
	wanted := map[string]string{}
	for key, text := range service.Labels {
		wanted[key] = text
	}
	wanted[discoveryv1.LabelServiceName] = service.Name
	wanted[discoveryv1.LabelManagedBy] = sliceManager
	if service.Spec.ClusterIP == corev1.ClusterIPNone {
		wanted[corev1.IsHeadlessService] = ""
	}
	return wanted
}

func (w *world) createSlice(service *corev1.Service, name string, ports []discoveryv1.EndpointPort, endpoints []discoveryv1.Endpoint) *change {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: name, GenerateName: service.Name + "-",
			Labels: sliceLabels(service), OwnerReferences: serviceOwner(service)},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   endpoints,
		Ports:       ports,
	}
	w.born(slice)
	return (&change{}).namespace(service.Namespace).live(service).create(slice)
}

// updateSlice is empty if the slice says it all already.
func updateSlice(service *corev1.Service, slice *discoveryv1.EndpointSlice, endpoints []discoveryv1.Endpoint) *change {
	updated := slice.DeepCopy()
	updated.Endpoints, updated.Labels = endpoints, sliceLabels(service)
	updated.OwnerReferences = serviceOwner(service)
	c := &change{}
	if !apiequality.Semantic.DeepEqual(slice, updated) {
		touch(updated)
		c.live(service).update(slice, updated)
	}
	return c
}
