package resource

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// golden prints a header and a row with wide columns, as "NAME value | ...".
func golden(obj runtime.Object) string {
	k := ForObject(obj)
	var cells []string
	for i, cell := range k.Row(obj, now) {
		mark := ""
		if k.Columns[i].Priority > 0 {
			mark = "~"
		}
		cells = append(cells, fmt.Sprintf("%s%s=%v", mark, k.Columns[i].Name, cell))
	}
	return strings.Join(cells, " ")
}

func TestRows(t *testing.T) {
	for kind, c := range map[string]struct {
		change func(object)
		want   string
	}{
		"configmaps":      {nil, "Name=c Data=1 Age=5m"},
		"secrets":         {nil, "Name=s Type=Opaque Data=1 Age=5m"},
		"namespaces":      {nil, "Name=team Status=Active Age=5m"},
		"serviceaccounts": {nil, "Name=robot Secrets=0 Age=5m"},
		"leases":          {nil, "Name=w1 Holder=w1 Age=5m"},
		"endpointslices": {func(o object) {
			s := o.(*discoveryv1.EndpointSlice)
			s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}, {Addresses: []string{"10.0.0.2"}}, {Addresses: []string{"10.0.0.3"}}, {Addresses: []string{"10.0.0.4"}}}
		}, "Name=web-1 AddressType=IPv4 Ports=8080 Endpoints=10.0.0.1,10.0.0.2,10.0.0.3 + 1 more... Age=5m"},
		"events": {func(o object) {
			e := o.(*corev1.Event)
			e.FirstTimestamp, e.LastTimestamp, e.Count = ago(time.Hour), ago(3*time.Second), 4
			e.Source = corev1.EventSource{Component: "agent", Host: "w1"}
		}, "Last Seen=3s Type=Normal Reason=Started Object=pod/web ~Subobject= ~Source=agent, w1 Message=Started container ~First Seen=60m ~Count=4 ~Name=web.1"},
		"nodes": {func(o object) {
			n := o.(*corev1.Node)
			n.Labels = map[string]string{"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge"}
			n.Spec.Unschedulable = true
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
			n.Status.NodeInfo.KubeletVersion = "v1.37.2"
		}, "Name=w1 Status=Ready,SchedulingDisabled Roles=edge,worker Age=5m Version=v1.37.2 ~Internal-IP=192.0.2.1 ~External-IP=<none> ~OS-Image=<unknown> ~Kernel-Version=<unknown> ~Container-Runtime=<unknown>"},
		"services": {func(o object) {
			s := o.(*corev1.Service)
			s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeNodePort, "10.43.0.7", []string{"10.43.0.7"}
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: 443, NodePort: 30443, Protocol: corev1.ProtocolTCP})
		}, "Name=web Type=NodePort Cluster-IP=10.43.0.7 External-IP=<none> Port(s)=80/TCP,443:30443/TCP Age=5m ~Selector=app=web"},
		"deployments": {func(o object) {
			d := o.(*appsv1.Deployment)
			d.Spec.Replicas, d.Status = ptr.To[int32](6), appsv1.DeploymentStatus{ReadyReplicas: 4, UpdatedReplicas: 5, AvailableReplicas: 3}
		}, "Name=web Ready=4/6 Up-to-date=5 Available=3 Age=5m ~Containers=web ~Images=web:1 ~Selector=app=web"},
		"replicasets": {func(o object) {
			o.(*appsv1.ReplicaSet).Status = appsv1.ReplicaSetStatus{Replicas: 2, ReadyReplicas: 1}
		}, "Name=web-1 Desired=1 Current=2 Ready=1 Age=5m ~Containers=web ~Images=web:1 ~Selector=app=web"},
		"pods": {nil, "Name=web Ready=0/1 Status=Pending Restarts=0 Age=5m ~IP=<none> ~Node=<none> ~Nominated Node=<none> ~Readiness Gates=<none>"},
	} {
		obj := samples(t)[kind]
		if c.change != nil {
			c.change(obj)
		}
		if got := golden(obj); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", kind, got, c.want)
		}
	}
}

