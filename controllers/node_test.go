package controllers

import (
	"errors"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// hear records a heartbeat of a node.
func (c *testCluster) hear(names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		c.heard[name] = time.Now()
	}
}

// healthy makes nodes that were just heard of.
func (c *testCluster) healthy(names ...string) []*corev1.Node {
	var nodes []*corev1.Node
	for _, name := range names {
		node := create(c, testNode(name))
		nodes = append(nodes, edit(c, node, asReady))
	}
	c.hear(names...)
	return nodes
}

func (c *testCluster) podOn(name, node string, tolerations ...corev1.Toleration) *corev1.Pod {
	pod := create(c, testPod(name, nil))
	pod.Spec.NodeName, pod.Spec.Tolerations = node, tolerations
	c.run(pod)
	return read(c, pod)
}

func hasTaint(node *corev1.Node, key string, effect corev1.TaintEffect) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == key && taint.Effect == effect {
			return true
		}
	}
	return false
}

func TestEveryNodeGetsItsOwnRange(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		for i := range 5 {
			c.healthy(fmt.Sprintf("w%d", i))
		}
		c.settle(planNodes)
		seen := map[string]bool{}
		for _, node := range all[*corev1.Node](c, resNodes, "") {
			cidr := node.Spec.PodCIDR
			if cidr == "" || seen[cidr] || len(node.Spec.PodCIDRs) != 1 || c.store.View().Get(podCIDRKey(cidr)) == nil {
				t.Errorf("node %s has range %q", node.Name, cidr)
			}
			seen[cidr] = true
		}
		if !seen["10.42.0.0/24"] || !seen["10.42.4.0/24"] {
			t.Errorf("ranges %v", seen)
		}
		// A range comes free with its node, and is given out again.
		remove(c, testNode("w1"))
		c.settle(planGarbage)
		c.healthy("new")
		c.settle(planNodes)
		if cidr := read(c, testNode("new")).Spec.PodCIDR; cidr != "10.42.1.0/24" {
			t.Errorf("the new node has %q", cidr)
		}
	})
}

func TestRangesRunOut(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		c.config.NodeMask = 17 // two ranges
		c.healthy("a", "b", "c")
		p, err := planNodes(c.world())
		if err != nil {
			t.Fatal(err)
		}
		if len(p.problems) != 1 || !errors.Is(p.problems[0], errNoPodCIDR) {
			t.Errorf("problems %v", p.problems)
		}
	})
}

func TestNodeDiesAndComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		node := c.healthy("w1", "w2")[0]
		pod := c.podOn("web", "w1")
		c.settle(planNodes)
		time.Sleep(39 * time.Second)
		c.hear("w2")
		c.settle(planNodes)
		if got := read(c, node); nodeReady(got) != corev1.ConditionTrue || len(got.Spec.Taints) != 0 {
			t.Fatalf("judged before its time: %v %v", nodeReady(got), got.Spec.Taints)
		}
		p, err := planNodes(c.world())
		if err != nil || p.after != time.Second {
			t.Errorf("next look after %v, %v; want 1 s", p.after, err)
		}
		time.Sleep(time.Second)
		c.settle(planNodes)
		got := read(c, node)
		if nodeReady(got) != corev1.ConditionUnknown || got.Status.Conditions[0].Reason != "NodeStatusUnknown" ||
			!hasTaint(got, corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule) ||
			!hasTaint(got, corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute) {
			t.Errorf("after 40 s: %+v %+v", got.Status.Conditions, got.Spec.Taints)
		}
		if ready(read(c, pod)) {
			t.Error("its pod still counts as ready")
		}
		c.hear("w1")
		c.settle(planNodes)
		if nodeReady(read(c, node)) != corev1.ConditionUnknown {
			t.Error("made ready by a heartbeat alone")
		}
		edit(c, node, asReady)
		c.settle(planNodes)
		if got := read(c, node); len(got.Spec.Taints) != 0 {
			t.Errorf("taints of a node that is back: %v", got.Spec.Taints)
		}
		if !c.exists(pod) {
			t.Error("its pod was evicted")
		}
	})
}

