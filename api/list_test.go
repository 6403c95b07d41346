package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/metadata"

	"github.com/shepherd-project/shepherd/api/resource"
)

// TestListPagesOfOneSnapshot pages through a collection that changes meanwhile,
// in protobuf and in JSON.
func TestListPagesOfOneSnapshot(t *testing.T) {
	f := newFixture(t)
	const total, limit = 95, 20
	for i := range total {
		f.put(testConfigMap("default", numbered("c", i), nil))
	}
	f.put(testConfigMap("kube-system", "other", nil))
	ctx := testContext(t)
	client := f.typed().CoreV1().ConfigMaps("default")
	options := metav1.ListOptions{Limit: limit}
	var names []string
	revision := ""
	for page := 0; ; page++ {
		list, err := client.List(ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		if revision == "" {
			revision = list.ResourceVersion
		}
		if list.ResourceVersion != revision || len(list.Items) > limit {
			t.Fatalf("page %d: %d items at %s, the first was at %s", page, len(list.Items), list.ResourceVersion, revision)
		}
		for _, cm := range list.Items {
			names = append(names, cm.Name)
		}
		rest := int64(total - len(names))
		if rest > 0 && (list.RemainingItemCount == nil || *list.RemainingItemCount != rest) || rest == 0 && list.RemainingItemCount != nil {
			t.Fatalf("page %d: remainingItemCount %v, want %d", page, list.RemainingItemCount, rest)
		}
		if list.Continue == "" {
			break
		}
		options.Continue = list.Continue
		f.put(testConfigMap("default", fmt.Sprintf("c%03d-late", page*limit+limit+1), nil))
	}
	if len(names) != total || !slices.IsSorted(names) {
		t.Fatalf("got %d names: %v", len(names), names)
	}
	all, err := f.dynamic().Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).List(ctx, metav1.ListOptions{})
	if err != nil || len(all.Items) != total+1+4 || all.GetResourceVersion() != f.revision() {
		t.Fatalf("an unlimited list: %d items, %v", len(all.Items), err)
	}
}

func TestListContinueExpires(t *testing.T) {
	f := newFixture(t)
	for i := range 10 {
		f.put(testConfigMap("default", numbered("c", i), nil))
	}
	ctx := testContext(t)
	client := f.typed().CoreV1().ConfigMaps("default")
	first, err := client.List(ctx, metav1.ListOptions{Limit: 4})
	if err != nil {
		t.Fatal(err)
	}
	f.overflow()
	_, err = client.List(ctx, metav1.ListOptions{Limit: 4, Continue: first.Continue})
	if !apierrors.IsResourceExpired(err) {
		t.Fatalf("got %v, want expired", err)
	}
	token := err.(apierrors.APIStatus).Status().Continue
	if token == "" || token == first.Continue {
		t.Fatalf("the error has the token %q", token)
	}
	next, err := client.List(ctx, metav1.ListOptions{Limit: 4, Continue: token})
	if err != nil {
		t.Fatal(err)
	}
	if len(next.Items) != 4 || next.Items[0].Name != "c004" || *next.RemainingItemCount != 2 || next.ResourceVersion != f.revision() {
		t.Fatalf("the rest begins with %d items at %s", len(next.Items), next.ResourceVersion)
	}
	last, err := client.List(ctx, metav1.ListOptions{Limit: 4, Continue: next.Continue})
	if err != nil || len(last.Items) != 2 || last.Continue != "" {
		t.Fatalf("the last page: %v, %v", last, err)
	}
}

