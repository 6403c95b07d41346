package resource

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateContainers checks all containers of a pod together: their names and
// host ports must be unique among them.
func validateContainers(s *corev1.PodSpec, volumes map[string]*corev1.VolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.Containers) == 0 {
		errs = append(errs, field.Required(path.Child("containers"), ""))
	}
	names := sets.New[string]()
	uniqueName := func(name string, at *field.Path) {
		switch {
		case name == "":
			errs = append(errs, field.Required(at, ""))
		case names.Has(name):
			errs = append(errs, field.Duplicate(at, name))
		default:
			errs = append(errs, validateStrings(name, validation.IsDNS1123Label(name), at)...)
		}
		names.Insert(name)
	}
	for i := range s.Containers {
		at := path.Child("containers").Index(i)
		c := &s.Containers[i]
		uniqueName(c.Name, at.Child("name"))
		errs = append(errs, validateContainer(c, volumes, s.HostNetwork, at)...)
		errs = append(errs, validateProbes(c, at)...)
		if c.RestartPolicy != nil {
			errs = append(errs, field.Forbidden(at.Child("restartPolicy"), "may not be set for non-init containers"))
		}
	}
	for i := range s.InitContainers {
		at := path.Child("initContainers").Index(i)
		c := &s.InitContainers[i]
		uniqueName(c.Name, at.Child("name"))
		errs = append(errs, validateContainer(c, volumes, s.HostNetwork, at)...)
		errs = append(errs, validateInitContainer(c, at)...)
	}
	return append(errs, validateHostPorts(s, path)...)
}

func validateInitContainer(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c.RestartPolicy != nil {
		errs = append(errs, validateOneOf(*c.RestartPolicy, []corev1.ContainerRestartPolicy{corev1.ContainerRestartPolicyAlways}, path.Child("restartPolicy"))...)
	}
	if isSidecar(c) {
		return append(errs, validateProbes(c, path)...)
	}
	forbidden := map[string]bool{
		"lifecycle": c.Lifecycle != nil, "livenessProbe": c.LivenessProbe != nil,
		"readinessProbe": c.ReadinessProbe != nil, "startupProbe": c.StartupProbe != nil,
	}
	for name, set := range forbidden {
		if set {
			errs = append(errs, field.Forbidden(path.Child(name), "may not be set for init containers without restartPolicy=Always"))
		}
	}
	return errs
}

func validateContainer(c *corev1.Container, volumes map[string]*corev1.VolumeSource, hostNetwork bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c.Image == "" {
		errs = append(errs, field.Required(path.Child("image"), ""))
	} else if strings.TrimSpace(c.Image) != c.Image {
		errs = append(errs, field.Invalid(path.Child("image"), c.Image, "must not have leading or trailing whitespace"))
	}
	errs = append(errs, validateOneOf(c.ImagePullPolicy, []corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}, path.Child("imagePullPolicy"))...)
	errs = append(errs, validateOneOf(c.TerminationMessagePolicy, []corev1.TerminationMessagePolicy{
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError,
	}, path.Child("terminationMessagePolicy"))...)
	if len(c.RestartPolicyRules) > 0 {
		errs = append(errs, field.Forbidden(path.Child("restartPolicyRules"), "not supported"))
	}
	errs = append(errs, validatePorts(c.Ports, hostNetwork, path.Child("ports"))...)
	errs = append(errs, validateEnv(c.Env, path.Child("env"))...)
	errs = append(errs, validateEnvFrom(c.EnvFrom, path.Child("envFrom"))...)
	errs = append(errs, validateMounts(c, volumes, path)...)
	errs = append(errs, validateResources(&c.Resources, path.Child("resources"))...)
	return append(errs, validateContainerSecurity(c.SecurityContext, path.Child("securityContext"))...)
}

