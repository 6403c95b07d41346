package openapi

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	cliresource "k8s.io/cli-runtime/pkg/resource"
	clientopenapi "k8s.io/client-go/openapi"

	"github.com/shepherd-project/shepherd/api/openapi/build"
	"github.com/shepherd-project/shepherd/api/resource"
)

// TestCommittedDocuments fails when the table of kinds or the definitions say
// something else than the committed documents: run go generate then.
func TestCommittedDocuments(t *testing.T) {
	want, err := build.Documents()
	if err != nil {
		t.Fatal(err)
	}
	if len(want) != len(loaded().files) {
		t.Errorf("%d documents are committed, %d generated", len(loaded().files), len(want))
	}
	for name, data := range want {
		file, ok := loaded().files[name]
		if !ok {
			t.Errorf("%s is not committed", name)
			continue
		}
		if !bytes.Equal(unpacked(file), data) {
			t.Errorf("%s differs from what is generated: run go generate ./api/openapi", name)
		}
	}
}

// TestDefinitionsAreOfThisVersion notices that the Kubernetes types moved on
// without the definitions, without generating them anew.
func TestDefinitionsAreOfThisVersion(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "k8s.io/api").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	if got := strings.TrimSpace(string(out)); got != build.TypesVersion {
		t.Errorf("k8s.io/api is %s, the definitions were generated from %s: run go generate ./api/openapi and set build.TypesVersion", got, build.TypesVersion)
	}
}

func TestIndex(t *testing.T) {
	var index struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(V3Index(), &index); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"api/v1", "apis/apps/v1", "apis/coordination.k8s.io/v1", "apis/discovery.k8s.io/v1"} {
		want := "/openapi/v3/" + path + "?hash=" + Hash(path)
		if got := index.Paths[path].ServerRelativeURL; got != want || Hash(path) == "" {
			t.Errorf("%s: URL %q, want %q", path, got, want)
		}
		data, ok := V3(path)
		if !ok || !json.Valid(data) {
			t.Errorf("%s: no JSON document", path)
		}
		if packed, ok := V3Gzip(path); !ok || len(packed) >= len(data) {
			t.Errorf("%s: compressed to %d of %d bytes", path, len(packed), len(data))
		}
	}
	for _, path := range []string{"", "api", "apis/none/v1", v2JSON, v2Proto} {
		if _, ok := V3(path); ok {
			t.Errorf("V3(%q) found something", path)
		}
	}
}

func TestReferencesResolve(t *testing.T) {
	for _, path := range V3Paths() {
		data, _ := V3(path)
		var doc struct {
			Components struct {
				Schemas map[string]json.RawMessage `json:"schemas"`
			} `json:"components"`
		}
		if err := json.Unmarshal(data, &doc); err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split(string(data), `"$ref":"#/components/schemas/`)[1:] {
			name, _, _ := strings.Cut(part, `"`)
			if doc.Components.Schemas[name] == nil {
				t.Errorf("%s: reference to %s, which is not in the document", path, name)
			}
		}
	}
}

// documents serves the embedded documents to the clients' own readers.
type documents struct{}

func (documents) Paths() (map[string]clientopenapi.GroupVersion, error) {
	all := map[string]clientopenapi.GroupVersion{}
	for _, path := range V3Paths() {
		all[path] = document(path)
	}
	return all, nil
}

func (documents) OpenAPISchema() (*openapi_v2.Document, error) {
	doc := &openapi_v2.Document{}
	return doc, proto.Unmarshal(V2Proto(), doc)
}

type document string

func (d document) Schema(string) ([]byte, error) { data, _ := V3(string(d)); return data, nil }
func (d document) ServerRelativeURL() string     { return "/openapi/v3/" + string(d) }

// TestKubectlFindsWhatTheServerCan asks kubectl's own code whether the server
// does dry runs and field validation, in both versions of the documents.
func TestKubectlFindsWhatTheServerCan(t *testing.T) {
	for _, param := range []cliresource.VerifiableQueryParam{"dryRun", cliresource.QueryParamFieldValidation} {
		v3 := cliresource.NewQueryParamVerifierV3(nil, documents{}, param)
		v2 := cliresource.NewQueryParamVerifier(nil, documents{}, param)
		for _, k := range resource.All() {
			if err := v3.HasSupport(k.GVK); err != nil {
				t.Errorf("v3 %s %s: %v", param, k.GVK, err)
			}
			if err := v2.HasSupport(k.GVK); err != nil {
				t.Errorf("v2 %s %s: %v", param, k.GVK, err)
			}
		}
	}
}

// TestDefinitionsDriveServerSideApply builds the type converter and merges two
// managers' fields with it.
func TestDefinitionsDriveServerSideApply(t *testing.T) {
	defs, err := Definitions()
	if err != nil {
		t.Fatal(err)
	}
	converter, err := managedfields.NewTypeConverter(defs, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range resource.All() {
		if _, err := converter.ObjectToTyped(k.New()); err != nil {
			t.Errorf("%s: %v", k.GVK, err)
		}
	}
	one := &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}}
	one.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Image: "x"}}
	two := one.DeepCopy()
	two.Spec.Template.Spec.Containers[0] = corev1.Container{Name: "b", Image: "y"}
	left, err := converter.ObjectToTyped(one)
	if err != nil {
		t.Fatal(err)
	}
	right, err := converter.ObjectToTyped(two)
	if err != nil {
		t.Fatal(err)
	}
	merged, err := left.Merge(right)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(merged.AsValue().Unstructured())
	if err != nil {
		t.Fatal(err)
	}
	if s := string(data); !strings.Contains(s, `"name":"a"`) || !strings.Contains(s, `"name":"b"`) {
		t.Errorf("containers were not merged by name: %s", s)
	}
}

func TestKindsAreNamed(t *testing.T) {
	data, _ := V3("apis/apps/v1")
	var doc struct {
		Components struct {
			Schemas map[string]struct {
				GVKs []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
			} `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	want := appsv1.SchemeGroupVersion.WithKind("Deployment")
	if got := doc.Components.Schemas["io.k8s.api.apps.v1.Deployment"].GVKs; len(got) != 1 || got[0] != want {
		t.Errorf("Deployment stands for %v, want %v", got, want)
	}
}