func TestListRevisions(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.RevisionWait = 50 * time.Millisecond })
	f.put(testConfigMap("default", "a", nil))
	at := f.revision()
	f.put(testConfigMap("default", "b", nil))
	now := f.revision()
	path := "/api/v1/namespaces/default/configmaps"
	token := continueToken{Revision: 1, Namespace: "default", Name: "a"}.encode()
	tests := []struct {
		query     string
		code      int
		items     int
		revision  string
		inMessage string
	}{
		{"", 200, 2, now, ""},
		{query("resourceVersion", "0"), 200, 2, now, ""},
		{query("resourceVersion", at), 200, 2, now, ""},
		{query("resourceVersion", at, "resourceVersionMatch", "NotOlderThan"), 200, 2, now, ""},
		{query("resourceVersion", at, "resourceVersionMatch", "Exact"), 200, 1, at, ""},
		{query("resourceVersion", at, "limit", "5"), 200, 1, at, ""},
		{query("resourceVersion", "999999"), http.StatusGatewayTimeout, 0, "", "Too large resource version"},
		{query("resourceVersion", "x"), http.StatusBadRequest, 0, "", "invalid resource version"},
		{query("resourceVersionMatch", "Exact"), http.StatusUnprocessableEntity, 0, "", "resourceVersionMatch is forbidden"},
		{query("continue", "!"), http.StatusBadRequest, 0, "", "continue key is not valid"},
		{query("continue", token, "resourceVersion", at), http.StatusBadRequest, 0, "", "not allowed when using continue"},
		{query("limit", "many"), http.StatusBadRequest, 0, "", "many"},
		{query("labelSelector", "a in b"), http.StatusBadRequest, 0, "", "unable to parse"},
		{query("fieldSelector", "spec.color=red"), http.StatusBadRequest, 0, "", "field label not supported"},
	}
	for _, tt := range tests {
		resp, body := f.get("admin", path+tt.query, "")
		var list struct {
			Metadata metav1.ListMeta
			Items    []json.RawMessage
			Message  string
		}
		if err := json.Unmarshal(body, &list); err != nil {
			t.Fatalf("%s: %v: %s", tt.query, err, body)
		}
		if resp.StatusCode != tt.code || len(list.Items) != tt.items || tt.code == 200 && list.Metadata.ResourceVersion != tt.revision ||
			!strings.Contains(list.Message, tt.inMessage) {
			t.Errorf("%s: %d %s", tt.query, resp.StatusCode, body)
		}
		if tt.code == http.StatusGatewayTimeout && (resp.Header.Get("Retry-After") != "1" || !strings.Contains(string(body), "ResourceVersionTooLarge")) {
			t.Errorf("%s: retry after %q, %s", tt.query, resp.Header.Get("Retry-After"), body)
		}
	}
}

func TestListSelectors(t *testing.T) {
	f := newFixture(t)
	for i, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded} {
		pod := testPod("default", numbered("p", i), fmt.Sprintf("n%d", i%2))
		pod.Labels["i"] = strconv.Itoa(i)
		f.put(pod)
		pod.Status.Phase = phase
		f.change(pod)
	}
	f.put(testPod("kube-system", "p000", "n0"))
	ctx := testContext(t)
	tests := []struct{ namespace, labels, fields, want string }{
		{"default", "", "spec.nodeName=n0", "p000 p002"},
		{"", "", "spec.nodeName=n0", "p000 p002 p000"},
		{"default", "", "status.phase!=Succeeded,status.phase!=Failed", "p000 p001"},
		{"default", "i notin (0)", "", "p001 p002"},
		{"default", "app=web,i=1", "spec.nodeName=n1", "p001"},
		{"default", "", "metadata.name=p001", "p001"},
		{"", "", "metadata.name=p000", "p000 p000"},
		{"", "", "metadata.namespace=kube-system", "p000"},
		{"default", "app=none", "", ""},
	}
	for _, tt := range tests {
		list, err := f.typed().CoreV1().Pods(tt.namespace).List(ctx, metav1.ListOptions{LabelSelector: tt.labels, FieldSelector: tt.fields})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, pod := range list.Items {
			names = append(names, pod.Name)
		}
		if got := strings.Join(names, " "); got != tt.want || list.ResourceVersion == "" {
			t.Errorf("%+v: got %q at %q", tt, got, list.ResourceVersion)
		}
	}
	page, err := f.typed().CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: "app=web", Limit: 1})
	if err != nil || len(page.Items) != 1 || page.Continue == "" || page.RemainingItemCount != nil {
		t.Errorf("a page of a selection: %v, %v", page.ListMeta, err)
	}
}

// TestProtobufFromStoredBytes checks that client-go's decoder merges the
// revision behind the stored bytes into the metadata, for every way out.
func TestProtobufFromStoredBytes(t *testing.T) {
	f := newFixture(t)
	pod := testPod("default", "p", "n1")
	pod.Annotations = map[string]string{"a": "b"}
	f.put(pod)
	want, err := resource.Decode(f.stored(pod))
	if err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	client := f.typed().CoreV1().Pods("default")
	got, err := client.Get(ctx, "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	for name, obj := range map[string]*corev1.Pod{"get": got, "list": &list.Items[0]} {
		obj.TypeMeta = want.(*corev1.Pod).TypeMeta
		if obj.ResourceVersion == "" || !equalJSON(t, obj, want) {
			t.Errorf("%s gives %v, want %v", name, obj, want)
		}
	}
	meta, err := metadata.NewForConfig(f.config("admin"))
	if err != nil {
		t.Fatal(err)
	}
	partial, err := meta.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace("default").List(ctx, metav1.ListOptions{})
	if err != nil || len(partial.Items) != 1 || partial.Items[0].Annotations["a"] != "b" || partial.Items[0].ResourceVersion != got.ResourceVersion {
		t.Errorf("metadata: %v, %v", partial, err)
	}
}

