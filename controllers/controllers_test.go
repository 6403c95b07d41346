package controllers

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/shepherd-project/shepherd/fsm"
)

// live runs all controllers and two agents in a bubble.
func live(t *testing.T, test func(t *testing.T, c *testCluster, agents map[string]chan struct{})) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t, 5)
		c.latency = 2 * time.Millisecond
		bound := map[types.UID]string{}
		c.checks = append(c.checks, func(*fsm.View) error {
			for _, pod := range c.pods("") {
				if was := bound[pod.UID]; was != "" && was != pod.Spec.NodeName {
					return fmt.Errorf("pod %s moved from %s to %q", pod.Name, was, pod.Spec.NodeName)
				}
				bound[pod.UID] = pod.Spec.NodeName
			}
			return nil
		})
		m, err := NewManager(c, c.deps())
		if err != nil {
			t.Fatal(err)
		}
		stopCh, done := make(chan struct{}), make(chan struct{})
		go func() { defer close(done); m.Run(stopCh) }()
		agents := map[string]chan struct{}{}
		for _, name := range []string{"w1", "w2"} {
			agents[name] = make(chan struct{})
			go c.kubelet(name, agents[name])
		}
		c.until(5*time.Second, "the namespaces", func() bool { return c.exists(testNamespace("default")) })
		test(t, c, agents)
		for _, agent := range agents {
			close(agent)
		}
		close(stopCh)
		<-done
	})
}

