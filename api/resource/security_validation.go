package resource

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateInts(value int64, messages []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, message := range messages {
		errs = append(errs, field.Invalid(path, value, message))
	}
	return errs
}

func validateIDs(user, group *int64, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if user != nil {
		errs = append(errs, validateInts(*user, validation.IsValidUserID(*user), path.Child("runAsUser"))...)
	}
	if group != nil {
		errs = append(errs, validateInts(*group, validation.IsValidGroupID(*group), path.Child("runAsGroup"))...)
	}
	return errs
}

func validateContainerSecurity(c *corev1.SecurityContext, path *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	errs := validateIDs(c.RunAsUser, c.RunAsGroup, path)
	errs = append(errs, validateSeccomp(c.SeccompProfile, path.Child("seccompProfile"))...)
	if c.ProcMount != nil {
		errs = append(errs, validateOneOf(*c.ProcMount, []corev1.ProcMountType{corev1.DefaultProcMount, corev1.UnmaskedProcMount}, path.Child("procMount"))...)
	}
	if c.AllowPrivilegeEscalation == nil || *c.AllowPrivilegeEscalation {
		return errs
	}
	if c.Privileged != nil && *c.Privileged {
		errs = append(errs, field.Invalid(path, c, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
	}
	if c.Capabilities != nil && slices.Contains(c.Capabilities.Add, "CAP_SYS_ADMIN") {
		errs = append(errs, field.Invalid(path, c, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"))
	}
	return errs
}

func validateSeccomp(p *corev1.SeccompProfile, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := validateOneOf(p.Type, []corev1.SeccompProfileType{
		corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined,
	}, path.Child("type"))
	local := path.Child("localhostProfile")
	switch localhost := p.Type == corev1.SeccompProfileTypeLocalhost; {
	case localhost && (p.LocalhostProfile == nil || *p.LocalhostProfile == ""):
		errs = append(errs, field.Required(local, "must be set when seccomp type is Localhost"))
	case localhost:
		errs = append(errs, validateRelativePath(*p.LocalhostProfile, local)...)
	case p.LocalhostProfile != nil:
		errs = append(errs, field.Invalid(local, *p.LocalhostProfile, "can only be set when seccomp type is Localhost"))
	}
	return errs
}
