package scheduler

import (
	"errors"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func testNode(name string, mutate ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"),
		corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourcePods: resource.MustParse("10")}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, m := range mutate {
		m(n)
	}
	return n
}

func testPod(mutate ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}
	for _, m := range mutate {
		m(p)
	}
	return p
}

func asking(cpu, memory string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
}

func on(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func owned(uid types.UID) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{UID: uid, Controller: &yes}}
	}
}

func hostPortOf(ip string, protocol corev1.Protocol, port int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostIP: ip, Protocol: protocol, HostPort: port, ContainerPort: 80}}
	}
}

func tainted(key, text string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: text, Effect: effect})
	}
}

func tolerating(key string, effect corev1.TaintEffect) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect})
	}
}

func unready(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func leaving(n *corev1.Node) { now := metav1.Now(); n.DeletionTimestamp = &now }

func selecting(key, text string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{key: text} }
}

func requiring(operator corev1.NodeSelectorOperator, values ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "name", Operator: operator, Values: values}}}}}}}
	}
}

func TestPlaceFilters(t *testing.T) {
	for _, test := range []struct {
		name  string
		nodes []*corev1.Node
		pods  []*corev1.Pod
		pod   *corev1.Pod
		want  string // node, or the error
	}{
		{"no nodes", nil, nil, testPod(), "no nodes available to schedule pods"},
		{"fits", []*corev1.Node{testNode("a")}, nil, testPod(asking("2", "4Gi")), "a"},
		{"too large", []*corev1.Node{testNode("a"), testNode("b")}, nil, testPod(asking("3", "5Gi")),
			"0/2 nodes are available: 2 Insufficient cpu, 2 Insufficient memory."},
		{"taken", []*corev1.Node{testNode("a")}, []*corev1.Pod{testPod(on("a"), asking("1500m", "1Gi"))}, testPod(asking("1", "1Gi")),
			"0/1 nodes are available: 1 Insufficient cpu."},
		{"finished pods take nothing", []*corev1.Node{testNode("a")},
			[]*corev1.Pod{testPod(on("a"), asking("2", "1Gi"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })},
			testPod(asking("1", "1Gi")), "a"},
		{"terminating pods still do", []*corev1.Node{testNode("a")},
			[]*corev1.Pod{testPod(on("a"), asking("2", "1Gi"), func(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now })},
			testPod(asking("1", "1Gi")), "0/1 nodes are available: 1 Insufficient cpu."},
		{"pod slots", []*corev1.Node{testNode("a", func(n *corev1.Node) {
			n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1")
		})}, []*corev1.Pod{testPod(on("a"))}, testPod(), "0/1 nodes are available: 1 Too many pods."},
		{"mixed reasons", []*corev1.Node{testNode("a", cordoned), testNode("b", tainted("gpu", "yes", corev1.TaintEffectNoSchedule)),
			testNode("c", unready), testNode("d", leaving)}, nil, testPod(),
			"0/4 nodes are available: 1 node(s) had untolerated taint {gpu: yes}, 1 node(s) were being deleted, 1 node(s) were not ready, 1 node(s) were unschedulable."},
		{"tolerated", []*corev1.Node{testNode("a", tainted("gpu", "yes", corev1.TaintEffectNoSchedule))}, nil,
			testPod(tolerating("gpu", corev1.TaintEffectNoSchedule)), "a"},
		{"a toleration for another effect", []*corev1.Node{testNode("a", tainted("gpu", "yes", corev1.TaintEffectNoExecute))}, nil,
			testPod(tolerating("gpu", corev1.TaintEffectNoSchedule)), "0/1 nodes are available: 1 node(s) had untolerated taint {gpu: yes}."},
		{"selector", []*corev1.Node{testNode("a"), testNode("b")}, nil, testPod(selecting("name", "b")), "b"},
		{"no match", []*corev1.Node{testNode("a")}, nil, testPod(selecting("name", "z")),
			"0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."},
		{"required affinity", []*corev1.Node{testNode("a"), testNode("b")}, nil,
			testPod(requiring(corev1.NodeSelectorOpNotIn, "a")), "b"},
		{"host port", []*corev1.Node{testNode("a")}, []*corev1.Pod{testPod(on("a"), hostPortOf("", corev1.ProtocolTCP, 80))},
			testPod(hostPortOf("10.0.0.1", corev1.ProtocolTCP, 80)),
			"0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."},
		{"host port of another protocol", []*corev1.Node{testNode("a")},
			[]*corev1.Pod{testPod(on("a"), hostPortOf("", corev1.ProtocolTCP, 80))}, testPod(hostPortOf("", corev1.ProtocolUDP, 80)), "a"},
		{"host port of another address", []*corev1.Node{testNode("a")},
			[]*corev1.Pod{testPod(on("a"), hostPortOf("10.0.0.1", corev1.ProtocolTCP, 80))},
			testPod(hostPortOf("10.0.0.2", corev1.ProtocolTCP, 80)), "a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			node, err := New(test.nodes, test.pods).Place(test.pod, rand.New(rand.NewPCG(1, 1)))
			got := ""
			var fit *FitError
			switch {
			case errors.As(err, &fit):
				got = fit.Error()
			case err != nil:
				t.Fatal(err)
			default:
				got = node.Name
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestPlaceSpreadsAnOwnersPods(t *testing.T) {
	nodes := []*corev1.Node{testNode("a"), testNode("b"), testNode("c")}
	s := New(nodes, []*corev1.Pod{testPod(on("a"), asking("1500m", "3Gi"))})
	count := map[string]int{}
	for range 6 {
		node, err := s.Place(testPod(owned("u1"), asking("100m", "64Mi")), rand.New(rand.NewPCG(1, 1)))
		if err != nil {
			t.Fatal(err)
		}
		count[node.Name]++
	}
	if count["a"] != 2 || count["b"] != 2 || count["c"] != 2 {
		t.Errorf("spread %v", count)
	}
}

func TestPlacePrefersTheLeastAllocated(t *testing.T) {
	nodes := []*corev1.Node{testNode("a"), testNode("b"), testNode("soft", tainted("x", "", corev1.TaintEffectPreferNoSchedule))}
	s := New(nodes, []*corev1.Pod{testPod(on("a"), asking("1", "1Gi"))})
	if node, err := s.Place(testPod(asking("1", "1Gi")), rand.New(rand.NewPCG(1, 1))); err != nil || node.Name != "b" {
		t.Errorf("placed on %v, %v", node, err)
	}
}

func TestPlaceBooksWhatItPlaces(t *testing.T) {
	s := New([]*corev1.Node{testNode("a"), testNode("b")}, nil)
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 5 {
		_, err := s.Place(testPod(asking("1", "1Gi")), random)
		if (err != nil) != (i == 4) {
			t.Errorf("pod %d of 1 cpu on two nodes of 2: %v", i, err)
		}
	}
}

func TestPlaceBreaksTiesByTheRandomSource(t *testing.T) {
	nodes := []*corev1.Node{testNode("a"), testNode("b"), testNode("c")}
	random := rand.New(rand.NewPCG(1, 1))
	count := map[string]int{}
	for range 300 {
		node, err := New(nodes, nil).Place(testPod(), random)
		if err != nil {
			t.Fatal(err)
		}
		count[node.Name]++
	}
	for _, n := range nodes {
		if count[n.Name] < 60 {
			t.Errorf("ties are not even: %v", count)
		}
	}
}
