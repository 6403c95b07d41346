package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// testTimeout bounds every wait of a test for something that must come.
const testTimeout = 20 * time.Second

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// get asks for a path with an Accept header and gives the answer with its body.
func (f *fixture) get(token, path, accept string) (*http.Response, []byte) {
	f.t.Helper()
	resp := f.open(testContext(f.t), token, path, accept)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp, body
}

// open is get without reading the body.
func (f *fixture) open(ctx context.Context, token, path, accept string) *http.Response {
	f.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.http.URL+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := f.http.Client().Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp
}

// change replaces a stored object past the API and returns the new version.
func (f *fixture) change(obj runtime.Object) *fsm.Object {
	f.t.Helper()
	op, err := resource.UpdateOp(obj)
	return f.apply(op, err)
}

// remove removes a stored object past the API.
func (f *fixture) remove(obj runtime.Object) *fsm.Object {
	f.t.Helper()
	return f.apply(resource.DeleteOp(f.stored(obj)), nil)
}

func (f *fixture) apply(op fsm.Op, err error) *fsm.Object {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
	term, _ := f.consensus.Leadership()
	result := f.consensus.apply(fsm.Command{Term: term, Ops: []fsm.Op{op}})
	if result.Code != fsm.OK {
		f.t.Fatalf("apply %s: %v", op.Key, result)
	}
	return result.Objects[0]
}

// stored is the stored version of obj.
func (f *fixture) stored(obj runtime.Object) *fsm.Object {
	f.t.Helper()
	m := obj.(metav1.Object)
	o := f.store.View().Get(resource.ForObject(obj).Key(m.GetNamespace(), m.GetName()))
	if o == nil {
		f.t.Fatalf("%s/%s is not stored", m.GetNamespace(), m.GetName())
	}
	return o
}

func (f *fixture) revision() string {
	return strconv.FormatUint(f.store.View().Revision(), 10)
}

// overflow pushes everything before it out of the ring of events.
func (f *fixture) overflow() {
	f.t.Helper()
	big := testConfigMap("kube-public", "big", nil)
	big.BinaryData = map[string][]byte{"x": make([]byte, 1<<20)}
	f.put(big)
	for i := range fsm.DefaultConfig().RingBytes>>20 + 2 {
		big.BinaryData["x"][0] = byte(i + 1) // an update without a change is none
		f.change(big)
	}
}

func testConfigMap(namespace, name string, labels map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
}

func testPod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			NodeName:   node,
			Containers: []corev1.Container{{Name: "main", Image: "web:1"}},
		},
	}
}

// golden compares got with a file of testdata, which UPDATE_GOLDEN=1 writes.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != string(got) {
		t.Errorf("%s differs (UPDATE_GOLDEN=1 rewrites it); got:\n%s", path, got)
	}
}

func query(pairs ...string) string {
	values := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
	}
	return "?" + values.Encode()
}

func numbered(prefix string, i int) string { return fmt.Sprintf("%s%03d", prefix, i) }
