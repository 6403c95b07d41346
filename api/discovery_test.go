package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	"github.com/shepherd-project/shepherd/api/resource"
)

func TestDiscoveryGolden(t *testing.T) {
	f := newFixture(t)
	for path, name := range map[string]string{
		"/api": "api.json", "/apis": "apis.json", "/api/v1": "api_v1.json", "/apis/apps/v1": "apis_apps_v1.json", "/apis/apps": "apis_apps.json",
	} {
		resp, body := f.get("admin", path, "")
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != typeJSON {
			t.Fatalf("%s: %d %s", path, resp.StatusCode, resp.Header.Get("Content-Type"))
		}
		golden(t, "discovery_"+name, indent(body))
	}
	resp, body := f.get("admin", "/apis", typeAggregated+","+typeJSON)
	if resp.Header.Get("Content-Type") != typeAggregated {
		t.Errorf("aggregated form has Content-Type %q", resp.Header.Get("Content-Type"))
	}
	golden(t, "discovery_aggregated_apis.json", indent(body))
}

func TestDiscoveryETag(t *testing.T) {
	f := newFixture(t)
	resp, _ := f.get("admin", "/apis", typeAggregated)
	etag := resp.Header.Get("ETag")
	plain, _ := f.get("admin", "/apis", typeJSON)
	if etag == "" || etag == plain.Header.Get("ETag") || resp.Header.Get("Vary") != "Accept" {
		t.Fatalf("etag %q, of the plain form %q, vary %q", etag, plain.Header.Get("ETag"), resp.Header.Get("Vary"))
	}
	req, err := http.NewRequestWithContext(testContext(t), http.MethodGet, f.http.URL+"/apis", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer admin")
	req.Header.Set("Accept", typeAggregated)
	req.Header.Set("If-None-Match", etag)
	again, err := f.http.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Body.Close()
	if again.StatusCode != http.StatusNotModified {
		t.Fatalf("got %d", again.StatusCode)
	}
}

func TestDiscoveryClients(t *testing.T) {
	f := newFixture(t)
	client, err := discovery.NewDiscoveryClientForConfig(f.config("node:n1"))
	if err != nil {
		t.Fatal(err)
	}
	legacy, err := discovery.NewDiscoveryClientForConfig(f.config("admin"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]discovery.DiscoveryInterface{"aggregated": client, "legacy": legacy.WithLegacy()} {
		groups, lists, err := c.ServerGroupsAndResources()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, g := range groups {
			if g.PreferredVersion.GroupVersion == "" || !slices.Contains(g.Versions, g.PreferredVersion) {
				t.Errorf("%s: group %q prefers %v", name, g.Name, g.PreferredVersion)
			}
		}
		for _, k := range resource.All() {
			if err := findResource(lists, k); err != nil {
				t.Errorf("%s: %s: %v", name, k.GroupResource(), err)
			}
		}
		v, err := c.ServerVersion()
		if err != nil || v.GitVersion != Version.GitVersion {
			t.Errorf("%s: version %v, %v", name, v, err)
		}
	}
}

// findResource looks for the kind and its subresources.
func findResource(lists []*metav1.APIResourceList, k *resource.Kind) error {
	want := map[string]bool{k.Resource: true}
	for _, sub := range k.Subresources {
		want[k.Resource+"/"+sub.Name] = true
	}
	for _, list := range lists {
		for _, r := range list.APIResources {
			if list.GroupVersion != k.GVK.GroupVersion().String() || !want[r.Name] {
				continue
			}
			delete(want, r.Name)
			if r.Name == k.Resource && (r.Kind != k.GVK.Kind || r.Namespaced != k.Namespaced || r.SingularName != k.Singular ||
				!slices.Equal(r.Verbs, k.Verbs) || !slices.Equal(r.ShortNames, k.ShortNames)) {
				return errors.New("differs from the table of kinds")
			}
		}
	}
	if len(want) > 0 {
		return errors.New("lacks entries")
	}
	return nil
}

func TestOpenAPI(t *testing.T) {
	f := newFixture(t)
	client, err := discovery.NewDiscoveryClientForConfig(f.config("admin"))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := client.OpenAPISchema()
	if err != nil || len(doc.GetDefinitions().GetAdditionalProperties()) == 0 {
		t.Fatalf("version 2 by client-go: %v", err)
	}
	resp, body := f.get("admin", "/openapi/v2", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
	if got := resp.Header.Get("Content-Type"); got != "application/com.github.proto-openapi.spec.v2.v1.0+protobuf" {
		t.Errorf("version 2 has Content-Type %q", got)
	}
	if err := proto.Unmarshal(body, &openapi_v2.Document{}); err != nil {
		t.Error(err)
	}
	paths, err := client.OpenAPIV3().Paths()
	if err != nil || paths["apis/apps/v1"] == nil {
		t.Fatalf("version 3: %v, %v", paths, err)
	}
	for name, gv := range paths {
		schema, err := gv.Schema("application/json")
		if err != nil || !json.Valid(schema) || !bytes.Contains(schema, []byte("x-kubernetes-group-version-kind")) {
			t.Errorf("version 3 of %s: %v", name, err)
		}
	}
	if resp, body := f.get("admin", "/openapi/v3/apis/nothing/v1", ""); resp.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown document: %d %s", resp.StatusCode, body)
	}
	if resp, _ := f.get("admin", "/openapi/v3/api/v1?hash=OLD", ""); resp.StatusCode != http.StatusOK || resp.Request.URL.Query().Get("hash") == "OLD" {
		t.Errorf("an old hash: %d at %s", resp.StatusCode, resp.Request.URL)
	}
}

func TestHealth(t *testing.T) {
	ready := errors.New("the log is still being replayed")
	f := newFixture(t, func(c *Config) { c.Ready = func() error { return ready } })
	for _, path := range []string{"/livez", "/healthz", "/version"} {
		if resp, body := f.get("", path, ""); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
	if resp, body := f.get("", "/readyz", ""); resp.StatusCode != http.StatusInternalServerError || !strings.Contains(string(body), ready.Error()) {
		t.Errorf("/readyz: %d %s", resp.StatusCode, body)
	}
	ready = nil
	if resp, body := f.get("", "/readyz", ""); resp.StatusCode != http.StatusOK || string(body) != "ok" {
		t.Errorf("/readyz: %d %s", resp.StatusCode, body)
	}
	if resp, body := f.get("", "/livez?verbose", ""); !strings.Contains(string(body), "livez check passed") {
		t.Errorf("/livez?verbose: %d %s", resp.StatusCode, body)
	}
}

func TestReviews(t *testing.T) {
	f := newFixture(t)
	ctx := testContext(t)
	who, err := f.typed().AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || who.Status.UserInfo.Username != "admin" {
		t.Fatalf("whoami: %v, %v", who, err)
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "create", Resource: "pods"}}}
	got, err := f.typed().AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil || !got.Status.Allowed {
		t.Fatalf("can-i: %v, %v", got, err)
	}
	rules, err := f.typed().AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}, metav1.CreateOptions{})
	if err != nil || len(rules.Status.ResourceRules) != 1 {
		t.Fatalf("can-i --list: %v, %v", rules, err)
	}
	body := `{"spec":{"resourceAttributes":{"verb":"create","resource":"pods","namespace":"default"}}}`
	reply := f.as("node:n1", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", typeJSON, body)
	if reply.code != http.StatusCreated || reply.text("status.allowed") != "false" {
		t.Fatalf("an agent: %d %s", reply.code, reply.body)
	}
	if reply := f.do("GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "", ""); reply.code != http.StatusMethodNotAllowed {
		t.Errorf("get of a review: %d %s", reply.code, reply.body)
	}
}
