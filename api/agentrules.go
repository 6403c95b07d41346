package api

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// agentRules decide what the agent of one node may do.
type agentRules struct {
	view    *fsm.View
	decoder *resource.Decoder
	node    string
	info    requestInfo
}

const (
	reasonOtherNode = "the object belongs to another node"
	reasonSelector  = "a node may only list and watch its own pods: use the field selector spec.nodeName"
	reasonReference = "no pod of this node refers to the object"
)

// check gives the decision, and for a refusal its reason where one helps.
func (r agentRules) check() (allowed bool, reason string, err error) {
	switch r.info.groupResource().String() {
	case "nodes":
		return r.checkNodes()
	case "pods":
		return r.checkPods()
	case "configmaps", "secrets", "serviceaccounts":
		return r.checkReferenced()
	case "services", "endpointslices.discovery.k8s.io", "namespaces":
		return r.info.Subresource == "" && isRead(r.info.Verb), "", nil
	case "events", "events.events.k8s.io":
		return r.info.Subresource == "" && (r.info.Verb == "create" || r.info.Verb == "patch"), "", nil
	case "leases.coordination.k8s.io":
		return r.checkLease()
	}
	return false, "", nil
}

func (r agentRules) checkNodes() (bool, string, error) {
	switch r.info.Verb {
	case "get", "list", "watch":
		return true, "", nil
	case "create":
		return r.info.Subresource == "", "", nil // its name is checked with the object
	case "update", "patch":
		if r.info.Name != r.node {
			return false, reasonOtherNode, nil
		}
		return r.info.Subresource == "" || r.info.Subresource == "status", "", nil
	}
	return false, "", nil
}

// forbiddenInNode is why an agent must not write its Node so, or "". Its labels
// and its status are the agent's, and at its creation also its taints. All else
// is how the administrator and the controllers rule the machine: a cordon, a
// taint, the range of pod addresses, the confirmation of a restore. before is
// nil at the creation.
func forbiddenInNode(before, node *corev1.Node) string {
	if before == nil {
		before = &corev1.Node{Spec: corev1.NodeSpec{Taints: node.Spec.Taints, Unschedulable: node.Spec.Unschedulable}}
	}
	what := ""
	switch {
	case !apiequality.Semantic.DeepEqual(before.Spec, node.Spec):
		what = "spec"
	case !maps.Equal(before.Annotations, node.Annotations):
		what = "annotations"
	case !slices.Equal(before.Finalizers, node.Finalizers):
		what = "finalizers"
	case !apiequality.Semantic.DeepEqual(before.OwnerReferences, node.OwnerReferences):
		what = "ownerReferences"
	default:
		return ""
	}
	return "a node may not change its own " + what
}

func (r agentRules) checkPods() (bool, string, error) {
	switch r.info.Subresource + ":" + r.info.Verb {
	case ":list", ":watch":
		return r.info.selects("spec.nodeName", r.node), reasonSelector, nil
	case ":get", ":delete", "status:get", "status:update", "status:patch":
	default:
		return false, "", nil
	}
	pod, found, err := resource.Get[*corev1.Pod](r.decoder, r.view, "pods", r.info.Namespace, r.info.Name)
	if err != nil {
		return false, "", err
	}
	// An absent pod is answered with 404, which an agent that cleans up must see.
	return !found || pod.Spec.NodeName == r.node, reasonOtherNode, nil
}

func (r agentRules) checkLease() (bool, string, error) {
	if r.info.Namespace != nodeLeaseNamespace || r.info.Subresource != "" {
		return false, "", nil
	}
	switch r.info.Verb {
	case "create":
		return true, "", nil // its name is checked with the object
	case "get", "update", "patch", "delete":
		return r.info.Name == r.node, reasonOtherNode, nil
	}
	return false, "", nil
}

// checkReferenced lets an agent read one object by its name if a pod on its
// node refers to it.
func (r agentRules) checkReferenced() (bool, string, error) {
	name := r.info.Name
	switch r.info.Verb {
	case "get":
	case "list", "watch":
		selector, err := fields.ParseSelector(r.info.Query.Get("fieldSelector"))
		if err != nil {
			return false, reasonReference, nil
		}
		name, _ = selector.RequiresExactMatch("metadata.name")
	default:
		return false, "", nil
	}
	if r.info.Subresource != "" || r.info.Namespace == "" || name == "" {
		return false, reasonReference, nil
	}
	for o := range r.view.List("pods", r.info.Namespace) {
		obj, err := r.decoder.Decode(o)
		if err != nil {
			return false, "", err
		}
		pod, ok := obj.(*corev1.Pod)
		if ok && pod.Spec.NodeName == r.node && refersTo(pod, r.info.GVR.Resource, name) {
			return true, "", nil
		}
	}
	return false, reasonReference, nil
}

func isRead(verb string) bool { return verb == "get" || verb == "list" || verb == "watch" }

// refersTo says whether the pod needs the object of that resource and name.
func refersTo(pod *corev1.Pod, resource, name string) bool {
	switch resource {
	case "serviceaccounts":
		account := pod.Spec.ServiceAccountName
		if account == "" {
			account = "default"
		}
		return account == name
	case "secrets":
		if slices.ContainsFunc(pod.Spec.ImagePullSecrets, func(ref corev1.LocalObjectReference) bool { return ref.Name == name }) {
			return true
		}
	}
	secret := resource == "secrets"
	if slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return volumeRefersTo(v, secret, name) }) {
		return true
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if containerRefersTo(c.Env, c.EnvFrom, secret, name) {
			return true
		}
	}
	for _, c := range pod.Spec.EphemeralContainers {
		if containerRefersTo(c.Env, c.EnvFrom, secret, name) {
			return true
		}
	}
	return false
}

func volumeRefersTo(v corev1.Volume, secret bool, name string) bool {
	if secret && v.Secret != nil && v.Secret.SecretName == name {
		return true
	}
	if !secret && v.ConfigMap != nil && v.ConfigMap.Name == name {
		return true
	}
	if v.Projected == nil {
		return false
	}
	return slices.ContainsFunc(v.Projected.Sources, func(p corev1.VolumeProjection) bool {
		if secret {
			return p.Secret != nil && p.Secret.Name == name
		}
		return p.ConfigMap != nil && p.ConfigMap.Name == name
	})
}

func containerRefersTo(env []corev1.EnvVar, from []corev1.EnvFromSource, secret bool, name string) bool {
	for _, e := range env {
		switch {
		case e.ValueFrom == nil:
		case secret && e.ValueFrom.SecretKeyRef != nil && e.ValueFrom.SecretKeyRef.Name == name:
			return true
		case !secret && e.ValueFrom.ConfigMapKeyRef != nil && e.ValueFrom.ConfigMapKeyRef.Name == name:
			return true
		}
	}
	for _, f := range from {
		switch {
		case secret && f.SecretRef != nil && f.SecretRef.Name == name:
			return true
		case !secret && f.ConfigMapRef != nil && f.ConfigMapRef.Name == name:
			return true
		}
	}
	return false
}
