package resource

import (
	"math/rand/v2"
	"regexp"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestStatusIsSeparate(t *testing.T) {
	old := samples(t)["deployments"].(*appsv1.Deployment)
	old.Status.Replicas = 3
	old.ResourceVersion = "9"

	spec := old.DeepCopy()
	spec.Status.Replicas = 99
	spec.Spec.Replicas = ptr.To[int32](5)
	deploymentKind.PrepareForUpdate(spec, old)
	if spec.Status.Replicas != 3 || *spec.Spec.Replicas != 5 {
		t.Errorf("a write of the main resource gave status %d, spec %d", spec.Status.Replicas, *spec.Spec.Replicas)
	}

	status := old.DeepCopy()
	status.Status.Replicas = 4
	status.Spec.Replicas = ptr.To[int32](5)
	status.Labels = map[string]string{"new": "label"}
	status.Annotations = map[string]string{"new": "annotation"}
	deploymentKind.PrepareForStatusUpdate(status, old)
	if status.Status.Replicas != 4 || *status.Spec.Replicas != 1 || status.Labels != nil || status.Annotations != nil || status.Generation != 1 {
		t.Errorf("a write of the status gave %+v", status)
	}
}

func TestStatusOnCreate(t *testing.T) {
	pod := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "1.2.3.4"}}
	podKind.PrepareForCreate(pod)
	if pod.Status.Phase != corev1.PodPending || pod.Status.PodIP != "" || pod.Status.QOSClass != corev1.PodQOSBestEffort {
		t.Errorf("a new pod has the status %+v", pod.Status)
	}
	node := &corev1.Node{Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1"}}}
	nodeKind.PrepareForCreate(node)
	if node.Status.NodeInfo.KubeletVersion != "v1" {
		t.Error("a node registers with its status, which was lost")
	}
	namespace := &corev1.Namespace{}
	namespaceKind.PrepareForCreate(namespace)
	if namespace.Status.Phase != corev1.NamespaceActive || len(namespace.Spec.Finalizers) != 1 {
		t.Errorf("a new namespace is %+v", namespace)
	}
}

func TestGeneration(t *testing.T) {
	old := samples(t)["deployments"].(*appsv1.Deployment)
	for name, c := range map[string]struct {
		change func(d *appsv1.Deployment)
		want   int64
	}{
		"nothing":    {func(d *appsv1.Deployment) {}, 1},
		"label":      {func(d *appsv1.Deployment) { d.Labels = map[string]string{"a": "b"} }, 1},
		"annotation": {func(d *appsv1.Deployment) { d.Annotations = map[string]string{"a": "b"} }, 1},
		"status":     {func(d *appsv1.Deployment) { d.Status.Replicas = 4 }, 1},
		"client's":   {func(d *appsv1.Deployment) { d.Generation = 77 }, 1},
		"spec":       {func(d *appsv1.Deployment) { d.Spec.Paused = true }, 2},
		"template":   {func(d *appsv1.Deployment) { d.Spec.Template.Labels["x"] = "y" }, 2},
	} {
		d := old.DeepCopy()
		c.change(d)
		deploymentKind.PrepareForUpdate(d, old)
		if d.Generation != c.want {
			t.Errorf("%s: generation %d, want %d", name, d.Generation, c.want)
		}
	}
}

func TestSystemMetadataIsKept(t *testing.T) {
	old := samples(t)["configmaps"].(*corev1.ConfigMap)
	SetDeleted(old, now, 5)
	bare := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: old.Name, Namespace: old.Namespace}}
	configMapKind.PrepareForUpdate(bare, old)
	if bare.UID != old.UID || !bare.CreationTimestamp.Equal(&old.CreationTimestamp) || bare.DeletionTimestamp == nil || *bare.DeletionGracePeriodSeconds != 5 {
		t.Errorf("an update without system metadata gave %+v", bare.ObjectMeta)
	}
}

