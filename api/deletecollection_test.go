package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shepherd-project/shepherd/fsm"
)

func (f *fixture) configMaps(names ...string) {
	f.t.Helper()
	for _, name := range names {
		f.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": name[:1]}}})
	}
}

// names lists the config maps there are.
func (f *fixture) names() (list []string) {
	for o := range f.store.View().List("configmaps", "default") {
		list = append(list, o.Key.Name)
	}
	return list
}

func (f *fixture) wantNames(names ...string) {
	f.t.Helper()
	if got := f.names(); !slices.Equal(got, names) {
		f.t.Errorf("there are %v, want %v", got, names)
	}
}

func TestDeleteCollection(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	f.configMaps("a1", "a2", "b1", "b2", "b3", "c1")
	f.check(t, []rule{
		{"bad selector", "DELETE", configMaps + "?labelSelector=((", "", ``, 400, ""},
		{"unknown field", "DELETE", configMaps + "?fieldSelector=data.x%3D1", "", ``, 400, ""},
		{"bad policy", "DELETE", configMaps, "", `{"propagationPolicy":"Later"}`, 422, "propagationPolicy"},
		{"bad body", "DELETE", configMaps, "", `{`, 400, "DeleteOptions"},
		{"all namespaces", "DELETE", "/api/v1/configmaps", "", ``, 405, ""},
		{"namespaces", "DELETE", "/api/v1/namespaces", "", ``, 405, ""},
		{"other uid", "DELETE", configMaps, "", `{"preconditions":{"uid":"x"}}`, 409, "UID in precondition"},
		{"past", "DELETE", configMaps + "?resourceVersion=1&resourceVersionMatch=Exact", "", ``, 400, "Exact"},
	})
	f.unchanged(func() {
		f.want(f.as("node:w1", "DELETE", configMaps, "", ``), 403, "cannot deletecollection")
		r := f.want(f.do("DELETE", configMaps+"?dryRun=All", "", ``), 200, `"ConfigMapList"`)
		if len(r.at("items").([]any)) != 6 {
			t.Errorf("%s", r.body)
		}
		f.want(f.do("DELETE", configMaps+"?labelSelector=app%3Dz", "", ``), 200, `"items":[]`)
	})
	r := f.want(f.do("DELETE", configMaps+"?labelSelector=app%3Da", "", ``), 200, `"a2"`)
	if len(r.at("items").([]any)) != 2 {
		t.Errorf("%s", r.body)
	}
	f.wantNames("b1", "b2", "b3", "c1")
	f.want(f.do("DELETE", configMaps+"?fieldSelector=metadata.name%3Db2", "", ``), 200, `"b2"`)
	f.want(f.do("DELETE", configMaps+"?limit=1", "", ``), 200, `"b1"`)
	f.wantNames("b3", "c1")
	f.want(f.do("DELETE", configMaps+"?labelSelector=app%3Dc", typeJSON, `{"propagationPolicy":"Foreground"}`), 200, "foregroundDeletion")
	f.wantNames("b3", "c1") // c1 waits for the garbage collector

	// As client-go does it, in protobuf.
	if err := f.typed().CoreV1().ConfigMaps("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=b"}); err != nil {
		t.Error(err)
	}
	f.wantNames("c1")
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprintf("m%d", i))
	}
	f.configMaps(many...)
	if err := f.typed().CoreV1().ConfigMaps("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	f.wantNames("c1")
}

// TestDeleteCollectionResent: the leader dies in the middle. The resend deletes
// the rest, deletes nothing twice, spares what was made since, and answers with
// all objects of both attempts.
func TestDeleteCollectionResent(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	f.configMaps("a1", "a2", "a3", "a4")
	left := 2
	f.consensus.setHooks(func(fsm.Command) error {
		f.consensus.mu.Lock()
		defer f.consensus.mu.Unlock()
		if left--; left < 0 {
			return errors.New("leadership lost")
		}
		return nil
	}, nil)
	req := f.request("DELETE", configMaps, "")
	if resp := f.server.HandleForwarded(ctx, req); !resp.NotLeader {
		t.Fatalf("got %d %s", resp.Status, resp.Body)
	}
	rest := f.names()
	if len(rest) != 2 {
		t.Fatalf("left are %v", rest)
	}
	f.consensus.setHooks(nil, nil)
	// Others put back one that was deleted, and make another.
	var again string
	for _, name := range []string{"a1", "a2", "a3", "a4"} {
		if !slices.Contains(rest, name) {
			again = name
		}
	}
	f.configMaps(again, "z1")
	for range 2 {
		resp := f.server.HandleForwarded(ctx, req)
		var list corev1.ConfigMapList
		if _, err := decodeJSON(resp.Body, &list); err != nil || resp.Status != 200 || len(list.Items) != 4 {
			t.Errorf("got %d, %v: %s", resp.Status, err, resp.Body)
		}
		f.wantNames(again, "z1")
	}
}

// TestDeleteCollectionBeyondTheTable: a request with more objects than the table
// of outcomes holds is carried out to its end.
func TestDeleteCollectionBeyondTheTable(t *testing.T) {
	bounds := fsm.DefaultConfig()
	bounds.MaxOutcomes = 4
	f := newFixture(t, func(c *Config) {
		c.Store = fsm.New(bounds)
		c.Consensus.(*single).store = c.Store
	})
	f.store = f.server.cfg.Store
	for i := range 50 {
		f.configMaps(fmt.Sprintf("m%d", i))
	}
	f.want(f.do("DELETE", configMaps, "", ``), 200, `"m49"`)
	f.wantNames()
}
