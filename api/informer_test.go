package api

import (
	"context"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

// TestInformers drives client-go's informers, which list and watch in protobuf
// with WatchList.
func TestInformers(t *testing.T) {
	f := newFixture(t)
	for i := range 50 {
		f.put(testPod("default", numbered("p", i), "n1"))
	}
	ctx := testContext(t)
	factory := informers.NewSharedInformerFactory(f.typed(), 0)
	pods := factory.Core().V1().Pods()
	events := make(chan string, 1000)
	if _, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { events <- "add " + obj.(*corev1.Pod).Name },
		UpdateFunc: func(_, obj any) { events <- "update " + obj.(*corev1.Pod).Name },
		DeleteFunc: func(any) { events <- "delete" },
	}); err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), pods.Informer().HasSynced) {
		t.Fatal("the informer did not sync")
	}
	all, err := pods.Lister().List(labels.Everything())
	if err != nil || len(all) != 50 {
		t.Fatalf("listed %d pods, %v", len(all), err)
	}
	for range 50 {
		<-events
	}
	for _, pod := range all {
		if pod.ResourceVersion != strconv.FormatUint(f.stored(pod).Modified, 10) || pod.Spec.NodeName != "n1" {
			t.Fatalf("pod %s came with revision %q on node %q", pod.Name, pod.ResourceVersion, pod.Spec.NodeName)
		}
	}
	changed := all[0].DeepCopy()
	changed.Status.Phase = corev1.PodRunning
	f.change(changed)
	f.remove(all[1])
	for _, want := range []string{"update " + changed.Name, "delete"} {
		select {
		case got := <-events:
			if got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("no %q", want)
		}
	}
}

func TestMetadataInformer(t *testing.T) {
	f := newFixture(t)
	f.put(testConfigMap("default", "a", map[string]string{"k": "v"}))
	client, err := metadata.NewForConfig(f.config("admin"))
	if err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	factory := metadatainformer.NewSharedInformerFactory(client, 0)
	informer := factory.ForResource(corev1.SchemeGroupVersion.WithResource("configmaps")).Informer()
	added := make(chan *metav1.PartialObjectMetadata, 10)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { added <- obj.(*metav1.PartialObjectMetadata) },
	}); err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the informer did not sync")
	}
	if m := <-added; m.Name != "a" || m.Labels["k"] != "v" || m.ResourceVersion == "" {
		t.Fatalf("got %v", m)
	}
	f.put(testConfigMap("default", "b", nil))
	if m := <-added; m.Name != "b" {
		t.Fatalf("got %v", m)
	}
}

// TestTypedWatch checks the framing of protobuf, an ERROR event's Status included.
func TestTypedWatch(t *testing.T) {
	f := newFixture(t)
	client := f.typed()
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	w, err := client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{ResourceVersion: f.revision()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	f.put(testConfigMap("default", "a", nil))
	e := <-w.ResultChan()
	cm, ok := e.Object.(*corev1.ConfigMap)
	if e.Type != watch.Added || !ok || cm.Name != "a" || cm.ResourceVersion != f.revision() || cm.UID == "" {
		t.Fatalf("got %v", e)
	}
	f.overflow()
	_, err = client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{ResourceVersion: "1"})
	if !apierrors.IsResourceExpired(err) {
		t.Fatalf("got %v, want expired", err)
	}
}
