package controllers

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestRolloutsKeepTheirBounds lets rollouts evolve at random and checks, at
// every revision, that a pod is created only within the surge and that an
// available pod is deleted only while enough others are.
func TestRolloutsKeepTheirBounds(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 11))
			c := newTestCluster(t, seed)
			create(c, testNamespace("default"))
			surge, unavailable := intstr.FromInt32(random.Int32N(4)), intstr.FromInt32(random.Int32N(4))
			d := testDeployment("web", 1+random.Int32N(10))
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable}
			d = create(c, d)
			b := &boundsCheck{c: c, d: d}
			for step := range 120 {
				if random.IntN(25) == 0 && c.settled() {
					edit(c, d, image(fmt.Sprintf("v%d", random.IntN(3))))
				}
				if random.IntN(40) == 0 && c.settled() {
					edit(c, d, size(random.Int32N(12)))
				}
				b.plan(random, step)
				c.runAll(func(*corev1.Pod) bool { return random.IntN(3) == 0 })
				if random.IntN(2) == 0 {
					c.stopTerminating()
				}
				time.Sleep(time.Second)
			}
			c.finish()
			d = read(c, d)
			if d.Status.AvailableReplicas != value(d.Spec.Replicas, 1) || d.Status.Replicas != d.Status.UpdatedReplicas {
				t.Errorf("seed %d: the rollout did not end: %+v", seed, d.Status)
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		})
	}
}

// settled reports whether no ReplicaSet has pods beyond its size: the moments
// at which a user changes things, because a decision taken before under other
// bounds would be measured by the new ones.
func (c *testCluster) settled() bool {
	count := map[types.UID]int32{}
	for _, pod := range c.activePods("default") {
		if ref := controllerOf(pod); ref != nil {
			count[ref.UID]++
		}
	}
	for _, set := range all[*appsv1.ReplicaSet](c, resReplicaSets, "default") {
		if count[set.UID] > replicas(set) {
			return false
		}
	}
	return true
}

// boundsCheck compares the pods before and after each command of the planner.
type boundsCheck struct {
	c *testCluster
	d *appsv1.Deployment
}

func (b *boundsCheck) plan(random *rand.Rand, step int) {
	c := b.c
	p, err := planReplication(c.world())
	if err != nil {
		c.t.Fatal(err)
	}
	random.Shuffle(len(p.chains), func(i, j int) { p.chains[i], p.chains[j] = p.chains[j], p.chains[i] })
	for _, cmd := range p.commands() {
		before := c.activePods("default")
		c.apply(&change{pre: cmd.Pre, ops: cmd.Ops})
		after := c.activePods("default")
		d := read(c, b.d)
		surge, unavailable := bounds(d)
		most, least := int(value(d.Spec.Replicas, 1)+surge), int(value(d.Spec.Replicas, 1)-unavailable)
		if len(after) > len(before) && len(after) > most {
			c.t.Errorf("step %d: created up to %d pods, at most %d are allowed", step, len(after), most)
		}
		served, serving := countReady(before), countReady(after)
		if serving < served && serving < least {
			c.t.Errorf("step %d: deleted down to %d available pods, at least %d must stay", step, serving, least)
		}
	}
}

func countReady(pods []*corev1.Pod) int {
	n := 0
	for _, pod := range pods {
		if ready(pod) {
			n++
		}
	}
	return n
}