func TestServiceUpdateKeepsWhatWasAllocated(t *testing.T) {
	manifest := `{metadata: {name: web, namespace: default, resourceVersion: "3"}, spec: {type: NodePort, ports: [{name: a, port: 80}, {name: b, port: 81}]}}`
	old := parse[corev1.Service](t, manifest)
	serviceKind.Default(old)
	old.Spec.ClusterIP, old.Spec.ClusterIPs = "10.43.0.7", []string{"10.43.0.7"}
	old.Spec.Ports[0].NodePort, old.Spec.Ports[1].NodePort = 30001, 30002

	again := parse[corev1.Service](t, manifest)
	serviceKind.Default(again)
	serviceKind.PrepareForUpdate(again, old)
	if again.Spec.ClusterIP != "10.43.0.7" || again.Spec.Ports[0].NodePort != 30001 || again.Spec.Ports[1].NodePort != 30002 {
		t.Errorf("the manifest sent again gave %+v", again.Spec)
	}
	if errs := serviceKind.ValidateUpdate(again, old); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}

	plain := old.DeepCopy()
	plain.Spec.Type = corev1.ServiceTypeClusterIP
	serviceKind.Default(plain)
	serviceKind.PrepareForUpdate(plain, old)
	if plain.Spec.Ports[0].NodePort != 0 || plain.Spec.ExternalTrafficPolicy != "" || plain.Spec.ClusterIP != "10.43.0.7" {
		t.Errorf("a change to ClusterIP gave %+v", plain.Spec)
	}
	if errs := serviceKind.ValidateUpdate(plain, old); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}

	external := old.DeepCopy()
	external.Spec.Type, external.Spec.ExternalName, external.Spec.Ports = corev1.ServiceTypeExternalName, "example.org", nil
	serviceKind.Default(external)
	serviceKind.PrepareForUpdate(external, old)
	if errs := serviceKind.ValidateUpdate(external, old); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
}

func TestNamespaceStaysTerminating(t *testing.T) {
	old := samples(t)["namespaces"].(*corev1.Namespace)
	SetDeleted(old, now, 0)
	old.Status.Phase = corev1.NamespaceTerminating
	if !namespaceKind.Deleting(old) {
		t.Error("a terminating namespace is not on its way out")
	}
	revived := old.DeepCopy()
	revived.Status.Phase = corev1.NamespaceActive
	namespaceKind.PrepareForStatusUpdate(revived, old)
	if revived.Status.Phase != corev1.NamespaceTerminating {
		t.Error("a status write brought a namespace back to life")
	}
	cleared := old.DeepCopy()
	cleared.Spec.Finalizers = nil
	namespaceKind.PrepareForUpdate(cleared, old)
	if len(cleared.Spec.Finalizers) != 1 {
		t.Error("a plain update removed the namespace's finalizer")
	}
}

func TestGracePeriod(t *testing.T) {
	for name, c := range map[string]struct {
		pod   string
		asked *int64
		want  int64
	}{
		"unbound":           {`{spec: {terminationGracePeriodSeconds: 7}}`, nil, 0},
		"bound":             {`{spec: {nodeName: w1, terminationGracePeriodSeconds: 7}}`, nil, 7},
		"asked":             {`{spec: {nodeName: w1, terminationGracePeriodSeconds: 7}}`, ptr.To[int64](2), 2},
		"asked for nothing": {`{spec: {nodeName: w1, terminationGracePeriodSeconds: 7}}`, ptr.To[int64](0), 0},
		"negative":          {`{spec: {nodeName: w1, terminationGracePeriodSeconds: -1}}`, nil, 1},
		"finished":          {`{spec: {nodeName: w1, terminationGracePeriodSeconds: 7}, status: {phase: Failed}}`, nil, 0},
	} {
		if got := podKind.GracePeriod(parse[corev1.Pod](t, c.pod), c.asked); got != c.want {
			t.Errorf("%s: %d seconds, want %d", name, got, c.want)
		}
	}
	if configMapKind.GracePeriod != nil {
		t.Error("a ConfigMap has a grace period")
	}
}

func TestSetDeletedOnlyShortens(t *testing.T) {
	p := samples(t)["pods"].(*corev1.Pod)
	if !SetDeleted(p, now, 30) || p.Generation != 2 || *p.DeletionGracePeriodSeconds != 30 {
		t.Errorf("first deletion: %+v", p.ObjectMeta)
	}
	if SetDeleted(p, now, 60) || SetDeleted(p, now, 30) || *p.DeletionGracePeriodSeconds != 30 {
		t.Error("a second deletion made the first one longer")
	}
	if !SetDeleted(p, now.Add(time.Second), 1) || *p.DeletionGracePeriodSeconds != 1 || p.Generation != 2 {
		t.Errorf("shorter deletion: %+v", p.ObjectMeta)
	}
	if want := now.Add(2 * time.Second); !p.DeletionTimestamp.Time.Equal(want) {
		t.Errorf("deletion at %s, want %s", p.DeletionTimestamp, want)
	}
}

