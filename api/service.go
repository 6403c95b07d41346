package api

import corev1 "k8s.io/api/core/v1"

// What a Service needs follows from its type, as in Kubernetes.

func needsClusterIP(s *corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeExternalName }

func needsNodePort(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// wantsNodePorts says whether ports without a number get one.
func wantsNodePorts(s *corev1.Service) bool {
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		return s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts
	}
	return s.Spec.Type == corev1.ServiceTypeNodePort
}

func needsHealthCheckNodePort(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// nodePortsOf returns the node ports that a Service holds.
func nodePortsOf(s *corev1.Service) []int32 {
	if !needsNodePort(s) {
		return nil
	}
	var ports []int32
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			ports = append(ports, p.NodePort)
		}
	}
	if s.Spec.HealthCheckNodePort != 0 {
		ports = append(ports, s.Spec.HealthCheckNodePort)
	}
	return ports
}
