package api

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const pods = "/api/v1/namespaces/default/pods"

func (f *fixture) pod(name, node string, phase corev1.PodPhase, finalizers ...string) {
	f.t.Helper()
	f.put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Finalizers: finalizers},
		Spec:       corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: ptr.To[int64](20), Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	})
	if phase != "" {
		f.want(f.do("PATCH", pods+"/"+name+"/status", mergePatch, `{"status":{"phase":"`+string(phase)+`"}}`), 200, "")
	}
}

func TestDeleteAnswers(t *testing.T) {
	f := newFixture(t)
	f.want(f.do("POST", configMaps, typeJSON, `{"metadata":{"name":"a"}}`), 201, "")
	uid := f.do("GET", configMaps+"/a", "", "").text("metadata.uid")
	f.check(t, []rule{
		{"absent", "DELETE", configMaps + "/no", "", ``, 404, "not found"},
		{"other uid", "DELETE", configMaps + "/a", "", `{"preconditions":{"uid":"x"}}`, 409, "UID in precondition"},
		{"other version", "DELETE", configMaps + "/a", "", `{"preconditions":{"resourceVersion":"1"}}`, 409, "ResourceVersion in precondition"},
		{"unknown policy", "DELETE", configMaps + "/a", "", `{"propagationPolicy":"Later"}`, 422, "propagationPolicy"},
		{"policy twice", "DELETE", configMaps + "/a", "", `{"propagationPolicy":"Orphan","orphanDependents":true}`, 422, "propagationPolicy"},
		{"other kind", "DELETE", configMaps + "/a", "", `{"kind":"Pod"}`, 400, "DeleteOptions"},
		{"broken body", "DELETE", configMaps + "/a", "", `{`, 400, "DeleteOptions"},
		{"broken grace", "DELETE", configMaps + "/a?gracePeriodSeconds=soon", "", ``, 400, "gracePeriodSeconds"},
		{"protected", "DELETE", "/api/v1/namespaces/default", "", ``, 403, "may not be deleted"},
		{"protected, options in the body", "DELETE", "/api/v1/namespaces/kube-node-lease", "", `{"dryRun":["All"]}`, 403, ""},
	})
	f.unchanged(func() {
		f.want(f.do("DELETE", configMaps+"/a", typeJSON, `{"dryRun":["All"]}`), 200, `"Success"`)
		f.want(f.do("DELETE", configMaps+"/a?dryRun=All", "", ``), 200, `"Success"`)
		f.want(f.do("DELETE", configMaps+"/a", typeJSON, `{"dryRun":["Some"]}`), 422, "dryRun")
	})
	r := f.want(f.do("DELETE", configMaps+"/a", typeJSON, `{"propagationPolicy":"Background"}`), 200, `"status":"Success"`)
	if r.text("details.uid") != uid || r.text("details.kind") != "configmaps" || r.text("details.name") != "a" || r.text("kind") != "Status" {
		t.Errorf("%s", r.body)
	}
}

func TestPodDeletion(t *testing.T) {
	tests := []struct {
		name, node string
		phase      corev1.PodPhase
		body       string
		gone       bool
		grace      string
		in         time.Duration
	}{
		{name: "never bound", gone: true},
		{name: "never bound, grace asked", body: `{"gracePeriodSeconds":5}`, gone: true},
		{name: "finished", node: "w1", phase: corev1.PodSucceeded, gone: true},
		{name: "failed", node: "w1", phase: corev1.PodFailed, gone: true},
		{name: "running", node: "w1", phase: corev1.PodRunning, grace: "20", in: 20 * time.Second},
		{name: "running, grace asked", node: "w1", body: `{"gracePeriodSeconds":3}`, grace: "3", in: 3 * time.Second},
		{name: "running, at once", node: "w1", body: `{"gracePeriodSeconds":0}`, gone: true},
		{name: "running, negative", node: "w1", body: `{"gracePeriodSeconds":-5}`, grace: "1", in: time.Second},
	}
	f := newFixture(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f.pod("p", test.node, test.phase)
			r := f.want(f.do("DELETE", pods+"/p", typeJSON, test.body), 200, "")
			if test.gone {
				f.want(r, 200, `"Success"`)
				f.want(f.do("GET", pods+"/p", "", ""), 404, "")
				return
			}
			at := f.consensus.Now().Truncate(time.Second).Add(test.in).Format(time.RFC3339)
			if r.text("metadata.deletionGracePeriodSeconds") != test.grace || r.text("metadata.deletionTimestamp") != at {
				t.Errorf("grace %s until %s, want %s until %s", r.text("metadata.deletionGracePeriodSeconds"), r.text("metadata.deletionTimestamp"), test.grace, at)
			}
			if r.text("metadata.generation") != "2" {
				t.Errorf("generation %s", r.text("metadata.generation"))
			}
			// The agent reports its end: with the grace of 0 and the UID.
			uid := r.text("metadata.uid")
			f.want(f.as("node:w1", "DELETE", pods+"/p", typeJSON, `{"gracePeriodSeconds":0,"preconditions":{"uid":"`+uid+`"}}`), 200, `"Success"`)
		})
	}
}

