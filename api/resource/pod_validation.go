package resource

import (
	"fmt"
	"math"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var specPath = field.NewPath("spec")

func validatePod(p *corev1.Pod) field.ErrorList {
	errs := validatePodSpec(&p.Spec, specPath)
	if len(p.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(specPath.Child("ephemeralContainers"), "cannot be set on create"))
	}
	return errs
}

// validatePodSpec checks a pod's or a template's spec after defaulting.
func validatePodSpec(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	volumes, errs := validateVolumes(s.Volumes, path.Child("volumes"))
	errs = append(errs, validateContainers(s, volumes, path)...)
	errs = append(errs, validateOneOf(s.RestartPolicy, []corev1.RestartPolicy{
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever,
	}, path.Child("restartPolicy"))...)
	errs = append(errs, validateDNS(s, path)...)
	errs = append(errs, validatePodSecurity(s, path)...)
	errs = append(errs, validateScheduling(s, path)...)
	subdomain := func(value, name string) {
		if value != "" {
			errs = append(errs, validateStrings(value, apivalidation.NameIsDNSSubdomain(value, false), path.Child(name))...)
		}
	}
	subdomain(s.NodeName, "nodeName")
	subdomain(s.ServiceAccountName, "serviceAccountName")
	subdomain(s.PriorityClassName, "priorityClassName")
	if s.RuntimeClassName != nil {
		subdomain(*s.RuntimeClassName, "runtimeClassName")
	}
	label := func(value, name string) {
		if value != "" {
			errs = append(errs, validateStrings(value, validation.IsDNS1123Label(value), path.Child(name))...)
		}
	}
	label(s.Hostname, "hostname")
	label(s.Subdomain, "subdomain")
	for i, secret := range s.ImagePullSecrets {
		if secret.Name == "" {
			errs = append(errs, field.Required(path.Child("imagePullSecrets").Index(i).Child("name"), ""))
		}
	}
	for i, alias := range s.HostAliases {
		at := path.Child("hostAliases").Index(i)
		errs = append(errs, validation.IsValidIPForLegacyField(at.Child("ip"), alias.IP, false, nil)...)
		for j, name := range alias.Hostnames {
			errs = append(errs, validateStrings(name, validation.IsDNS1123Subdomain(name), at.Child("hostnames").Index(j))...)
		}
	}
	if d := s.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), *d, validation.InclusiveRangeError(1, math.MaxInt32)))
	}
	if s.OS != nil {
		errs = append(errs, validateOneOf(s.OS.Name, []corev1.OSName{corev1.Linux, corev1.Windows}, path.Child("os", "name"))...)
	}
	return append(errs, validateResourceList(s.Overhead, path.Child("overhead"))...)
}

func validateDNS(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	errs := validateOneOf(s.DNSPolicy, []corev1.DNSPolicy{
		corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone,
	}, path.Child("dnsPolicy"))
	config := path.Child("dnsConfig")
	if s.DNSPolicy == corev1.DNSNone && (s.DNSConfig == nil || len(s.DNSConfig.Nameservers) == 0) {
		errs = append(errs, field.Required(config.Child("nameservers"), fmt.Sprintf("must provide at least one DNS nameserver when `dnsPolicy` is %s", corev1.DNSNone)))
	}
	if s.DNSConfig == nil {
		return errs
	}
	const maxNameservers, maxSearchPaths, maxSearchChars = 3, 32, 2048
	if n := len(s.DNSConfig.Nameservers); n > maxNameservers {
		errs = append(errs, field.TooMany(config.Child("nameservers"), n, maxNameservers))
	}
	for i, server := range s.DNSConfig.Nameservers {
		errs = append(errs, validation.IsValidIPForLegacyField(config.Child("nameservers").Index(i), server, false, nil)...)
	}
	if n := len(s.DNSConfig.Searches); n > maxSearchPaths {
		errs = append(errs, field.TooMany(config.Child("searches"), n, maxSearchPaths))
	}
	if len(strings.Join(s.DNSConfig.Searches, " ")) > maxSearchChars {
		errs = append(errs, field.Invalid(config.Child("searches"), s.DNSConfig.Searches, fmt.Sprintf("must not have more than %v characters (including spaces) in the search list", maxSearchChars)))
	}
	for i, search := range s.DNSConfig.Searches {
		if search == "." {
			continue
		}
		errs = append(errs, validateStrings(search, validation.IsDNS1123SubdomainWithUnderscore(strings.TrimSuffix(search, ".")), config.Child("searches").Index(i))...)
	}
	for i, option := range s.DNSConfig.Options {
		if option.Name == "" {
			errs = append(errs, field.Required(config.Child("options").Index(i), "must not be empty"))
		}
	}
	return errs
}

