package api

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shepherd-project/shepherd/fsm"
)

var specPath = field.NewPath("spec")

// allocate gives a Service the addresses and ports that it needs and does not
// have yet, and returns the operations that reserve what it holds and release
// what it held. old is nil for a create. Other kinds need nothing.
//
// What is drawn here is fixed in the command; if somebody else takes it first,
// the command fails as a whole and the request is planned again.
func (w *write) allocate(v *fsm.View, obj, old runtime.Object) ([]fsm.Op, field.ErrorList) {
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return nil, nil
	}
	a := allocation{w: w, v: v, svc: svc, uid: string(svc.UID)}
	var held []fsm.Key
	if old, ok := old.(*corev1.Service); ok {
		held = reservationsOf(old)
	}
	a.held = held
	a.clusterIP()
	a.nodePorts()
	if len(a.errs) > 0 {
		return nil, a.errs
	}
	owner := w.info.Kind.Key(svc.Namespace, svc.Name)
	wanted := reservationsOf(svc)
	var ops []fsm.Op
	for _, key := range wanted {
		if current := v.Get(key); current == nil || current.UID != a.uid {
			ops = append(ops, reserve(key, owner, a.uid))
		}
	}
	dropped := slices.DeleteFunc(slices.Clone(held), func(k fsm.Key) bool { return slices.Contains(wanted, k) })
	return append(ops, releases(v, dropped, a.uid)...), nil
}

// allocation is the work on one Service.
type allocation struct {
	w    *write
	v    *fsm.View
	svc  *corev1.Service
	uid  string
	held []fsm.Key
	errs field.ErrorList
}

// free says whether the key can be taken by, or is held by, this Service.
func (a *allocation) free(key fsm.Key) bool {
	current := a.v.Get(key)
	return current == nil || current.UID == a.uid
}

