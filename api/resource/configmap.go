package resource

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var configMapKind = define(
	Kind{
		GVK: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Resource: "configmaps", Singular: "configmap",
		ShortNames: []string{"cm"}, Namespaced: true, UnconditionalUpdate: true,
	},
	func() *corev1.ConfigMap { return &corev1.ConfigMap{} },
	func() runtime.Object { return &corev1.ConfigMapList{} },
	typed[*corev1.ConfigMap]{
		name:           apivalidation.NameIsDNSSubdomain,
		validate:       validateConfigMap,
		validateUpdate: validateConfigMapUpdate,
		columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Data", "string", corev1.ConfigMap{}.SwaggerDoc()["data"]),
			ageColumn,
		},
		row: func(cm *corev1.ConfigMap, now time.Time) []any {
			return []any{cm.Name, int64(len(cm.Data) + len(cm.BinaryData)), age(cm.CreationTimestamp, now)}
		},
	},
)

func validateConfigMap(cm *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	total := 0
	for key, value := range cm.Data {
		errs = append(errs, validateDataKey(key, field.NewPath("data"))...)
		if _, both := cm.BinaryData[key]; both {
			errs = append(errs, field.Invalid(field.NewPath("data").Key(key), key, "duplicate of key present in binaryData"))
		}
		total += len(value)
	}
	for key, value := range cm.BinaryData {
		errs = append(errs, validateDataKey(key, field.NewPath("binaryData"))...)
		total += len(value)
	}
	if total > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
	}
	return errs
}

// validateDataKey checks a key of a ConfigMap or a Secret.
func validateDataKey(key string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, message := range validation.IsConfigMapKey(key) {
		errs = append(errs, field.Invalid(path.Key(key), key, message))
	}
	return errs
}

func validateConfigMapUpdate(new, old *corev1.ConfigMap) field.ErrorList {
	if old.Immutable == nil || !*old.Immutable {
		return nil
	}
	var errs field.ErrorList
	if new.Immutable == nil || !*new.Immutable {
		errs = append(errs, immutableSet("immutable"))
	}
	if !apiequality.Semantic.DeepEqual(new.Data, old.Data) {
		errs = append(errs, immutableSet("data"))
	}
	if !apiequality.Semantic.DeepEqual(new.BinaryData, old.BinaryData) {
		errs = append(errs, immutableSet("binaryData"))
	}
	return errs
}

// immutableSet refuses a change of a ConfigMap or Secret that was sealed.
func immutableSet(name string) *field.Error {
	return field.Forbidden(field.NewPath(name), "field is immutable when `immutable` is set")
}
