package resource

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

var serviceKind = define(
	Kind{
		GVK: corev1.SchemeGroupVersion.WithKind("Service"), Resource: "services", Singular: "service",
		ShortNames: []string{"svc"}, Categories: []string{"all"}, Namespaced: true,
		UnconditionalUpdate: true, CreateOnUpdate: true,
	},
	func() *corev1.Service { return &corev1.Service{} },
	func() runtime.Object { return &corev1.ServiceList{} },
	typed[*corev1.Service]{
		name:     apivalidation.NameIsDNS1035Label,
		defaults: defaultService,
		create: func(s *corev1.Service) {
			s.Status = corev1.ServiceStatus{}
			normalizeClusterIPs(s)
		},
		update: func(n, o *corev1.Service) {
			normalizeClusterIPs(n)
			keepAllocated(n, o)
			dropOfOldType(n, o)
		},
		setStatus:      func(dst, src *corev1.Service) { dst.Status = src.Status },
		validate:       validateService,
		validateUpdate: validateServiceUpdate,
		fields: func(s *corev1.Service) fields.Set {
			return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
		},
		columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Type", "string", corev1.ServiceSpec{}.SwaggerDoc()["type"]),
			column("Cluster-IP", "string", corev1.ServiceSpec{}.SwaggerDoc()["clusterIP"]),
			column("External-IP", "string", corev1.ServiceSpec{}.SwaggerDoc()["externalIPs"]),
			column("Port(s)", "string", corev1.ServiceSpec{}.SwaggerDoc()["ports"]),
			ageColumn,
			wide("Selector", "string", corev1.ServiceSpec{}.SwaggerDoc()["selector"]),
		},
		row: serviceRow,
	},
)

// Session affinity by client address lasts three hours unless told otherwise.
const clientIPSeconds = 10800