func validatePorts(ports []corev1.ContainerPort, hostNetwork bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i, p := range ports {
		at := path.Index(i)
		if p.Name != "" {
			errs = append(errs, validateStrings(p.Name, validation.IsValidPortName(p.Name), at.Child("name"))...)
			if names.Has(p.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
			}
			names.Insert(p.Name)
		}
		if p.ContainerPort == 0 {
			errs = append(errs, field.Required(at.Child("containerPort"), ""))
		} else {
			errs = append(errs, validatePortNumber(int64(p.ContainerPort), at.Child("containerPort"))...)
		}
		if p.HostPort != 0 {
			errs = append(errs, validatePortNumber(int64(p.HostPort), at.Child("hostPort"))...)
		}
		if hostNetwork && p.HostPort != p.ContainerPort {
			errs = append(errs, field.Invalid(at.Child("containerPort"), p.ContainerPort, "must match `hostPort` when `hostNetwork` is true"))
		}
		errs = append(errs, validateProtocol(p.Protocol, at.Child("protocol"))...)
		if p.HostIP != "" {
			errs = append(errs, validation.IsValidIPForLegacyField(at.Child("hostIP"), p.HostIP, false, nil)...)
		}
	}
	return errs
}

// validateHostPorts refuses one host port twice in a pod.
func validateHostPorts(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	visit := func(c *corev1.Container, at *field.Path) {
		for i, p := range c.Ports {
			if p.HostPort == 0 {
				continue
			}
			key := fmt.Sprintf("%s/%s/%d", p.Protocol, p.HostIP, p.HostPort)
			if seen.Has(key) {
				errs = append(errs, field.Duplicate(at.Child("ports").Index(i).Child("hostPort"), key))
			}
			seen.Insert(key)
		}
	}
	for i := range s.Containers {
		visit(&s.Containers[i], path.Child("containers").Index(i))
	}
	for i := range s.InitContainers {
		if isSidecar(&s.InitContainers[i]) {
			visit(&s.InitContainers[i], path.Child("initContainers").Index(i))
		}
	}
	return errs
}

func validateEnv(env []corev1.EnvVar, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, e := range env {
		at := path.Index(i)
		if e.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs, validateStrings(e.Name, validation.IsRelaxedEnvVarName(e.Name), at.Child("name"))...)
		}
		if e.ValueFrom != nil {
			errs = append(errs, validateEnvSource(e, at.Child("valueFrom"))...)
		}
	}
	return errs
}

var envFields = []string{
	"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
	"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
}

func validateEnvSource(e corev1.EnvVar, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	sources := 0
	if f := e.ValueFrom.FieldRef; f != nil {
		sources++
		errs = append(errs, validateFieldRef(f, envFields, path.Child("fieldRef"))...)
	}
	if r := e.ValueFrom.ResourceFieldRef; r != nil {
		sources++
		errs = append(errs, validateResourceFieldRef(r, path.Child("resourceFieldRef"))...)
	}
	if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
		sources++
		errs = append(errs, validateKeyRef(r.Name, r.Key, path.Child("configMapKeyRef"))...)
	}
	if r := e.ValueFrom.SecretKeyRef; r != nil {
		sources++
		errs = append(errs, validateKeyRef(r.Name, r.Key, path.Child("secretKeyRef"))...)
	}
	if e.ValueFrom.FileKeyRef != nil {
		sources++
		errs = append(errs, field.Forbidden(path.Child("fileKeyRef"), "not supported"))
	}
	switch {
	case sources == 0:
		errs = append(errs, field.Invalid(path, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"))
	case e.Value != "":
		errs = append(errs, field.Invalid(path, "", "may not be specified when `value` is not empty"))
	case sources > 1:
		errs = append(errs, field.Invalid(path, "", "may not have more than one field specified at a time"))
	}
	return errs
}

func validateKeyRef(name, key string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	}
	if key == "" {
		return append(errs, field.Required(path.Child("key"), ""))
	}
	return append(errs, validateStrings(key, validation.IsConfigMapKey(key), path.Child("key"))...)
}

// validateFieldRef checks a downward path: one of the known ones, or one
// annotation or label.
func validateFieldRef(f *corev1.ObjectFieldSelector, known []string, path *field.Path) field.ErrorList {
	at := path.Child("fieldPath")
	switch {
	case f.FieldPath == "":
		return field.ErrorList{field.Required(at, "")}
	case f.APIVersion != "v1":
		return field.ErrorList{field.NotSupported(path.Child("apiVersion"), f.APIVersion, []string{"v1"})}
	case slices.Contains(known, f.FieldPath):
		return nil
	}
	for _, prefix := range []string{"metadata.annotations['", "metadata.labels['"} {
		if key, ok := strings.CutPrefix(f.FieldPath, prefix); ok && strings.HasSuffix(key, "']") {
			key = strings.TrimSuffix(key, "']")
			return validateStrings(key, validation.IsQualifiedName(strings.ToLower(key)), at)
		}
	}
	return field.ErrorList{field.NotSupported(at, f.FieldPath, known)}
}