func TestNoNodeIsJudgedWithoutAges(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		node := c.healthy("w1", "w2")[0]
		pod := c.podOn("web", "w1")
		c.settle(planNodes)
		c.agesErr = errors.New("no majority")
		time.Sleep(time.Hour)
		c.settle(planNodes)
		if nodeReady(read(c, node)) != corev1.ConditionTrue || !c.exists(pod) {
			t.Error("judged in the dark")
		}
	})
}

func TestNodeWithoutAgeCountsFromTheStartOfTheTerm(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		node := c.healthy("w1")[0]
		time.Sleep(time.Hour)
		c.settle(planNodes) // dead by now
		edit(c, node, asReady)
		delete(c.heard, "w1")
		c.start = time.Now() // a new leader that knows nothing
		c.settle(planNodes)
		if nodeReady(read(c, node)) != corev1.ConditionTrue {
			t.Error("declared dead by a leader that has not waited")
		}
		time.Sleep(40 * time.Second)
		c.settle(planNodes)
		if nodeReady(read(c, node)) != corev1.ConditionUnknown {
			t.Error("not declared dead after the grace period")
		}
	})
}

func TestNewNodeIsNotDeadBeforeItsFirstHeartbeat(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		c.hear("w1") // what a server says that has not heard of it since it started
		time.Sleep(time.Hour)
		node := edit(c, create(c, testNode("w1")), asReady)
		c.settle(planNodes)
		if nodeReady(read(c, node)) != corev1.ConditionTrue {
			t.Error("declared dead when it was created")
		}
	})
}

func TestEviction(t *testing.T) {
	unreachable := func(seconds *int64) corev1.Toleration {
		return corev1.Toleration{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists,
			Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds}
	}
	for _, test := range []struct {
		name        string
		tolerations []corev1.Toleration
		staysFor    time.Duration // after the taint; 0: for good
	}{
		{"plain", nil, time.Minute},
		{"short", []corev1.Toleration{unreachable(ptr.To[int64](10))}, 10 * time.Second},
		{"long", []corev1.Toleration{unreachable(ptr.To[int64](300))}, 300 * time.Second},
		{"forever", []corev1.Toleration{unreachable(nil)}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *testCluster) {
				c.healthy("w1", "w2")
				pod := c.podOn("web", "w1", test.tolerations...)
				c.settle(planNodes)
				pass := func(d time.Duration) {
					time.Sleep(d)
					c.hear("w2")
					c.settle(planNodes)
				}
				pass(40 * time.Second)
				if test.staysFor == 0 {
					pass(time.Hour)
					if !c.exists(pod) {
						t.Error("evicted though it tolerates the taint")
					}
					return
				}
				pass(test.staysFor - time.Second)
				if !c.exists(pod) {
					t.Fatal("evicted too early")
				}
				pass(time.Second)
				if c.exists(pod) {
					t.Error("not evicted")
				}
			})
		})
	}
}

func TestEvictionKeepsTheWholeGrace(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		time.Sleep(400 * time.Millisecond) // the taint comes between two whole seconds
		c.healthy("w1", "w2")
		pod := c.podOn("web", "w1")
		c.settle(planNodes)
		pass := func(d time.Duration) {
			time.Sleep(d)
			c.hear("w2")
			c.settle(planNodes)
		}
		pass(40 * time.Second)
		pass(time.Minute - 100*time.Millisecond)
		if !c.exists(pod) {
			t.Error("evicted before its grace was over")
		}
		pass(time.Second)
		if c.exists(pod) {
			t.Error("not evicted")
		}
	})
}

