package resource

import (
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// validateSelector checks a workload's selector against its template.
func validateSelector(selector *metav1.LabelSelector, template *corev1.PodTemplateSpec, kind string) field.ErrorList {
	path := specPath.Child("selector")
	if selector == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	errs := metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, path)
	if len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(path, selector, "empty selector is invalid for "+kind))
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return append(errs, field.Invalid(path, selector, "invalid label selector"))
	}
	if !parsed.Empty() && !parsed.Matches(labels.Set(template.Labels)) {
		errs = append(errs, field.Invalid(specPath.Child("template", "metadata", "labels"), template.Labels, "`selector` does not match template `labels`"))
	}
	return errs
}

func validateDeployment(d *appsv1.Deployment) field.ErrorList {
	s := &d.Spec
	errs := validateNonNegative(int64(ptr.Deref(s.Replicas, 0)), specPath.Child("replicas"))
	errs = append(errs, validateSelector(s.Selector, &s.Template, "deployment")...)
	errs = append(errs, validateTemplate(&s.Template, specPath.Child("template"))...)
	errs = append(errs, validateStrategy(&s.Strategy, specPath.Child("strategy"))...)
	errs = append(errs, validateNonNegative(int64(s.MinReadySeconds), specPath.Child("minReadySeconds"))...)
	errs = append(errs, validateNonNegative(int64(ptr.Deref(s.RevisionHistoryLimit, 0)), specPath.Child("revisionHistoryLimit"))...)
	if deadline := s.ProgressDeadlineSeconds; deadline != nil {
		at := specPath.Child("progressDeadlineSeconds")
		errs = append(errs, validateNonNegative(int64(*deadline), at)...)
		if *deadline <= s.MinReadySeconds {
			errs = append(errs, field.Invalid(at, *deadline, "must be greater than minReadySeconds"))
		}
	}
	return errs
}

func validateStrategy(s *appsv1.DeploymentStrategy, path *field.Path) field.ErrorList {
	errs := validateOneOf(s.Type, []appsv1.DeploymentStrategyType{appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType}, path.Child("type"))
	rolling := path.Child("rollingUpdate")
	switch {
	case s.Type == appsv1.RecreateDeploymentStrategyType && s.RollingUpdate != nil:
		errs = append(errs, field.Forbidden(rolling, "may not be specified when strategy `type` is '"+string(s.Type)+"'"))
	case s.Type == appsv1.RollingUpdateDeploymentStrategyType && s.RollingUpdate == nil:
		errs = append(errs, field.Required(rolling, "this should be defaulted and never be nil"))
	case s.Type == appsv1.RollingUpdateDeploymentStrategyType:
		unavailable, surge := rolling.Child("maxUnavailable"), rolling.Child("maxSurge")
		u, more := validateIntOrPercent(s.RollingUpdate.MaxUnavailable, unavailable)
		errs = append(errs, more...)
		v, more := validateIntOrPercent(s.RollingUpdate.MaxSurge, surge)
		errs = append(errs, more...)
		if u == 0 && v == 0 {
			errs = append(errs, field.Invalid(unavailable, s.RollingUpdate.MaxUnavailable, "may not be 0 when `maxSurge` is 0"))
		}
		if value := s.RollingUpdate.MaxUnavailable; value != nil && value.Type == intstr.String && u > 100 {
			errs = append(errs, field.Invalid(unavailable, value, "must not be greater than 100%"))
		}
	}
	return errs
}

// validateIntOrPercent returns the number, or the number of percents.
func validateIntOrPercent(value *intstr.IntOrString, path *field.Path) (int, field.ErrorList) {
	switch {
	case value == nil:
		return 0, field.ErrorList{field.Required(path, "")}
	case value.Type == intstr.Int:
		return int(value.IntVal), validateNonNegative(int64(value.IntVal), path)
	}
	if errs := validateStrings(value.StrVal, validation.IsValidPercent(value.StrVal), path); len(errs) > 0 {
		return 0, errs
	}
	n, err := strconv.Atoi(strings.TrimSuffix(value.StrVal, "%"))
	if err != nil {
		return 0, field.ErrorList{field.Invalid(path, value.StrVal, "must be a percentage")}
	}
	return n, nil
}

