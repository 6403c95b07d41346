package resource

import (
	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateNode(n *corev1.Node) field.ErrorList {
	errs := validateTaints(n.Spec.Taints, specPath.Child("taints"))
	errs = append(errs, validateNodeStatus(n)...)
	cidrs := specPath.Child("podCIDRs")
	if len(n.Spec.PodCIDRs) == 0 {
		return errs
	}
	if n.Spec.PodCIDRs[0] != n.Spec.PodCIDR {
		errs = append(errs, field.Invalid(cidrs.Index(0), n.Spec.PodCIDRs[0], "must match `podCIDR`"))
	}
	for i, cidr := range n.Spec.PodCIDRs {
		errs = append(errs, validation.IsValidCIDRForLegacyField(cidrs.Index(i), cidr, false, nil)...)
	}
	const maxPodCIDRs = 2
	if len(n.Spec.PodCIDRs) > maxPodCIDRs {
		errs = append(errs, field.Invalid(cidrs, n.Spec.PodCIDRs, "may specify no more than one CIDR for each IP family"))
	}
	return errs
}

func validateTaints(taints []corev1.Taint, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	type taintKey struct {
		key    string
		effect corev1.TaintEffect
	}
	seen := sets.New[taintKey]()
	for i, t := range taints {
		at := path.Index(i)
		errs = append(errs, metav1validation.ValidateLabelName(t.Key, at.Child("key"))...)
		errs = append(errs, validateStrings(t.Value, validation.IsValidLabelValue(t.Value), at.Child("value"))...)
		if t.Effect == "" {
			errs = append(errs, field.Required(at.Child("effect"), ""))
		} else {
			errs = append(errs, validateOneOf(t.Effect, taintEffects, at.Child("effect"))...)
		}
		key := taintKey{t.Key, t.Effect}
		if seen.Has(key) {
			errs = append(errs, field.Duplicate(at, t).WithOrigin("taints must be unique by key and effect pair"))
		}
		seen.Insert(key)
	}
	return errs
}

// validateNodeStatus checks what a node reports about itself.
func validateNodeStatus(n *corev1.Node) field.ErrorList {
	status := field.NewPath("status")
	errs := validateResourceList(n.Status.Capacity, status.Child("capacity"))
	errs = append(errs, validateResourceList(n.Status.Allocatable, status.Child("allocatable"))...)
	addresses := sets.New[corev1.NodeAddress]()
	for i, a := range n.Status.Addresses {
		if addresses.Has(a) {
			errs = append(errs, field.Duplicate(status.Child("addresses").Index(i), a))
		}
		addresses.Insert(a)
	}
	conditions := sets.New[corev1.NodeConditionType]()
	for i, c := range n.Status.Conditions {
		at := status.Child("conditions").Index(i)
		if c.Type == "" {
			errs = append(errs, field.Required(at.Child("type"), ""))
		} else if conditions.Has(c.Type) {
			errs = append(errs, field.Duplicate(at.Child("type"), c.Type))
		}
		conditions.Insert(c.Type)
	}
	return errs
}

func validateNodeUpdate(n, o *corev1.Node) field.ErrorList {
	var errs field.ErrorList
	if len(o.Spec.PodCIDRs) > 0 && !sets.New(n.Spec.PodCIDRs...).Equal(sets.New(o.Spec.PodCIDRs...)) {
		errs = append(errs, field.Forbidden(specPath.Child("podCIDRs"), "node updates may not change podCIDR except from \"\" to valid"))
	}
	if o.Spec.ProviderID != "" && n.Spec.ProviderID != o.Spec.ProviderID {
		errs = append(errs, field.Forbidden(specPath.Child("providerID"), "node updates may not change providerID except from \"\" to valid"))
	}
	return errs
}
