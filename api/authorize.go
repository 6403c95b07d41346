package api

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shepherd-project/shepherd/fsm"
)

// nodeLeaseNamespace holds the nodes' leases, for Kubernetes clients.
const nodeLeaseNamespace = "kube-node-lease"

// authorize says whether the identity may do what info asks for, in the state
// of view: nil, or 403 with upstream's sentence. A write of an agent needs
// authorizeObject besides, once its body is known.
//
// The rules are fixed: the administrator may do everything, an agent what
// concerns its node, its pods and what these refer to, anybody else nothing.
// It judges by info.GVR, so that it can also answer reviews.
func (s *Server) authorize(view *fsm.View, id Identity, info requestInfo) error {
	if id.isAdmin() {
		return nil
	}
	if id.Node == "" {
		return forbid(id, info, "")
	}
	rules := agentRules{view: view, decoder: s.decoder, node: id.Node, info: info}
	allowed, reason, err := rules.check()
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("authorise: %w", err))
	}
	if !allowed {
		return forbid(id, info, reason)
	}
	return nil
}

// authorizeObject checks what only the object of a write shows: an agent may
// write its own Node and its own lease and no other, and of its Node only what
// is the machine's to say. old is the object as it is stored, nil for one that
// is created; obj is the object as it would be stored.
func (s *Server) authorizeObject(id Identity, info requestInfo, old, obj runtime.Object) error {
	if id.isAdmin() {
		return nil
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("authorise: %w", err))
	}
	switch info.groupResource().String() {
	case "nodes", "leases.coordination.k8s.io":
		if accessor.GetName() != id.Node {
			info.Name = accessor.GetName()
			return forbid(id, info, "a node may only write the object of its own name")
		}
	}
	if node, ok := obj.(*corev1.Node); ok {
		before, _ := old.(*corev1.Node)
		if reason := forbiddenInNode(before, node); reason != "" {
			return forbid(id, info, reason)
		}
	}
	return nil
}

// forbid is the 403 for a stored resource.
func forbid(id Identity, info requestInfo, reason string) *apierrors.StatusError {
	name := info.GVR.Resource
	if info.Subresource != "" {
		name += "/" + info.Subresource
	}
	message := fmt.Sprintf("User %q cannot %s resource %q in API group %q ", id.User, info.Verb, name, info.GVR.Group)
	if info.Namespace != "" {
		message += fmt.Sprintf("in the namespace %q", info.Namespace)
	} else {
		message += "at the cluster scope"
	}
	if reason != "" {
		message += ": " + reason
	}
	return apierrors.NewForbidden(info.groupResource(), info.Name, errors.New(message))
}

// forbidNonResource is the 403 for a path that is no resource.
func forbidNonResource(id Identity, info requestInfo) *apierrors.StatusError {
	return apierrors.NewForbidden(info.groupResource(), "",
		fmt.Errorf("User %q cannot %s path %q", id.User, info.Verb, info.Path))
}

// selects says whether the request's field selector pins the label to value.
func (i requestInfo) selects(label, value string) bool {
	selector, err := fields.ParseSelector(i.Query.Get("fieldSelector"))
	if err != nil {
		return false
	}
	got, ok := selector.RequiresExactMatch(label)
	return ok && got == value
}