func TestSecondPodDeletionOnlyShortens(t *testing.T) {
	f := newFixture(t)
	f.pod("p", "w1", corev1.PodRunning)
	f.want(f.do("DELETE", pods+"/p", "", ""), 200, `"deletionGracePeriodSeconds":20`)
	f.consensus.advance(5 * time.Second)
	f.unchanged(func() {
		f.want(f.do("DELETE", pods+"/p", "", ""), 200, `"deletionGracePeriodSeconds":20`)
		f.want(f.do("DELETE", pods+"/p?gracePeriodSeconds=100", "", ""), 200, `"deletionGracePeriodSeconds":20`)
	})
	f.want(f.do("DELETE", pods+"/p?gracePeriodSeconds=2", "", ""), 200, `"deletionGracePeriodSeconds":2`)
	f.want(f.do("DELETE", pods+"/p?gracePeriodSeconds=0", "", ""), 200, `"Success"`)
}

func TestFinalizersHoldObjects(t *testing.T) {
	f := newFixture(t)
	f.pod("p", "w1", corev1.PodRunning, "x/y")
	f.want(f.do("DELETE", pods+"/p?gracePeriodSeconds=0", "", ""), 200, `"deletionTimestamp"`)
	r := f.want(f.do("PATCH", pods+"/p", mergePatch, `{"metadata":{"finalizers":null}}`), 200, `"deletionTimestamp"`)
	if r.at("metadata.finalizers") != nil {
		t.Errorf("%s", r.body)
	}
	f.want(f.do("GET", pods+"/p", "", ""), 404, "")

	// A pod within its grace period outlives its last finalizer.
	f.pod("q", "w1", corev1.PodRunning, "x/y")
	f.want(f.do("DELETE", pods+"/q", "", ""), 200, "")
	f.want(f.do("PATCH", pods+"/q", mergePatch, `{"metadata":{"finalizers":null}}`), 200, "")
	f.want(f.do("GET", pods+"/q", "", ""), 200, `"deletionGracePeriodSeconds":20`)
	f.want(f.do("DELETE", pods+"/q?gracePeriodSeconds=0", "", ""), 200, `"Success"`)
}

func TestPropagationPolicies(t *testing.T) {
	f := newFixture(t)
	tests := []struct{ name, query, body, finalizer string }{
		{"foreground", "", `{"propagationPolicy":"Foreground"}`, "foregroundDeletion"},
		{"orphan", "?propagationPolicy=Orphan", ``, "orphan"},
		{"orphan, old spelling", "", `{"orphanDependents":true}`, "orphan"},
		{"background", "", `{"propagationPolicy":"Background"}`, ""},
		{"background, old spelling", "", `{"orphanDependents":false}`, ""},
		{"unset", "", ``, ""},
		{"the body wins", "?propagationPolicy=Orphan", `{"propagationPolicy":"Background"}`, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f.want(f.do("POST", deployments, typeJSON, deploymentBody), 201, "")
			r := f.want(f.do("DELETE", deployments+"/web"+test.query, typeJSON, test.body), 200, "")
			if test.finalizer == "" {
				f.want(r, 200, `"Success"`)
				return
			}
			f.want(r, 200, `"finalizers":["`+test.finalizer+`"]`)
			// Another policy replaces it and may end the object.
			f.want(f.do("DELETE", deployments+"/web", typeJSON, `{"propagationPolicy":"Background"}`), 200, `"Success"`)
		})
	}
}

func TestNamespaceLifecycle(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	client := f.typed().CoreV1().Namespaces()
	ns, err := client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{})
	if err != nil || ns.Status.Phase != corev1.NamespaceActive || len(ns.Spec.Finalizers) != 1 || ns.Labels[corev1.LabelMetadataName] != "team" {
		t.Fatalf("%+v %v", ns, err)
	}
	f.want(f.do("PATCH", "/api/v1/namespaces/team", mergePatch, `{"spec":{"finalizers":[]}}`), 200, `"finalizers":["kubernetes"]`)
	if err := client.Delete(ctx, "team", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if ns, err = client.Get(ctx, "team", metav1.GetOptions{}); err != nil || ns.Status.Phase != corev1.NamespaceTerminating || ns.DeletionTimestamp == nil {
		t.Fatalf("%+v %v", ns, err)
	}
	f.unchanged(func() { f.want(f.do("DELETE", "/api/v1/namespaces/team", "", ""), 200, "Terminating") })
	f.want(f.do("POST", "/api/v1/namespaces/team/configmaps", typeJSON, `{"metadata":{"name":"late"}}`), 403, "is being terminated")
	ns.Spec.Finalizers = []corev1.FinalizerName{"no slash or known"}
	if _, err := client.Finalize(ctx, ns, metav1.UpdateOptions{}); err == nil {
		t.Error("a senseless finalizer was taken")
	}
	ns.Spec.Finalizers = nil
	if _, err := client.Finalize(ctx, ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.want(f.do("GET", "/api/v1/namespaces/team", "", ""), 404, "")
}

func TestEviction(t *testing.T) {
	f := newFixture(t)
	f.pod("p", "w1", corev1.PodRunning)
	f.unchanged(func() {
		f.want(f.do("POST", pods+"/p/eviction", typeJSON, `{"metadata":{"name":"p"},"deleteOptions":{"dryRun":["All"]}}`), 201, `"Success"`)
		f.want(f.do("POST", pods+"/p/eviction", typeJSON, `{"metadata":{"name":"q"}}`), 400, "name")
	})
	f.want(f.do("POST", pods+"/p/eviction", typeJSON, `{"metadata":{"name":"p"}}`), 201, `"Success"`)
	f.want(f.do("GET", pods+"/p", "", ""), 200, "deletionTimestamp")
}
