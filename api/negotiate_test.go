package api

import (
	"net/http"
	"strings"
	"testing"
)

func TestNegotiate(t *testing.T) {
	const (
		table   = ";as=Table;v=v1;g=meta.k8s.io"
		beta    = ";as=Table;v=v1beta1;g=meta.k8s.io"
		partial = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
		list    = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	)
	tests := []struct {
		accept  string
		allowed shape
		want    mediaType
		ok      bool
	}{
		{"", shapesAny, mediaType{formJSON, shapeObject}, true},
		{"*/*", shapesAny, mediaType{formJSON, shapeObject}, true},
		{"application/yaml", shapesAny, mediaType{formYAML, shapeObject}, true},
		{"application/vnd.kubernetes.protobuf,application/json", shapesAny, mediaType{formProtobuf, shapeObject}, true},
		{"application/json, application/vnd.kubernetes.protobuf", shapesAny, mediaType{formJSON, shapeObject}, true},
		{"application/cbor,application/json;q=0.5", shapesAny, mediaType{formJSON, shapeObject}, true},
		{"application/json" + table + ",application/json" + beta + ",application/json", shapesList, mediaType{formJSON, shapeTable}, true},
		{"application/json" + beta + ",application/json", shapesList, mediaType{formJSON, shapeObject}, true},
		{"application/vnd.kubernetes.protobuf" + table + ",application/json" + table, shapesList, mediaType{formJSON, shapeTable}, true},
		{"application/vnd.kubernetes.protobuf" + list, shapesList, mediaType{formProtobuf, shapeMetaList}, true},
		{"application/vnd.kubernetes.protobuf" + partial, shapesObject, mediaType{formProtobuf, shapeMeta}, true},
		{"application/json" + list, shapesObject, mediaType{}, false},
		{"application/json" + table, shapeObject, mediaType{}, false},
		{"text/html", shapesAny, mediaType{}, false},
	}
	for _, tt := range tests {
		got, ok := negotiate(tt.accept, tt.allowed)
		if ok != tt.ok || ok && got != tt.want {
			t.Errorf("negotiate(%q) = %v, %v, want %v, %v", tt.accept, got, ok, tt.want, tt.ok)
		}
	}
}

func TestAnswersInTheFormThatIsAccepted(t *testing.T) {
	f := newFixture(t)
	f.put(testConfigMap("default", "c", map[string]string{"k": "v"}))
	one, many := "/api/v1/namespaces/default/configmaps/c", "/api/v1/namespaces/default/configmaps"
	tests := []struct {
		path, accept, contentType, prefix string
		code                              int
	}{
		{one, "", typeJSON, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c"`, 200},
		{one, typeYAML, typeYAML, "apiVersion: v1\nkind: ConfigMap\n", 200},
		{one, typeProtobuf, typeProtobuf, "k8s\x00", 200},
		{one, "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", typeJSON, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1"`, 200},
		{one, "application/json;as=Table;g=meta.k8s.io;v=v1", typeJSON, `{"kind":"Table","apiVersion":"meta.k8s.io/v1"`, 200},
		{one + "?pretty=true", "", typeJSON, "{\n  \"kind\": \"ConfigMap\",", 200},
		{many, typeYAML, typeYAML, "apiVersion: v1\nitems:\n", 200},
		{many, typeProtobuf, typeProtobuf, "k8s\x00", 200},
		{many + "?pretty=1", "", typeJSON, "{\n  \"kind\": \"ConfigMapList\",", 200},
		{many, "text/html", typeJSON, `{"kind":"Status","apiVersion":"v1"`, http.StatusNotAcceptable},
		{one + "x", typeProtobuf, typeProtobuf, "k8s\x00", 404},
		{one + "x", typeYAML, typeYAML, "apiVersion: v1\ncode: 404\n", 404},
		{many + "?watch=1", typeYAML, typeYAML, "apiVersion: v1\ncode: 406\n", http.StatusNotAcceptable},
	}
	for _, tt := range tests {
		resp, body := f.get("admin", tt.path, tt.accept)
		if resp.StatusCode != tt.code || resp.Header.Get("Content-Type") != tt.contentType || !strings.HasPrefix(string(body), tt.prefix) {
			t.Errorf("%s as %q: %d %s %q", tt.path, tt.accept, resp.StatusCode, resp.Header.Get("Content-Type"), body)
		}
	}
}

func TestGzipOnlyForLargeBodiesFromAfar(t *testing.T) {
	tests := []struct {
		remote, accept string
		size           int
		want           bool
	}{
		{"192.0.2.1:5", "gzip", gzipThreshold, true},
		{"192.0.2.1:5", "br, gzip;q=0.5", gzipThreshold, true},
		{"192.0.2.1:5", "gzip;q=0", gzipThreshold, false},
		{"192.0.2.1:5", "", gzipThreshold, false},
		{"192.0.2.1:5", "gzip", gzipThreshold - 1, false},
		{"127.0.0.1:5", "gzip", gzipThreshold, false},
		{"[::1]:5", "gzip", gzipThreshold, false},
	}
	for _, tt := range tests {
		r := &http.Request{RemoteAddr: tt.remote, Header: http.Header{"Accept-Encoding": {tt.accept}}}
		if got := wantsGzip(r, tt.size); got != tt.want {
			t.Errorf("%+v: got %v", tt, got)
		}
	}
}