func TestBind(t *testing.T) {
	p := samples(t)["pods"].(*corev1.Pod)
	if err := Bind(p, "w1", metav1.NewTime(now)); err != nil || p.Spec.NodeName != "w1" || !podConditionTrue(p, corev1.PodScheduled) {
		t.Errorf("%v: %+v", err, p)
	}
	if err := Bind(p, "w2", metav1.NewTime(now)); err == nil || p.Spec.NodeName != "w1" {
		t.Error("a bound pod was bound again")
	}
	gone := samples(t)["pods"].(*corev1.Pod)
	SetDeleted(gone, now, 0)
	if err := Bind(gone, "w1", metav1.NewTime(now)); err == nil {
		t.Error("a pod on its way out was bound")
	}
}

func TestQOSClass(t *testing.T) {
	for spec, want := range map[string]corev1.PodQOSClass{
		`{containers: [{name: a}]}`:                                                                        corev1.PodQOSBestEffort,
		`{containers: [{name: a, resources: {requests: {cpu: 1}}}]}`:                                       corev1.PodQOSBurstable,
		`{containers: [{name: a, resources: {limits: {cpu: 1, memory: 1Gi}}}]}`:                            corev1.PodQOSGuaranteed,
		`{containers: [{name: a, resources: {limits: {cpu: 1, memory: 1Gi}}}, {name: b}]}`:                 corev1.PodQOSBurstable,
		`{containers: [{name: a, resources: {limits: {cpu: 1, memory: 1Gi}, requests: {memory: 512Mi}}}]}`: corev1.PodQOSBurstable,
	} {
		p := &corev1.Pod{Spec: *parse[corev1.PodSpec](t, spec)}
		defaultPod(p)
		if got := QOSClass(&p.Spec); got != want {
			t.Errorf("%s: %s, want %s", spec, got, want)
		}
	}
}

func TestScale(t *testing.T) {
	d := samples(t)["deployments"].(*appsv1.Deployment)
	d.Status.Replicas = 2
	d.ResourceVersion = "12"
	scale, err := deploymentKind.Scale.Get(d)
	if err != nil {
		t.Fatal(err)
	}
	if scale.Name != "web" || scale.UID != d.UID || scale.ResourceVersion != "12" || scale.Spec.Replicas != 1 || scale.Status.Replicas != 2 || scale.Status.Selector != "app=web" {
		t.Errorf("scale %+v", scale)
	}
	deploymentKind.Scale.Set(d, 6)
	if *d.Spec.Replicas != 6 {
		t.Errorf("%d replicas", *d.Spec.Replicas)
	}
}

func TestNamesAndUIDs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for range 1000 {
		uid, name := string(NewUID(r)), GenerateName(r, "web-")
		if !form.MatchString(uid) || seen[uid] {
			t.Fatalf("UID %q", uid)
		}
		if len(name) != len("web-")+5 {
			t.Fatalf("name %q", name)
		}
		seen[uid] = true
	}
	long := make([]byte, 300)
	for i := range long {
		long[i] = 'a'
	}
	if got := GenerateName(r, string(long)); len(got) != 63 {
		t.Errorf("%d characters", len(got))
	}
	if a, b := NewUID(rand.New(rand.NewPCG(3, 4))), NewUID(rand.New(rand.NewPCG(3, 4))); a != b {
		t.Error("one seed gives two UIDs")
	}
}

func TestOps(t *testing.T) {
	p := samples(t)["pods"].(*corev1.Pod)
	op, err := UpdateOp(p)
	if err != nil || op.Key.String() != "pods/default/web" || op.UID != string(p.UID) || op.Deleting {
		t.Errorf("%+v, %v", op, err)
	}
	SetDeleted(p, now, 0)
	if op, err := UpdateOp(p); err != nil || !op.Deleting {
		t.Errorf("a pod on its way out is not marked (%v)", err)
	}
	for name, change := range map[string]func(p *corev1.Pod){
		"name": func(p *corev1.Pod) { p.Name = "" }, "UID": func(p *corev1.Pod) { p.UID = "" }, "namespace": func(p *corev1.Pod) { p.Namespace = "" },
	} {
		bad := p.DeepCopy()
		change(bad)
		if _, err := CreateOp(bad); err == nil {
			t.Errorf("an object without %s was accepted", name)
		}
	}
	node := samples(t)["nodes"].(*corev1.Node)
	node.Namespace = "default"
	if _, err := CreateOp(node); err == nil {
		t.Error("a node in a namespace was accepted")
	}
}
