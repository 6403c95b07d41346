package resource

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var namespaceKind = define(
	Kind{
		GVK: corev1.SchemeGroupVersion.WithKind("Namespace"), Resource: "namespaces", Singular: "namespace",
		ShortNames: []string{"ns"}, UnconditionalUpdate: true,
		Verbs:        []string{"create", "delete", "get", "list", "patch", "update", "watch"}, // all at once would be an accident
		Subresources: []Subresource{{Name: "finalize", GVK: corev1.SchemeGroupVersion.WithKind("Namespace"), Verbs: []string{"update"}}},
	},
	func() *corev1.Namespace { return &corev1.Namespace{} },
	func() runtime.Object { return &corev1.NamespaceList{} },
	typed[*corev1.Namespace]{
		name: apivalidation.ValidateNamespaceName,
		defaults: func(n *corev1.Namespace) {
			if n.Name != "" {
				setLabel(n, corev1.LabelMetadataName, n.Name)
			}
		},
		create: func(n *corev1.Namespace) {
			n.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
			if !slices.Contains(n.Spec.Finalizers, corev1.FinalizerKubernetes) {
				n.Spec.Finalizers = append(n.Spec.Finalizers, corev1.FinalizerKubernetes)
			}
		},
		update:    func(n, o *corev1.Namespace) { n.Spec = *o.Spec.DeepCopy() },
		setStatus: func(dst, src *corev1.Namespace) { dst.Status = src.Status },
		statusUpdate: func(n, o *corev1.Namespace) {
			if n.DeletionTimestamp != nil { // a namespace never comes back to life
				n.Status.Phase = corev1.NamespaceTerminating
			} else {
				n.Status.Phase = corev1.NamespaceActive
			}
		},
		validate: validateNamespace,
		fields: func(n *corev1.Namespace) fields.Set {
			return fields.Set{"status.phase": string(n.Status.Phase)}
		},
		columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Status", "string", "The status of the namespace"),
			ageColumn,
		},
		row: func(n *corev1.Namespace, now time.Time) []any {
			return []any{n.Name, string(n.Status.Phase), age(n.CreationTimestamp, now)}
		},
		deleting: func(n *corev1.Namespace) bool { return n.Status.Phase == corev1.NamespaceTerminating },
	},
)

func validateNamespace(n *corev1.Namespace) field.ErrorList {
	var errs field.ErrorList
	for i, finalizer := range n.Spec.Finalizers {
		path := field.NewPath("spec", "finalizers").Index(i)
		for _, message := range validation.IsQualifiedName(string(finalizer)) {
			errs = append(errs, field.Invalid(path, finalizer, message))
		}
	}
	if n.Labels[corev1.LabelMetadataName] != n.Name {
		errs = append(errs, field.Invalid(metadataPath.Child("labels").Key(corev1.LabelMetadataName),
			n.Labels[corev1.LabelMetadataName], "must equal the name of the namespace"))
	}
	return errs
}

func setLabel(obj metav1.Object, key, value string) {
	labels := obj.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[key] = value
	obj.SetLabels(labels)
}
