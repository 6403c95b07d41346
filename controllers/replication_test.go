package controllers

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/shepherd-project/shepherd/fsm"
)

// bubble runs a test of planners in a bubble, where time stands still unless
// the test sleeps.
func bubble(t *testing.T, test func(*testing.T, *testCluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t, 1)
		create(c, testNamespace("default"))
		test(t, c)
	})
}

func (c *testCluster) sets() map[string]int32 {
	sizes := map[string]int32{}
	for _, set := range all[*appsv1.ReplicaSet](c, resReplicaSets, "default") {
		sizes[set.Spec.Template.Spec.Containers[0].Image] = replicas(set)
	}
	return sizes
}

// runAll makes the pods that pick chooses run.
func (c *testCluster) runAll(pick func(*corev1.Pod) bool) {
	for _, pod := range c.activePods("default") {
		if !ready(pod) && pick(pod) {
			c.run(pod)
		}
	}
}

func anyPod(*corev1.Pod) bool { return true }

func ofImage(image string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p.Spec.Containers[0].Image == image }
}

func image(name string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = name }
}

func size(n int32) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Replicas = &n }
}

// finish rolls until everything runs and nothing is left to do.
func (c *testCluster) finish() {
	c.t.Helper()
	for range 60 {
		n := c.plan(planReplication)
		c.runAll(anyPod)
		c.stopTerminating()
		if n == 0 && c.plan(planReplication) == 0 {
			return
		}
	}
	c.t.Fatal("the rollout does not end")
}

// stopTerminating lets the agents' part of deletions happen.
func (c *testCluster) stopTerminating() {
	for _, pod := range c.pods("default") {
		if pod.DeletionTimestamp != nil {
			c.must((&change{}).remove(pod))
		}
	}
}

func progressReason(d *appsv1.Deployment) string {
	if c := deploymentCondition(&d.Status, appsv1.DeploymentProgressing); c != nil {
		return c.Reason
	}
	return ""
}

func TestDeploymentMakesSetAndPods(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		d := create(c, testDeployment("web", 6))
		c.settle(planReplication)
		if n := len(c.activePods("default")); n != 6 {
			t.Fatalf("%d pods, want 6", n)
		}
		set := all[*appsv1.ReplicaSet](c, resReplicaSets, "default")[0]
		hash := set.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
		if hash == "" || set.Name != "web-"+hash || set.Spec.Selector.MatchLabels[appsv1.DefaultDeploymentUniqueLabelKey] != hash {
			t.Errorf("hash %q is not in name %q, labels and selector", hash, set.Name)
		}
		if ref := controllerOf(set); ref == nil || ref.UID != d.UID {
			t.Errorf("the set is controlled by %v", ref)
		}
		for _, pod := range c.pods("default") {
			if pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != hash || controllerOf(pod).UID != set.UID {
				t.Errorf("pod %s has labels %v and controller %v", pod.Name, pod.Labels, controllerOf(pod))
			}
		}
		if d = read(c, d); progressReason(d) != reasonSetUpdated || d.Status.ObservedGeneration != d.Generation {
			t.Errorf("progress %q, observed generation %d of %d", progressReason(d), d.Status.ObservedGeneration, d.Generation)
		}
		c.finish()
		d = read(c, d)
		if s := d.Status; s.ReadyReplicas != 6 || s.AvailableReplicas != 6 || s.UpdatedReplicas != 6 || s.UnavailableReplicas != 0 {
			t.Errorf("status %+v", s)
		}
		if progressReason(d) != reasonSetAvailable || d.Annotations[revisionAnnotation] != "1" {
			t.Errorf("progress %q, revision %q", progressReason(d), d.Annotations[revisionAnnotation])
		}
	})
}

func TestRollingUpdateAndRollBackNumberRevisions(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		d := create(c, testDeployment("web", 4))
		c.finish()
		edit(c, d, image("v2"))
		c.finish()
		if got := c.sets(); !maps.Equal(got, map[string]int32{"v1": 0, "v2": 4}) {
			t.Errorf("after the update: %v", got)
		}
		edit(c, d, image("v1")) // rollout undo writes the old template
		c.finish()
		if got := c.sets(); !maps.Equal(got, map[string]int32{"v1": 4, "v2": 0}) {
			t.Errorf("after the roll back: %v", got)
		}
		for _, set := range all[*appsv1.ReplicaSet](c, resReplicaSets, "default") {
			if set.Spec.Template.Spec.Containers[0].Image == "v1" &&
				(set.Annotations[revisionAnnotation] != "3" || set.Annotations[revisionHistoryAnnotation] != "1") {
				t.Errorf("annotations of the set rolled back to: %v", set.Annotations)
			}
		}
		if r := read(c, d).Annotations[revisionAnnotation]; r != "3" {
			t.Errorf("revision %s, want 3", r)
		}
	})
}

