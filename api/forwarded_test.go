package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

const configMaps = "/api/v1/namespaces/default/configmaps"

// request is a write as a replica forwards it.
func (f *fixture) request(method, path, body string) *wire.Request {
	id := fsm.NewRequestID(f.store.View().Revision())
	contentType := typeJSON
	if method == http.MethodPatch {
		contentType = "application/merge-patch+json"
	}
	return &wire.Request{
		Nonce: id.Nonce, Birth: id.Birth, Method: method, Path: path, Body: []byte(body),
		Header: map[string][]string{"Content-Type": {contentType}, "Accept": {typeJSON}},
		User:   "admin", Groups: []string{groupMasters},
		Term: f.consensus.term, Attempt: 1,
	}
}

func TestResendIsAnsweredWithTheRecordedOutcome(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	f.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "old", Finalizers: []string{"a/b"}}, Data: map[string]string{"n": "1"}})
	f.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "plain"}})
	f.put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}})
	f.put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1"}})
	tests := []struct {
		name, method, path, body string
		code                     int
	}{
		{"create", "POST", configMaps, `{"metadata":{"generateName":"x-"},"data":{"a":"b"}}`, 201},
		{"patch", "PATCH", configMaps + "/old", `{"data":{"n":"2"}}`, 200},
		{"update", "PUT", configMaps + "/old", `{"metadata":{"finalizers":["a/b"]},"data":{"n":"3"}}`, 200},
		{"bind", "POST", "/api/v1/namespaces/default/pods/p/binding", `{"target":{"kind":"Node","name":"w1"}}`, 201},
		{"delete held by a finalizer", "DELETE", configMaps + "/old", ``, 200},
		{"delete", "DELETE", configMaps + "/plain", ``, 200},
		{"take the last finalizer", "PATCH", configMaps + "/old", `{"metadata":{"finalizers":null}}`, 200},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			req := f.request(test.method, test.path, test.body)
			first := f.server.HandleForwarded(ctx, req)
			if first.Status != test.code || !first.Committed {
				t.Fatalf("got %d committed %v: %s", first.Status, first.Committed, first.Body)
			}
			// Others go on meanwhile.
			f.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other-" + string(f.server.writes.name())}})
			f.unchanged(func() {
				again := f.server.HandleForwarded(ctx, req)
				if again.Status != first.Status || string(again.Body) != string(first.Body) || !again.Committed {
					t.Errorf("the resend got %d %s, the first %d %s", again.Status, again.Body, first.Status, first.Body)
				}
			})
		})
	}
}

// name draws a name for tests.
func (w *writer) name() []byte {
	name := []byte("abcdefgh")
	for i := range name {
		name[i] = 'a' + byte(w.random.intN(26))
	}
	return name
}

func TestLostAnswerIsFoundByTheResend(t *testing.T) {
	f := newFixture(t)
	lost := 2
	f.consensus.setHooks(nil, func(fsm.Command, fsm.Result) error {
		if lost--; lost >= 0 {
			return errors.New("leadership lost while the entry was replicated")
		}
		return nil
	})
	r := f.want(f.do("POST", configMaps, typeJSON, `{"metadata":{"name":"once"},"data":{"a":"b"}}`), 201, `"once"`)
	if got, want := r.text("metadata.resourceVersion"), f.do("GET", configMaps+"/once", "", "").text("metadata.resourceVersion"); got != want {
		t.Errorf("answered version %s, stored is %s", got, want)
	}
	if f.consensus.count() != 5 { // four namespaces and one write
		t.Errorf("%d commands were applied", f.consensus.count())
	}
}

func TestConflictIsPlannedAgain(t *testing.T) {
	f := newFixture(t)
	f.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "busy"}, Data: map[string]string{"n": "0"}})
	interfere := func(times int) {
		f.consensus.setHooks(func(fsm.Command) error {
			if times--; times < 0 {
				return nil
			}
			// Somebody else changes the object between the decision and the log.
			live := f.store.View().Get(fsm.Key{Resource: "configmaps", Namespace: "default", Name: "busy"})
			data := append([]byte(nil), live.Data...)
			data[len(data)-1] ^= 1 // the value's last bit
			f.consensus.apply(fsm.Command{Term: 1, Ops: []fsm.Op{{Verb: fsm.Update, Key: live.Key, UID: live.UID, Data: data}}})
			return nil
		}, nil)
	}
	interfere(3)
	f.want(f.do("PATCH", configMaps+"/busy", "application/merge-patch+json", `{"metadata":{"labels":{"x":"y"}}}`), 200, `"n":"1"`)

	interfere(1)
	version := f.do("GET", configMaps+"/busy", "", "").text("metadata.resourceVersion")
	f.want(f.do("PUT", configMaps+"/busy", typeJSON, `{"metadata":{"resourceVersion":"`+version+`"},"data":{"m":"1"}}`), 409, "the object has been modified")

	interfere(1000)
	f.want(f.do("PATCH", configMaps+"/busy", "application/merge-patch+json", `{"metadata":{"labels":{"x":"z"}}}`), 409, "times in a row")
}

