package resource

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

var deploymentKind = define(
	Kind{
		GVK: appsv1.SchemeGroupVersion.WithKind("Deployment"), Resource: "deployments", Singular: "deployment",
		ShortNames: []string{"deploy"}, Categories: []string{"all"}, Namespaced: true, UnconditionalUpdate: true,
		Subresources: []Subresource{scaleSubresource},
		Scale: scaleOf(func(d *appsv1.Deployment) (*int32, int32, *metav1.LabelSelector) {
			return d.Spec.Replicas, d.Status.Replicas, d.Spec.Selector
		}, func(d *appsv1.Deployment, n int32) { d.Spec.Replicas = &n }),
	},
	func() *appsv1.Deployment { return &appsv1.Deployment{} },
	func() runtime.Object { return &appsv1.DeploymentList{} },
	typed[*appsv1.Deployment]{
		name:                 apivalidation.NameIsDNSSubdomain,
		defaults:             defaultDeployment,
		create:               func(d *appsv1.Deployment) { d.Status = appsv1.DeploymentStatus{} },
		setStatus:            func(dst, src *appsv1.Deployment) { dst.Status = src.Status },
		spec:                 func(d *appsv1.Deployment) any { return d.Spec },
		validate:             validateDeployment,
		validateUpdate:       validateDeploymentUpdate,
		validateStatusUpdate: validateDeploymentStatusUpdate,
		columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Ready", "string", "Number of the pod with ready state"),
			column("Up-to-date", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["updatedReplicas"]),
			column("Available", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["availableReplicas"]),
			ageColumn,
			wide("Containers", "string", "Names of each container in the template."),
			wide("Images", "string", "Images referenced by each container in the template."),
			wide("Selector", "string", appsv1.DeploymentSpec{}.SwaggerDoc()["selector"]),
		},
		row: func(d *appsv1.Deployment, now time.Time) []any {
			containers, images := containerCells(d.Spec.Template.Spec.Containers)
			return []any{
				d.Name, fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, ptr.Deref(d.Spec.Replicas, 0)),
				int64(d.Status.UpdatedReplicas), int64(d.Status.AvailableReplicas), age(d.CreationTimestamp, now),
				containers, images, metav1.FormatLabelSelector(d.Spec.Selector),
			}
		},
	},
)

// Defaults of a Deployment, as in Kubernetes.
const (
	defaultRevisionHistory  = 10
	defaultProgressDeadline = 600
	defaultRollingPercent   = "25%"
)

func defaultDeployment(d *appsv1.Deployment) {
	spec := &d.Spec
	if spec.Replicas == nil {
		spec.Replicas = ptr.To[int32](1)
	}
	setDefault(&spec.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		if spec.Strategy.RollingUpdate == nil {
			spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{}
		}
		rolling := spec.Strategy.RollingUpdate
		if rolling.MaxUnavailable == nil {
			rolling.MaxUnavailable = ptr.To(intstr.FromString(defaultRollingPercent))
		}
		if rolling.MaxSurge == nil {
			rolling.MaxSurge = ptr.To(intstr.FromString(defaultRollingPercent))
		}
	}
	if spec.RevisionHistoryLimit == nil {
		spec.RevisionHistoryLimit = ptr.To[int32](defaultRevisionHistory)
	}
	if spec.ProgressDeadlineSeconds == nil {
		spec.ProgressDeadlineSeconds = ptr.To[int32](defaultProgressDeadline)
	}
	defaultPodSpec(&spec.Template.Spec)
}

var scaleSubresource = Subresource{
	Name: "scale", GVK: autoscalingv1.SchemeGroupVersion.WithKind("Scale"), Verbs: []string{"get", "patch", "update"},
}

// scaleOf builds a Scale from how a type keeps its wanted and present replicas
// and its selector.
func scaleOf[T object](get func(T) (want *int32, have int32, selector *metav1.LabelSelector), set func(T, int32)) *Scale {
	return &Scale{
		Get: func(obj runtime.Object) (*autoscalingv1.Scale, error) {
			o := obj.(T)
			want, have, labelSelector := get(o)
			selector, err := metav1.LabelSelectorAsSelector(labelSelector)
			if err != nil {
				return nil, fmt.Errorf("selector of %s: %w", o.GetName(), err)
			}
			return &autoscalingv1.Scale{
				TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"},
				ObjectMeta: metav1.ObjectMeta{
					Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(),
					ResourceVersion: o.GetResourceVersion(), CreationTimestamp: o.GetCreationTimestamp(),
				},
				Spec:   autoscalingv1.ScaleSpec{Replicas: ptr.Deref(want, 0)},
				Status: autoscalingv1.ScaleStatus{Replicas: have, Selector: selector.String()},
			}, nil
		},
		Set: func(obj runtime.Object, replicas int32) { set(obj.(T), replicas) },
	}
}
