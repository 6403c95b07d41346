package api

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// accepted says whether a write was refused, for tables of rules.
type rule struct {
	name, method, path, contentType, body string
	code                                  int
	text                                  string
}

// check runs rules; those that fail must change nothing.
func (f *fixture) check(t *testing.T, rules []rule) {
	t.Helper()
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			f.t = t
			if r.contentType == "" {
				r.contentType = typeJSON
			}
			run := func() { f.want(f.do(r.method, r.path, r.contentType, r.body), r.code, r.text) }
			if r.code >= 400 {
				f.unchanged(run)
			} else {
				run()
			}
		})
	}
	f.t = t
}

func TestCreateRules(t *testing.T) {
	f := newFixture(t)
	f.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ending"}})
	f.want(f.do("DELETE", "/api/v1/namespaces/ending", "", ""), 200, "Terminating")
	f.check(t, []rule{
		{"namespace is filled in", "POST", configMaps, "", `{"metadata":{"name":"a"}}`, 201, `"namespace":"default"`},
		{"other namespace", "POST", configMaps, "", `{"metadata":{"name":"b","namespace":"kube-system"}}`, 400, "does not match the namespace"},
		{"missing namespace", "POST", "/api/v1/namespaces/nope/configmaps", "", `{"metadata":{"name":"b"}}`, 404, `namespaces \"nope\" not found`},
		{"terminating namespace", "POST", "/api/v1/namespaces/ending/configmaps", "", `{"metadata":{"name":"b"}}`, 403, "NamespaceTerminating"},
		{"exists", "POST", configMaps, "", `{"metadata":{"name":"a"}}`, 409, "AlreadyExists"},
		{"resourceVersion", "POST", configMaps, "", `{"metadata":{"name":"b","resourceVersion":"1"}}`, 400, "resourceVersion should not be set"},
		{"no name", "POST", configMaps, "", `{"metadata":{}}`, 422, "name or generateName is required"},
		{"bad name", "POST", configMaps, "", `{"metadata":{"name":"A_b"}}`, 422, "metadata.name"},
		{"other kind", "POST", configMaps, "", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"b"}}`, 400, "does not match the expected kind"},
		{"other version", "POST", configMaps, "", `{"apiVersion":"v2","kind":"ConfigMap","metadata":{"name":"b"}}`, 400, "does not match the expected API version"},
		{"no kind is fine", "POST", configMaps, "", `{"metadata":{"name":"c"}}`, 201, `"kind":"ConfigMap"`},
		{"no media type is JSON", "POST", configMaps, " ", `{"metadata":{"name":"d"}}`, 201, ""},
		{"YAML", "POST", configMaps, typeYAML, "metadata:\n  name: e\ndata:\n  a: b\n", 201, `"a":"b"`},
		{"other media type", "POST", configMaps, "text/plain", `{}`, 415, "UnsupportedMediaType"},
		{"dry run", "POST", configMaps + "?dryRun=All", "", `{"metadata":{"name":"f"}}`, 201, `"uid"`},
		{"after the dry run", "POST", configMaps, "", `{"metadata":{"name":"f"}}`, 201, ""},
		{"unknown dry run", "POST", configMaps + "?dryRun=Some", "", `{"metadata":{"name":"g"}}`, 422, "dryRun"},
		{"unknown field validation", "POST", configMaps + "?fieldValidation=Maybe", "", `{"metadata":{"name":"g"}}`, 422, "fieldValidation"},
		{"strict", "POST", configMaps + "?fieldValidation=Strict", "", `{"metadata":{"name":"g"},"dataa":{}}`, 400, `strict decoding error: unknown field \"dataa\"`},
		{"strict twice", "POST", configMaps + "?fieldValidation=Strict", "", `{"metadata":{"name":"g"},"data":{"a":"1","a":"2"}}`, 400, `duplicate field \"data.a\"`},
		{"strict YAML twice", "POST", configMaps + "?fieldValidation=Strict", typeYAML, "metadata: {name: g}\ndata:\n  a: b\n  a: c\n", 400, "strict decoding error"},
		{"ignore", "POST", configMaps + "?fieldValidation=Ignore", "", `{"metadata":{"name":"g"},"dataa":{}}`, 201, ""},
		{"quantities", "POST", "/api/v1/namespaces/default/pods", "", `{"metadata":{"name":"q"},"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":0.5,"memory":"1024Mi"},"limits":{"memory":"1024Mi","cpu":"1000m"}}}]}}`, 201, `"requests":{"cpu":"500m","memory":"1Gi"}`},
		{"status is cleared", "POST", "/apis/apps/v1/namespaces/default/deployments", "", `{"metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}},"status":{"replicas":7}}`, 201, `"status":{}`},
		{"name in the path", "POST", configMaps + "/x", "", `{"metadata":{"name":"x"}}`, 405, ""},
		{"unknown resource", "POST", "/api/v1/namespaces/default/wolves", "", `{}`, 404, ""},
		{"not acceptable media", "POST", configMaps, "", `[1]`, 400, "not an object"},
	})
}

