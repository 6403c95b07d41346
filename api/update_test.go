package api

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	deployments = "/apis/apps/v1/namespaces/default/deployments"
	leases      = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	mergePatch  = string(types.MergePatchType)
	jsonPatch   = string(types.JSONPatchType)
	strategic   = string(types.StrategicMergePatchType)

	deploymentBody = `{"metadata":{"name":"web"},"spec":{"replicas":2,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},` +
		`"spec":{"containers":[{"name":"c","image":"i:1","env":[{"name":"A","value":"1"}]},{"name":"d","image":"j"}]}}}}`
)

func TestUpdateRules(t *testing.T) {
	f := newFixture(t)
	f.want(f.do("POST", configMaps, typeJSON, `{"metadata":{"name":"a","finalizers":["x/y"]},"data":{"k":"v"}}`), 201, "")
	f.want(f.do("POST", configMaps, typeJSON, `{"metadata":{"name":"dying","finalizers":["x/y"]}}`), 201, "")
	f.want(f.do("DELETE", configMaps+"/dying", "", ""), 200, "deletionTimestamp")
	f.want(f.do("POST", leases, typeJSON, `{"metadata":{"name":"l"}}`), 201, "")
	f.check(t, []rule{
		{"absent", "PUT", configMaps + "/no", "", `{"metadata":{"name":"no"}}`, 404, "not found"},
		{"namespace is filled in", "PUT", configMaps + "/a", "", `{"metadata":{"name":"a","finalizers":["x/y"]},"data":{"k":"w"}}`, 200, `"namespace":"default"`},
		{"other namespace", "PUT", configMaps + "/a", "", `{"metadata":{"name":"a","namespace":"kube-system"}}`, 400, "does not match the namespace"},
		{"other name", "PUT", configMaps + "/a", "", `{"metadata":{"name":"b"}}`, 400, "does not match the name on the URL"},
		{"stale version", "PUT", configMaps + "/a", "", `{"metadata":{"name":"a","resourceVersion":"1"}}`, 409, "the object has been modified"},
		{"senseless version", "PUT", configMaps + "/a", "", `{"metadata":{"name":"a","resourceVersion":"x"}}`, 422, "resourceVersion"},
		{"other uid", "PUT", configMaps + "/a", "", `{"metadata":{"name":"a","uid":"x"}}`, 409, "UID in precondition"},
		{"other creation time", "PUT", configMaps + "/a", "", `{"metadata":{"name":"a","creationTimestamp":"2001-01-01T00:00:00Z"}}`, 422, "field is immutable"},
		{"deletion time", "PUT", configMaps + "/a", "", `{"metadata":{"name":"a","deletionTimestamp":"2001-01-01T00:00:00Z"}}`, 422, "deletionTimestamp"},
		{"new finalizer while deleted", "PUT", configMaps + "/dying", "", `{"metadata":{"name":"dying","finalizers":["x/y","z/z"]}}`, 422, "no new finalizers can be added"},
		{"lease without version", "PUT", leases + "/l", "", `{"metadata":{"name":"l"}}`, 422, "must be specified for an update"},
		{"lease made by a PUT", "PUT", leases + "/new", "", `{"metadata":{"name":"new"}}`, 201, `"uid"`},
		{"lease that was meant to exist", "PUT", leases + "/other", "", `{"metadata":{"name":"other","resourceVersion":"5"}}`, 404, ""},
		{"lease made in a missing namespace", "PUT", "/apis/coordination.k8s.io/v1/namespaces/no/leases/x", "", `{"metadata":{"name":"x"}}`, 404, "namespaces"},
		{"other patch type", "PATCH", configMaps + "/a", "application/json", `{}`, 415, "application/merge-patch+json"},
		{"server-side apply", "PATCH", configMaps + "/a?fieldManager=x", "application/apply-patch+yaml", `{}`, 415, "server-side apply is not supported"},
		{"patch of what is absent", "PATCH", configMaps + "/no", mergePatch, `{}`, 404, "not found"},
		{"patch is no JSON", "PATCH", configMaps + "/a", mergePatch, `{`, 400, "error decoding patch"},
		{"patch is null", "PATCH", configMaps + "/a", mergePatch, `null`, 400, "error decoding patch"},
		{"patch is a list", "PATCH", configMaps + "/a", strategic, `[]`, 400, "error decoding patch"},
		{"JSON patch is no list", "PATCH", configMaps + "/a", jsonPatch, `{}`, 400, "error decoding patch"},
		{"failed test", "PATCH", configMaps + "/a", jsonPatch, `[{"op":"test","path":"/data/k","value":"no"}]`, 422, "cannot be applied"},
		{"missing path", "PATCH", configMaps + "/a", jsonPatch, `[{"op":"remove","path":"/data/no"}]`, 422, "cannot be applied"},
		{"patch to a wrong type", "PATCH", configMaps + "/a", mergePatch, `{"data":{"k":{"x":1}}}`, 422, "cannot be read"},
		{"patch to no object", "PATCH", configMaps + "/a", jsonPatch, `[{"op":"replace","path":"","value":[1]}]`, 422, "cannot be"},
		{"patch of the name", "PATCH", configMaps + "/a", mergePatch, `{"metadata":{"name":"b"}}`, 400, "does not match the name"},
		{"patch of the kind", "PATCH", configMaps + "/a", mergePatch, `{"kind":"Secret"}`, 400, "does not match the expected kind"},
		{"patch with a stale version", "PATCH", configMaps + "/a", mergePatch, `{"metadata":{"resourceVersion":"1"}}`, 409, "the object has been modified"},
		{"strict patch", "PATCH", configMaps + "/a?fieldValidation=Strict", mergePatch, `{"dataa":{}}`, 400, `unknown field \"dataa\"`},
		{"strict JSON patch", "PATCH", configMaps + "/a?fieldValidation=Strict", jsonPatch, `[{"op":"add","path":"/dataa","value":{}}]`, 400, `unknown field \"dataa\"`},
		{"strict patch with a key twice", "PATCH", configMaps + "/a?fieldValidation=Strict", strategic, `{"data":{"a":"1","a":"2"}}`, 400, `duplicate field`},
		{"merge patch", "PATCH", configMaps + "/a", mergePatch, `{"data":{"k":null,"m":"n"}}`, 200, `"data":{"m":"n"}`},
		{"JSON patch", "PATCH", configMaps + "/a", jsonPatch, `[{"op":"replace","path":"/data/m","value":"o"}]`, 200, `"data":{"m":"o"}`},
	})
	t.Run("dry runs", func(t *testing.T) {
		f.unchanged(func() {
			f.want(f.do("PUT", configMaps+"/a?dryRun=All", typeJSON, `{"metadata":{"name":"a"},"data":{"dry":"run"}}`), 200, `"dry":"run"`)
			f.want(f.do("PATCH", configMaps+"/a?dryRun=All", mergePatch, `{"data":{"dry":"run"}}`), 200, `"dry":"run"`)
		})
	})
}

