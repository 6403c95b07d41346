package resource

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateResources checks a container's requests and limits.
func validateResources(r *corev1.ResourceRequirements, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	limits, requests := path.Child("limits"), path.Child("requests")
	for name, quantity := range r.Limits {
		errs = append(errs, validateContainerResource(name, quantity, limits)...)
	}
	for name, quantity := range r.Requests {
		errs = append(errs, validateContainerResource(name, quantity, requests)...)
		at := requests.Key(string(name))
		limit, limited := r.Limits[name]
		switch {
		case !limited && !overcommitted(name):
			errs = append(errs, field.Required(limits, "Limit must be set for non overcommitable resources"))
		case limited && !overcommitted(name) && quantity.Cmp(limit) != 0:
			errs = append(errs, field.Invalid(at, quantity.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String())))
		case limited && quantity.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(at, quantity.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String())))
		}
	}
	if len(r.Claims) > 0 {
		errs = append(errs, field.Forbidden(path.Child("claims"), "not supported"))
	}
	return errs
}

// overcommitted reports whether a node may promise more of the resource than
// it has.
func overcommitted(name corev1.ResourceName) bool {
	return isNative(name) && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func isNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

func validateContainerResource(name corev1.ResourceName, quantity resource.Quantity, path *field.Path) field.ErrorList {
	at := path.Key(string(name))
	errs := validateStrings(string(name), validation.IsQualifiedName(string(name)), at)
	standard := name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage ||
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
	if len(errs) == 0 && isNative(name) && !standard {
		errs = append(errs, field.Invalid(at, name, "must be a standard resource for containers"))
	}
	return append(errs, validateQuantity(name, quantity, at)...)
}

func validateQuantity(name corev1.ResourceName, quantity resource.Quantity, path *field.Path) field.ErrorList {
	if quantity.Sign() < 0 {
		return field.ErrorList{field.Invalid(path, quantity.String(), isNegative)}
	}
	if whole := !isNative(name) || name == corev1.ResourcePods; whole && quantity.MilliValue()%1000 != 0 {
		return field.ErrorList{field.Invalid(path, quantity.String(), "must be an integer")}
	}
	return nil
}

// validateResourceList checks quantities of a node or an overhead.
func validateResourceList(list corev1.ResourceList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for name, quantity := range list {
		at := path.Key(string(name))
		errs = append(errs, validateStrings(string(name), validation.IsQualifiedName(string(name)), at)...)
		errs = append(errs, validateQuantity(name, quantity, at)...)
	}
	return errs
}
