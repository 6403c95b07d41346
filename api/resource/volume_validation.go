package resource

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateVolumes returns the volumes by name for the mounts to be checked
// against.
func validateVolumes(list []corev1.Volume, path *field.Path) (map[string]*corev1.VolumeSource, field.ErrorList) {
	var errs field.ErrorList
	volumes := map[string]*corev1.VolumeSource{}
	for i := range list {
		v, at := &list[i], path.Index(i)
		switch {
		case v.Name == "":
			errs = append(errs, field.Required(at.Child("name"), ""))
		case volumes[v.Name] != nil:
			errs = append(errs, field.Duplicate(at.Child("name"), v.Name))
		default:
			errs = append(errs, validateStrings(v.Name, validation.IsDNS1123Label(v.Name), at.Child("name"))...)
		}
		volumes[v.Name] = &v.VolumeSource
		errs = append(errs, validateVolumeSource(&v.VolumeSource, at)...)
	}
	return volumes, errs
}

func validateVolumeSource(s *corev1.VolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	sources := reflect.ValueOf(s).Elem()
	found := 0
	for i := range sources.NumField() {
		if sources.Field(i).IsNil() {
			continue
		}
		if found++; found > 1 {
			name, _, _ := strings.Cut(sources.Type().Field(i).Tag.Get("json"), ",")
			errs = append(errs, field.Forbidden(path.Child(name), "may not specify more than 1 volume type"))
		}
	}
	if found == 0 {
		errs = append(errs, field.Required(path, "must specify a volume type"))
	}
	if s.EmptyDir != nil && s.EmptyDir.SizeLimit != nil && s.EmptyDir.SizeLimit.Sign() < 0 {
		errs = append(errs, field.Forbidden(path.Child("emptyDir", "sizeLimit"), "SizeLimit field must be a valid resource quantity"))
	}
	if s.HostPath != nil {
		errs = append(errs, validateHostPath(s.HostPath, path.Child("hostPath"))...)
	}
	if c := s.ConfigMap; c != nil {
		at := path.Child("configMap")
		errs = append(errs, requireName(c.Name, at.Child("name"))...)
		errs = append(errs, validateMode(c.DefaultMode, at.Child("defaultMode"))...)
		errs = append(errs, validateItems(c.Items, at.Child("items"))...)
	}
	if c := s.Secret; c != nil {
		at := path.Child("secret")
		errs = append(errs, requireName(c.SecretName, at.Child("secretName"))...)
		errs = append(errs, validateMode(c.DefaultMode, at.Child("defaultMode"))...)
		errs = append(errs, validateItems(c.Items, at.Child("items"))...)
	}
	if d := s.DownwardAPI; d != nil {
		at := path.Child("downwardAPI")
		errs = append(errs, validateMode(d.DefaultMode, at.Child("defaultMode"))...)
		errs = append(errs, validateDownwardItems(d.Items, at.Child("items"))...)
	}
	if s.Projected != nil {
		errs = append(errs, validateProjected(s.Projected, path.Child("projected"))...)
	}
	if s.PersistentVolumeClaim != nil {
		errs = append(errs, requireName(s.PersistentVolumeClaim.ClaimName, path.Child("persistentVolumeClaim", "claimName"))...)
	}
	return errs
}

func requireName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return nil
}

func validateHostPath(h *corev1.HostPathVolumeSource, path *field.Path) field.ErrorList {
	if h.Path == "" {
		return field.ErrorList{field.Required(path.Child("path"), "")}
	}
	var errs field.ErrorList
	if slices.Contains(strings.Split(h.Path, "/"), "..") {
		errs = append(errs, field.Invalid(path.Child("path"), h.Path, "must not contain '..'"))
	}
	if h.Type != nil {
		errs = append(errs, validateOneOf(*h.Type, []corev1.HostPathType{
			corev1.HostPathUnset, corev1.HostPathBlockDev, corev1.HostPathCharDev, corev1.HostPathDirectory,
			corev1.HostPathDirectoryOrCreate, corev1.HostPathFile, corev1.HostPathFileOrCreate, corev1.HostPathSocket,
		}, path.Child("type"))...)
	}
	return errs
}

func validateMode(mode *int32, path *field.Path) field.ErrorList {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		return field.ErrorList{field.Invalid(path, *mode, "must be a number between 0 and 0777 (octal), both inclusive")}
	}
	return nil
}

func validateItems(items []corev1.KeyToPath, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, item := range items {
		at := path.Index(i)
		errs = append(errs, requireName(item.Key, at.Child("key"))...)
		errs = append(errs, validateFilePath(item.Path, at.Child("path"))...)
		errs = append(errs, validateMode(item.Mode, at.Child("mode"))...)
	}
	return errs
}

// validateFilePath checks the path of a file within a volume.
func validateFilePath(p string, path *field.Path) field.ErrorList {
	if p == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	errs := validateRelativePath(p, path)
	if len(errs) == 0 && strings.HasPrefix(p, "..") {
		errs = append(errs, field.Invalid(path, p, "must not start with '..'"))
	}
	return errs
}

var downwardFields = []string{"metadata.name", "metadata.namespace", "metadata.uid", "metadata.annotations", "metadata.labels"}

func validateDownwardItems(items []corev1.DownwardAPIVolumeFile, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, item := range items {
		at := path.Index(i)
		errs = append(errs, validateFilePath(item.Path, at.Child("path"))...)
		errs = append(errs, validateMode(item.Mode, at.Child("mode"))...)
		switch {
		case item.FieldRef != nil && item.ResourceFieldRef != nil:
			errs = append(errs, field.Invalid(at, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously"))
		case item.FieldRef != nil:
			errs = append(errs, validateFieldRef(item.FieldRef, downwardFields, at.Child("fieldRef"))...)
		case item.ResourceFieldRef != nil:
			errs = append(errs, requireName(item.ResourceFieldRef.ContainerName, at.Child("resourceFieldRef", "containerName"))...)
			errs = append(errs, validateResourceFieldRef(item.ResourceFieldRef, at.Child("resourceFieldRef"))...)
		default:
			errs = append(errs, field.Required(at, "fieldRef or resourceFieldRef is required"))
		}
	}
	return errs
}

func validateProjected(p *corev1.ProjectedVolumeSource, path *field.Path) field.ErrorList {
	errs := validateMode(p.DefaultMode, path.Child("defaultMode"))
	const minTokenSeconds = 10 * 60
	for i, source := range p.Sources {
		at := path.Child("sources").Index(i)
		if s := source.Secret; s != nil {
			errs = append(errs, requireName(s.Name, at.Child("secret", "name"))...)
			errs = append(errs, validateItems(s.Items, at.Child("secret", "items"))...)
		}
		if c := source.ConfigMap; c != nil {
			errs = append(errs, requireName(c.Name, at.Child("configMap", "name"))...)
			errs = append(errs, validateItems(c.Items, at.Child("configMap", "items"))...)
		}
		if d := source.DownwardAPI; d != nil {
			errs = append(errs, validateDownwardItems(d.Items, at.Child("downwardAPI", "items"))...)
		}
		if t := source.ServiceAccountToken; t != nil {
			errs = append(errs, validateFilePath(t.Path, at.Child("serviceAccountToken", "path"))...)
			if t.ExpirationSeconds != nil && *t.ExpirationSeconds < minTokenSeconds {
				errs = append(errs, field.Invalid(at.Child("serviceAccountToken", "expirationSeconds"), *t.ExpirationSeconds, "may not specify a duration less than 10 minutes"))
			}
		}
	}
	return errs
}
