package controllers

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func testService(name string, target intstr.IntOrString) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": name}, Type: corev1.ServiceTypeClusterIP,
			Ports: []corev1.ServicePort{{Name: "web", Port: 80, TargetPort: target}}},
	}
}

func (c *testCluster) slices(service string) []*discoveryv1.EndpointSlice {
	return slices.DeleteFunc(all[*discoveryv1.EndpointSlice](c, resEndpointSlices, "default"),
		func(s *discoveryv1.EndpointSlice) bool { return s.Labels[discoveryv1.LabelServiceName] != service })
}

func (c *testCluster) webPods(n int) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range n {
		pod := create(c, testPod(fmt.Sprintf("web-%03d", i), map[string]string{"app": "web"}))
		pod.Spec.NodeName = "w1"
		c.run(pod)
		pods = append(pods, read(c, pod))
	}
	return pods
}

func TestServiceGetsAddressAndEmptySlice(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		service := create(c, testService("web", intstr.FromInt32(8080)))
		c.settle(planServices)
		service = read(c, service)
		if service.Spec.ClusterIP == "" || c.store.View().Get(clusterIPKey(service.Spec.ClusterIP)) == nil {
			t.Errorf("cluster IP %q has no reservation", service.Spec.ClusterIP)
		}
		if s := c.slices("web"); len(s) != 1 || len(s[0].Endpoints) != 0 || *s[0].Ports[0].Port != 8080 {
			t.Fatalf("slices %+v", s)
		}
		fixed := testService("fixed", intstr.FromInt32(1))
		fixed.Spec.ClusterIP, fixed.Spec.ClusterIPs = "10.43.0.77", []string{"10.43.0.77"}
		create(c, fixed)
		c.settle(planServices)
		if c.store.View().Get(clusterIPKey("10.43.0.77")) == nil {
			t.Error("the reservation was not repaired")
		}
	})
}

func TestSlicesFollowThePods(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		service := create(c, testService("web", intstr.FromString("http")))
		pods := c.webPods(3)
		c.settle(planServices)
		s := c.slices("web")
		if len(s) != 1 || len(s[0].Endpoints) != 3 || *s[0].Ports[0].Port != 8080 || s[0].Labels[discoveryv1.LabelManagedBy] != sliceManager {
			t.Fatalf("slices %+v", s)
		}
		e := s[0].Endpoints[0]
		if e.TargetRef.UID != pods[0].UID || *e.NodeName != "w1" || !*e.Conditions.Ready || e.Addresses[0] != pods[0].Status.PodIP {
			t.Errorf("endpoint %+v", e)
		}
		edit(c, pods[0], func(p *corev1.Pod) {
			setPodCondition(p, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}, metav1.Now())
		})
		remove(c, pods[1]) // bound: it terminates
		c.settle(planServices)
		conditions := c.slices("web")[0].Endpoints
		if *conditions[0].Conditions.Ready || *conditions[1].Conditions.Ready || !*conditions[1].Conditions.Terminating ||
			!*conditions[1].Conditions.Serving || !*conditions[2].Conditions.Ready {
			t.Errorf("conditions %+v", conditions)
		}
		edit(c, service, func(s *corev1.Service) { s.Spec.Selector = nil })
		c.settle(planServices)
		if s := c.slices("web"); len(s) != 0 {
			t.Errorf("%d slices without a selector", len(s))
		}
	})
}

func TestSlicesAreFullBeforeTheyAreMany(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		service := create(c, testService("web", intstr.FromInt32(8080)))
		pods := c.webPods(250)
		c.settle(planServices)
		before := map[string]string{}
		for _, s := range c.slices("web") {
			if len(s.Endpoints) > sliceCapacity {
				t.Errorf("%d endpoints in a slice", len(s.Endpoints))
			}
			before[s.Name] = s.ResourceVersion
		}
		if len(before) != 3 {
			t.Fatalf("%d slices, want 3", len(before))
		}
		c.must((&change{}).remove(pods[0]))
		c.settle(planServices)
		changed := 0
		for _, s := range c.slices("web") {
			if before[s.Name] != s.ResourceVersion {
				changed++
			}
		}
		if changed != 1 {
			t.Errorf("one pod less changed %d slices", changed)
		}
		remove(c, service)
		c.settle(planServices)
		if s := c.slices("web"); len(s) != 0 {
			t.Errorf("%d slices of a removed service", len(s))
		}
	})
}

func TestBootstrap(t *testing.T) {
	bubble(t, func(t *testing.T, c *testCluster) {
		planner := func(w *world) (*plan, error) { w.servers = c.deps().Servers(); return planBootstrap(w) }
		c.settle(planner)
		for _, name := range systemNamespaces {
			if !c.exists(testNamespace(name)) {
				t.Errorf("namespace %s is missing", name)
			}
			if !c.exists(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}}) {
				t.Errorf("service account of %s is missing", name)
			}
		}
		service := read(c, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}})
		if service.Spec.ClusterIP != "10.43.0.1" || c.store.View().Get(clusterIPKey("10.43.0.1")) == nil {
			t.Errorf("cluster IP %q", service.Spec.ClusterIP)
		}
		s := c.slices("kubernetes")
		if len(s) != 1 || s[0].Name != "kubernetes" || len(s[0].Endpoints) != 2 || *s[0].Ports[0].Port != 9876 {
			t.Fatalf("slices %+v", s)
		}
		c.settle(planServices)
		c.settle(planGarbage)
		if !c.exists(service) || len(c.slices("kubernetes")) != 1 || c.store.View().Get(clusterIPKey("10.43.0.1")) == nil {
			t.Error("other controllers took it apart")
		}
		moved := func(w *world) (*plan, error) {
			w.servers = []string{"192.0.2.3:9876", "192.0.2.4:9999", "not an address"}
			return planBootstrap(w)
		}
		c.settle(moved)
		if s := c.slices("kubernetes"); len(s) != 2 || s[0].Endpoints[0].Addresses[0] != "192.0.2.3" {
			t.Errorf("after a move %+v", s)
		}
		c.settle(planner)
		if s := c.slices("kubernetes"); len(s) != 1 {
			t.Errorf("%d slices after moving back", len(s))
		}
	})
}
