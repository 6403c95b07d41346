package resource

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

var serviceAccountKind = define(
	Kind{
		GVK: corev1.SchemeGroupVersion.WithKind("ServiceAccount"), Resource: "serviceaccounts", Singular: "serviceaccount",
		ShortNames: []string{"sa"}, Namespaced: true, UnconditionalUpdate: true,
	},
	func() *corev1.ServiceAccount { return &corev1.ServiceAccount{} },
	func() runtime.Object { return &corev1.ServiceAccountList{} },
	typed[*corev1.ServiceAccount]{
		name: apivalidation.ValidateServiceAccountName,
		columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Secrets", "string", corev1.ServiceAccount{}.SwaggerDoc()["secrets"]),
			ageColumn,
		},
		row: func(s *corev1.ServiceAccount, now time.Time) []any {
			return []any{s.Name, int64(len(s.Secrets)), age(s.CreationTimestamp, now)}
		},
	},
)
