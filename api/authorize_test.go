package api

import (
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// agentPod refers to one object of every kind that a pod can refer to.
func agentPod() *corev1.Pod {
	pod := testPod("default", "mine", "n1")
	pod.Spec.ServiceAccountName = "robot"
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "a", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "volume"}}}},
		{Name: "b", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "projected"}}},
		}}}},
	}
	pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "envfrom"}}}}
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "X", ValueFrom: &corev1.EnvVarSource{
		SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "env"}, Key: "k"}}}}
	return pod
}

func TestAuthorizeAgent(t *testing.T) {
	f := newFixture(t)
	f.put(agentPod())
	f.put(testPod("default", "theirs", "n2"))
	f.put(testPod("default", "unbound", ""))
	agent := Identity{User: "system:node:n1", Groups: []string{"system:nodes"}, Node: "n1"}
	const pods, nodes, ns = "/api/v1/namespaces/default/pods", "/api/v1/nodes", "/api/v1/namespaces/default"
	tests := []struct {
		method, target string
		allowed        bool
	}{
		{"GET", nodes, true},
		{"GET", nodes + "?watch=1", true},
		{"GET", nodes + "/n2", true},
		{"POST", nodes, true},
		{"PUT", nodes + "/n1", true},
		{"PATCH", nodes + "/n1/status", true},
		{"PATCH", nodes + "/n2/status", false},
		{"PUT", nodes + "/n2", false},
		{"DELETE", nodes + "/n1", false},

		{"GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", true},
		{"GET", "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1", true},
		{"GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1,status.phase%3DRunning", true},
		{"GET", "/api/v1/pods", false},
		{"GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn2", false},
		{"GET", "/api/v1/pods?fieldSelector=spec.nodeName%21%3Dn1", false},
		{"GET", pods + "/mine", true},
		{"GET", pods + "/absent", true},
		{"GET", pods + "/theirs", false},
		{"GET", pods + "/unbound", false},
		{"PUT", pods + "/mine/status", true},
		{"PATCH", pods + "/mine/status", true},
		{"PATCH", pods + "/theirs/status", false},
		{"PATCH", pods + "/mine", false},
		{"PUT", pods + "/mine", false},
		{"DELETE", pods + "/mine", true},
		{"DELETE", pods + "/theirs", false},
		{"POST", pods, false},
		{"POST", pods + "/mine/binding", false},
		{"GET", pods + "/mine/log", false},

		{"GET", ns + "/configmaps/volume", true},
		{"GET", ns + "/configmaps/envfrom", true},
		{"GET", ns + "/configmaps?watch=1&fieldSelector=metadata.name%3Dvolume", true},
		{"GET", ns + "/secrets/projected", true},
		{"GET", ns + "/secrets/env", true},
		{"GET", ns + "/secrets/pull", true},
		{"GET", ns + "/serviceaccounts/robot", true},
		{"GET", ns + "/secrets/volume", false},
		{"GET", ns + "/configmaps/projected", false},
		{"GET", ns + "/secrets/other", false},
		{"GET", ns + "/secrets", false},
		{"GET", "/api/v1/secrets", false},
		{"GET", "/api/v1/namespaces/kube-system/secrets/pull", false},
		{"GET", ns + "/serviceaccounts/default", false},
		{"PUT", ns + "/configmaps/volume", false},

		{"GET", "/api/v1/services?watch=1", true},
		{"GET", "/apis/discovery.k8s.io/v1/endpointslices", true},
		{"GET", "/api/v1/namespaces", true},
		{"POST", ns + "/services", false},
		{"DELETE", ns, false},
		{"POST", ns + "/events", true},
		{"PATCH", ns + "/events/e", true},
		{"GET", ns + "/events", false},
		{"DELETE", ns + "/events/e", false},

		{"GET", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1", true},
		{"PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1", true},
		{"POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", true},
		{"PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n2", false},
		{"PUT", "/apis/coordination.k8s.io/v1/namespaces/default/leases/n1", false},
		{"GET", "/apis/apps/v1/deployments", false},
		{"PATCH", "/apis/apps/v1/namespaces/default/deployments/d/scale", false},
	}
	for _, tt := range tests {
		path, rawQuery, _ := strings.Cut(tt.target, "?")
		info := mustParseMethod(t, tt.method, path, rawQuery)
		err := f.server.authorize(f.store.View(), agent, info)
		if (err == nil) != tt.allowed {
			t.Errorf("%s %s: %v", tt.method, tt.target, err)
		}
		if err := f.server.authorize(f.store.View(), Identity{User: "root", Groups: []string{groupMasters}}, info); err != nil {
			t.Errorf("the administrator: %s %s: %v", tt.method, tt.target, err)
		}
		if err := f.server.authorize(f.store.View(), Identity{User: "nobody"}, info); err == nil {
			t.Errorf("a stranger: %s %s is allowed", tt.method, tt.target)
		}
	}
}

func TestAuthorizeOnTheWire(t *testing.T) {
	f := newFixture(t)
	f.put(testPod("default", "theirs", "n2"))
	tests := []struct{ token, method, path, body, want string }{
		{"node:n1", "GET", "/api/v1/namespaces/default/pods/theirs", "",
			`pods \"theirs\" is forbidden: User \"system:node:n1\" cannot get resource \"pods\" in API group \"\" in the namespace \"default\": the object belongs to another node`},
		{"node:n1", "GET", "/api/v1/pods", "",
			`pods is forbidden: User \"system:node:n1\" cannot list resource \"pods\" in API group \"\" at the cluster scope`},
		{"node:n1", "GET", "/api/v1/secrets?watch=1", "", `User \"system:node:n1\" cannot watch resource \"secrets\"`},
		{"node:n1", "GET", "/api/v1/namespaces/default/pods/theirs/log", "", `cannot get resource \"pods/log\"`},
		{"node:n1", "POST", "/api/v1/nodes", `{"metadata":{"name":"n2"}}`, `cannot create resource \"nodes\"`},
		{"node:n1", "DELETE", "/api/v1/namespaces/default/pods/theirs", "", `cannot delete resource \"pods\"`},
		{"node:n1", "GET", "/metrics", "", `cannot get path \"/metrics\"`},
	}
	f.unchanged(func() {
		for _, tt := range tests {
			reply := f.as(tt.token, tt.method, tt.path, typeJSON, tt.body)
			if reply.code != http.StatusForbidden || reply.text("reason") != "Forbidden" || !strings.Contains(string(reply.body), tt.want) {
				t.Errorf("%s %s: %d %s", tt.method, tt.path, reply.code, reply.body)
			}
		}
		for _, path := range []string{"/api/v1/pods", "/api", "/metrics", "/openapi/v2", "/nothing", "/api/v1/pods?watch=1"} {
			if reply := f.as("", "GET", path, "", ""); reply.code != http.StatusUnauthorized || reply.text("reason") != "Unauthorized" {
				t.Errorf("%s without a credential: %d %s", path, reply.code, reply.body)
			}
		}
	})
	if reply := f.as("node:n1", "POST", "/api/v1/nodes", typeJSON, `{"metadata":{"name":"n1"}}`); reply.code != http.StatusCreated {
		t.Errorf("an agent's own node: %d %s", reply.code, reply.body)
	}
}

// TestAgentRulesItsNodeOnlyInPart: labels and status are the agent's, what the
// administrator and the controllers say about the machine is not, by whatever
// verb.
func TestAgentRulesItsNodeOnlyInPart(t *testing.T) {
	f := newFixture(t)
	const path, merge = "/api/v1/nodes/n1", "application/merge-patch+json"
	const confirm = `{"metadata":{"annotations":{"shepherd.io/confirm-restore-epoch":"1"}}}`
	f.unchanged(func() {
		for _, body := range []string{
			`{"metadata":{"name":"n1","annotations":{"shepherd.io/confirm-restore-epoch":"1"}}}`,
			`{"metadata":{"name":"n1","finalizers":["example.com/stay"]}}`,
			`{"metadata":{"name":"n1"},"spec":{"podCIDR":"10.42.9.0/24"}}`,
		} {
			if reply := f.as("node:n1", "POST", "/api/v1/nodes", typeJSON, body); reply.code != http.StatusForbidden || !strings.Contains(string(reply.body), "a node may not change its own") {
				t.Errorf("create %s: %d %s", body, reply.code, reply.body)
			}
		}
	})
	made := f.as("node:n1", "POST", "/api/v1/nodes", typeJSON, `{"metadata":{"name":"n1"},"spec":{"taints":[{"key":"gpu","effect":"NoSchedule"}]}}`)
	if made.code != http.StatusCreated {
		t.Fatalf("its node, with its taints: %d %s", made.code, made.body)
	}
	if reply := f.as("admin", "PATCH", path, merge, `{"metadata":{"annotations":{"shepherd.io/confirm-restore-epoch":"0"}}}`); reply.code != http.StatusOK {
		t.Fatalf("the administrator: %d %s", reply.code, reply.body)
	}
	f.unchanged(func() {
		for _, body := range []string{
			confirm,
			`{"metadata":{"annotations":null}}`,
			`{"metadata":{"finalizers":["example.com/stay"]}}`,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n1","uid":"u"}]}}`,
			`{"spec":{"taints":null}}`,
			`{"spec":{"unschedulable":true}}`,
			`{"spec":{"podCIDR":"10.42.9.0/24"}}`,
		} {
			if reply := f.as("node:n1", "PATCH", path, merge, body); reply.code != http.StatusForbidden || !strings.Contains(string(reply.body), "a node may not change its own") {
				t.Errorf("patch %s: %d %s", body, reply.code, reply.body)
			}
		}
		if reply := f.as("node:n1", "PUT", path, typeJSON, `{"metadata":{"name":"n1"}}`); reply.code != http.StatusForbidden {
			t.Errorf("a replacement without the taints: %d %s", reply.code, reply.body)
		}
		f.as("node:n1", "PATCH", path+"/status", merge, confirm) // takes the status alone
	})
	for target, body := range map[string]string{
		path:             `{"metadata":{"labels":{"disk":"ssd"}}}`,
		path + "/status": `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`,
	} {
		if reply := f.as("node:n1", "PATCH", target, merge, body); reply.code != http.StatusOK {
			t.Errorf("%s %s: %d %s", target, body, reply.code, reply.body)
		}
	}
}