func TestCreateFillsMetadata(t *testing.T) {
	f := newFixture(t)
	r := f.do("POST", configMaps, typeJSON, `{"metadata":{"generateName":"web-","uid":"mine","selfLink":"/x","creationTimestamp":"2001-01-01T00:00:00Z","deletionTimestamp":"2001-01-01T00:00:00Z","generation":9}}`)
	f.want(r, 201, "")
	name := r.text("metadata.name")
	if !strings.HasPrefix(name, "web-") || len(name) != len("web-")+5 {
		t.Errorf("name %q", name)
	}
	if uid := r.text("metadata.uid"); len(uid) != 36 {
		t.Errorf("uid %q", uid)
	}
	if at := r.text("metadata.creationTimestamp"); at != "2026-03-01T12:00:00Z" {
		t.Errorf("created at %q", at)
	}
	for _, absent := range []string{"metadata.selfLink", "metadata.deletionTimestamp", "metadata.generation"} {
		if v := r.at(absent); v != nil {
			t.Errorf("%s is %v", absent, v)
		}
	}
}

func TestWarningsOfUnknownFields(t *testing.T) {
	f := newFixture(t)
	r := f.want(f.do("POST", configMaps, typeJSON, `{"metadata":{"name":"w"},"dataa":{}}`), 201, "")
	if got := r.header.Values("Warning"); len(got) != 1 || got[0] != `299 - "unknown field \"dataa\""` {
		t.Errorf("warnings %q", got)
	}
	var many strings.Builder
	for i := range 500 {
		many.WriteString(`,"x` + strings.Repeat("y", i) + `":1`)
	}
	r = f.want(f.do("POST", configMaps, typeJSON, `{"metadata":{"name":"w2"}`+many.String()+`}`), 201, "")
	if got := len(r.header.Values("Warning")); got != maxWarnings {
		t.Errorf("%d warnings", got)
	}
}

func TestGeneratedNamesAvoidTakenOnes(t *testing.T) {
	f := newFixture(t)
	seen := map[string]bool{}
	for range 50 {
		name := f.want(f.do("POST", configMaps, typeJSON, `{"metadata":{"generateName":"n"}}`), 201, "").text("metadata.name")
		if seen[name] {
			t.Fatalf("%s twice", name)
		}
		seen[name] = true
	}
	// A base of the greatest length still makes a valid name.
	name := f.want(f.do("POST", configMaps, typeJSON, `{"metadata":{"generateName":"`+strings.Repeat("a", 80)+`"}}`), 201, "").text("metadata.name")
	if len(name) != 63 {
		t.Errorf("name of %d bytes", len(name))
	}
}

func TestClientGoWrites(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	client := f.typed().CoreV1().ConfigMaps("default")
	created, err := client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "typed"}, Data: map[string]string{"a": "1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	created.Data["a"] = "2"
	updated, err := client.Update(ctx, created, metav1.UpdateOptions{})
	if err != nil || updated.Data["a"] != "2" {
		t.Fatalf("%v %v", updated, err)
	}
	if _, err := client.Update(ctx, created, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("stale update: %v", err)
	}
	if _, err := client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "typed"}}, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("second create: %v", err)
	}
	if err := client.Delete(ctx, "typed", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")}); !apierrors.IsConflict(err) {
		t.Errorf("delete with another uid: %v", err)
	}
	if err := client.Delete(ctx, "typed", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := client.Get(ctx, "typed", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the delete: %v", err)
	}

	gvr := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "dyn"}}}
	made, err := f.dynamic().Resource(gvr).Namespace("default").Create(ctx, obj, metav1.CreateOptions{})
	if err != nil || made.GetUID() == "" {
		t.Fatalf("%v %v", made, err)
	}
	if _, err := f.dynamic().Resource(gvr).Namespace("default").Create(ctx, obj, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("second create: %v", err)
	}
}
