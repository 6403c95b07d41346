package controllers

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shepherd-project/shepherd/fsm"
)

// belongs adds an owner reference that blocks the owner's deletion.
func belongs(c *testCluster, pod *corev1.Pod, kind string, owner object) *corev1.Pod {
	yes := true
	version := "v1"
	if kind == kindReplicaSet || kind == kindDeployment {
		version = "apps/v1"
	}
	return edit(c, pod, func(p *corev1.Pod) {
		p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{APIVersion: version, Kind: kind,
			Name: owner.GetName(), UID: owner.GetUID(), BlockOwnerDeletion: &yes})
	})
}

func TestBackgroundDeletionCascades(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		d := create(c, testDeployment("web", 4))
		c.finish()
		remove(c, d)
		c.settle(planGarbage)
		if n := len(c.pods("default")) + len(c.sets()); n != 0 {
			t.Errorf("%d sets and pods are left", n)
		}
	})
}

func TestForegroundDeletionTakesTheDependentsFirst(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		d := create(c, testDeployment("web", 3))
		c.finish()
		remove(c, d, metav1.FinalizerDeleteDependents)
		c.checks = append(c.checks, func(*fsm.View) error {
			if len(c.sets()) > 0 && !c.exists(d) || len(c.pods("default")) > 0 && len(c.sets()) == 0 {
				return fmt.Errorf("an owner went before its dependents")
			}
			return nil
		})
		for range 20 {
			c.plan(planReplication) // does not bring anything back
			c.plan(planGarbage)
		}
		if c.exists(d) || len(c.sets()) != 0 || len(c.pods("default")) != 0 {
			t.Errorf("left: deployment %v, sets %v, %d pods", c.exists(d), c.sets(), len(c.pods("default")))
		}
	})
}

func TestOrphaningKeepsTheDependents(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		d := create(c, testDeployment("web", 3))
		c.finish()
		remove(c, d, metav1.FinalizerOrphanDependents)
		for range 10 {
			c.plan(planReplication)
			c.plan(planGarbage)
		}
		if c.exists(d) || len(c.pods("default")) != 3 {
			t.Errorf("deployment %v, %d pods", c.exists(d), len(c.pods("default")))
		}
		for _, set := range all[*appsv1.ReplicaSet](c, resReplicaSets, "default") {
			if len(set.OwnerReferences) != 0 {
				t.Errorf("owners left: %v", set.OwnerReferences)
			}
		}
	})
}

func TestOwnerCycles(t *testing.T) {
	for name, finalizers := range map[string][]string{"background": nil, "foreground": {metav1.FinalizerDeleteDependents}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *testCluster) {
				a, b, d := create(c, testPod("a", nil)), create(c, testPod("b", nil)), create(c, testPod("d", nil))
				belongs(c, a, "Pod", d)
				belongs(c, b, "Pod", a)
				belongs(c, d, "Pod", b)
				c.settle(planGarbage)
				if n := len(c.pods("default")); n != 3 {
					t.Fatalf("%d pods before the deletion", n)
				}
				remove(c, a, finalizers...)
				c.settle(planGarbage)
				if n := len(c.pods("default")); n != 0 {
					t.Errorf("%d pods of the circle are left", n)
				}
			})
		})
	}
}

func TestOwnersAreJudgedByUID(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		first, second := create(c, testPod("first", nil)), create(c, testPod("second", nil))
		shared := belongs(c, belongs(c, create(c, testPod("shared", nil)), "Pod", first), "Pod", second)
		alone := belongs(c, create(c, testPod("alone", nil)), "Pod", first)
		foreign := edit(c, create(c, testPod("foreign", nil)), func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Thing", Name: "x", UID: "unknown"}}
		})
		remove(c, first)
		create(c, testPod("first", nil)) // the same name is not the same owner
		c.settle(planGarbage)
		if c.exists(alone) {
			t.Error("kept for an owner of the same name")
		}
		if !c.exists(shared) || len(read(c, shared).OwnerReferences) != 1 {
			t.Error("one owner of two is left: the object must stay, with one reference")
		}
		if !c.exists(foreign) {
			t.Error("removed for an owner of a kind that is not served here")
		}
	})
}