func TestStalledRolloutScalesInProportion(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		d := testDeployment("web", 10)
		surge, unavailable := intstr.FromInt32(3), intstr.FromInt32(2)
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable}
		d = create(c, d)
		c.finish()
		edit(c, d, image("bad")) // its pods never run
		for range 20 {
			c.plan(planReplication)
			c.stopTerminating()
		}
		if got := c.sets(); !maps.Equal(got, map[string]int32{"v1": 8, "bad": 5}) {
			t.Fatalf("stalled at %v", got)
		}
		edit(c, d, size(30))
		c.settle(planReplication)
		if got := c.sets(); !maps.Equal(got, map[string]int32{"v1": 20, "bad": 13}) {
			t.Errorf("scaled to %v, want 20 old and 13 new", got)
		}
	})
}

func TestRollover(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		d := create(c, testDeployment("web", 4))
		c.finish()
		edit(c, d, image("bad"))
		for range 10 {
			c.plan(planReplication)
			c.runAll(ofImage("v1"))
			c.stopTerminating()
		}
		edit(c, d, image("v3"))
		c.finish()
		if got := c.sets(); !maps.Equal(got, map[string]int32{"v1": 0, "bad": 0, "v3": 4}) {
			t.Errorf("after the rollover: %v", got)
		}
	})
}

func TestRecreateNeverMixesTemplates(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		d := testDeployment("web", 3)
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
		d = create(c, d)
		c.finish()
		for _, pod := range c.pods("default") {
			bound := pod.DeepCopy()
			bound.Spec.NodeName = "w1" // so that deletions are graceful
			c.must((&change{}).update(pod, bound))
		}
		c.checks = append(c.checks, func(*fsm.View) error {
			images := map[string]bool{}
			for _, pod := range all[*corev1.Pod](c, resPods, "default") {
				images[pod.Spec.Containers[0].Image] = true
			}
			if len(images) > 1 {
				return fmt.Errorf("old and new pods at once")
			}
			return nil
		})
		edit(c, d, image("v2"))
		c.settle(planReplication)
		if n := len(c.activePods("default")); n != 0 {
			t.Errorf("%d pods run while the old ones stop", n)
		}
		c.stopTerminating()
		c.finish()
		if got := c.sets(); !maps.Equal(got, map[string]int32{"v1": 0, "v2": 3}) {
			t.Errorf("after the update: %v", got)
		}
	})
}

func TestPausedDeploymentScalesButDoesNotRoll(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		d := create(c, testDeployment("web", 2))
		c.finish()
		edit(c, d, func(d *appsv1.Deployment) { d.Spec.Paused = true; image("v2")(d); size(5)(d) })
		c.finish()
		if got := c.sets(); !maps.Equal(got, map[string]int32{"v1": 5}) {
			t.Errorf("while paused: %v", got)
		}
		if r := progressReason(read(c, d)); r != reasonPaused {
			t.Errorf("progress %q", r)
		}
		edit(c, d, func(d *appsv1.Deployment) { d.Spec.Paused = false })
		c.finish()
		if got := c.sets(); !maps.Equal(got, map[string]int32{"v1": 0, "v2": 5}) {
			t.Errorf("after resuming: %v", got)
		}
	})
}

func TestRevisionHistoryLimit(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		d := testDeployment("web", 1)
		none := int32(0)
		d.Spec.RevisionHistoryLimit = &none
		d = create(c, d)
		c.finish()
		for _, name := range []string{"v2", "v3"} {
			edit(c, d, image(name))
			c.finish()
		}
		if got := c.sets(); !maps.Equal(got, map[string]int32{"v3": 1}) {
			t.Errorf("sets left: %v", got)
		}
	})
}

func TestMinReadySecondsAndProgressDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		d := testDeployment("web", 1)
		deadline := int32(30)
		d.Spec.MinReadySeconds, d.Spec.ProgressDeadlineSeconds = 10, &deadline
		d = create(c, d)
		c.settle(planReplication)
		time.Sleep(31 * time.Second)
		c.settle(planReplication)
		if r := progressReason(read(c, d)); r != reasonTimedOut {
			t.Errorf("progress after the deadline: %q", r)
		}
		c.runAll(anyPod)
		c.settle(planReplication)
		if s := read(c, d).Status; s.ReadyReplicas != 1 || s.AvailableReplicas != 0 {
			t.Errorf("just ready: %+v", s)
		}
		time.Sleep(10 * time.Second)
		c.settle(planReplication)
		if d := read(c, d); d.Status.AvailableReplicas != 1 || progressReason(d) != reasonSetAvailable {
			t.Errorf("ready for 10 s: %+v", d.Status)
		}
	})
}

