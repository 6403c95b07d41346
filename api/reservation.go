package api

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shepherd-project/shepherd/fsm"
)

// A reservation is a key that is created together with its holder and deleted
// together with it, in one command: two objects can never hold the same
// address. Its UID is the holder's and its data the holder's key.

func clusterIPKey(ip string) fsm.Key {
	return fsm.Key{Resource: fsm.ReservationResource, Name: "clusterip/" + ip}
}

func nodePortKey(port int32) fsm.Key {
	return fsm.Key{Resource: fsm.ReservationResource, Name: "nodeport/" + strconv.Itoa(int(port))}
}

// podCIDRKey is the reservation that the node controller makes for a node.
func podCIDRKey(cidr string) fsm.Key {
	return fsm.Key{Resource: fsm.ReservationResource, Name: "podcidr/" + strings.ReplaceAll(cidr, "/", "-")}
}

// reservationsOf returns the keys that an object holds, without repeats.
func reservationsOf(obj runtime.Object) []fsm.Key {
	var keys []fsm.Key
	add := func(k fsm.Key) {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	switch o := obj.(type) {
	case *corev1.Service:
		if !needsClusterIP(o) {
			return nil
		}
		for _, ip := range append([]string{o.Spec.ClusterIP}, o.Spec.ClusterIPs...) {
			if ip != "" && ip != corev1.ClusterIPNone {
				add(clusterIPKey(ip))
			}
		}
		for _, port := range nodePortsOf(o) {
			add(nodePortKey(port))
		}
	case *corev1.Node:
		for _, cidr := range append([]string{o.Spec.PodCIDR}, o.Spec.PodCIDRs...) {
			if cidr != "" {
				add(podCIDRKey(cidr))
			}
		}
	}
	return keys
}

// releases are the operations that delete those of the keys that the object of
// that UID holds.
func releases(v *fsm.View, keys []fsm.Key, uid string) []fsm.Op {
	var ops []fsm.Op
	for _, key := range keys {
		if held := v.Get(key); held != nil && held.UID == uid {
			ops = append(ops, fsm.Op{Verb: fsm.Delete, Key: key, UID: uid})
		}
	}
	return ops
}

// reserve is the operation that takes a key for the object that owner names.
func reserve(key, owner fsm.Key, uid string) fsm.Op {
	return fsm.Op{Verb: fsm.Create, Key: key, UID: uid, Data: []byte(owner.String())}
}
