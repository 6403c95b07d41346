package controllers

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// finished reports whether the pod has run to its end.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// active reports whether the pod counts as a replica: it has not finished and
// is not on its way out.
func active(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil && !finished(pod) }

// podCondition returns the pod's condition of that type, or nil.
func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

func ready(pod *corev1.Pod) bool {
	c := podCondition(pod, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// available reports whether the pod has been ready for minReady. If it is
// ready but not for long enough yet, left is the time that is missing.
func available(pod *corev1.Pod, minReady time.Duration, now time.Time) (yes bool, left time.Duration) {
	c := podCondition(pod, corev1.PodReady)
	if c == nil || c.Status != corev1.ConditionTrue {
		return false, 0
	}
	if minReady <= 0 {
		return true, 0
	}
	if c.LastTransitionTime.IsZero() {
		return false, 0
	}
	left = c.LastTransitionTime.Add(minReady).Sub(now)
	return left <= 0, max(left, 0)
}

// controllerOf returns the reference to the object's controller, or nil.
func controllerOf(obj metav1.Object) *metav1.OwnerReference { return metav1.GetControllerOfNoCopy(obj) }

func intPort(port int32) intstr.IntOrString { return intstr.FromInt32(port) }

// value returns what p points to, or fallback.
func value[T any](p *T, fallback T) T {
	if p == nil {
		return fallback
	}
	return *p
}
