package controllers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

var errNotLeading = errors.New("not the leader")

// testCluster is a state machine with a log of its own: one server, whose
// leadership tests can give and take.
type testCluster struct {
	t       testing.TB
	store   *fsm.Store
	decoder *resource.Decoder
	config  Config
	start   time.Time

	mu       sync.Mutex
	index    uint64
	term     uint64
	leading  bool
	changed  chan struct{}
	heard    map[string]time.Time
	agesErr  error
	random   *rand.Rand
	latency  time.Duration
	checks   []func(*fsm.View) error
	proposed []fsm.Command
}

func newTestCluster(t testing.TB, seed uint64) *testCluster {
	return &testCluster{
		t: t, store: fsm.New(fsm.DefaultConfig()), decoder: resource.NewDecoder(64 << 20), config: DefaultConfig(),
		start: time.Now(), term: 1, leading: true, changed: make(chan struct{}),
		heard: map[string]time.Time{}, random: rand.New(rand.NewPCG(seed, 7)),
	}
}

func quiet() hclog.Logger { return hclog.New(&hclog.LoggerOptions{Output: io.Discard}) }

func (c *testCluster) deps() Deps {
	return Deps{
		Store: c.store, Decoder: c.decoder, Propose: c.propose, Ages: c.ages, Now: time.Now,
		Servers: func() []string { return []string{"192.0.2.1:9876", "192.0.2.2:9876"} },
		Rand:    rand.New(rand.NewPCG(c.random.Uint64(), 1)), Config: c.config, Logger: quiet(),
		Fatal: func(err error) { c.t.Error(err) },
	}
}

func (c *testCluster) Leadership() (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.term, c.leading
}

func (c *testCluster) LeadershipChanged() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

func (c *testCluster) lead(term uint64, leading bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.term, c.leading = term, leading
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *testCluster) propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	if c.latency > 0 {
		time.Sleep(c.latency) // in a bubble: the disk and the network
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.leading {
		return fsm.Result{}, errNotLeading
	}
	return c.applyLocked(cmd), ctx.Err()
}

func (c *testCluster) applyLocked(cmd fsm.Command) fsm.Result {
	c.index++
	cmd.Time = time.Now().UnixNano()
	c.proposed = append(c.proposed, cmd)
	out := c.store.Apply(&raft.Log{Index: c.index, Term: c.term, Data: fsm.EncodeEntry([]fsm.Command{cmd})})
	results, ok := out.([]fsm.Result)
	if !ok {
		c.t.Fatalf("apply: %v", out)
	}
	if results[0].Code == fsm.Malformed {
		c.t.Errorf("malformed command: %s %s", results[0].FailedKey, results[0].Detail)
	}
	for _, check := range c.checks {
		if err := check(c.store.View()); err != nil {
			c.t.Errorf("revision %d: %v", c.store.View().Revision(), err)
		}
	}
	return results[0]
}

