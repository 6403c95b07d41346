package resource

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validatePod(*corev1.Pod) field.ErrorList                    { return nil }
func validatePodUpdate(n, o *corev1.Pod) field.ErrorList         { return nil }
func validatePodStatusUpdate(n, o *corev1.Pod) field.ErrorList   { return nil }
func validateNode(*corev1.Node) field.ErrorList                  { return nil }
func validateNodeUpdate(n, o *corev1.Node) field.ErrorList       { return nil }
func validateNodeStatus(*corev1.Node) field.ErrorList            { return nil }
func validateService(*corev1.Service) field.ErrorList            { return nil }
func validateServiceUpdate(n, o *corev1.Service) field.ErrorList { return nil }
func validateDeployment(*appsv1.Deployment) field.ErrorList      { return nil }
func validateDeploymentUpdate(n, o *appsv1.Deployment) field.ErrorList {
	return nil
}
func validateDeploymentStatusUpdate(n, o *appsv1.Deployment) field.ErrorList { return nil }
func validateReplicaSet(*appsv1.ReplicaSet) field.ErrorList                  { return nil }
func validateReplicaSetUpdate(n, o *appsv1.ReplicaSet) field.ErrorList       { return nil }
func validateReplicaSetStatusUpdate(n, o *appsv1.ReplicaSet) field.ErrorList { return nil }
