package resource

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var nodeKind = define(
	Kind{
		GVK: corev1.SchemeGroupVersion.WithKind("Node"), Resource: "nodes", Singular: "node",
		ShortNames: []string{"no"}, UnconditionalUpdate: true,
	},
	func() *corev1.Node { return &corev1.Node{} },
	func() runtime.Object { return &corev1.NodeList{} },
	typed[*corev1.Node]{
		name:     apivalidation.NameIsDNSSubdomain,
		defaults: defaultNode,
		// A node's status is kept on creation: agents register with it.
		setStatus:            func(dst, src *corev1.Node) { dst.Status = src.Status },
		validate:             validateNode,
		validateUpdate:       validateNodeUpdate,
		validateStatusUpdate: func(n, _ *corev1.Node) field.ErrorList { return validateNodeStatus(n) },
		fields: func(n *corev1.Node) fields.Set {
			return fields.Set{"spec.unschedulable": fmt.Sprint(n.Spec.Unschedulable)}
		},
		columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Status", "string", "The status of the node"),
			column("Roles", "string", "The roles of the node"),
			ageColumn,
			column("Version", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["kubeletVersion"]),
			wide("Internal-IP", "string", corev1.NodeStatus{}.SwaggerDoc()["addresses"]),
			wide("External-IP", "string", corev1.NodeStatus{}.SwaggerDoc()["addresses"]),
			wide("OS-Image", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["osImage"]),
			wide("Kernel-Version", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["kernelVersion"]),
			wide("Container-Runtime", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["containerRuntimeVersion"]),
		},
		row: nodeRow,
	},
)

// defaultNode: what a node can give is what it has, unless it says less.
func defaultNode(n *corev1.Node) {
	if n.Status.Allocatable == nil && n.Status.Capacity != nil {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	defaultResourceList(n.Status.Capacity)
	defaultResourceList(n.Status.Allocatable)
	if n.Spec.PodCIDR != "" && len(n.Spec.PodCIDRs) == 0 {
		n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
	}
	if n.Spec.PodCIDR == "" && len(n.Spec.PodCIDRs) > 0 {
		n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	}
}

const (
	nodeRolePrefix = "node-role.kubernetes.io/"
	nodeRoleLabel  = "kubernetes.io/role"
)

func nodeRow(n *corev1.Node, now time.Time) []any {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		status = "NotReady"
		if c.Status == corev1.ConditionTrue {
			status = "Ready"
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	info := n.Status.NodeInfo
	return []any{
		n.Name, status, orNone(strings.Join(nodeRoles(n), ",")), age(n.CreationTimestamp, now), info.KubeletVersion,
		orNone(nodeAddress(n, corev1.NodeInternalIP)), orNone(nodeAddress(n, corev1.NodeExternalIP)),
		orUnknown(info.OSImage), orUnknown(info.KernelVersion), orUnknown(info.ContainerRuntimeVersion),
	}
}

func nodeRoles(n *corev1.Node) []string {
	var roles []string
	for key, value := range n.Labels {
		if role, ok := strings.CutPrefix(key, nodeRolePrefix); ok && role != "" {
			roles = append(roles, role)
		} else if key == nodeRoleLabel && value != "" {
			roles = append(roles, value)
		}
	}
	slices.Sort(roles)
	return slices.Compact(roles)
}

func nodeAddress(n *corev1.Node, t corev1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == t {
			return a.Address
		}
	}
	return ""
}

func orUnknown(text string) string {
	if text == "" {
		return unknown
	}
	return text
}