func validateDeploymentUpdate(n, o *appsv1.Deployment) field.ErrorList {
	return apivalidation.ValidateImmutableField(n.Spec.Selector, o.Spec.Selector, specPath.Child("selector"))
}

// statusCount is a number in a workload's status.
type statusCount struct {
	name  string
	value int32
}

// validateCounts checks that the numbers are sane, and that those after the
// first one, the replicas, do not exceed it.
func validateCounts(counts ...statusCount) field.ErrorList {
	var errs field.ErrorList
	status := field.NewPath("status")
	for i, c := range counts {
		errs = append(errs, validateNonNegative(int64(c.value), status.Child(c.name))...)
		if i > 0 && c.value > counts[0].value {
			errs = append(errs, field.Invalid(status.Child(c.name), c.value, "cannot be greater than status.replicas"))
		}
	}
	return errs
}

func validateDeploymentStatusUpdate(n, o *appsv1.Deployment) field.ErrorList {
	s := &n.Status
	errs := validateCounts(statusCount{"replicas", s.Replicas}, statusCount{"updatedReplicas", s.UpdatedReplicas},
		statusCount{"readyReplicas", s.ReadyReplicas}, statusCount{"availableReplicas", s.AvailableReplicas})
	status := field.NewPath("status")
	errs = append(errs, validateNonNegative(int64(s.UnavailableReplicas), status.Child("unavailableReplicas"))...)
	errs = append(errs, validateNonNegative(s.ObservedGeneration, status.Child("observedGeneration"))...)
	if s.AvailableReplicas > s.ReadyReplicas {
		errs = append(errs, field.Invalid(status.Child("availableReplicas"), s.AvailableReplicas, "cannot be greater than readyReplicas"))
	}
	if was := o.Status.CollisionCount; was != nil && ptr.Deref(s.CollisionCount, -1) < *was {
		errs = append(errs, field.Invalid(status.Child("collisionCount"), s.CollisionCount, "cannot be decremented"))
	}
	return errs
}

func validateReplicaSet(r *appsv1.ReplicaSet) field.ErrorList {
	errs := validateNonNegative(int64(ptr.Deref(r.Spec.Replicas, 0)), specPath.Child("replicas"))
	errs = append(errs, validateNonNegative(int64(r.Spec.MinReadySeconds), specPath.Child("minReadySeconds"))...)
	errs = append(errs, validateSelector(r.Spec.Selector, &r.Spec.Template, "replicaset")...)
	return append(errs, validateTemplate(&r.Spec.Template, specPath.Child("template"))...)
}

func validateReplicaSetUpdate(n, o *appsv1.ReplicaSet) field.ErrorList {
	return apivalidation.ValidateImmutableField(n.Spec.Selector, o.Spec.Selector, specPath.Child("selector"))
}

func validateReplicaSetStatusUpdate(n, _ *appsv1.ReplicaSet) field.ErrorList {
	s := &n.Status
	errs := validateCounts(statusCount{"replicas", s.Replicas}, statusCount{"fullyLabeledReplicas", s.FullyLabeledReplicas},
		statusCount{"readyReplicas", s.ReadyReplicas}, statusCount{"availableReplicas", s.AvailableReplicas})
	errs = append(errs, validateNonNegative(s.ObservedGeneration, field.NewPath("status", "observedGeneration"))...)
	if s.AvailableReplicas > s.ReadyReplicas {
		errs = append(errs, field.Invalid(field.NewPath("status", "availableReplicas"), s.AvailableReplicas, "cannot be greater than readyReplicas"))
	}
	return errs
}