// apply applies a change as a client's and reports whether it fitted.
func (c *testCluster) apply(ch *change) bool {
	c.t.Helper()
	if ch.err != nil {
		c.t.Fatal(ch.err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.applyLocked(fsm.Command{Term: c.term, Pre: ch.pre, Ops: ch.ops}).Code == fsm.OK
}

func (c *testCluster) must(ch *change) {
	c.t.Helper()
	if !c.apply(ch) {
		c.t.Fatalf("a change of the test did not fit: %+v", ch.ops[0].Key)
	}
}

func (c *testCluster) ages(context.Context) (map[string]time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.agesErr != nil {
		return nil, c.agesErr
	}
	ages := map[string]time.Duration{}
	for name, at := range c.heard {
		ages[name] = time.Since(at)
	}
	return ages, nil
}

// create stores an object as the API would.
func create[T object](c *testCluster, obj T) T {
	c.t.Helper()
	c.mu.Lock()
	c.world().born(obj)
	c.mu.Unlock()
	c.must((&change{}).create(obj))
	return read(c, obj)
}

// read returns the stored version of an object, for the test to change.
func read[T object](c *testCluster, obj T) T {
	c.t.Helper()
	stored := c.store.View().Get(keyOf(obj))
	if stored == nil {
		c.t.Fatalf("%s does not exist", keyOf(obj))
	}
	decoded, err := resource.Decode(stored)
	if err != nil {
		c.t.Fatal(err)
	}
	return decoded.(T)
}

// edit changes an object, spec and generation included.
func edit[T object](c *testCluster, obj T, mutate func(T)) T {
	c.t.Helper()
	for {
		old := read(c, obj)
		updated := old.DeepCopyObject().(T)
		mutate(updated)
		touch(updated)
		if c.apply((&change{}).update(old, updated)) {
			return read(c, obj)
		}
	}
}

// remove deletes an object as a client would, with finalizers of its choice.
func remove[T object](c *testCluster, obj T, finalizers ...string) {
	c.t.Helper()
	for {
		old := read(c, obj)
		ch := &change{}
		if len(finalizers) > 0 {
			updated := old.DeepCopyObject().(T)
			updated.SetFinalizers(append(updated.GetFinalizers(), finalizers...))
			resource.SetDeleted(updated, time.Now(), 0)
			ch.update(old, updated)
		} else {
			ch.delete(old, time.Now())
		}
		if c.apply(ch) {
			return
		}
	}
}

func all[T object](c *testCluster, groupResource, namespace string) []T {
	c.t.Helper()
	objs, err := resource.List[T](c.decoder, c.store.View(), groupResource, namespace)
	if err != nil {
		c.t.Fatal(err)
	}
	return objs
}

func (c *testCluster) exists(obj object) bool { return c.store.View().Get(keyOf(obj)) != nil }

func (c *testCluster) pods(namespace string) []*corev1.Pod {
	return all[*corev1.Pod](c, resPods, namespace)
}

func (c *testCluster) activePods(namespace string) []*corev1.Pod {
	return slices.DeleteFunc(c.pods(namespace), func(p *corev1.Pod) bool { return !active(p) })
}

// plan runs a planner and applies what it decided, chain by chain. It returns
// how many commands were applied.
func (c *testCluster) plan(planner func(*world) (*plan, error)) int {
	c.t.Helper()
	c.mu.Lock()
	p, err := planner(c.world())
	c.mu.Unlock()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, problem := range p.problems {
		c.t.Errorf("problem: %v", problem)
	}
	n := 0
	for _, cmd := range p.commands() {
		if c.apply(&change{pre: cmd.Pre, ops: cmd.Ops}) {
			n++
		}
	}
	return n
}

// world is what planners see now. The caller holds the lock.
func (c *testCluster) world() *world {
	w := &world{now: time.Now(), view: c.store.View(), decoder: c.decoder, rand: c.random, config: &c.config, since: c.start}
	if c.agesErr == nil {
		w.ages = map[string]time.Duration{}
		for name, at := range c.heard {
			w.ages[name] = time.Since(at)
		}
	}
	return w
}

// settle plans again and again until nothing is left to do.
func (c *testCluster) settle(planner func(*world) (*plan, error)) {
	c.t.Helper()
	for range 100 {
		if c.plan(planner) == 0 {
			return
		}
	}
	c.t.Fatal("the planner does not come to rest")
}

// Objects of tests.

func testNamespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func testNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
}

// asReady gives a node the status that a healthy agent reports.
func asReady(n *corev1.Node) {
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: apiresource.MustParse("4"), corev1.ResourceMemory: apiresource.MustParse("8Gi"),
		corev1.ResourcePods: apiresource.MustParse("110"),
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
}

func testTemplate(app, image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image,
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}},
	}
}

func testDeployment(name string, replicas int32) *appsv1.Deployment {
	quarter := intstr.FromString("25%")
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: testTemplate(name, "v1"),
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &quarter, MaxUnavailable: &quarter}},
		},
	}
}

func testReplicaSet(name string, replicas int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": name}},
		Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Template: testTemplate(name, "v1"),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}},
	}
}

func testPod(name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels},
		Spec: testTemplate("x", "v1").Spec}
}

// run makes a pod Running and Ready, as its agent would report it.
func (c *testCluster) run(pod *corev1.Pod) bool {
	updated := pod.DeepCopy()
	updated.Status.Phase = corev1.PodRunning
	if updated.Status.PodIP == "" {
		revision := c.store.View().Revision()
		ip := netip.AddrFrom4([4]byte{10, 42, byte(revision >> 8), byte(revision)}).String()
		updated.Status.PodIP, updated.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
	}
	setPodCondition(updated, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}, metav1.NewTime(time.Now()))
	return c.apply((&change{}).update(pod, updated))
}

// kubelet is an agent that needs a second to start a pod and half of one to
// stop it.
func (c *testCluster) kubelet(name string, stopCh <-chan struct{}) {
	node := testNode(name)
	if !c.exists(node) {
		create(c, node)
	}
	seen := map[string]time.Time{}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for beat := 0; ; beat++ {
		if beat%100 == 0 {
			c.mu.Lock()
			c.heard[name] = time.Now()
			c.mu.Unlock()
		}
		if nodeReady(read(c, node)) != corev1.ConditionTrue {
			edit(c, node, asReady)
		}
		for _, pod := range c.pods("") {
			if pod.Spec.NodeName == name {
				c.sync(pod, seen)
			}
		}
		select {
		case <-stopCh:
			return
		case <-ticker.C:
		}
	}
}

func (c *testCluster) sync(pod *corev1.Pod, seen map[string]time.Time) {
	since := func(what string) time.Duration {
		key := fmt.Sprintf("%s/%s", pod.UID, what)
		if _, ok := seen[key]; !ok {
			seen[key] = time.Now()
		}
		return time.Since(seen[key])
	}
	switch {
	case pod.DeletionTimestamp != nil:
		if since("stop") >= 500*time.Millisecond {
			if len(pod.Finalizers) == 0 {
				c.apply((&change{}).remove(pod))
				return
			}
			if value(pod.DeletionGracePeriodSeconds, 0) > 0 {
				updated := pod.DeepCopy()
				resource.SetDeleted(updated, time.Now(), 0)
				c.apply((&change{}).update(pod, updated))
			}
		}
	case !ready(pod) && since("start") >= time.Second:
		c.run(pod)
	}
}