func validatePodSecurity(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	c := s.SecurityContext
	at := path.Child("securityContext")
	if s.HostPID && s.ShareProcessNamespace != nil && *s.ShareProcessNamespace {
		errs = append(errs, field.Invalid(path.Child("shareProcessNamespace"), true, "ShareProcessNamespace and HostPID cannot both be enabled"))
	}
	if s.HostUsers != nil && !*s.HostUsers {
		for name, host := range map[string]bool{"hostNetwork": s.HostNetwork, "hostPID": s.HostPID, "hostIPC": s.HostIPC} {
			if host {
				errs = append(errs, field.Forbidden(path.Child(name), "when `hostUsers` is false"))
			}
		}
	}
	if c == nil {
		return errs
	}
	errs = append(errs, validateIDs(c.RunAsUser, c.RunAsGroup, at)...)
	if c.FSGroup != nil {
		errs = append(errs, validateInts(*c.FSGroup, validation.IsValidGroupID(*c.FSGroup), at.Child("fsGroup"))...)
	}
	for i, group := range c.SupplementalGroups {
		errs = append(errs, validateInts(group, validation.IsValidGroupID(group), at.Child("supplementalGroups").Index(i))...)
	}
	errs = append(errs, validateSeccomp(c.SeccompProfile, at.Child("seccompProfile"))...)
	seen := sets.New[string]()
	for i, sysctl := range c.Sysctls {
		name := at.Child("sysctls").Index(i).Child("name")
		switch {
		case sysctl.Name == "":
			errs = append(errs, field.Required(name, ""))
		case seen.Has(sysctl.Name):
			errs = append(errs, field.Duplicate(name, sysctl.Name))
		}
		seen.Insert(sysctl.Name)
	}
	return errs
}

// changeablePodSpec tells what an update of a pod may change, in upstream's
// words.
const changeablePodSpec = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`," +
	"`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations)," +
	"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"

func validatePodUpdate(n, o *corev1.Pod) field.ErrorList {
	var errs field.ErrorList
	if len(n.Spec.Containers) != len(o.Spec.Containers) {
		return append(errs, field.Forbidden(specPath.Child("containers"), "pod updates may not add or remove containers"))
	}
	if len(n.Spec.InitContainers) != len(o.Spec.InitContainers) {
		return append(errs, field.Forbidden(specPath.Child("initContainers"), "pod updates may not add or remove containers"))
	}
	deadline := specPath.Child("activeDeadlineSeconds")
	switch now, was := n.Spec.ActiveDeadlineSeconds, o.Spec.ActiveDeadlineSeconds; {
	case was == nil:
	case now == nil:
		errs = append(errs, field.Invalid(deadline, now, "must not update from a positive integer to nil value"))
	case *now > *was:
		errs = append(errs, field.Invalid(deadline, *now, "must be less than or equal to previous value"))
	}
	errs = append(errs, validateTolerationsUpdate(n.Spec.Tolerations, o.Spec.Tolerations)...)
	errs = append(errs, validateGatesUpdate(n, o)...)

	same := n.Spec.DeepCopy()
	for i := range same.Containers {
		same.Containers[i].Image = o.Spec.Containers[i].Image
	}
	for i := range same.InitContainers {
		same.InitContainers[i].Image = o.Spec.InitContainers[i].Image
	}
	same.ActiveDeadlineSeconds = o.Spec.ActiveDeadlineSeconds
	same.Tolerations = o.Spec.Tolerations
	same.SchedulingGates = o.Spec.SchedulingGates
	if was, now := o.Spec.TerminationGracePeriodSeconds, n.Spec.TerminationGracePeriodSeconds; was != nil && now != nil && *was < 0 && *now == 1 {
		same.TerminationGracePeriodSeconds = was
	}
	if changed := changedFields(same, &o.Spec); len(changed) > 0 {
		errs = append(errs, field.Forbidden(specPath, changeablePodSpec+"; changed: "+strings.Join(changed, ", ")))
	}
	return errs
}

