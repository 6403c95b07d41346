package resource

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestDefaults compares what defaulting makes of a manifest with all that
// Kubernetes makes of it.
func TestDefaults(t *testing.T) {
	for name, c := range map[string]struct {
		kind     *Kind
		in, want string
	}{
		"pod": {podKind, `
spec:
  serviceAccountName: robot
  containers:
  - name: a
    image: web
    ports: [{containerPort: 80}]
    resources: {limits: {cpu: 100m, memory: 64Mi}, requests: {memory: 32Mi}}
    env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
    readinessProbe: {httpGet: {port: 80}}
    livenessProbe: {exec: {command: [ok]}, periodSeconds: 3}
    startupProbe: {grpc: {port: 9}}
    lifecycle: {preStop: {httpGet: {port: 80}}}
  volumes:
  - name: plain
  - {name: s, secret: {secretName: s}}
  - {name: c, configMap: {name: c}}
  - {name: h, hostPath: {path: /x}}
  - {name: t, projected: {sources: [{serviceAccountToken: {path: t}}]}}
`, `
metadata: {}
spec:
  containers:
  - name: a
    image: web
    imagePullPolicy: Always
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    ports: [{containerPort: 80, protocol: TCP}]
    resources: {limits: {cpu: 100m, memory: 64Mi}, requests: {cpu: 100m, memory: 32Mi}}
    env: [{name: NODE, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: spec.nodeName}}}]
    readinessProbe: {httpGet: {path: /, port: 80, scheme: HTTP}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}
    livenessProbe: {exec: {command: [ok]}, timeoutSeconds: 1, periodSeconds: 3, successThreshold: 1, failureThreshold: 3}
    startupProbe: {grpc: {port: 9, service: ""}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}
    lifecycle: {preStop: {httpGet: {path: /, port: 80, scheme: HTTP}}}
  dnsPolicy: ClusterFirst
  enableServiceLinks: true
  restartPolicy: Always
  schedulerName: default-scheduler
  securityContext: {}
  serviceAccount: robot
  serviceAccountName: robot
  terminationGracePeriodSeconds: 30
  volumes:
  - {name: plain, emptyDir: {}}
  - {name: s, secret: {secretName: s, defaultMode: 420}}
  - {name: c, configMap: {name: c, defaultMode: 420}}
  - {name: h, hostPath: {path: /x, type: ""}}
  - {name: t, projected: {defaultMode: 420, sources: [{serviceAccountToken: {path: t, expirationSeconds: 3600}}]}}
status: {}
`},
		"deployment": {deploymentKind, `
spec:
  template: {spec: {containers: [{name: a, image: "web:2"}]}}
`, `
metadata: {}
spec:
  progressDeadlineSeconds: 600
  replicas: 1
  revisionHistoryLimit: 10
  selector: null
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 25%, maxUnavailable: 25%}}
  template:
    metadata: {}
    spec:
      containers: [{name: a, image: "web:2", imagePullPolicy: IfNotPresent, resources: {}, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File}]
      dnsPolicy: ClusterFirst
      restartPolicy: Always
      schedulerName: default-scheduler
      securityContext: {}
      terminationGracePeriodSeconds: 30
status: {}
`},
		"service": {serviceKind, `
spec: {ports: [{port: 80}, {port: 53, protocol: UDP, targetPort: dns}]}
`, `
metadata: {}
spec:
  internalTrafficPolicy: Cluster
  ipFamilies: [IPv4]
  ipFamilyPolicy: SingleStack
  ports: [{port: 80, protocol: TCP, targetPort: 80}, {port: 53, protocol: UDP, targetPort: dns}]
  sessionAffinity: None
  type: ClusterIP
status: {loadBalancer: {}}
`},
		"node port with affinity": {serviceKind, `
spec: {type: NodePort, sessionAffinity: ClientIP, ports: [{port: 80}]}
`, `
metadata: {}
spec:
  externalTrafficPolicy: Cluster
  internalTrafficPolicy: Cluster
  ipFamilies: [IPv4]
  ipFamilyPolicy: SingleStack
  ports: [{port: 80, protocol: TCP, targetPort: 80}]
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 10800}}
  type: NodePort
status: {loadBalancer: {}}
`},
		"external name": {serviceKind, `
spec: {type: ExternalName, externalName: example.org}
`, `
metadata: {}
spec: {externalName: example.org, sessionAffinity: None, type: ExternalName}
status: {loadBalancer: {}}
`},
		"secret": {secretKind, `
stringData: {password: hush}
`, `
metadata: {}
data: {password: aHVzaA==}
type: Opaque
`},
		"namespace": {namespaceKind, `
metadata: {name: team}
`, `
metadata: {name: team, labels: {kubernetes.io/metadata.name: team}}
spec: {}
status: {}
`},
		"node": {nodeKind, `
spec: {podCIDR: 10.42.0.0/24}
status: {capacity: {cpu: "2"}}
`, `
metadata: {}
spec: {podCIDR: 10.42.0.0/24, podCIDRs: [10.42.0.0/24]}
status:
  allocatable: {cpu: "2"}
  capacity: {cpu: "2"}
  daemonEndpoints: {kubeletEndpoint: {Port: 0}}
  nodeInfo: {architecture: "", bootID: "", containerRuntimeVersion: "", kernelVersion: "", kubeProxyVersion: "", kubeletVersion: "", machineID: "", operatingSystem: "", osImage: "", systemUUID: ""}
`},
	} {
		obj := c.kind.New()
		if err := yaml.UnmarshalStrict([]byte(c.in), obj); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c.kind.Default(obj)
		obj.GetObjectKind().SetGroupVersionKind(c.kind.GVK.GroupVersion().WithKind(""))
		got, err := yaml.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		var plain map[string]any
		if err := yaml.Unmarshal([]byte(c.want), &plain); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		plain["apiVersion"] = c.kind.GVK.GroupVersion().String()
		want, err := yaml.Marshal(plain)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
}

func TestImagePullPolicyByTag(t *testing.T) {
	for image, want := range map[string]corev1.PullPolicy{
		"web": corev1.PullAlways, "web:latest": corev1.PullAlways, "host:5000/web": corev1.PullAlways,
		"host:5000/team/web:latest": corev1.PullAlways, "web:1": corev1.PullIfNotPresent, "host:5000/web:1": corev1.PullIfNotPresent,
		"web@sha256:0123": corev1.PullIfNotPresent, "web:latest@sha256:0123": corev1.PullAlways,
	} {
		c := corev1.Container{Image: image}
		defaultContainer(&c)
		if c.ImagePullPolicy != want {
			t.Errorf("%s: %s, want %s", image, c.ImagePullPolicy, want)
		}
	}
}

func TestHostNetworkPorts(t *testing.T) {
	p := parse[corev1.Pod](t, `{spec: {hostNetwork: true, containers: [{name: a, image: x, ports: [{containerPort: 80}]}]}}`)
	defaultPod(p)
	if got := p.Spec.Containers[0].Ports[0].HostPort; got != 80 {
		t.Errorf("host port %d", got)
	}
}

func TestRecreateHasNoRollingUpdate(t *testing.T) {
	d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}}}
	defaultDeployment(d)
	if d.Spec.Strategy.RollingUpdate != nil {
		t.Error("a Recreate strategy got rolling update parameters")
	}
}

func TestSchemeDefaultsLikeTheTable(t *testing.T) {
	d := &appsv1.Deployment{}
	Scheme.Default(d)
	if d.Spec.Replicas == nil || *d.Spec.Replicas != 1 {
		t.Error("Scheme.Default does not run the kind's")
	}
}
