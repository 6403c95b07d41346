package controllers

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/shepherd-project/shepherd/fsm"
)

// Names of reservations: what is reserved follows the prefix.
const (
	clusterIPPrefix = "clusterip/"
	nodePortPrefix  = "nodeport/"
	podCIDRPrefix   = "podcidr/"
)

// held lists the reservations that an object must have.
func held(obj object) []fsm.Key {
	var keys []fsm.Key
	switch o := obj.(type) {
	case *corev1.Service:
		if o.Spec.Type == corev1.ServiceTypeExternalName {
			return nil
		}
		for _, ip := range addressesOf(o) {
			keys = append(keys, clusterIPKey(ip))
		}
		ports := []int32{o.Spec.HealthCheckNodePort}
		for i := range o.Spec.Ports {
			ports = append(ports, o.Spec.Ports[i].NodePort)
		}
		for _, port := range ports {
			key := fsm.Key{Resource: fsm.ReservationResource, Name: nodePortPrefix + strconv.Itoa(int(port))}
			if port != 0 && !slices.Contains(keys, key) { // TCP and UDP may share a number
				keys = append(keys, key)
			}
		}
	case *corev1.Node:
		if o.Spec.PodCIDR != "" {
			keys = append(keys, podCIDRKey(o.Spec.PodCIDR))
		}
	}
	return keys
}

func clusterIPKey(ip string) fsm.Key {
	return fsm.Key{Resource: fsm.ReservationResource, Name: clusterIPPrefix + ip}
}

// podCIDRKey names a range without a second slash: "podcidr/10.42.3.0-24".
func podCIDRKey(cidr string) fsm.Key {
	return fsm.Key{Resource: fsm.ReservationResource, Name: podCIDRPrefix + strings.ReplaceAll(cidr, "/", "-")}
}

// reserve adds the creation of a reservation: two who want the same thing
// cannot both succeed.
func (c *change) reserve(key fsm.Key, owner object) *change {
	return c.op(fsm.Op{Verb: fsm.Create, Key: key, UID: string(owner.GetUID()), Data: []byte(keyOf(owner).String())})
}

// nextPrefix returns the range of the same size that follows p.
func nextPrefix(p netip.Prefix) (netip.Prefix, error) {
	bytes := p.Addr().As4()
	carry := uint32(1) << (32 - p.Bits())
	value := uint32(bytes[0])<<24 | uint32(bytes[1])<<16 | uint32(bytes[2])<<8 | uint32(bytes[3])
	next := value + carry
	if next < value {
		return netip.Prefix{}, fmt.Errorf("no range follows %s", p)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(next >> 24), byte(next >> 16), byte(next >> 8), byte(next)}), p.Bits()), nil
}