// TestGarbageOfOtherKinds: objects of kinds that are only looked at when they
// have owners, or go.
func TestGarbageOfOtherKinds(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		owner := create(c, testPod("owner", nil))
		config := func(name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
			return create(c, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, OwnerReferences: owners}})
		}
		ref := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: owner.Name, UID: owner.UID}
		renamed := ref
		renamed.Name = "another"
		kept, lost, misnamed, nobodys := config("kept", ref), config("lost", metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "gone", UID: "gone"}), config("misnamed", renamed), config("nobodys")
		before := c.decoder.Bytes()
		c.plan(planGarbage)
		if c.exists(lost) || c.exists(misnamed) || !c.exists(kept) || !c.exists(nobodys) {
			t.Error("what has lost its owner goes, and nothing else")
		}
		one := c.decoder.Bytes() - before
		for i := range 100 {
			config(fmt.Sprint("more-", i))
		}
		before = c.decoder.Bytes()
		c.settle(planGarbage)
		if more := c.decoder.Bytes() - before; more > one {
			t.Errorf("%d bytes of objects were decoded that nobody owns, %d for three that are owned", more, one)
		}
		remove(c, owner)
		c.settle(planGarbage)
		if c.exists(kept) {
			t.Error("the dependent of a pod outlived it")
		}
	})
}

func TestWhatHasHadItsTimeIsRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		c.config.FinishedPods = 2
		event := create(c, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e"}})
		renewed := create(c, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "r"}})
		edit(c, renewed, func(e *corev1.Event) { e.LastTimestamp = metav1.NewTime(time.Now().Add(30 * time.Minute)) })
		for i := range 4 {
			pod := create(c, testPod(fmt.Sprintf("done-%d", i), nil))
			edit(c, pod, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded; p.Spec.NodeName = "w1" })
			time.Sleep(time.Minute)
		}
		c.settle(planGarbage)
		if c.exists(testPod("done-1", nil)) || !c.exists(testPod("done-2", nil)) || !c.exists(event) {
			t.Error("the two oldest finished pods should be gone, and nothing else")
		}
		time.Sleep(time.Hour)
		c.settle(planGarbage)
		if c.exists(event) || !c.exists(renewed) {
			t.Error("events are kept for an hour after they were last seen")
		}
		unbound := create(c, testPod("unbound", nil))
		edit(c, unbound, func(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now })
		service := testService("web", intPort(80))
		service.Spec.Type, service.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
		service = create(c, service)
		c.settle(planServices)
		c.settle(planGarbage)
		port := fsm.Key{Resource: fsm.ReservationResource, Name: "nodeport/30080"}
		if c.store.View().Get(port) == nil {
			t.Error("the node port was not reserved")
		}
		ip := read(c, service).Spec.ClusterIP
		remove(c, service)
		c.settle(planGarbage)
		if c.exists(unbound) || c.store.View().Get(clusterIPKey(ip)) != nil || c.store.View().Get(port) != nil {
			t.Error("a terminating pod without a node, and the address and port of a removed service, should be gone")
		}
	})
}

func TestNamespaceIsEmptiedAndRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		ns := create(c, testNamespace("doomed"))
		d := testDeployment("web", 2)
		d.Namespace = "doomed"
		create(c, d)
		c.settle(planReplication)
		pod := c.pods("doomed")[0]
		edit(c, pod, func(p *corev1.Pod) { p.Spec.NodeName = "w1" })
		held := create(c, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "doomed", Name: "held", Finalizers: []string{"example.com/hold"}}})
		create(c, testPod("safe", nil))
		edit(c, ns, func(n *corev1.Namespace) {
			now := metav1.Now()
			n.DeletionTimestamp, n.Status.Phase = &now, corev1.NamespaceTerminating
		})
		for range 10 {
			c.plan(planNamespaces)
			c.plan(planReplication)
			c.plan(planGarbage)
		}
		if left := c.pods("doomed"); len(left) != 1 || left[0].DeletionTimestamp == nil || !c.exists(ns) {
			t.Fatalf("%d pods left; one must be stopping", len(left))
		}
		c.must((&change{}).remove(read(c, pod)))
		c.settle(planNamespaces)
		if got := read(c, held); got.DeletionTimestamp == nil || !c.exists(ns) {
			t.Fatal("what has a finalizer holds the namespace")
		}
		c.must((&change{}).remove(read(c, held)))
		c.settle(planNamespaces)
		if c.exists(ns) || !c.exists(testPod("safe", nil)) {
			t.Error("the namespace should be gone, and nothing else")
		}
	})
}
