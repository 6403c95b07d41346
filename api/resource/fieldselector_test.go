package resource

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestFieldLabels pins the selectors that clients use.
func TestFieldLabels(t *testing.T) {
	for resource, want := range map[string][]string{
		"pods": {"spec.nodeName", "status.phase", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
			"status.podIP", "status.podIPs", "status.nominatedNodeName", "metadata.namespace"},
		"events": {"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
			"involvedObject.apiVersion", "involvedObject.fieldPath", "reason", "type", "source", "reportingComponent"},
		"secrets":          {"type"},
		"namespaces":       {"status.phase"},
		"nodes":            {"spec.unschedulable"},
		"replicasets.apps": {"status.replicas"},
	} {
		for _, label := range append(want, "metadata.name") {
			if !slices.Contains(ByGroupResource(resource).FieldLabels, label) {
				t.Errorf("%s cannot be selected by %s", resource, label)
			}
		}
	}
}

func TestFieldSelectors(t *testing.T) {
	pod := samples(t)["pods"].(*corev1.Pod)
	pod.Spec.NodeName = "w1"
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.42.0.3"}}
	event := samples(t)["events"].(*corev1.Event)
	event.InvolvedObject.UID = "u"
	event.ReportingController = "agent"
	for _, c := range []struct {
		kind     *Kind
		obj      runtime.Object
		selector string
		want     bool
	}{
		{podKind, pod, "", true},
		{podKind, pod, "spec.nodeName=w1", true},
		{podKind, pod, "spec.host=w1", true},
		{podKind, pod, "spec.nodeName==w1,status.phase!=Failed,status.phase!=Succeeded", true},
		{podKind, pod, "spec.nodeName=", false},
		{podKind, pod, "status.podIP=10.42.0.3", true},
		{podKind, pod, "metadata.name=web,metadata.namespace=default", true},
		{podKind, pod, "metadata.namespace!=default", false},
		{podKind, pod, "spec.hostNetwork=false", true},
		{eventKind, event, "involvedObject.kind=Pod,involvedObject.name=web,involvedObject.uid=u", true},
		{eventKind, event, "involvedObject.uid=v", false},
		{eventKind, event, "source=agent,reportingComponent=agent,reason=Started,type=Normal", true},
		{secretKind, samples(t)["secrets"], "type=Opaque", true},
		{nodeKind, samples(t)["nodes"], "spec.unschedulable=false,metadata.name=w1", true},
		{namespaceKind, samples(t)["namespaces"], "status.phase=Active", true},
		{replicaSetKind, samples(t)["replicasets"], "status.replicas=0", true},
	} {
		selector, err := c.kind.ParseFieldSelector(c.selector)
		if err != nil {
			t.Errorf("%s: %v", c.selector, err)
			continue
		}
		if got := selector.Matches(c.kind.Fields(c.obj)); got != c.want {
			t.Errorf("%s %q: %t", c.kind.Resource, c.selector, got)
		}
	}
}

func TestFieldSelectorsRefused(t *testing.T) {
	for _, selector := range []string{"spec.color=red", "metadata.uid=x", "involvedObject.name=web"} {
		if _, err := podKind.ParseFieldSelector(selector); err == nil || !strings.Contains(err.Error(), "field label not supported: ") {
			t.Errorf("%s: %v", selector, err)
		}
	}
	if _, err := nodeKind.ParseFieldSelector("metadata.namespace=x"); err == nil {
		t.Error("nodes were selected by namespace")
	}
	if _, err := podKind.ParseFieldSelector("nonsense"); err == nil {
		t.Error("nonsense was parsed")
	}
}