// clusterIP settles clusterIP and clusterIPs. The cluster is IPv4 only.
func (a *allocation) clusterIP() {
	spec := &a.svc.Spec
	if !needsClusterIP(a.svc) {
		return
	}
	if spec.IPFamilyPolicy != nil && *spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack {
		a.errs = append(a.errs, field.Invalid(specPath.Child("ipFamilyPolicy"), *spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services"))
		return
	}
	for i, family := range spec.IPFamilies {
		if family != corev1.IPv4Protocol {
			a.errs = append(a.errs, field.Invalid(specPath.Child("ipFamilies").Index(i), family, "not configured on this cluster"))
			return
		}
	}
	switch {
	case spec.ClusterIP == corev1.ClusterIPNone:
	case spec.ClusterIP == "":
		spec.ClusterIP = a.drawClusterIP()
	default:
		a.checkClusterIP(spec.ClusterIP)
	}
	if len(spec.ClusterIPs) == 0 && spec.ClusterIP != "" {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
}

// checkClusterIP checks an address that the client has chosen.
func (a *allocation) checkClusterIP(text string) {
	cidr := a.w.s.cfg.Write.ServiceCIDR
	path := specPath.Child("clusterIPs").Index(0)
	ip, err := netip.ParseAddr(text)
	if err != nil || ip.String() != text {
		return // validation says what is wrong with it
	}
	first, last := addressBounds(cidr)
	switch {
	case slices.Contains(a.held, clusterIPKey(text)):
	case !cidr.Contains(ip) || ip.Compare(first) < 0 || ip.Compare(last) > 0:
		a.errs = append(a.errs, field.Invalid(path, text, fmt.Sprintf("failed to allocate IP %s: the provided IP (%s) is not in the valid range. The range of valid IPs is %s", text, text, cidr)))
	case !a.free(clusterIPKey(text)):
		a.errs = append(a.errs, field.Invalid(path, text, fmt.Sprintf("failed to allocate IP %s: provided IP is already allocated", text)))
	}
}

// drawClusterIP picks a free address. The low addresses of the range are left
// to those who choose theirs, as long as there are others.
func (a *allocation) drawClusterIP() string {
	first, last := addressBounds(a.w.s.cfg.Write.ServiceCIDR)
	low := first.Next() // the first one is that of service default/kubernetes
	size := int(addressNumber(last)-addressNumber(low)) + 1
	band := min(256, size/4)
	for _, part := range [][2]int{{band, size}, {0, band}} {
		count := part[1] - part[0]
		if count <= 0 {
			continue
		}
		start := a.w.s.writes.random.intN(count)
		for i := range count {
			ip := addressOf(addressNumber(low) + uint32(part[0]+(start+i)%count)).String()
			if a.v.Get(clusterIPKey(ip)) == nil {
				return ip
			}
		}
	}
	a.errs = append(a.errs, field.InternalError(specPath.Child("clusterIPs").Index(0), fmt.Errorf("failed to allocate a serviceIP: range is full")))
	return ""
}

// nodePorts settles the node ports of every port, and that of the health check.
func (a *allocation) nodePorts() {
	if !needsNodePort(a.svc) {
		return
	}
	taken := map[int32]bool{}
	chosen := map[int32]corev1.Protocol{}
	for i, port := range a.svc.Spec.Ports {
		if port.NodePort == 0 {
			continue
		}
		path := specPath.Child("ports").Index(i).Child("nodePort")
		// One number may serve several protocols of the same Service.
		if other, twice := chosen[port.NodePort]; twice && other == port.Protocol {
			a.errs = append(a.errs, field.Invalid(path, port.NodePort, "provided port is already allocated"))
		}
		chosen[port.NodePort] = port.Protocol
		taken[port.NodePort] = true
		a.checkNodePort(path, port.NodePort)
	}
	if n := a.svc.Spec.HealthCheckNodePort; n != 0 {
		taken[n] = true
		a.checkNodePort(specPath.Child("healthCheckNodePort"), n)
	}
	for i := range a.svc.Spec.Ports {
		port := &a.svc.Spec.Ports[i]
		if port.NodePort == 0 && wantsNodePorts(a.svc) {
			port.NodePort = a.drawNodePort(specPath.Child("ports").Index(i).Child("nodePort"), taken)
		}
	}
	if needsHealthCheckNodePort(a.svc) && a.svc.Spec.HealthCheckNodePort == 0 {
		a.svc.Spec.HealthCheckNodePort = a.drawNodePort(specPath.Child("healthCheckNodePort"), taken)
	}
}

func (a *allocation) checkNodePort(path *field.Path, port int32) {
	cfg := &a.w.s.cfg.Write
	switch {
	case slices.Contains(a.held, nodePortKey(port)):
	case port < cfg.NodePortFirst || port > cfg.NodePortLast:
		a.errs = append(a.errs, field.Invalid(path, port, fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %d-%d", cfg.NodePortFirst, cfg.NodePortLast)))
	case !a.free(nodePortKey(port)):
		a.errs = append(a.errs, field.Invalid(path, port, "provided port is already allocated"))
	}
}

func (a *allocation) drawNodePort(path *field.Path, taken map[int32]bool) int32 {
	first, last := a.w.s.cfg.Write.NodePortFirst, a.w.s.cfg.Write.NodePortLast
	count := int(last-first) + 1
	start := a.w.s.writes.random.intN(count)
	for i := range count {
		port := first + int32((start+i)%count)
		if !taken[port] && a.v.Get(nodePortKey(port)) == nil {
			taken[port] = true
			return port
		}
	}
	a.errs = append(a.errs, field.InternalError(path, fmt.Errorf("failed to allocate a nodePort: range is full")))
	return 0
}

// addressBounds are the first and the last address of a range that a Service
// can have: without those of the network and of the broadcast.
func addressBounds(cidr netip.Prefix) (first, last netip.Addr) {
	network := addressNumber(cidr.Masked().Addr())
	size := uint32(1) << (32 - cidr.Bits())
	return addressOf(network + 1), addressOf(network + size - 2)
}

func addressNumber(ip netip.Addr) uint32 {
	b := ip.As4()
	return binary.BigEndian.Uint32(b[:])
}

func addressOf(n uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}
