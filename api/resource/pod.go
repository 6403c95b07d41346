package resource

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
)

var podKind = define(
	Kind{
		GVK: corev1.SchemeGroupVersion.WithKind("Pod"), Resource: "pods", Singular: "pod",
		ShortNames: []string{"po"}, Categories: []string{"all"}, Namespaced: true, UnconditionalUpdate: true,
		Subresources: []Subresource{
			{Name: "binding", GVK: corev1.SchemeGroupVersion.WithKind("Binding"), Verbs: []string{"create"}},
			{Name: "eviction", GVK: policyv1.SchemeGroupVersion.WithKind("Eviction"), Verbs: []string{"create"}},
			{Name: "log", GVK: corev1.SchemeGroupVersion.WithKind("Pod"), Verbs: []string{"get"}},
		},
		FieldAliases: map[string]string{"spec.host": "spec.nodeName"},
	},
	func() *corev1.Pod { return &corev1.Pod{} },
	func() runtime.Object { return &corev1.PodList{} },
	typed[*corev1.Pod]{
		name:     apivalidation.NameIsDNSSubdomain,
		defaults: defaultPod,
		create: func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: QOSClass(&p.Spec)}
		},
		setStatus: func(dst, src *corev1.Pod) { dst.Status = src.Status },
		statusUpdate: func(n, o *corev1.Pod) {
			if n.Status.QOSClass == "" {
				n.Status.QOSClass = o.Status.QOSClass
			}
		},
		spec:                 func(p *corev1.Pod) any { return p.Spec },
		validate:             validatePod,
		validateUpdate:       validatePodUpdate,
		validateStatusUpdate: validatePodStatusUpdate,
		fields:               podFields,
		columns:              podColumns,
		row:                  podRow,
		gracePeriod:          podGracePeriod,
	},
)

func podFields(p *corev1.Pod) fields.Set {
	ip := p.Status.PodIP
	if ip == "" && len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return fields.Set{
		"spec.nodeName":            p.Spec.NodeName,
		"spec.restartPolicy":       string(p.Spec.RestartPolicy),
		"spec.schedulerName":       p.Spec.SchedulerName,
		"spec.serviceAccountName":  p.Spec.ServiceAccountName,
		"spec.hostNetwork":         fmt.Sprint(p.Spec.HostNetwork),
		"status.phase":             string(p.Status.Phase),
		"status.podIP":             ip,
		"status.podIPs":            ip,
		"status.nominatedNodeName": p.Status.NominatedNodeName,
	}
}

// podGracePeriod: a pod that was never bound, or has finished, goes at once.
func podGracePeriod(p *corev1.Pod, asked *int64) int64 {
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if p.Spec.TerminationGracePeriodSeconds != nil {
		grace = *p.Spec.TerminationGracePeriodSeconds
	}
	if asked != nil {
		grace = *asked
	}
	if grace < 0 {
		grace = 1
	}
	if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		return 0
	}
	return grace
}

// Bind assigns a pod to a node and notes that it is scheduled. It refuses a
// pod that is bound already or on its way out. The caller owns the pod.
func Bind(p *corev1.Pod, node string, now metav1.Time) error {
	if p.Spec.NodeName != "" {
		return fmt.Errorf("pod %s is already assigned to node %q", p.Name, p.Spec.NodeName)
	}
	if p.DeletionTimestamp != nil {
		return fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", p.Name)
	}
	p.Spec.NodeName = node
	SetPodCondition(p, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now,
	})
	return nil
}

// SetPodCondition adds the condition or replaces the one of its type, keeping
// the transition time of an unchanged status.
func SetPodCondition(p *corev1.Pod, c corev1.PodCondition) {
	for i := range p.Status.Conditions {
		old := &p.Status.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		*old = c
		return
	}
	p.Status.Conditions = append(p.Status.Conditions, c)
}

// QOSClass returns the quality of service class of a pod by its containers'
// cpu and memory.
func QOSClass(spec *corev1.PodSpec) corev1.PodQOSClass {
	guaranteed, any := true, false
	visit := func(c *corev1.Container) {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			request, limit := c.Resources.Requests[name], c.Resources.Limits[name]
			if !request.IsZero() || !limit.IsZero() {
				any = true
			}
			if limit.IsZero() || request.Cmp(limit) != 0 {
				guaranteed = false
			}
		}
	}
	for i := range spec.Containers {
		visit(&spec.Containers[i])
	}
	for i := range spec.InitContainers {
		visit(&spec.InitContainers[i])
	}
	switch {
	case !any:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}