func TestOtherTermsAndReplicas(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	req := f.request("POST", configMaps, `{"metadata":{"name":"a"}}`)
	f.unchanged(func() {
		// The term changes between the decision and the log.
		f.consensus.setHooks(func(fsm.Command) error {
			f.consensus.mu.Lock()
			defer f.consensus.mu.Unlock()
			f.consensus.term++
			return nil
		}, nil)
		if resp := f.server.HandleForwarded(ctx, req); !resp.NotLeader {
			t.Errorf("got %d %s from a leader of an old term", resp.Status, resp.Body)
		}
		f.consensus.setHooks(nil, nil)
		f.consensus.leading = false
		if resp := f.server.HandleForwarded(ctx, req); !resp.NotLeader {
			t.Errorf("got %d %s from a replica that does not lead", resp.Status, resp.Body)
		}
	})
	r := f.want(f.do("POST", configMaps, typeJSON, `{"metadata":{"name":"a"}}`), 503, "leader")
	if r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	f.consensus.leading = true
	f.unchanged(func() {
		if resp := f.server.HandleForwarded(ctx, req); !resp.NotLeader {
			t.Errorf("a copy that was sent to the leader of an earlier term got %d %s", resp.Status, resp.Body)
		}
	})
	req.Term, req.Attempt = f.consensus.term, 2
	if resp := f.server.HandleForwarded(ctx, req); resp.Status != 201 {
		t.Errorf("got %d %s", resp.Status, resp.Body)
	}
}

func TestForgottenRequestIsRefused(t *testing.T) {
	bounds := fsm.DefaultConfig()
	bounds.MaxOutcomes = 2
	f := newFixture(t, func(c *Config) {
		c.Store = fsm.New(bounds)
		c.Consensus.(*single).store = c.Store
	})
	f.store = f.server.cfg.Store
	req := f.request("POST", configMaps, `{"metadata":{"name":"late"}}`)
	for _, name := range []string{"a", "b", "c", "d"} {
		f.want(f.do("POST", configMaps, typeJSON, `{"metadata":{"name":"`+name+`"}}`), 201, name)
	}
	f.unchanged(func() {
		resp := f.server.HandleForwarded(context.Background(), req)
		if resp.Status != http.StatusGatewayTimeout || !json.Valid(resp.Body) {
			t.Errorf("got %d %s", resp.Status, resp.Body)
		}
	})
}

func TestPanicIsAnsweredAndTheRequestForgotten(t *testing.T) {
	f := newFixture(t)
	f.consensus.setHooks(func(fsm.Command) error { panic("boom") }, nil)
	req := f.request("POST", configMaps, `{"metadata":{"name":"a"}}`)
	if resp := f.server.HandleForwarded(context.Background(), req); resp.Status != 500 {
		t.Errorf("got %d", resp.Status)
	}
	f.consensus.setHooks(nil, nil)
	if resp := f.server.HandleForwarded(context.Background(), req); resp.Status != 201 {
		t.Errorf("got %d %s", resp.Status, resp.Body)
	}
}

func TestWritesAreAuthorisedAtTheLeader(t *testing.T) {
	f := newFixture(t)
	f.put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w2"}})
	f.unchanged(func() {
		f.want(f.as("node:w1", "POST", configMaps, typeJSON, `{"metadata":{"name":"a"}}`), 403, "cannot create")
		f.want(f.as("node:w1", "POST", "/api/v1/nodes", typeJSON, `{"metadata":{"name":"w3"}}`), 403, "own name")
		f.want(f.as("node:w1", "PATCH", "/api/v1/nodes/w2/status", "application/merge-patch+json", `{"status":{}}`), 403, "another node")
		f.want(f.as("", "POST", configMaps, typeJSON, `{}`), 401, "Unauthorized")
	})
	f.want(f.as("node:w1", "POST", "/api/v1/nodes", typeJSON, `{"metadata":{"name":"w1"}}`), 201, "w1")
}
