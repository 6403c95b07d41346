package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// deploy applies a Deployment with its Service in a namespace of the test's
// own, waits until it is there, and deletes all of it when the test ends.
func deploy(t *testing.T, c *testCluster, namespace string, replicas int) *clientProgram {
	t.Helper()
	p := c.sheepctl(t)
	p.run(t, "create", "namespace", namespace)
	p.namespace = namespace
	p.afterwards(t, "delete", "namespace", namespace, "--timeout=60s")
	if out, code := p.try(t, manifest("web", replicas), "apply", "-f", "-"); code != 0 {
		t.Fatalf("apply: %s", out)
	}
	p.run(t, "rollout", "status", "deployment/web", "--timeout=40s")
	return p
}

// podState is what a pod keeps while nothing happens to it.
type podState struct {
	uid, node, container, ip string
	restarts                 int32
}

// runningPods are the pods of the namespace that run and are to stay.
func runningPods(ctx context.Context, c *testCluster, namespace string) (map[string]podState, error) {
	list, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		return nil, err
	}
	out := map[string]podState{}
	for _, p := range list.Items {
		if p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
			continue
		}
		s := podState{uid: string(p.UID), node: p.Spec.NodeName, ip: p.Status.PodIP}
		for _, cs := range p.Status.ContainerStatuses {
			s.container, s.restarts = cs.ContainerID, s.restarts+cs.RestartCount
		}
		out[p.Name] = s
	}
	return out, nil
}

func mustRunningPods(t *testing.T, c *testCluster, namespace string) map[string]podState {
	t.Helper()
	pods, err := runningPods(t.Context(), c, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

// endpoints are the ready ones of the Service web, by address.
func endpoints(ctx context.Context, c *testCluster, namespace string) (map[string]discoveryv1.Endpoint, error) {
	list, err := c.client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
	if err != nil {
		return nil, err
	}
	ready := map[string]discoveryv1.Endpoint{}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && *e.Conditions.Ready {
				ready[e.Addresses[0]] = e
			}
		}
	}
	return ready, nil
}

// TestPodsServe calls each pod from the machine that it is not on, and keeps
// all of them over the leader's death.
func TestPodsServe(t *testing.T) {
	c := sharedCluster(t)
	p := deploy(t, c, "serve", 4)
	before := mustRunningPods(t, c, p.namespace)
	if len(before) != 4 {
		t.Fatalf("%d pods run", len(before))
	}
	nodes := map[string]int{}
	for _, s := range before {
		nodes[s.node]++
	}
	if nodes["w1"] != 2 || nodes["w2"] != 2 {
		t.Errorf("pods by node: %v", nodes)
	}
	var ready map[string]discoveryv1.Endpoint
	c.await(t, 20*time.Second, "4 ready endpoints", func(ctx context.Context) (err error) {
		if ready, err = endpoints(ctx, c, p.namespace); err == nil && len(ready) != 4 {
			err = fmt.Errorf("%d are", len(ready))
		}
		return err
	})
	callAll := func() {
		t.Helper()
		for name, s := range before {
			from := c.workers[0]
			if from.Name == s.node {
				from = c.workers[1]
			}
			if e, ok := ready[s.ip]; !ok || e.TargetRef == nil || e.TargetRef.Name != name {
				t.Errorf("pod %s at %s has no endpoint", name, s.ip)
			}
			if body, err := from.Get(t.Context(), "http://"+s.ip+":8080/"); err != nil || !strings.HasPrefix(body, name+" up") {
				t.Errorf("%s calls %s on %s: %q, %v", from.Name, name, s.node, body, err)
			}
		}
	}
	callAll()

	t.Cleanup(func() { c.restore(t) })
	dead := c.leader(t)
	if err := dead.kill(); err != nil {
		t.Fatal(err)
	}
	callAll() // while nobody leads
	c.await(t, 20*time.Second, "a write after the leader's death", func(context.Context) error {
		out, code := p.try(t, "", "label", "deployment", "web", "after=death", "--overwrite")
		if code != 0 {
			return errors.New(out)
		}
		return nil
	})
	if after := mustRunningPods(t, c, p.namespace); !maps.Equal(before, after) {
		t.Errorf("pods were %v\nand are %v", before, after)
	}
	callAll()
}