var resourceFields = []string{
	"limits.cpu", "limits.ephemeral-storage", "limits.memory",
	"requests.cpu", "requests.ephemeral-storage", "requests.memory",
}

func validateResourceFieldRef(r *corev1.ResourceFieldSelector, path *field.Path) field.ErrorList {
	if r.Resource == "" {
		return field.ErrorList{field.Required(path.Child("resource"), "")}
	}
	if strings.HasPrefix(r.Resource, "limits."+corev1.ResourceHugePagesPrefix) || strings.HasPrefix(r.Resource, "requests."+corev1.ResourceHugePagesPrefix) {
		return nil
	}
	return validateOneOf(r.Resource, resourceFields, path.Child("resource"))
}

func validateEnvFrom(sources []corev1.EnvFromSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, source := range sources {
		at := path.Index(i)
		if source.Prefix != "" {
			errs = append(errs, validateStrings(source.Prefix, validation.IsRelaxedEnvVarName(source.Prefix), at.Child("prefix"))...)
		}
		switch {
		case source.ConfigMapRef != nil && source.SecretRef != nil:
			errs = append(errs, field.Invalid(at, "", "may not have more than one field specified at a time"))
		case source.ConfigMapRef != nil && source.ConfigMapRef.Name == "":
			errs = append(errs, field.Required(at.Child("configMapRef", "name"), ""))
		case source.SecretRef != nil && source.SecretRef.Name == "":
			errs = append(errs, field.Required(at.Child("secretRef", "name"), ""))
		case source.ConfigMapRef == nil && source.SecretRef == nil:
			errs = append(errs, field.Invalid(at, "", "must specify one of: `configMapRef` or `secretRef`"))
		}
	}
	return errs
}

func validateMounts(c *corev1.Container, volumes map[string]*corev1.VolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	points := sets.New[string]()
	for i, m := range c.VolumeMounts {
		at := path.Child("volumeMounts").Index(i)
		if m.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else if volumes[m.Name] == nil {
			errs = append(errs, field.NotFound(at.Child("name"), m.Name))
		}
		if m.MountPath == "" {
			errs = append(errs, field.Required(at.Child("mountPath"), ""))
		} else if points.Has(m.MountPath) {
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must be unique"))
		}
		points.Insert(m.MountPath)
		if m.SubPath != "" && m.SubPathExpr != "" {
			errs = append(errs, field.Invalid(at.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive"))
		}
		if m.SubPath != "" {
			errs = append(errs, validateRelativePath(m.SubPath, at.Child("subPath"))...)
		}
		if m.SubPathExpr != "" {
			errs = append(errs, validateRelativePath(m.SubPathExpr, at.Child("subPathExpr"))...)
		}
		if m.MountPropagation == nil {
			continue
		}
		errs = append(errs, validateOneOf(*m.MountPropagation, []corev1.MountPropagationMode{
			corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer, corev1.MountPropagationNone,
		}, at.Child("mountPropagation"))...)
		privileged := c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
		if *m.MountPropagation == corev1.MountPropagationBidirectional && !privileged {
			errs = append(errs, field.Forbidden(at.Child("mountPropagation"), "Bidirectional mount propagation is available only to privileged containers"))
		}
	}
	for i, d := range c.VolumeDevices {
		if volumes[d.Name] == nil {
			errs = append(errs, field.NotFound(path.Child("volumeDevices").Index(i).Child("name"), d.Name))
		}
	}
	return errs
}

// validateRelativePath keeps a path below the directory that it is joined to.
func validateRelativePath(p string, path *field.Path) field.ErrorList {
	if strings.HasPrefix(p, "/") {
		return field.ErrorList{field.Invalid(path, p, "must be a relative path")}
	}
	if slices.Contains(strings.Split(p, "/"), "..") {
		return field.ErrorList{field.Invalid(path, p, "must not contain '..'")}
	}
	return nil
}