func defaultService(s *corev1.Service) {
	spec := &s.Spec
	setDefault(&spec.SessionAffinity, corev1.ServiceAffinityNone)
	if spec.SessionAffinity == corev1.ServiceAffinityNone {
		spec.SessionAffinityConfig = nil
	}
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP &&
		(spec.SessionAffinityConfig == nil || spec.SessionAffinityConfig.ClientIP == nil || spec.SessionAffinityConfig.ClientIP.TimeoutSeconds == nil) {
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](clientIPSeconds)},
		}
	}
	setDefault(&spec.Type, corev1.ServiceTypeClusterIP)
	for i := range spec.Ports {
		p := &spec.Ports[i]
		setDefault(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if isExternal(spec) {
		setDefault(&spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	if spec.InternalTrafficPolicy == nil {
		spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer && spec.AllocateLoadBalancerNodePorts == nil {
		spec.AllocateLoadBalancerNodePorts = ptr.To(true)
	}
	if spec.IPFamilyPolicy == nil {
		spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{familyOf(spec.ClusterIP)}
	}
}

func familyOf(ip string) corev1.IPFamily {
	if strings.Contains(ip, ":") {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// isExternal reports whether the service is reached from outside.
func isExternal(s *corev1.ServiceSpec) bool {
	return s.Type == corev1.ServiceTypeLoadBalancer || s.Type == corev1.ServiceTypeNodePort ||
		(s.Type == corev1.ServiceTypeClusterIP && len(s.ExternalIPs) > 0)
}

// normalizeClusterIPs lets old clients set clusterIP alone.
func normalizeClusterIPs(s *corev1.Service) {
	if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
	if s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) > 0 {
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
}

// keepAllocated lets a client that sends its manifest again leave out what was
// allocated: cluster IPs and node ports stay.
func keepAllocated(n, o *corev1.Service) {
	if n.Spec.Type == corev1.ServiceTypeExternalName || o.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	if n.Spec.ClusterIP == "" && len(n.Spec.ClusterIPs) == 0 {
		n.Spec.ClusterIP = o.Spec.ClusterIP
		n.Spec.ClusterIPs = append([]string(nil), o.Spec.ClusterIPs...)
	}
	if !hasNodePorts(&n.Spec) || !hasNodePorts(&o.Spec) {
		return
	}
	type portKey struct {
		protocol corev1.Protocol
		port     int32
	}
	used := map[int32]bool{}
	for _, p := range n.Spec.Ports {
		used[p.NodePort] = true
	}
	former := map[portKey]int32{}
	for _, p := range o.Spec.Ports {
		former[portKey{p.Protocol, p.Port}] = p.NodePort
	}
	for i := range n.Spec.Ports {
		p := &n.Spec.Ports[i]
		if port := former[portKey{p.Protocol, p.Port}]; p.NodePort == 0 && port != 0 && !used[port] {
			p.NodePort = port
			used[port] = true
		}
	}
	if needsHealthCheckPort(&n.Spec) && needsHealthCheckPort(&o.Spec) {
		setDefault(&n.Spec.HealthCheckNodePort, o.Spec.HealthCheckNodePort)
	}
}

func hasNodePorts(s *corev1.ServiceSpec) bool {
	return s.Type == corev1.ServiceTypeNodePort || s.Type == corev1.ServiceTypeLoadBalancer
}

func needsHealthCheckPort(s *corev1.ServiceSpec) bool {
	return s.Type == corev1.ServiceTypeLoadBalancer && s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// dropOfOldType drops what belonged to the former type of the service and was
// carried along unchanged.
func dropOfOldType(n, o *corev1.Service) {
	if n.Spec.Type == o.Spec.Type {
		return
	}
	if n.Spec.Type == corev1.ServiceTypeExternalName && n.Spec.ClusterIP == o.Spec.ClusterIP {
		n.Spec.ClusterIP, n.Spec.ClusterIPs = "", nil
		n.Spec.IPFamilies, n.Spec.IPFamilyPolicy, n.Spec.InternalTrafficPolicy = nil, nil, nil
	}
	if n.Spec.Type != corev1.ServiceTypeExternalName && n.Spec.ExternalName == o.Spec.ExternalName {
		n.Spec.ExternalName = ""
	}
	if hasNodePorts(&o.Spec) && !hasNodePorts(&n.Spec) {
		former := map[int32]bool{}
		for _, p := range o.Spec.Ports {
			former[p.NodePort] = true
		}
		for i := range n.Spec.Ports {
			if former[n.Spec.Ports[i].NodePort] {
				n.Spec.Ports[i].NodePort = 0
			}
		}
	}
	if !isExternal(&n.Spec) && n.Spec.ExternalTrafficPolicy == o.Spec.ExternalTrafficPolicy {
		n.Spec.ExternalTrafficPolicy = ""
	}
	if n.Spec.Type != corev1.ServiceTypeLoadBalancer {
		n.Spec.AllocateLoadBalancerNodePorts = nil
		n.Spec.LoadBalancerClass = nil
	}
	if !needsHealthCheckPort(&n.Spec) && n.Spec.HealthCheckNodePort == o.Spec.HealthCheckNodePort {
		n.Spec.HealthCheckNodePort = 0
	}
}

func serviceRow(s *corev1.Service, now time.Time) []any {
	clusterIP := s.Spec.ClusterIP
	if len(s.Spec.ClusterIPs) > 0 {
		clusterIP = s.Spec.ClusterIPs[0]
	}
	var ports []string
	for _, p := range s.Spec.Ports {
		if p.NodePort > 0 {
			ports = append(ports, fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol))
		} else {
			ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		}
	}
	return []any{
		s.Name, string(s.Spec.Type), orNone(clusterIP), externalIP(s), orNone(strings.Join(ports, ",")),
		age(s.CreationTimestamp, now), orNone(labels.FormatLabels(s.Spec.Selector)),
	}
}

func externalIP(s *corev1.Service) string {
	switch s.Spec.Type {
	case corev1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	case corev1.ServiceTypeLoadBalancer:
		var ips []string
		for _, in := range s.Status.LoadBalancer.Ingress {
			if in.IP != "" {
				ips = append(ips, in.IP)
			} else if in.Hostname != "" {
				ips = append(ips, in.Hostname)
			}
		}
		ips = append(ips, s.Spec.ExternalIPs...)
		if len(ips) == 0 {
			return "<pending>"
		}
		return strings.Join(ips, ",")
	}
	return orNone(strings.Join(s.Spec.ExternalIPs, ","))
}