// changedFields names the fields of two structs of one type that differ.
func changedFields(n, o any) []string {
	nv, ov := reflect.ValueOf(n).Elem(), reflect.ValueOf(o).Elem()
	var names []string
	for i := range nv.NumField() {
		if !apiequality.Semantic.DeepEqual(nv.Field(i).Interface(), ov.Field(i).Interface()) {
			name, _, _ := strings.Cut(nv.Type().Field(i).Tag.Get("json"), ",")
			names = append(names, name)
		}
	}
	return names
}

func validateTolerationsUpdate(n, o []corev1.Toleration) field.ErrorList {
	for i := range o {
		kept := false
		for j := range n {
			same := n[j]
			same.TolerationSeconds = o[i].TolerationSeconds
			if apiequality.Semantic.DeepEqual(same, o[i]) {
				kept = true
				break
			}
		}
		if !kept {
			return field.ErrorList{field.Forbidden(specPath.Child("tolerations"), "existing toleration can not be modified except its tolerationSeconds")}
		}
	}
	return nil
}

func validateGatesUpdate(n, o *corev1.Pod) field.ErrorList {
	had := sets.New[string]()
	for _, gate := range o.Spec.SchedulingGates {
		had.Insert(gate.Name)
	}
	for i, gate := range n.Spec.SchedulingGates {
		if !had.Has(gate.Name) {
			return field.ErrorList{field.Forbidden(specPath.Child("schedulingGates").Index(i).Child("name"), "only deletion is allowed, but found new scheduling gate '"+gate.Name+"'")}
		}
	}
	return nil
}

func validatePodStatusUpdate(n, o *corev1.Pod) field.ErrorList {
	status := field.NewPath("status")
	errs := validateOneOf(n.Status.Phase, []corev1.PodPhase{
		"", corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown,
	}, status.Child("phase"))
	if o.Status.QOSClass != "" && n.Status.QOSClass != o.Status.QOSClass {
		errs = append(errs, field.Invalid(status.Child("qosClass"), n.Status.QOSClass, apivalidation.FieldImmutableErrorMsg))
	}
	seen := sets.New[string]()
	for i, ip := range n.Status.PodIPs {
		at := status.Child("podIPs").Index(i)
		errs = append(errs, validation.IsValidIPForLegacyField(at, ip.IP, false, nil)...)
		if seen.Has(ip.IP) {
			errs = append(errs, field.Duplicate(at, ip.IP))
		}
		seen.Insert(ip.IP)
	}
	if n.Status.NominatedNodeName != "" {
		errs = append(errs, validateStrings(n.Status.NominatedNodeName,
			apivalidation.NameIsDNSSubdomain(n.Status.NominatedNodeName, false), status.Child("nominatedNodeName"))...)
	}
	return errs
}

// validateTemplate checks the pod template of a workload whose pods run on
// until they are deleted.
func validateTemplate(t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabels(t.Labels, path.Child("metadata", "labels"))
	errs = append(errs, apivalidation.ValidateAnnotations(t.Annotations, path.Child("metadata", "annotations"))...)
	errs = append(errs, validatePodSpec(&t.Spec, path.Child("spec"))...)
	if t.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(path.Child("spec", "restartPolicy"), t.Spec.RestartPolicy, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(path.Child("spec", "activeDeadlineSeconds"), "activeDeadlineSeconds in ReplicaSet is not Supported"))
	}
	if len(t.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(path.Child("spec", "ephemeralContainers"), "ephemeral containers not allowed in pod template"))
	}
	return errs
}
