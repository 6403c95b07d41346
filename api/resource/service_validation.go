package resource

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The range of ports that services may take on every node.
const (
	MinNodePort = 30000
	MaxNodePort = 32767
)

const maxAffinitySeconds = 86400

func isHeadless(s *corev1.ServiceSpec) bool { return s.ClusterIP == corev1.ClusterIPNone }

func validateService(s *corev1.Service) field.ErrorList {
	spec := &s.Spec
	errs := validateOneOf(spec.Type, []corev1.ServiceType{
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort,
	}, specPath.Child("type"))
	errs = append(errs, validateServiceAddresses(spec)...)
	if len(spec.Ports) == 0 && !isHeadless(spec) && spec.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, field.Required(specPath.Child("ports"), ""))
	}
	errs = append(errs, validateServicePorts(spec)...)
	errs = append(errs, metav1validation.ValidateLabels(spec.Selector, specPath.Child("selector"))...)
	errs = append(errs, validateAffinity(spec)...)
	for i, ip := range spec.ExternalIPs {
		errs = append(errs, validation.IsValidIPForLegacyField(specPath.Child("externalIPs").Index(i), ip, false, nil)...)
	}
	for i, cidr := range spec.LoadBalancerSourceRanges {
		errs = append(errs, validation.IsValidCIDRForLegacyField(specPath.Child("loadBalancerSourceRanges").Index(i), strings.TrimSpace(cidr), false, nil)...)
	}
	return append(errs, validateTrafficPolicies(spec)...)
}

func validateServiceAddresses(s *corev1.ServiceSpec) field.ErrorList {
	var errs field.ErrorList
	ip, ips := specPath.Child("clusterIP"), specPath.Child("clusterIPs")
	if s.Type == corev1.ServiceTypeExternalName {
		if s.ClusterIP != "" || len(s.ClusterIPs) > 0 {
			errs = append(errs, field.Forbidden(ips, "may not be set when `type` is 'ExternalName'"))
		}
		name := strings.TrimSuffix(s.ExternalName, ".")
		if name == "" {
			return append(errs, field.Required(specPath.Child("externalName"), ""))
		}
		return append(errs, validateStrings(name, validation.IsDNS1123Subdomain(name), specPath.Child("externalName"))...)
	}
	if s.ClusterIP == "" && len(s.ClusterIPs) == 0 {
		return nil
	}
	if len(s.ClusterIPs) == 0 || s.ClusterIPs[0] != s.ClusterIP {
		return field.ErrorList{field.Invalid(ips, s.ClusterIPs, "first value must match `clusterIP`")}
	}
	if isHeadless(s) {
		if len(s.ClusterIPs) > 1 {
			errs = append(errs, field.Invalid(ips, s.ClusterIPs, "'None' must be the first and only value"))
		}
		if s.Type != corev1.ServiceTypeClusterIP {
			errs = append(errs, field.Invalid(ip, s.ClusterIP, fmt.Sprintf("may not be set to 'None' for %s services", s.Type)))
		}
		return errs
	}
	const maxClusterIPs = 2
	if len(s.ClusterIPs) > maxClusterIPs {
		errs = append(errs, field.Invalid(ips, s.ClusterIPs, "may only hold up to 2 values"))
	}
	for i, address := range s.ClusterIPs {
		errs = append(errs, validation.IsValidIPForLegacyField(ips.Index(i), address, false, nil)...)
	}
	for i, family := range s.IPFamilies {
		errs = append(errs, validateOneOf(family, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, specPath.Child("ipFamilies").Index(i))...)
	}
	return errs
}