// until looks at every tenth of a second of the bubble's time.
func (c *testCluster) until(limit time.Duration, what string, reached func() bool) {
	c.t.Helper()
	for start := time.Now(); !reached(); {
		if time.Since(start) > limit {
			for _, pod := range c.pods("") {
				c.t.Logf("pod %s on %q: %s, ready %v, deleted %v", pod.Name, pod.Spec.NodeName, pod.Status.Phase, ready(pod), pod.DeletionTimestamp)
			}
			c.t.Fatalf("%s: not after %s", what, limit)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (c *testCluster) available(d *appsv1.Deployment, n int32) func() bool {
	return func() bool {
		d := read(c, d)
		return d.Status.ObservedGeneration == d.Generation && d.Status.AvailableReplicas == n &&
			d.Status.UpdatedReplicas == n && d.Status.Replicas == n
	}
}

func TestDeploymentRunsRollsSurvivesANodeAndGoes(t *testing.T) {
	live(t, func(t *testing.T, c *testCluster, agents map[string]chan struct{}) {
		d := create(c, testDeployment("web", 6))
		create(c, testService("web", intPort(8080)))
		c.until(3*time.Second, "6 ready", c.available(d, 6))
		count := map[string]int{}
		for _, pod := range c.activePods("default") {
			count[pod.Spec.NodeName]++
		}
		if count["w1"] != 3 || count["w2"] != 3 {
			t.Errorf("spread %v", count)
		}
		serving := func(n int) func() bool {
			return func() bool {
				got := 0
				for _, slice := range c.slices("web") {
					for _, e := range slice.Endpoints {
						if *e.Conditions.Ready {
							got++
						}
					}
				}
				return got == n
			}
		}
		c.until(time.Second, "6 endpoints", serving(6))

		// 25 % of 6: two more, one unavailable.
		c.mu.Lock()
		c.checks = append(c.checks, func(*fsm.View) error {
			if n := len(c.activePods("default")); n > 8 {
				return fmt.Errorf("%d pods", n)
			}
			return nil
		})
		keep := len(c.checks)
		c.checks = append(c.checks, func(*fsm.View) error {
			if n := countReady(c.activePods("default")); n < 5 {
				return fmt.Errorf("%d ready pods", n)
			}
			return nil
		})
		c.mu.Unlock()
		edit(c, d, image("v2"))
		c.until(30*time.Second, "the new image", c.available(d, 6))
		c.mu.Lock()
		c.checks = c.checks[:keep]
		c.mu.Unlock()

		close(agents["w1"])
		delete(agents, "w1")
		died := time.Now()
		c.until(45*time.Second, "NotReady", func() bool { return nodeReady(read(c, testNode("w1"))) == corev1.ConditionUnknown })
		c.until(2*time.Second, "3 endpoints", serving(3))
		c.until(70*time.Second, "6 pods on the other node", func() bool {
			for _, pod := range c.pods("default") {
				if pod.Spec.NodeName != "w2" {
					return false
				}
			}
			return c.available(d, 6)()
		})
		if took := time.Since(died); took < 90*time.Second || took > 110*time.Second {
			t.Errorf("replaced after %v, want about 100 s", took)
		}
		agents["w1"] = make(chan struct{})
		go c.kubelet("w1", agents["w1"])
		c.until(5*time.Second, "the node is back", func() bool {
			n := read(c, testNode("w1"))
			return nodeReady(n) == corev1.ConditionTrue && len(n.Spec.Taints) == 0
		})

		remove(c, d)
		c.until(10*time.Second, "everything gone", func() bool { return len(c.pods("default"))+len(c.sets()) == 0 })
		time.Sleep(time.Minute)
		before := c.store.View().Revision()
		time.Sleep(50 * time.Second)
		if n := c.store.View().Revision() - before; n > 4 {
			t.Errorf("%d revisions in an idle cluster", n)
		}
	})
}

func TestNamespaceDeletionWithAllControllers(t *testing.T) {
	live(t, func(t *testing.T, c *testCluster, _ map[string]chan struct{}) {
		ns := create(c, testNamespace("doomed"))
		d := testDeployment("web", 4)
		d.Namespace = "doomed"
		d = create(c, d)
		c.until(5*time.Second, "4 ready", c.available(d, 4))
		edit(c, ns, func(n *corev1.Namespace) {
			now := metav1.Now()
			n.DeletionTimestamp, n.Status.Phase = &now, corev1.NamespaceTerminating
		})
		c.until(15*time.Second, "the namespace gone", func() bool { return !c.exists(ns) })
		if n := len(c.pods("doomed")); n != 0 {
			t.Errorf("%d pods outlived their namespace", n)
		}
	})
}

func TestLeadershipFlapsDuringRollouts(t *testing.T) {
	live(t, func(t *testing.T, c *testCluster, _ map[string]chan struct{}) {
		d := create(c, testDeployment("web", 6))
		c.mu.Lock()
		c.checks = append(c.checks, func(*fsm.View) error {
			if n := len(c.activePods("default")); n > 8 {
				return fmt.Errorf("%d pods", n)
			}
			return nil
		})
		c.mu.Unlock()
		for term := uint64(2); term < 30; term++ {
			if term%7 == 0 {
				edit(c, d, image(fmt.Sprintf("v%d", term)))
			}
			c.lead(term, true)
			time.Sleep(time.Duration(c.random.IntN(700)) * time.Millisecond)
		}
		c.until(time.Minute, "6 ready", c.available(d, 6))
	})
}

// TestStaleTermIsRefused lets a controller plan in one term and propose in the
// next: nothing of it may be applied.
func TestStaleTermIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		create(c, testReplicaSet("web", 3))
		m, err := newMetrics(nil)
		if err != nil {
			t.Fatal(err)
		}
		deps := c.deps()
		g := &generation{Deps: deps, term: 1, metrics: m, leading: func() bool { term, leading := c.Leadership(); return leading && term == 1 }}
		g.Propose = func(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
			c.lead(2, true) // deposed and elected again between plan and proposal
			return c.propose(ctx, cmd)
		}
		before := c.store.View().Revision()
		r := newRunner(g, controller{name: "replication", plan: planReplication})
		if _, err := r.reconcile(t.Context()); err != errDeposed {
			t.Errorf("error %v, want %v", err, errDeposed)
		}
		if now := c.store.View().Revision(); now != before || len(c.pods("default")) != 0 {
			t.Errorf("revision %d, was %d; %d pods", now, before, len(c.pods("default")))
		}
	})
}