func TestStrategicPatchMergesByKey(t *testing.T) {
	f := newFixture(t)
	f.want(f.do("POST", deployments, typeJSON, deploymentBody), 201, "")
	f.want(f.do("PATCH", deployments+"/web", strategic, `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"i:2","env":[{"name":"B","value":"2"}]}]}}}}`), 200, `"image":"i:2"`)
	r := f.do("GET", deployments+"/web", "", "")
	for _, part := range []string{`{"name":"A","value":"1"}`, `{"name":"B","value":"2"}`, `"image":"j"`} {
		if !strings.Contains(string(r.body), part) {
			t.Errorf("%s is missing in %s", part, r.body)
		}
	}
	f.want(f.do("PATCH", deployments+"/web", strategic, `{"spec":{"template":{"spec":{"containers":[{"$patch":"delete","name":"d"}]}}}}`), 200, "")
	if r := f.do("GET", deployments+"/web", "", ""); strings.Contains(string(r.body), `"image":"j"`) {
		t.Errorf("the container is still there: %s", r.body)
	}
}

func TestWritesThatChangeNothing(t *testing.T) {
	f := newFixture(t)
	f.want(f.do("POST", deployments, typeJSON, deploymentBody), 201, "")
	version := f.do("GET", deployments+"/web", "", "").text("metadata.resourceVersion")
	f.unchanged(func() {
		for _, r := range []reply{
			f.do("PUT", deployments+"/web", typeJSON, deploymentBody),
			f.do("PATCH", deployments+"/web", mergePatch, `{}`),
			f.do("PATCH", deployments+"/web", strategic, `{"spec":{"replicas":2}}`),
			f.do("PATCH", deployments+"/web", jsonPatch, `[]`),
			f.do("PUT", deployments+"/web/status", typeJSON, deploymentBody),
			f.do("PUT", deployments+"/web/scale", typeJSON, `{"spec":{"replicas":2}}`),
		} {
			if f.want(r, 200, ""); r.text("metadata.resourceVersion") != version {
				t.Errorf("version %s, want %s", r.text("metadata.resourceVersion"), version)
			}
		}
	})
}

