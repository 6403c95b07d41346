package resource

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var secretKind = define(
	Kind{
		GVK: corev1.SchemeGroupVersion.WithKind("Secret"), Resource: "secrets", Singular: "secret",
		Namespaced: true, UnconditionalUpdate: true,
	},
	func() *corev1.Secret { return &corev1.Secret{} },
	func() runtime.Object { return &corev1.SecretList{} },
	typed[*corev1.Secret]{
		name:           apivalidation.NameIsDNSSubdomain,
		defaults:       defaultSecret,
		validate:       validateSecret,
		validateUpdate: validateSecretUpdate,
		fields: func(s *corev1.Secret) fields.Set {
			return fields.Set{"type": string(s.Type)}
		},
		columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Type", "string", corev1.Secret{}.SwaggerDoc()["type"]),
			column("Data", "string", corev1.Secret{}.SwaggerDoc()["data"]),
			ageColumn,
		},
		row: func(s *corev1.Secret, now time.Time) []any {
			return []any{s.Name, string(s.Type), int64(len(s.Data)), age(s.CreationTimestamp, now)}
		},
	},
)

// defaultSecret also moves stringData, which is write-only, into data.
func defaultSecret(s *corev1.Secret) {
	if s.Type == "" {
		s.Type = corev1.SecretTypeOpaque
	}
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = map[string][]byte{}
	}
	for key, value := range s.StringData {
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
}

func validateSecret(s *corev1.Secret) field.ErrorList {
	var errs field.ErrorList
	data := field.NewPath("data")
	total := 0
	for key, value := range s.Data {
		errs = append(errs, validateDataKey(key, data)...)
		total += len(value)
	}
	if total > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(data, "", corev1.MaxSecretSize))
	}
	required := func(keys ...string) {
		for _, key := range keys {
			if _, ok := s.Data[key]; !ok {
				errs = append(errs, field.Required(data.Key(key), ""))
			}
		}
	}
	isJSON := func(key string) {
		value, ok := s.Data[key]
		if !ok {
			errs = append(errs, field.Required(data.Key(key), ""))
		} else if !json.Valid(value) {
			errs = append(errs, field.Invalid(data.Key(key), "<secret contents redacted>", "invalid JSON"))
		}
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		if s.Annotations[corev1.ServiceAccountNameKey] == "" {
			errs = append(errs, field.Required(metadataPath.Child("annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	case corev1.SecretTypeDockercfg:
		isJSON(corev1.DockerConfigKey)
	case corev1.SecretTypeDockerConfigJson:
		isJSON(corev1.DockerConfigJsonKey)
	case corev1.SecretTypeBasicAuth:
		_, user := s.Data[corev1.BasicAuthUsernameKey]
		_, password := s.Data[corev1.BasicAuthPasswordKey]
		if !user && !password {
			required(corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(s.Data[corev1.SSHAuthPrivateKey]) == 0 {
			errs = append(errs, field.Required(data.Key(corev1.SSHAuthPrivateKey), ""))
		}
	case corev1.SecretTypeTLS:
		required(corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	return errs
}

func validateSecretUpdate(new, old *corev1.Secret) field.ErrorList {
	errs := apivalidation.ValidateImmutableField(new.Type, old.Type, field.NewPath("type"))
	if old.Immutable == nil || !*old.Immutable {
		return errs
	}
	if new.Immutable == nil || !*new.Immutable {
		errs = append(errs, immutableSet("immutable"))
	}
	if !apiequality.Semantic.DeepEqual(new.Data, old.Data) {
		errs = append(errs, immutableSet("data"))
	}
	return errs
}
