package resource

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateProbes checks a container's probes and lifecycle hooks.
func validateProbes(c *corev1.Container, path *field.Path) field.ErrorList {
	errs := validateProbe(c.LivenessProbe, path.Child("livenessProbe"))
	errs = append(errs, validateProbe(c.ReadinessProbe, path.Child("readinessProbe"))...)
	errs = append(errs, validateProbe(c.StartupProbe, path.Child("startupProbe"))...)
	for name, probe := range map[string]*corev1.Probe{"livenessProbe": c.LivenessProbe, "startupProbe": c.StartupProbe} {
		if probe != nil && probe.SuccessThreshold != 1 {
			errs = append(errs, field.Invalid(path.Child(name, "successThreshold"), probe.SuccessThreshold, "must be 1"))
		}
	}
	if c.ReadinessProbe != nil && c.ReadinessProbe.TerminationGracePeriodSeconds != nil {
		errs = append(errs, field.Invalid(path.Child("readinessProbe", "terminationGracePeriodSeconds"),
			*c.ReadinessProbe.TerminationGracePeriodSeconds, "must not be set for readinessProbes"))
	}
	if c.Lifecycle != nil {
		errs = append(errs, validateHook(c.Lifecycle.PostStart, path.Child("lifecycle", "postStart"))...)
		errs = append(errs, validateHook(c.Lifecycle.PreStop, path.Child("lifecycle", "preStop"))...)
	}
	return errs
}

func validateProbe(p *corev1.Probe, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := validateHandler(handler{exec: p.Exec, http: p.HTTPGet, tcp: p.TCPSocket, grpc: p.GRPC}, path)
	for name, value := range map[string]int32{
		"initialDelaySeconds": p.InitialDelaySeconds, "timeoutSeconds": p.TimeoutSeconds, "periodSeconds": p.PeriodSeconds,
		"successThreshold": p.SuccessThreshold, "failureThreshold": p.FailureThreshold,
	} {
		errs = append(errs, validateNonNegative(int64(value), path.Child(name))...)
	}
	if grace := p.TerminationGracePeriodSeconds; grace != nil && *grace <= 0 {
		errs = append(errs, field.Invalid(path.Child("terminationGracePeriodSeconds"), *grace, "must be greater than 0"))
	}
	return errs
}

func validateHook(h *corev1.LifecycleHandler, path *field.Path) field.ErrorList {
	if h == nil {
		return nil
	}
	return validateHandler(handler{exec: h.Exec, http: h.HTTPGet, tcp: h.TCPSocket, sleep: h.Sleep}, path)
}

// handler is what probes and hooks have in common.
type handler struct {
	exec  *corev1.ExecAction
	http  *corev1.HTTPGetAction
	tcp   *corev1.TCPSocketAction
	grpc  *corev1.GRPCAction
	sleep *corev1.SleepAction
}

func validateHandler(h handler, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	found := 0
	one := func(name string) *field.Path {
		if found++; found > 1 {
			errs = append(errs, field.Forbidden(path.Child(name), "may not specify more than 1 handler type"))
		}
		return path.Child(name)
	}
	if h.exec != nil {
		at := one("exec")
		if len(h.exec.Command) == 0 {
			errs = append(errs, field.Required(at.Child("command"), ""))
		}
	}
	if h.http != nil {
		at := one("httpGet")
		if h.http.Path == "" {
			errs = append(errs, field.Required(at.Child("path"), ""))
		}
		errs = append(errs, validatePortNumOrName(h.http.Port, at.Child("port"))...)
		errs = append(errs, validateOneOf(h.http.Scheme, []corev1.URIScheme{corev1.URISchemeHTTP, corev1.URISchemeHTTPS}, at.Child("scheme"))...)
		for i, header := range h.http.HTTPHeaders {
			errs = append(errs, validateStrings(header.Name, validation.IsHTTPHeaderName(header.Name), at.Child("httpHeaders").Index(i).Child("name"))...)
		}
	}
	if h.tcp != nil {
		errs = append(errs, validatePortNumOrName(h.tcp.Port, one("tcpSocket").Child("port"))...)
	}
	if h.grpc != nil {
		errs = append(errs, validatePortNumber(int64(h.grpc.Port), one("grpc").Child("port"))...)
	}
	if h.sleep != nil {
		errs = append(errs, validateNonNegative(h.sleep.Seconds, one("sleep").Child("seconds"))...)
	}
	if found == 0 {
		errs = append(errs, field.Required(path, "must specify a handler type"))
	}
	return errs
}

func validatePortNumOrName(port intstr.IntOrString, path *field.Path) field.ErrorList {
	if port.Type == intstr.Int {
		return validatePortNumber(int64(port.IntVal), path)
	}
	return validateStrings(port.StrVal, validation.IsValidPortName(port.StrVal), path)
}