func TestGenerationAndStatus(t *testing.T) {
	f := newFixture(t)
	f.want(f.do("POST", deployments, typeJSON, deploymentBody), 201, `"generation":1`)
	steps := []struct{ name, method, path, contentType, body, generation, text string }{
		{"a label keeps it", "PATCH", "/web", mergePatch, `{"metadata":{"labels":{"x":"y"}}}`, "1", `"x":"y"`},
		{"a scale counts", "PATCH", "/web", mergePatch, `{"spec":{"replicas":3}}`, "2", `"replicas":3`},
		{"a client cannot set it", "PATCH", "/web", mergePatch, `{"metadata":{"generation":9}}`, "2", ""},
		{"the status keeps it", "PATCH", "/web/status", mergePatch, `{"status":{"replicas":3,"observedGeneration":2},"spec":{"replicas":9},"metadata":{"labels":{"no":"no"}}}`, "2", `"observedGeneration":2`},
		{"the spec's write keeps the status", "PUT", "/web", typeJSON, strings.Replace(deploymentBody, `"replicas":2`, `"replicas":4`, 1), "3", `"observedGeneration":2`},
	}
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			r := f.want(f.do(s.method, deployments+s.path, s.contentType, s.body), 200, s.text)
			if g := r.text("metadata.generation"); g != s.generation {
				t.Errorf("generation %s, want %s", g, s.generation)
			}
			if strings.Contains(string(r.body), `"no":"no"`) {
				t.Error("a status write changed the labels")
			}
		})
	}
	if r := f.do("GET", deployments+"/web", "", ""); r.text("spec.replicas") != "4" {
		t.Errorf("%s", r.body)
	}
}

func TestManagedFieldsAreKept(t *testing.T) {
	f := newFixture(t)
	entry := `{"manager":"helm","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{}}}`
	f.want(f.do("POST", configMaps, typeJSON, `{"metadata":{"name":"a","managedFields":[`+entry+`]}}`), 201, `"manager":"helm"`)
	f.want(f.do("PUT", configMaps+"/a", typeJSON, `{"metadata":{"name":"a"},"data":{"k":"v"}}`), 200, `"manager":"helm"`)
	f.want(f.do("PATCH", configMaps+"/a", jsonPatch, `[{"op":"replace","path":"/metadata/managedFields/0/manager","value":"mine"}]`), 200, `"manager":"mine"`)
	if r := f.do("PATCH", configMaps+"/a", jsonPatch, `[{"op":"replace","path":"/metadata/managedFields","value":[{}]}]`); r.at("metadata.managedFields") != nil {
		t.Errorf("not reset: %s", r.body)
	}
}

