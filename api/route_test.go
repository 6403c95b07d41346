package api

import (
	"net/http"
	"net/url"
	"testing"
)

func TestParsePath(t *testing.T) {
	tests := []struct {
		method, target string
		// want is "verb resource namespace/name sub", or "none" for a path
		// that is no resource; code is that of the refusal.
		want string
		code int32
	}{
		{"GET", "/api/v1/pods", "list pods / ", 0},
		{"GET", "/api/v1/pods/", "list pods / ", 0},
		{"GET", "/api/v1/pods?watch=true", "watch pods / ", 0},
		{"GET", "/api/v1/pods?watch=0", "list pods / ", 0},
		{"GET", "/api/v1/watch/pods", "watch pods / ", 0},
		{"GET", "/api/v1/watch/namespaces/ns/pods/p", "watch pods ns/ ", 0},
		{"GET", "/api/v1/namespaces/ns/pods", "list pods ns/ ", 0},
		{"GET", "/api/v1/namespaces/ns/pods/p", "get pods ns/p ", 0},
		{"HEAD", "/api/v1/namespaces/ns/pods/p", "get pods ns/p ", 0},
		{"GET", "/api/v1/namespaces/ns/pods/p/status", "get pods ns/p status", 0},
		{"GET", "/api/v1/namespaces/ns/pods/p/log", "get pods ns/p log", 0},
		{"POST", "/api/v1/namespaces/ns/pods/p/binding", "create pods ns/p binding", 0},
		{"POST", "/api/v1/namespaces/ns/pods", "create pods ns/ ", 0},
		{"PUT", "/api/v1/namespaces/ns/pods/p", "update pods ns/p ", 0},
		{"PATCH", "/apis/apps/v1/namespaces/ns/deployments/d/scale", "patch deployments ns/d scale", 0},
		{"DELETE", "/apis/apps/v1/namespaces/ns/deployments/d", "delete deployments ns/d ", 0},
		{"GET", "/api/v1/namespaces", "list namespaces / ", 0},
		{"GET", "/api/v1/namespaces/ns", "get namespaces /ns ", 0},
		{"PUT", "/api/v1/namespaces/ns/status", "update namespaces /ns status", 0},
		{"GET", "/api/v1/nodes/n", "get nodes /n ", 0},
		{"POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "create selfsubjectaccessreviews / ", 0},
		{"GET", "/api", "none", 0},
		{"GET", "/apis/apps/v1", "none", 0},
		{"GET", "/openapi/v3/api/v1", "none", 0},
		{"GET", "/", "none", 0},

		{"GET", "/api/v1/namespaces/ns/nodes", "", http.StatusNotFound},
		{"GET", "/api/v1/pods/p", "", http.StatusNotFound},
		{"GET", "/api/v1/gizmos", "", http.StatusNotFound},
		{"GET", "/apis/resource.k8s.io/v1/resourceslices", "", http.StatusNotFound},
		{"GET", "/api/v2/pods", "", http.StatusNotFound},
		{"GET", "/api/v1/namespaces/ns/pods/p/nothing", "", http.StatusNotFound},
		{"GET", "/api/v1/namespaces/ns/pods/p/log/more", "", http.StatusNotFound},
		{"GET", "/api/v1/namespaces//pods/p", "", http.StatusNotFound},
		{"POST", "/api/v1/pods", "", http.StatusMethodNotAllowed},
		{"POST", "/api/v1/namespaces/ns/pods/p", "", http.StatusMethodNotAllowed},
		{"PUT", "/api/v1/namespaces/ns/pods", "", http.StatusMethodNotAllowed},
		{"DELETE", "/api/v1/namespaces/ns/pods/p/log", "", http.StatusMethodNotAllowed},
		{"OPTIONS", "/api/v1/namespaces/ns/pods", "", http.StatusMethodNotAllowed},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.target, func(t *testing.T) {
			u, err := url.Parse(tt.target)
			if err != nil {
				t.Fatal(err)
			}
			info, refused := parsePath(tt.method, u.Path, u.Query())
			if refused != nil {
				if refused.ErrStatus.Code != tt.code {
					t.Fatalf("refused: %v, want code %d", refused, tt.code)
				}
				return
			}
			got := "none"
			if info.GVR.Resource != "" {
				got = info.Verb + " " + info.GVR.Resource + " " + info.Namespace + "/" + info.Name + " " + info.Subresource
			}
			if got != tt.want || tt.code != 0 {
				t.Fatalf("got %q, want %q with code %d", got, tt.want, tt.code)
			}
		})
	}
}

func FuzzParsePath(f *testing.F) {
	for _, seed := range []string{"/api/v1/pods", "//", "/apis//v1/x", "/api/v1/watch", "/api/v1/namespaces/a/b/c/d/e"} {
		f.Add("GET", seed)
	}
	f.Fuzz(func(t *testing.T, method, path string) {
		info, refused := parsePath(method, path, nil)
		if refused == nil && info.isResource() && info.Kind.Namespaced && info.Name != "" && info.Namespace == "" {
			t.Fatalf("%s %q names an object without its namespace", method, path)
		}
	})
}