func TestReplicaSetAdoptsAndReleases(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		mine := create(c, testPod("mine", map[string]string{"app": "web"}))
		set := create(c, testReplicaSet("web", 2))
		c.settle(planReplication)
		if ref := controllerOf(read(c, mine)); ref == nil || ref.UID != set.UID || len(c.pods("default")) != 2 {
			t.Fatalf("not adopted: %v, %d pods", ref, len(c.pods("default")))
		}
		edit(c, mine, func(p *corev1.Pod) { p.Labels["app"] = "other" })
		c.settle(planReplication)
		if ref := controllerOf(read(c, mine)); ref != nil || len(c.pods("default")) != 3 {
			t.Errorf("not released: %v, %d pods", ref, len(c.pods("default")))
		}
	})
}

func TestTheSameCreationTwiceCollides(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		create(c, testReplicaSet("web", 5))
		first, err := planReplication(c.world())
		if err != nil {
			t.Fatal(err)
		}
		second, err := planReplication(c.world())
		if err != nil {
			t.Fatal(err)
		}
		for i, cmd := range slices.Concat(first.commands(), second.commands()) {
			if ok := c.apply(&change{pre: cmd.Pre, ops: cmd.Ops}); ok != (i < len(first.commands())) {
				t.Errorf("command %d applied: %v", i, ok)
			}
		}
		if n := len(c.pods("default")); n != 5 {
			t.Errorf("%d pods, want 5", n)
		}
	})
}

func TestCreationDependsOnOwnerAndNamespace(t *testing.T) {
	for name, interfere := range map[string]func(*testCluster, *appsv1.ReplicaSet){
		"owner scaled": func(c *testCluster, s *appsv1.ReplicaSet) {
			edit(c, s, func(s *appsv1.ReplicaSet) { *s.Spec.Replicas = 1 })
		},
		"owner deleted": func(c *testCluster, s *appsv1.ReplicaSet) { remove(c, s) },
		"namespace terminates": func(c *testCluster, _ *appsv1.ReplicaSet) {
			edit(c, testNamespace("default"), func(n *corev1.Namespace) { n.Status.Phase = corev1.NamespaceTerminating })
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *testCluster) {
				set := create(c, testReplicaSet("web", 2))
				p, err := planReplication(c.world())
				if err != nil {
					t.Fatal(err)
				}
				interfere(c, set)
				for _, cmd := range p.commands() {
					if c.apply(&change{pre: cmd.Pre, ops: cmd.Ops}) {
						t.Error("a creation was applied that no longer fitted")
					}
				}
			})
		})
	}
}

func TestRankForDeletion(t *testing.T) {
	at := func(s int64) metav1.Time { return metav1.Unix(s, 0) }
	pod := func(name, node string, phase corev1.PodPhase, readyAt int64, created int64) *corev1.Pod {
		p := testPod(name, nil)
		p.Spec.NodeName, p.Status.Phase, p.CreationTimestamp = node, phase, at(created)
		if readyAt > 0 {
			setPodCondition(p, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}, at(readyAt))
		}
		return p
	}
	cheap := pod("cheap", "a", corev1.PodRunning, 10, 1)
	cheap.Annotations = map[string]string{corev1.PodDeletionCost: "-5"}
	restarted := pod("restarted", "b", corev1.PodRunning, 10, 1)
	restarted.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 3}}
	want := []*corev1.Pod{
		pod("unassigned", "", corev1.PodPending, 0, 1),
		pod("pending", "c", corev1.PodPending, 0, 1),
		pod("unready", "a", corev1.PodRunning, 0, 1),
		cheap,
		pod("together-young", "a", corev1.PodRunning, 20, 1),
		pod("together-old", "a", corev1.PodRunning, 10, 1),
		restarted,
		pod("newer", "b", corev1.PodRunning, 10, 5),
		pod("older", "b", corev1.PodRunning, 10, 1),
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		shuffled := slices.Clone(want)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for i, p := range rankForDeletion(shuffled) {
			if p != want[i] {
				t.Fatalf("at %d is %s, want %s", i, p.Name, want[i].Name)
			}
		}
	}
}

func TestBounds(t *testing.T) {
	for _, test := range []struct {
		surge, unavailable         string
		replicas                   int32
		wantSurge, wantUnavailable int32
	}{
		{"25%", "25%", 6, 2, 1},
		{"25%", "25%", 10, 3, 2},
		{"0", "0", 4, 0, 1},
		{"0%", "10%", 4, 0, 1},
		{"3", "2", 10, 3, 2},
		{"1", "5", 2, 1, 2},
		{"100%", "0", 3, 3, 0},
	} {
		d := testDeployment("web", test.replicas)
		surge, unavailable := intstr.Parse(test.surge), intstr.Parse(test.unavailable)
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable}
		if s, u := bounds(d); s != test.wantSurge || u != test.wantUnavailable {
			t.Errorf("%+v: %d and %d", test, s, u)
		}
	}
}