func TestScale(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	f.want(f.do("POST", deployments, typeJSON, deploymentBody), 201, "")
	path := deployments + "/web/scale"
	f.want(f.do("GET", path, "", ""), 200, `"selector":"a=b"`)
	f.check(t, []rule{
		{"put", "PUT", path, "", `{"metadata":{"name":"web"},"spec":{"replicas":5}}`, 200, `"kind":"Scale"`},
		{"merge patch", "PATCH", path, mergePatch, `{"spec":{"replicas":6}}`, 200, `"replicas":6`},
		{"stale version", "PUT", path, "", `{"metadata":{"name":"web","resourceVersion":"1"},"spec":{"replicas":5}}`, 409, "the object has been modified"},
		{"negative", "PUT", path, "", `{"metadata":{"name":"web"},"spec":{"replicas":-1}}`, 422, "greater than or equal to 0"},
		{"other name", "PUT", path, "", `{"metadata":{"name":"x"},"spec":{"replicas":1}}`, 400, "name"},
		{"absent", "PUT", deployments + "/no/scale", "", `{"spec":{"replicas":1}}`, 404, "not found"},
		{"other kind", "PUT", path, "", deploymentBody[:1] + `"kind":"Deployment",` + deploymentBody[1:], 400, "does not match the expected kind"},
		{"kind without a scale", "PUT", configMaps + "/a/scale", "", `{}`, 404, ""},
		{"dry run", "PUT", path + "?dryRun=All", "", `{"spec":{"replicas":9}}`, 200, `"replicas":9`},
	})
	if r := f.do("GET", deployments+"/web", "", ""); r.text("spec.replicas") != "6" || r.text("metadata.generation") != "3" {
		t.Errorf("%s", r.body)
	}
	scale, err := f.typed().AppsV1().Deployments("default").GetScale(ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale.Spec.Replicas = 1
	if _, err := f.typed().AppsV1().Deployments("default").UpdateScale(ctx, "web", scale, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.typed().AppsV1().Deployments("default").UpdateScale(ctx, "web", scale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("stale scale: %v", err)
	}
}

func TestBinding(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	pod := func(name string) {
		f.put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Finalizers: []string{"x/y"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}})
	}
	pod("p")
	pod("dying")
	f.want(f.do("DELETE", "/api/v1/namespaces/default/pods/dying", "", ""), 200, "")
	f.put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1"}})
	path := "/api/v1/namespaces/default/pods/"
	f.check(t, []rule{
		{"no node", "POST", path + "p/binding", "", `{"target":{"name":"w9"}}`, 404, "nodes"},
		{"no target", "POST", path + "p/binding", "", `{"metadata":{"name":"p"}}`, 422, "target.name"},
		{"other kind", "POST", path + "p/binding", "", `{"target":{"kind":"Pod","name":"w1"}}`, 422, "target.kind"},
		{"other uid", "POST", path + "p/binding", "", `{"metadata":{"uid":"x"},"target":{"name":"w1"}}`, 409, "UID"},
		{"deleted pod", "POST", path + "dying/binding", "", `{"target":{"name":"w1"}}`, 409, "being deleted"},
		{"absent pod", "POST", path + "no/binding", "", `{"target":{"name":"w1"}}`, 404, "pods"},
	})
	err := f.typed().CoreV1().Pods("default").Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{"by": "me"}}, Target: corev1.ObjectReference{Kind: "Node", Name: "w1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.want(f.do("GET", path+"p", "", ""), 200, `"nodeName":"w1"`)
	f.want(f.do("GET", path+"p", "", ""), 200, `"by":"me"`)
	f.want(f.do("POST", path+"p/binding", typeJSON, `{"target":{"name":"w1"}}`), 409, "already assigned")
}
