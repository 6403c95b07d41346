package resource

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/shepherd-project/shepherd/fsm"
)

// now is the time at which tables are printed.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// parse reads a manifest into T, strictly.
func parse[T any](t testing.TB, manifest string) *T {
	t.Helper()
	obj := new(T)
	if err := yaml.UnmarshalStrict([]byte(manifest), obj); err != nil {
		t.Fatalf("manifest: %v", err)
	}
	return obj
}

// stored returns the object as the store would hold it at a revision.
func stored(t testing.TB, obj runtime.Object, revision uint64) *fsm.Object {
	t.Helper()
	op, err := CreateOp(obj)
	if err != nil {
		t.Fatal(err)
	}
	return &fsm.Object{Key: op.Key, UID: op.UID, Created: revision, Modified: revision, Deleting: op.Deleting, Data: op.Data}
}

// samples returns a valid, defaulted object of each kind, by resource.
func samples(t testing.TB) map[string]object {
	t.Helper()
	meta := func(name, namespace string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: namespace, UID: "1b4e28ba-2fa1-4d2e-883f-0016d3cca427", CreationTimestamp: ago(5 * time.Minute)}
	}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web:1"}}},
	}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	all := map[string]object{
		"configmaps":      &corev1.ConfigMap{ObjectMeta: meta("c", "default"), Data: map[string]string{"k": "v"}},
		"secrets":         &corev1.Secret{ObjectMeta: meta("s", "default"), StringData: map[string]string{"k": "v"}},
		"namespaces":      &corev1.Namespace{ObjectMeta: meta("team", "")},
		"serviceaccounts": &corev1.ServiceAccount{ObjectMeta: meta("robot", "default")},
		"events": &corev1.Event{
			ObjectMeta: meta("web.1", "default"), InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web"},
			Reason: "Started", Type: "Normal", Message: "Started container",
		},
		"nodes": &corev1.Node{ObjectMeta: meta("w1", ""), Spec: corev1.NodeSpec{PodCIDR: "10.42.1.0/24"}},
		"pods":  &corev1.Pod{ObjectMeta: meta("web", "default"), Spec: template.Spec},
		"services": &corev1.Service{ObjectMeta: meta("web", "default"), Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}},
		}},
		"deployments":    &appsv1.Deployment{ObjectMeta: meta("web", "default"), Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}},
		"replicasets":    &appsv1.ReplicaSet{ObjectMeta: meta("web-1", "default"), Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}},
		"leases":         &coordinationv1.Lease{ObjectMeta: meta("w1", "kube-node-lease"), Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("w1")}},
		"endpointslices": &discoveryv1.EndpointSlice{ObjectMeta: meta("web-1", "default"), AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.42.1.2"}}}, Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}}},
	}
	for _, k := range All() {
		obj, ok := all[k.Resource]
		if !ok {
			t.Fatalf("no sample of %s", k.Resource)
		}
		obj = obj.DeepCopyObject().(object)
		obj.GetObjectKind().SetGroupVersionKind(k.GVK)
		k.Default(obj)
		k.PrepareForCreate(obj)
		all[k.Resource] = obj
	}
	return all
}