// TestPassThrough uses the cluster at a worker, through its agent, while each
// of the servers is dead in turn: one of them is the one that it used.
func TestPassThrough(t *testing.T) {
	c := sharedCluster(t)
	p := c.kubectl(t)
	p.machine = c.workers[0].Machine
	t.Cleanup(func() { c.restore(t) })
	for _, s := range c.servers {
		if err := s.kill(); err != nil {
			t.Fatal(err)
		}
		if out := p.run(t, "--server", localPass, "get", "nodes"); !strings.Contains(out, "w1") {
			t.Errorf("without %s:\n%s", s.Name, out)
		}
		c.restore(t)
	}
}

// containerProcesses are the IDs and start times of all processes in the
// cgroups of the worker's pods, without those of the pod with that UID.
func containerProcesses(t *testing.T, c *testCluster, w *host, without string) map[int]string {
	t.Helper()
	found := map[int]string{}
	paths, _ := filepath.Glob("/proc/[0-9]*/cgroup") // the pattern is good
	for _, path := range paths {
		dir := filepath.Dir(path)
		groups, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(groups), "/"+c.name+"/"+w.Name+"/") || strings.Contains(string(groups), without) {
			continue // gone meanwhile, or another's
		}
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		pid, err := strconv.Atoi(filepath.Base(dir))
		if fields := strings.Fields(rest); err == nil && len(fields) > 19 {
			found[pid] = fields[19]
		}
	}
	return found
}

// An agent that is killed and started again adopts its pods as they are.
func TestAgentRestart(t *testing.T) {
	c := sharedCluster(t)
	p := deploy(t, c, "adopt", 4)
	before := mustRunningPods(t, c, p.namespace)
	w := c.workers[0]
	victim := ""
	for name, pod := range before {
		if pod.node == w.Name {
			victim = name
		}
	}
	keep := containerProcesses(t, c, w, before[victim].uid)
	if len(keep) == 0 {
		t.Fatalf("no processes of containers on %s", w.Name)
	}
	t.Cleanup(func() { c.restore(t) })
	if err := w.kill(); err != nil {
		t.Fatal(err)
	}
	if alone := containerProcesses(t, c, w, before[victim].uid); !maps.Equal(keep, alone) {
		t.Errorf("without the agent: processes were %v, and are %v", keep, alone)
	}
	if err := w.start(); err != nil {
		t.Fatal(err)
	}
	// That it manages pods again shows in one that it removes and one that it starts.
	p.run(t, "delete", "pod", victim, "--timeout=30s")
	p.run(t, "rollout", "status", "deployment/web", "--timeout=30s")
	c.await(t, 20*time.Second, "4 pods", func(ctx context.Context) error {
		after, err := runningPods(ctx, c, p.namespace)
		if err != nil || len(after) != 4 {
			return fmt.Errorf("%d pods, %v", len(after), err)
		}
		for name, s := range before {
			if name != victim && after[name] != s {
				return fmt.Errorf("%s was %v and is %v", name, s, after[name])
			}
		}
		return nil
	})
	after := containerProcesses(t, c, w, before[victim].uid)
	for pid, started := range keep {
		if after[pid] != started {
			t.Errorf("process %d, started at %s, is gone or another one (%q)", pid, started, after[pid])
		}
	}
}

const exitingPod = `apiVersion: v1
kind: Pod
metadata: {name: exits}
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - name: web
    image: ` + webRef + `
    args: ["-addr", "nonsense"]
`

// A container that exits is started again, and then waits longer each time.
func TestPodExits(t *testing.T) {
	c := sharedCluster(t)
	p := c.sheepctl(t)
	if out, code := p.try(t, exitingPod, "apply", "-f", "-"); code != 0 {
		t.Fatal(out)
	}
	p.afterwards(t, "delete", "pod", "exits", "--timeout=30s")
	c.await(t, 30*time.Second, "a restart and a wait", func(ctx context.Context) error {
		pod, err := c.client.CoreV1().Pods("default").Get(ctx, "exits", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(pod.Status.ContainerStatuses) != 1 {
			return errors.New("no container status")
		}
		s := pod.Status.ContainerStatuses[0]
		last := s.LastTerminationState.Terminated
		if s.RestartCount < 1 || s.State.Waiting == nil || s.State.Waiting.Reason != "CrashLoopBackOff" || last == nil || last.ExitCode != 1 {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
	if out := p.run(t, "get", "pod", "exits"); !strings.Contains(out, "CrashLoopBackOff") {
		t.Errorf("get says\n%s", out)
	}
	if out := p.run(t, "logs", "exits", "--previous"); !strings.Contains(out, "nonsense") {
		t.Errorf("the previous attempt's log: %q", out)
	}
	events, err := c.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=exits"})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == "BackOff" }) {
		t.Errorf("no BackOff among %d events", len(events.Items))
	}
}