func validateServicePorts(s *corev1.ServiceSpec) field.ErrorList {
	var errs field.ErrorList
	type portKey struct {
		protocol corev1.Protocol
		port     int32
	}
	names, ports, nodePorts := sets.New[string](), sets.New[portKey](), sets.New[portKey]()
	for i, p := range s.Ports {
		at := specPath.Child("ports").Index(i)
		switch {
		case p.Name == "" && len(s.Ports) > 1:
			errs = append(errs, field.Required(at.Child("name"), ""))
		case p.Name != "" && names.Has(p.Name):
			errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
		case p.Name != "":
			errs = append(errs, validateStrings(p.Name, validation.IsDNS1123Label(p.Name), at.Child("name"))...)
		}
		names.Insert(p.Name)
		errs = append(errs, validatePortNumber(int64(p.Port), at.Child("port"))...)
		errs = append(errs, validateProtocol(p.Protocol, at.Child("protocol"))...)
		errs = append(errs, validateTargetPort(s, p, at.Child("targetPort"))...)
		key := portKey{p.Protocol, p.Port}
		if ports.Has(key) {
			errs = append(errs, field.Duplicate(at, map[string]any{"port": p.Port, "protocol": p.Protocol}))
		}
		ports.Insert(key)
		if p.AppProtocol != nil {
			errs = append(errs, validateStrings(*p.AppProtocol, validation.IsQualifiedName(*p.AppProtocol), at.Child("appProtocol"))...)
		}
		if p.NodePort == 0 {
			continue
		}
		key = portKey{p.Protocol, p.NodePort}
		switch node := at.Child("nodePort"); {
		case !hasNodePorts(s):
			errs = append(errs, field.Forbidden(node, fmt.Sprintf("may not be used when `type` is '%s'", s.Type)))
		case p.NodePort < MinNodePort || p.NodePort > MaxNodePort:
			errs = append(errs, field.Invalid(node, p.NodePort, fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %d-%d", MinNodePort, MaxNodePort)))
		case nodePorts.Has(key):
			errs = append(errs, field.Duplicate(node, p.NodePort))
		}
		nodePorts.Insert(key)
	}
	return errs
}

func validateTargetPort(s *corev1.ServiceSpec, p corev1.ServicePort, path *field.Path) field.ErrorList {
	if isHeadless(s) && p.TargetPort.Type == intstr.Int && p.TargetPort.IntVal != p.Port {
		return nil // upstream accepts it and ignores it
	}
	return validatePortNumOrName(p.TargetPort, path)
}

func validateAffinity(s *corev1.ServiceSpec) field.ErrorList {
	errs := validateOneOf(s.SessionAffinity, []corev1.ServiceAffinity{corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone}, specPath.Child("sessionAffinity"))
	config := specPath.Child("sessionAffinityConfig")
	if s.SessionAffinity != corev1.ServiceAffinityClientIP {
		return errs
	}
	if s.SessionAffinityConfig == nil || s.SessionAffinityConfig.ClientIP == nil || s.SessionAffinityConfig.ClientIP.TimeoutSeconds == nil {
		return append(errs, field.Required(config, "when session affinity type is ClientIP"))
	}
	if seconds := *s.SessionAffinityConfig.ClientIP.TimeoutSeconds; seconds <= 0 || seconds > maxAffinitySeconds {
		errs = append(errs, field.Invalid(config.Child("clientIP", "timeoutSeconds"), seconds, fmt.Sprintf("must be greater than 0 and less than %d", maxAffinitySeconds)))
	}
	return errs
}

func validateTrafficPolicies(s *corev1.ServiceSpec) field.ErrorList {
	var errs field.ErrorList
	external := specPath.Child("externalTrafficPolicy")
	switch {
	case isExternal(s) && s.ExternalTrafficPolicy == "":
		errs = append(errs, field.Required(external, "externalTrafficPolicy is required for externally-accessible services"))
	case isExternal(s):
		errs = append(errs, validateOneOf(s.ExternalTrafficPolicy, []corev1.ServiceExternalTrafficPolicy{
			corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal,
		}, external)...)
	case s.ExternalTrafficPolicy != "":
		errs = append(errs, field.Invalid(external, s.ExternalTrafficPolicy, "may only be set for externally-accessible services"))
	}
	if s.InternalTrafficPolicy != nil {
		errs = append(errs, validateOneOf(*s.InternalTrafficPolicy, []corev1.ServiceInternalTrafficPolicy{
			corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal,
		}, specPath.Child("internalTrafficPolicy"))...)
	}
	if s.HealthCheckNodePort != 0 && !needsHealthCheckPort(s) {
		errs = append(errs, field.Invalid(specPath.Child("healthCheckNodePort"), s.HealthCheckNodePort, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
	}
	return errs
}

// validateServiceUpdate: an address stays as long as the service has one.
func validateServiceUpdate(n, o *corev1.Service) field.ErrorList {
	if n.Spec.Type == corev1.ServiceTypeExternalName || o.Spec.Type == corev1.ServiceTypeExternalName || o.Spec.ClusterIP == "" {
		return nil
	}
	if n.Spec.ClusterIP != o.Spec.ClusterIP {
		return field.ErrorList{field.Invalid(specPath.Child("clusterIPs").Index(0), n.Spec.ClusterIPs, apivalidation.FieldImmutableErrorMsg)}
	}
	return nil
}
