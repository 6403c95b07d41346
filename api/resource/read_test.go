package resource

import (
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shepherd-project/shepherd/fsm"
)

// TestStore writes through a real store and reads typed objects back.
func TestStore(t *testing.T) {
	store := fsm.New(fsm.DefaultConfig())
	index := uint64(0)
	apply := func(op fsm.Op, err error) fsm.Result {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		index++
		results, ok := store.Apply(&raft.Log{Index: index, Term: 1, Type: raft.LogCommand,
			Data: fsm.EncodeEntry([]fsm.Command{{Term: 1, Ops: []fsm.Op{op}}})}).([]fsm.Result)
		if !ok || len(results) != 1 || results[0].Code != fsm.OK {
			t.Fatalf("apply %s: %v", op.Key, results)
		}
		return results[0]
	}
	d := NewDecoder(1 << 20)
	web := samples(t)["deployments"].(*appsv1.Deployment)
	created := apply(CreateOp(web))
	other := web.DeepCopy()
	other.Name, other.UID, other.Namespace = "api", "u2", "prod"
	apply(CreateOp(other))
	apply(CreateOp(samples(t)["configmaps"].(*corev1.ConfigMap)))

	got, ok, err := Get[*appsv1.Deployment](d, store.View(), "deployments.apps", "default", "web")
	if err != nil || !ok || got.ResourceVersion != FormatRevision(created.Objects[0].Modified) || got.UID != web.UID {
		t.Fatalf("%+v, %t, %v", got, ok, err)
	}
	if _, ok, err := Get[*appsv1.Deployment](d, store.View(), "deployments.apps", "default", "none"); ok || err != nil {
		t.Errorf("found what is not there (%v)", err)
	}
	if _, _, err := Get[*corev1.Pod](d, store.View(), "deployments.apps", "default", "web"); err == nil || !strings.Contains(err.Error(), "deployments.apps/default/web") {
		t.Errorf("a Deployment as a Pod: %v", err)
	}
	for namespace, want := range map[string]int{"": 2, "default": 1, "prod": 1, "none": 0} {
		list, err := List[*appsv1.Deployment](d, store.View(), "deployments.apps", namespace)
		if err != nil || len(list) != want {
			t.Errorf("namespace %q: %d Deployments, want %d (%v)", namespace, len(list), want, err)
		}
	}

	// The same again is no change; a change takes a revision; a deletion ends it.
	before := store.View().Revision()
	same := got.DeepCopy()
	apply(UpdateOp(same))
	if after := store.View().Revision(); after != before {
		t.Errorf("an update to the same took revision %d after %d", after, before)
	}
	changed := got.DeepCopy()
	changed.Labels = map[string]string{"a": "b"}
	apply(UpdateOp(changed))
	again, _, err := Get[*appsv1.Deployment](d, store.View(), "deployments.apps", "default", "web")
	if err != nil || again.Labels["a"] != "b" || again.ResourceVersion == got.ResourceVersion || got.Labels != nil {
		t.Errorf("after an update: %+v (%v)", again, err)
	}
	apply(DeleteOp(store.View().Get(deploymentKind.Key("default", "web"))), nil)
	if _, ok, err := Get[*appsv1.Deployment](d, store.View(), "deployments.apps", "default", "web"); ok || err != nil {
		t.Errorf("found after its deletion (%v)", err)
	}
	if _, err := List[runtime.Object](d, store.View(), "configmaps", ""); err != nil {
		t.Errorf("a list of any type: %v", err)
	}
}