func TestNobodyIsEvictedWhileNoNodeIsReady(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		c.healthy("w1", "w2")
		pod := c.podOn("web", "w1")
		for range 10 {
			time.Sleep(time.Minute)
			c.settle(planNodes)
		}
		if !c.exists(pod) {
			t.Error("evicted from a cluster without a ready node")
		}
	})
}

func TestNoExecuteTaintOfAUserEvictsGracefully(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		node := c.healthy("w1")[0]
		pod := c.podOn("web", "w1")
		edit(c, node, func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "drain", Effect: corev1.TaintEffectNoExecute}}
		})
		c.settle(planNodes)
		got := read(c, pod)
		if got.DeletionTimestamp == nil || podCondition(got, corev1.DisruptionTarget) == nil {
			t.Errorf("pod %+v", got.ObjectMeta)
		}
		edit(c, node, func(n *corev1.Node) { n.Spec.Unschedulable = true })
		c.settle(planNodes)
		if !hasTaint(read(c, node), corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule) {
			t.Error("a cordoned node has no taint")
		}
	})
}

func TestPodsOfRemovedNodesGo(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		node := c.healthy("w1")[0]
		pod := c.podOn("web", "w1")
		c.settle(planNodes)
		remove(c, node)
		c.settle(planNodes)
		if c.exists(pod) {
			t.Error("the pod outlived its node")
		}
	})
}

func TestLeasesAreRenewedInBatches(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		create(c, testNamespace(leaseNamespace))
		names := []string{"w1", "w2", "w3"}
		c.healthy(names...)
		c.settle(planNodes)
		before := len(c.proposed)
		for range 60 { // ten minutes
			time.Sleep(10 * time.Second)
			c.hear("w1", "w2")
			c.plan(planNodes)
		}
		writes := 0
		for _, cmd := range c.proposed[before:] {
			if cmd.Ops[0].Key.Resource == resLeases {
				writes++
			}
		}
		if writes != 10 {
			t.Errorf("%d commands for leases in ten minutes, want 10", writes)
		}
		lease := read(c, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: "w3"}})
		if age := time.Since(lease.Spec.RenewTime.Time); age < 9*time.Minute {
			t.Errorf("the lease of a dead node was renewed %v ago", age)
		}
	})
}

func TestSchedulingBindsOnceAndSaysWhyNot(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		pod := create(c, testPod("web", nil))
		c.settle(planScheduling)
		condition := podCondition(read(c, pod), corev1.PodScheduled)
		if condition == nil || condition.Reason != corev1.PodReasonUnschedulable || condition.Message != "no nodes available to schedule pods" {
			t.Fatalf("condition %+v", condition)
		}
		node := c.healthy("w1")[0]
		edit(c, node, func(n *corev1.Node) { n.Spec.Unschedulable = true })
		c.settle(planScheduling)
		if m := podCondition(read(c, pod), corev1.PodScheduled).Message; m != "0/1 nodes are available: 1 node(s) were unschedulable." {
			t.Errorf("message %q", m)
		}
		edit(c, node, func(n *corev1.Node) { n.Spec.Unschedulable = false })
		first, _ := planScheduling(c.world())
		second, _ := planScheduling(c.world())
		for i, cmd := range append(first.commands(), second.commands()...) {
			if ok := c.apply(&change{pre: cmd.Pre, ops: cmd.Ops}); ok != (i == 0) {
				t.Errorf("bind %d applied: %v", i, ok)
			}
		}
		if got := read(c, pod); got.Spec.NodeName != "w1" || podCondition(got, corev1.PodScheduled).Status != corev1.ConditionTrue {
			t.Errorf("pod on %q", got.Spec.NodeName)
		}
		other := create(c, testPod("other", nil))
		late, _ := planScheduling(c.world())
		remove(c, node)
		for _, cmd := range late.commands() {
			if c.apply(&change{pre: cmd.Pre, ops: cmd.Ops}) {
				t.Error("bound to a node that is gone")
			}
		}
		if read(c, other).Spec.NodeName != "" {
			t.Error("bound to a node that is gone")
		}
	})
}