func equalJSON(t *testing.T, a, b runtime.Object) bool {
	t.Helper()
	left, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	right, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(left) == string(right)
}

func TestTable(t *testing.T) {
	f := newFixture(t)
	pod := testPod("default", "web", "n1")
	f.put(pod)
	f.consensus.advance(5 * time.Minute)
	f.put(testConfigMap("default", "settings", nil))
	accept := "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	table := func(path string) metav1.Table {
		t.Helper()
		resp, body := f.get("admin", path, accept)
		var table metav1.Table
		if err := json.Unmarshal(body, &table); err != nil || resp.StatusCode != http.StatusOK || table.Kind != "Table" {
			t.Fatalf("%s: %d %s", path, resp.StatusCode, body)
		}
		return table
	}
	pods := table("/api/v1/namespaces/default/pods?limit=500")
	var columns []string
	for _, c := range pods.ColumnDefinitions {
		if c.Priority == 0 {
			columns = append(columns, c.Name)
		}
	}
	if got := strings.Join(columns, " "); got != "Name Ready Status Restarts Age" || pods.ColumnDefinitions[0].Format != "name" {
		t.Errorf("columns %q, the first of format %q", got, pods.ColumnDefinitions[0].Format)
	}
	if got := fmt.Sprint(pods.Rows[0].Cells[:5]); got != "[web 0/1 Pending 0 5m]" {
		t.Errorf("cells %s", got)
	}
	if pods.ResourceVersion != f.revision() {
		t.Errorf("the table is at %s, want %s", pods.ResourceVersion, f.revision())
	}
	if raw := string(pods.Rows[0].Object.Raw); !strings.Contains(raw, `"kind":"PartialObjectMetadata"`) || strings.Contains(raw, `"spec"`) {
		t.Errorf("the row's object: %s", raw)
	}
	full := table("/api/v1/namespaces/default/pods/web?includeObject=Object")
	if raw := string(full.Rows[0].Object.Raw); !strings.Contains(raw, `"kind":"Pod"`) || !strings.Contains(raw, `"spec"`) {
		t.Errorf("the row's whole object: %s", raw)
	}
	none := table("/api/v1/namespaces/default/configmaps?includeObject=None")
	if raw := none.Rows[0].Object.Raw; len(raw) != 0 && string(raw) != "null" {
		t.Errorf("the row's object: %s", raw)
	}
	if resp, body := f.get("admin", "/api/v1/pods?includeObject=Half", accept); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	for _, k := range resource.All() { // every kind has a table, empty ones too
		path := "/api/" + k.GVK.Version
		if k.GVK.Group != "" {
			path = "/apis/" + k.GVK.GroupVersion().String()
		}
		if got := table(path + "/" + k.Resource); len(got.ColumnDefinitions) == 0 || got.Rows == nil {
			t.Errorf("%s: %v", k.Resource, got)
		}
	}
}

func TestErrorsOnTheWire(t *testing.T) {
	f := newFixture(t)
	for name, path := range map[string]string{
		"object": "/api/v1/namespaces/default/pods/none", "resource": "/api/v1/gizmos", "path": "/nothing",
		"group": "/apis/resource.k8s.io/v1/resourceslices", "selector": "/api/v1/pods?fieldSelector=a%3Db",
	} {
		_, body := f.get("admin", path, "")
		golden(t, "error_"+name+".json", indent(body))
	}
	_, body := f.get("", "/api/v1/pods", "")
	golden(t, "error_anonymous.json", indent(body))
	_, err := f.typed().CoreV1().Pods("default").Get(testContext(t), "none", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) || err.Error() != `pods "none" not found` {
		t.Errorf("got %v", err)
	}
}

func TestPanicIsAnsweredAndCounted(t *testing.T) {
	f := newFixture(t, func(c *Config) {
		authenticate := c.Authenticate
		c.Authenticate = func(r *http.Request) (Identity, bool) {
			if r.Header.Get("Authorization") == "Bearer panic" {
				panic("asked for")
			}
			return authenticate(r)
		}
	})
	resp, body := f.get("panic", "/api/v1/pods", "")
	if resp.StatusCode != http.StatusInternalServerError || metricValue(t, f.server.metrics.panics) != 1 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	if resp, _ := f.get("admin", "/api/v1/pods", ""); resp.StatusCode != http.StatusOK {
		t.Fatalf("afterwards: %d", resp.StatusCode)
	}
}
