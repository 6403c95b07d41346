package api

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shepherd-project/shepherd/api/resource"
)

// protobufBody is an object as typed clients send it.
func protobufBody(t testing.TB, obj runtime.Object) []byte {
	t.Helper()
	gvk, err := objectKind(obj)
	if err != nil {
		t.Fatal(err)
	}
	body, err := encodeProtobuf(gvk, obj)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestBadBodiesChangeNothing(t *testing.T) {
	f := newFixture(t)
	f.want(f.do("POST", configMaps, typeJSON, `{"metadata":{"name":"a"}}`), 201, "")
	good := string(protobufBody(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Data: map[string]string{"a": "b"}}))
	foreign := string(protobufBody(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "p"}}))
	f.check(t, []rule{
		{"empty", "POST", configMaps, "", ``, 400, "not an object"},
		{"null", "POST", configMaps, "", `null`, 400, "not an object"},
		{"string", "POST", configMaps, "", `"x"`, 400, "not an object"},
		{"cut off", "POST", configMaps, "", `{"metadata":{"name":"b"}`, 400, "cannot be handled as a ConfigMap"},
		{"trailing bytes", "POST", configMaps, "", `{"metadata":{"name":"b"}}}`, 400, "cannot be handled"},
		{"two objects", "POST", configMaps, "", `{"metadata":{"name":"b"}}{"metadata":{"name":"c"}}`, 400, "cannot be handled"},
		{"wrong type of a field", "POST", configMaps, "", `{"metadata":{"name":"b"},"data":[1]}`, 400, "cannot be handled"},
		{"deep nesting", "POST", configMaps, "", strings.Repeat(`{"a":`, 20000), 400, "cannot be handled"},
		{"bad quantity", "POST", pods, "", `{"metadata":{"name":"q"},"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"many"}}}]}}`, 400, "quantit"},
		{"YAML that is none", "POST", configMaps, typeYAML, "a: [b\n", 400, "cannot be handled"},
		{"YAML list", "POST", configMaps, typeYAML, "- a\n", 400, "not an object"},
		{"YAML bomb", "POST", configMaps, typeYAML, yamlBomb(), 400, ""},
		{"protobuf without its prefix", "POST", configMaps, typeProtobuf, "\x0a\x00", 400, "prefix"},
		{"protobuf with a broken envelope", "POST", configMaps, typeProtobuf, "k8s\x00\xff\xff\xff", 400, "envelope"},
		{"protobuf cut off", "POST", configMaps, typeProtobuf, good[:len(good)-6], 400, "protobuf"},
		{"protobuf of another kind", "POST", configMaps, typeProtobuf, foreign, 400, "does not match the expected kind"},
		{"protobuf to a patch", "PATCH", configMaps + "/a", typeProtobuf, good, 415, ""},
		{"senseless media type", "POST", configMaps, ";;;", `{}`, 415, ""},
		{"senseless query", "POST", configMaps + "?a=%zz", "", `{}`, 400, "query"},
		{"copies that grow", "PATCH", configMaps + "/a", jsonPatch, growingPatch(), 413, "TooLarge"},
		{"too many operations", "PATCH", configMaps + "/a", jsonPatch, "[" + strings.Repeat(`{"op":"test","path":"/kind","value":"ConfigMap"},`, maxPatchOperations) + `{"op":"remove","path":"/kind"}]`, 413, "operations"},
		{"object that is too large", "POST", configMaps, "", `{"metadata":{"name":"b"},"data":{"a":"` + strings.Repeat("x", 2<<20) + `"}}`, 422, "Too long"},
		{"protobuf", "POST", configMaps, typeProtobuf, good, 201, `"a":"b"`},
	})
}

func yamlBomb() string {
	var b strings.Builder
	b.WriteString("metadata: {name: b}\na: &a [x,x,x,x,x,x,x,x,x]\n")
	for c := 'b'; c < 'k'; c++ {
		prev := string(c - 1)
		b.WriteString(string(c) + ": &" + string(c) + " [" + strings.TrimSuffix(strings.Repeat("*"+prev+",", 9), ",") + "]\n")
	}
	return b.String()
}

// growingPatch doubles a value with each operation.
func growingPatch() string {
	var b strings.Builder
	b.WriteString(`[{"op":"add","path":"/data","value":{"a":{"x":"` + strings.Repeat("x", 1000) + `"}}}`)
	for i := range 24 {
		b.WriteString(`,{"op":"copy","from":"/data/a","path":"/data/b"},{"op":"move","from":"/data/b","path":"/data/a/y` + strconv.Itoa(i) + `"}`)
	}
	return b.String() + "]"
}