// TestPodStatusColumn: the line of a pod in each of its conditions, as kubectl
// prints it.
func TestPodStatusColumn(t *testing.T) {
	for name, c := range map[string]struct{ pod, want string }{
		"running": {`
status: {phase: Running, podIP: 10.42.0.3, podIPs: [{ip: 10.42.0.3}], containerStatuses: [{name: web, ready: true, state: {running: {}}}]}`,
			"1/1 Running 0 10.42.0.3"},
		"restarted": {`
status: {phase: Running, containerStatuses: [{name: web, ready: true, restartCount: 2, state: {running: {}}, lastState: {terminated: {finishedAt: "2026-03-01T11:58:00Z"}}}]}`,
			"1/1 Running 2 (2m ago) <none>"},
		"crash loop": {`
status: {phase: Running, containerStatuses: [{name: web, restartCount: 5, state: {waiting: {reason: CrashLoopBackOff}}}]}`,
			"0/1 CrashLoopBackOff 5 <none>"},
		"image": {`
status: {phase: Pending, containerStatuses: [{name: web, state: {waiting: {reason: ImagePullBackOff}}}]}`,
			"0/1 ImagePullBackOff 0 <none>"},
		"completed": {`
status: {phase: Succeeded, containerStatuses: [{name: web, state: {terminated: {exitCode: 0, reason: Completed}}}]}`,
			"0/1 Completed 0 <none>"},
		"error": {`
status: {phase: Failed, containerStatuses: [{name: web, state: {terminated: {exitCode: 3, reason: Error}}}]}`,
			"0/1 Error 0 <none>"},
		"exit code": {`
status: {phase: Failed, containerStatuses: [{name: web, state: {terminated: {exitCode: 3}}}]}`,
			"0/1 ExitCode:3 0 <none>"},
		"signal": {`
status: {phase: Failed, containerStatuses: [{name: web, state: {terminated: {exitCode: 137, signal: 9}}}]}`,
			"0/1 Signal:9 0 <none>"},
		"out of memory": {`
status: {phase: Running, containerStatuses: [{name: web, restartCount: 1, state: {terminated: {exitCode: 137, reason: OOMKilled}}}]}`,
			"0/1 OOMKilled 1 <none>"},
		"evicted": {`
status: {phase: Failed, reason: Evicted}`,
			"0/1 Evicted 0 <none>"},
		"terminating": {`
metadata: {deletionTimestamp: "2026-03-01T12:00:30Z"}
status: {phase: Running, containerStatuses: [{name: web, ready: true, state: {running: {}}}]}`,
			"1/1 Terminating 0 <none>"},
		"node lost": {`
metadata: {deletionTimestamp: "2026-03-01T12:00:30Z"}
status: {phase: Running, reason: NodeLost}`,
			"0/1 Unknown 0 <none>"},
		"finished and deleted": {`
metadata: {deletionTimestamp: "2026-03-01T12:00:30Z"}
status: {phase: Succeeded, containerStatuses: [{name: web, state: {terminated: {exitCode: 0, reason: Completed}}}]}`,
			"0/1 Completed 0 <none>"},
		"init": {`
spec: {initContainers: [{name: a, image: x}, {name: b, image: x}]}
status: {phase: Pending, initContainerStatuses: [{name: a, state: {terminated: {exitCode: 0}}}, {name: b, state: {running: {}}}]}`,
			"0/1 Init:1/2 0 <none>"},
		"init failed": {`
spec: {initContainers: [{name: a, image: x}]}
status: {phase: Pending, initContainerStatuses: [{name: a, restartCount: 3, state: {waiting: {reason: CrashLoopBackOff}}}]}`,
			"0/1 Init:CrashLoopBackOff 3 <none>"},
		"init error": {`
spec: {initContainers: [{name: a, image: x}]}
status: {phase: Pending, initContainerStatuses: [{name: a, state: {terminated: {exitCode: 2}}}]}`,
			"0/1 Init:ExitCode:2 0 <none>"},
		"after init": {`
spec: {initContainers: [{name: a, image: x}]}
status: {phase: Pending, initContainerStatuses: [{name: a, restartCount: 3, state: {terminated: {exitCode: 0}}}], containerStatuses: [{name: web, state: {waiting: {reason: PodInitializing}}}]}`,
			"0/1 PodInitializing 0 <none>"},
		"sidecar": {`
spec: {initContainers: [{name: a, image: x, restartPolicy: Always}]}
status: {phase: Running, initContainerStatuses: [{name: a, ready: true, started: true, restartCount: 1, state: {running: {}}}], containerStatuses: [{name: web, ready: true, state: {running: {}}}]}`,
			"2/2 Running 1 <none>"},
		"gated": {`
status: {phase: Pending, conditions: [{type: PodScheduled, status: "False", reason: SchedulingGated}]}`,
			"0/1 SchedulingGated 0 <none>"},
	} {
		pod := samples(t)["pods"].(*corev1.Pod)
		if err := yaml.UnmarshalStrict([]byte(c.pod), pod); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		row := podRow(pod, now)
		if got := fmt.Sprintf("%v %v %v %v", row[1], row[2], row[3], row[5]); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestExternalAddresses(t *testing.T) {
	for manifest, want := range map[string]string{
		`{spec: {type: LoadBalancer}}`: "<pending>",
		`{spec: {type: LoadBalancer}, status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {hostname: lb}]}}}`: "192.0.2.1,lb",
		`{spec: {type: ExternalName, externalName: example.org}}`:                                            "example.org",
		`{spec: {type: ClusterIP, externalIPs: [192.0.2.9]}}`:                                                "192.0.2.9",
	} {
		if got := externalIP(parse[corev1.Service](t, manifest)); got != want {
			t.Errorf("%s: %s, want %s", manifest, got, want)
		}
	}
}

func TestAgeIsUnknownWithoutTime(t *testing.T) {
	if got := age(metav1.Time{}, now); got != "<unknown>" {
		t.Error(got)
	}
}
