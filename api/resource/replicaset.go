package resource

import (
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

var replicaSetKind = define(
	Kind{
		GVK: appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), Resource: "replicasets", Singular: "replicaset",
		ShortNames: []string{"rs"}, Categories: []string{"all"}, Namespaced: true, UnconditionalUpdate: true,
		Subresources: []Subresource{scaleSubresource},
		Scale: scaleOf(func(r *appsv1.ReplicaSet) (*int32, int32, *metav1.LabelSelector) {
			return r.Spec.Replicas, r.Status.Replicas, r.Spec.Selector
		}, func(r *appsv1.ReplicaSet, n int32) { r.Spec.Replicas = &n }),
	},
	func() *appsv1.ReplicaSet { return &appsv1.ReplicaSet{} },
	func() runtime.Object { return &appsv1.ReplicaSetList{} },
	typed[*appsv1.ReplicaSet]{
		name: apivalidation.NameIsDNSSubdomain,
		defaults: func(r *appsv1.ReplicaSet) {
			if r.Spec.Replicas == nil {
				r.Spec.Replicas = ptr.To[int32](1)
			}
			defaultPodSpec(&r.Spec.Template.Spec)
		},
		create:               func(r *appsv1.ReplicaSet) { r.Status = appsv1.ReplicaSetStatus{} },
		setStatus:            func(dst, src *appsv1.ReplicaSet) { dst.Status = src.Status },
		spec:                 func(r *appsv1.ReplicaSet) any { return r.Spec },
		validate:             validateReplicaSet,
		validateUpdate:       validateReplicaSetUpdate,
		validateStatusUpdate: validateReplicaSetStatusUpdate,
		fields: func(r *appsv1.ReplicaSet) fields.Set {
			return fields.Set{"status.replicas": strconv.Itoa(int(r.Status.Replicas))}
		},
		columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Desired", "integer", appsv1.ReplicaSetSpec{}.SwaggerDoc()["replicas"]),
			column("Current", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["replicas"]),
			column("Ready", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["readyReplicas"]),
			ageColumn,
			wide("Containers", "string", "Names of each container in the template."),
			wide("Images", "string", "Images referenced by each container in the template."),
			wide("Selector", "string", appsv1.ReplicaSetSpec{}.SwaggerDoc()["selector"]),
		},
		row: func(r *appsv1.ReplicaSet, now time.Time) []any {
			containers, images := containerCells(r.Spec.Template.Spec.Containers)
			return []any{
				r.Name, int64(ptr.Deref(r.Spec.Replicas, 0)), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas),
				age(r.CreationTimestamp, now), containers, images, metav1.FormatLabelSelector(r.Spec.Selector),
			}
		},
	},
)