func TestOversizedBodies(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxRequestBytes = 1 << 20 })
	body := `{"metadata":{"name":"big"},"data":{"a":"` + strings.Repeat("x", 1<<20) + `"}}`
	f.unchanged(func() {
		f.want(f.do("POST", configMaps, typeJSON, body), 413, "RequestEntityTooLarge")
		// The same without a length in front.
		req, err := http.NewRequest("POST", f.http.URL+configMaps, io.NopCloser(bytes.NewReader([]byte(body))))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer admin")
		resp, err := f.http.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != 413 {
			t.Errorf("got %d", resp.StatusCode)
		}
	})
	if used := f.server.writes.budget.used; used != 0 {
		t.Errorf("%d bytes are still counted", used)
	}
}

func TestBufferedBytesAreBounded(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Write.MaxBufferedBytes = 100 })
	if !f.server.writes.budget.take(80) {
		t.Fatal("nothing to be had")
	}
	f.unchanged(func() {
		r := f.want(f.do("POST", configMaps, typeJSON, `{"metadata":{"name":"more"}}`), 429, "TooManyRequests")
		if r.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	})
	f.server.writes.budget.give(80)
	f.want(f.do("POST", configMaps, typeJSON, `{"metadata":{"name":"more"}}`), 201, "")
}

func TestWriteConfigValidation(t *testing.T) {
	good := DefaultWriteConfig()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*WriteConfig){
		"MaxBufferedBytes": func(c *WriteConfig) { c.MaxBufferedBytes = 0 },
		"DecisionTimeout":  func(c *WriteConfig) { c.DecisionTimeout = 0 },
		"MaxPlans":         func(c *WriteConfig) { c.MaxPlans = 0 },
		"ServiceCIDR":      func(c *WriteConfig) { c.ServiceCIDR = netip.MustParsePrefix("fd00::/64") },
		"node ports":       func(c *WriteConfig) { c.NodePortFirst = 40000 },
	} {
		c := DefaultWriteConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzDecodeBody: whatever comes in, decoding ends with an object that can be
// stored and read again, or with an answer of 400 or 415.
func FuzzDecodeBody(f *testing.F) {
	kind := resource.ByGroupResource("pods")
	f.Add(typeJSON, []byte(`{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":0.5}}}]},"x":1}`))
	f.Add(typeYAML, []byte("metadata:\n  name: a\n  name: b\nspec: {containers: [{name: c}]}\n"))
	f.Add(typeProtobuf, protobufBody(f, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}))
	f.Add("", []byte(`null`))
	f.Add(typeYAML, []byte(yamlBomb()))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		obj := kind.New()
		if _, err := decodeBody(contentType, body, obj, kind.GVK, metav1.FieldValidationWarn); err != nil {
			if code := toStatus(err).Code; code != 400 && code != 415 {
				t.Fatalf("%d for %v", code, err)
			}
			return
		}
		kind.Default(obj)
		kind.Validate(obj)
		if _, err := resource.Encode(obj); err != nil {
			t.Fatalf("decoded but cannot be stored: %v", err)
		}
		if _, err := encodeJSON(kind.GVK, obj); err != nil {
			t.Fatalf("decoded but cannot be shown: %v", err)
		}
	})
}

// FuzzPatch: a patch ends with JSON or with an error, never with a panic.
func FuzzPatch(f *testing.F) {
	f.Add(uint8(0), []byte(`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}},{"op":"copy","from":"/spec","path":"/status"}]`))
	f.Add(uint8(1), []byte(`{"metadata":{"labels":null},"spec":{"containers":[]}}`))
	f.Add(uint8(2), []byte(`{"spec":{"$setElementOrder/containers":[{"name":"c"}],"containers":[{"name":"c","$patch":"replace"}]}}`))
	kind := resource.ByGroupResource("pods")
	before, err := encodeJSON(kind.GVK, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, which uint8, patch []byte) {
		patchType := []types.PatchType{types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType}[which%3]
		after, _, err := patchJSON(patchType, before, patch, kind.New())
		if err == nil && !json.Valid(after) {
			t.Fatalf("%q gives %q", patch, after)
		}
	})
}
