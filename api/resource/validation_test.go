package resource

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// expect compares errors with the wanted one's text; "" wants none.
func expect(t *testing.T, name string, errs field.ErrorList, want string) {
	t.Helper()
	if want == "" {
		if len(errs) > 0 {
			t.Errorf("%s: refused: %v", name, errs.ToAggregate())
		}
		return
	}
	for _, err := range errs {
		if strings.Contains(err.Error(), want) {
			return
		}
	}
	t.Errorf("%s: got %v, want %q", name, errs.ToAggregate(), want)
}

// patched returns a defaulted sample with a YAML patch decoded over it.
func patched(t *testing.T, kind, patch string) runtime.Object {
	t.Helper()
	obj := samples(t)[kind]
	if err := yaml.UnmarshalStrict([]byte(patch), obj); err != nil {
		t.Fatalf("%s: %v", patch, err)
	}
	ForObject(obj).Default(obj)
	return obj
}

func TestValidate(t *testing.T) {
	for _, c := range []struct{ kind, patch, want string }{
		// Metadata.
		{"configmaps", `metadata: {name: Web}`, `metadata.name: Invalid value: "Web": a lowercase RFC 1123 subdomain must consist of`},
		{"configmaps", `metadata: {name: ""}`, `metadata.name: Required value: name or generateName is required`},
		{"configmaps", `metadata: {labels: {"a b": c}}`, `metadata.labels: Invalid value: "a b"`},
		{"configmaps", `metadata: {annotations: {"a/b/c": c}}`, `metadata.annotations: Invalid value`},
		{"configmaps", `metadata: {finalizers: ["a b"]}`, `metadata.finalizers`},
		{"configmaps", `metadata: {namespace: ""}`, `metadata.namespace: Required value`},
		{"nodes", `metadata: {namespace: default}`, `metadata.namespace: Forbidden: not allowed on this type`},
		{"namespaces", `metadata: {name: a.b}`, `metadata.name: Invalid value: "a.b"`},
		{"services", `metadata: {name: 1web}`, `metadata.name: Invalid value: "1web": a DNS-1035 label must`},
		// ConfigMaps, Secrets, Events, Leases.
		{"configmaps", `data: {"a b": c}`, `data[a b]: Invalid value`},
		{"configmaps", `binaryData: {k: eA==}`, `data[k]: Invalid value: "k": duplicate of key present in binaryData`},
		{"secrets", `{type: kubernetes.io/tls, data: {tls.crt: eA==}}`, `data[tls.key]: Required value`},
		{"secrets", `{type: kubernetes.io/dockerconfigjson, data: {.dockerconfigjson: eA==}}`, `data[.dockerconfigjson]: Invalid value: "<secret contents redacted>": invalid JSON`},
		{"secrets", `{type: kubernetes.io/basic-auth}`, `data[username]: Required value`},
		{"secrets", `{type: helm.sh/release.v1}`, ``},
		{"events", `involvedObject: {namespace: other}`, `involvedObject.namespace: Invalid value: "other": does not match event.namespace`},
		{"events", `eventTime: "2026-03-01T12:00:00.000000Z"`, `reportingController: Required value`},
		{"leases", `spec: {leaseDurationSeconds: 0}`, `spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0`},
		// Pods.
		{"pods", `spec: {containers: []}`, `spec.containers: Required value`},
		{"pods", `spec: {containers: [{name: a, image: ""}]}`, `spec.containers[0].image: Required value`},
		{"pods", `spec: {containers: [{name: a, image: " x"}]}`, `must not have leading or trailing whitespace`},
		{"pods", `spec: {containers: [{name: A, image: x}]}`, `spec.containers[0].name: Invalid value: "A"`},
		{"pods", `spec: {containers: [{name: a, image: x}, {name: a, image: x}]}`, `spec.containers[1].name: Duplicate value: "a"`},
		{"pods", `spec: {initContainers: [{name: web, image: x}]}`, `spec.initContainers[0].name: Duplicate value: "web"`},
		{"pods", `spec: {initContainers: [{name: i, image: x, livenessProbe: {exec: {command: [a]}}}]}`, `may not be set for init containers without restartPolicy=Always`},
		{"pods", `spec: {initContainers: [{name: i, image: x, restartPolicy: Always, livenessProbe: {exec: {command: [a]}}}]}`, ``},
		{"pods", `spec: {restartPolicy: Sometimes}`, `spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"`},
		{"pods", `spec: {dnsPolicy: None}`, `spec.dnsConfig.nameservers: Required value`},
		{"pods", `spec: {hostname: a.b}`, `spec.hostname: Invalid value: "a.b"`},
		{"pods", `spec: {activeDeadlineSeconds: 0}`, `spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647`},
		{"pods", `spec: {hostPID: true, shareProcessNamespace: true}`, `ShareProcessNamespace and HostPID cannot both be enabled`},
		{"pods", `spec: {containers: [{name: a, image: x, ports: [{containerPort: 0}]}]}`, `spec.containers[0].ports[0].containerPort: Required value`},
		{"pods", `spec: {containers: [{name: a, image: x, ports: [{containerPort: 70000}]}]}`, `containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive`},
		{"pods", `spec: {containers: [{name: a, image: x, ports: [{containerPort: 80, protocol: ICMP}]}]}`, `protocol: Unsupported value: "ICMP": supported values: "SCTP", "TCP", "UDP"`},
		{"pods", `spec: {containers: [{name: a, image: x, ports: [{containerPort: 1, hostPort: 9}, {containerPort: 2, hostPort: 9}]}]}`, `spec.containers[0].ports[1].hostPort: Duplicate value: "TCP//9"`},
		{"pods", `spec: {containers: [{name: a, image: x, env: [{name: "a=b"}]}]}`, `spec.containers[0].env[0].name: Invalid value: "a=b"`},
		{"pods", `spec: {containers: [{name: a, image: x, env: [{name: A, value: v, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}]}`, "may not be specified when `value` is not empty"},
		{"pods", `spec: {containers: [{name: a, image: x, env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.nope}}}]}]}`, `fieldPath: Unsupported value: "spec.nope"`},
		{"pods", `spec: {containers: [{name: a, image: x, env: [{name: A, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}]}]}`, ``},
		{"pods", `spec: {containers: [{name: a, image: x, env: [{name: A, valueFrom: {secretKeyRef: {name: s}}}]}]}`, `valueFrom.secretKeyRef.key: Required value`},
		{"pods", `spec: {containers: [{name: a, image: x, envFrom: [{}]}]}`, "must specify one of: `configMapRef` or `secretRef`"},
		{"pods", `spec: {containers: [{name: a, image: x, volumeMounts: [{name: gone, mountPath: /x}]}]}`, `spec.containers[0].volumeMounts[0].name: Not found: "gone"`},
		{"pods", `spec: {volumes: [{name: v}], containers: [{name: a, image: x, volumeMounts: [{name: v, mountPath: /x}, {name: v, mountPath: /x}]}]}`, `mountPath: Invalid value: "/x": must be unique`},
		{"pods", `spec: {volumes: [{name: v}], containers: [{name: a, image: x, volumeMounts: [{name: v, mountPath: /x, subPath: ../etc}]}]}`, `subPath: Invalid value: "../etc": must not contain '..'`},
		{"pods", `spec: {volumes: [{name: v}, {name: v}]}`, `spec.volumes[1].name: Duplicate value: "v"`},
		{"pods", `spec: {volumes: [{name: v, emptyDir: {}, hostPath: {path: /x}}]}`, `may not specify more than 1 volume type`},
		{"pods", `spec: {volumes: [{name: v, configMap: {name: c, defaultMode: 9999}}]}`, `must be a number between 0 and 0777 (octal), both inclusive`},
		{"pods", `spec: {volumes: [{name: v, secret: {secretName: c, items: [{key: k, path: /abs}]}}]}`, `must be a relative path`},
		{"pods", `spec: {containers: [{name: a, image: x, resources: {requests: {cpu: 2}, limits: {cpu: 1}}}]}`, `spec.containers[0].resources.requests[cpu]: Invalid value: "2": must be less than or equal to cpu limit of 1`},
		{"pods", `spec: {containers: [{name: a, image: x, resources: {limits: {memory: -1Gi}}}]}`, `resources.limits[memory]: Invalid value: "-1Gi": must be greater than or equal to 0`},
		{"pods", `spec: {containers: [{name: a, image: x, resources: {limits: {ram: 1}}}]}`, `must be a standard resource for containers`},
		{"pods", `spec: {containers: [{name: a, image: x, resources: {limits: {example.org/gpu: 500m}}}]}`, `must be an integer`},
		{"pods", `spec: {containers: [{name: a, image: x, readinessProbe: {}}]}`, `readinessProbe: Required value: must specify a handler type`},
		{"pods", `spec: {containers: [{name: a, image: x, livenessProbe: {successThreshold: 2, tcpSocket: {port: 1}}}]}`, `livenessProbe.successThreshold: Invalid value: 2: must be 1`},
		{"pods", `spec: {containers: [{name: a, image: x, livenessProbe: {httpGet: {port: 0}}}]}`, `httpGet.port: Invalid value: 0`},
		{"pods", `spec: {containers: [{name: a, image: x, securityContext: {privileged: true, allowPrivilegeEscalation: false}}]}`, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"},
		{"pods", `spec: {containers: [{name: a, image: x, securityContext: {runAsUser: -1}}]}`, `securityContext.runAsUser: Invalid value: -1`},
		{"pods", `spec: {tolerations: [{key: a, operator: Exists, value: b}]}`, `value must be empty when`},
		{"pods", `spec: {tolerations: [{key: a, effect: NoSchedule, tolerationSeconds: 3}]}`, `effect must be 'NoExecute' when`},
		{"pods", `spec: {tolerations: [{operator: Exists}]}`, ``},
		{"pods", `spec: {nodeSelector: {"a b": c}}`, `spec.nodeSelector: Invalid value: "a b"`},
		{"pods", `spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In}]}]}}}}`, `must be specified when`},
		{"pods", `spec: {affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{labelSelector: {}}]}}}`, `topologyKey: Required value: can not be empty`},
		{"pods", `spec: {topologySpreadConstraints: [{maxSkew: 0, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]}`, `maxSkew: Invalid value: 0: must be greater than zero`},
		// Workloads.
		{"deployments", `spec: {replicas: -1}`, `spec.replicas: Invalid value: -1: must be greater than or equal to 0`},
		{"deployments", `spec: {selector: {matchLabels: {app: other}}}`, "spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`"},
		{"deployments", `spec: {template: {spec: {restartPolicy: Never}}}`, `spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`},
		{"deployments", `spec: {strategy: {type: Recreate}}`, "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"},
		{"deployments", `spec: {strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 0%}}}`, "may not be 0 when `maxSurge` is 0"},
		{"deployments", `spec: {strategy: {rollingUpdate: {maxUnavailable: 101%}}}`, `must not be greater than 100%`},
		{"deployments", `spec: {strategy: {rollingUpdate: {maxSurge: some}}}`, `spec.strategy.rollingUpdate.maxSurge: Invalid value: "some"`},
		{"deployments", `spec: {minReadySeconds: 700}`, `must be greater than minReadySeconds`},
		{"deployments", `spec: {template: {spec: {containers: [{name: a, image: ""}]}}}`, `spec.template.spec.containers[0].image: Required value`},
		{"replicasets", `spec: {template: {metadata: {labels: {app: other}}}}`, "`selector` does not match template `labels`"},
		// Services.
		{"services", `spec: {ports: []}`, `spec.ports: Required value`},
		{"services", `spec: {ports: [], clusterIP: None, clusterIPs: [None]}`, ``},
		{"services", `spec: {ports: [{port: 80}, {port: 81, name: b}]}`, `spec.ports[0].name: Required value`},
		{"services", `spec: {ports: [{name: a, port: 80}, {name: b, port: 80}]}`, `spec.ports[1]: Duplicate value`},
		{"services", `spec: {ports: [{name: a, port: 80}, {name: b, port: 80, protocol: UDP}]}`, ``},
		{"services", `spec: {ports: [{port: 80, nodePort: 30000}]}`, "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"},
		{"services", `spec: {type: NodePort, ports: [{port: 80, nodePort: 80}]}`, `provided port is not in the valid range. The range of valid ports is 30000-32767`},
		{"services", `spec: {type: Odd}`, `spec.type: Unsupported value: "Odd"`},
		{"services", `spec: {type: ExternalName}`, `spec.externalName: Required value`},
		{"services", `spec: {clusterIP: 1.2.3, clusterIPs: [1.2.3]}`, `spec.clusterIPs[0]: Invalid value: "1.2.3": must be a valid IP address`},
		{"services", `spec: {clusterIP: 1.2.3.4, clusterIPs: [1.2.3.5]}`, "first value must match `clusterIP`"},
		{"services", `spec: {type: NodePort, clusterIP: None, clusterIPs: [None]}`, `may not be set to 'None' for NodePort services`},
		{"services", `spec: {selector: {a: "b c"}}`, `spec.selector: Invalid value: "b c"`},
		{"services", `spec: {ports: [{port: 80, targetPort: "too-long-a-port-name"}]}`, `spec.ports[0].targetPort: Invalid value`},
		{"services", `spec: {loadBalancerSourceRanges: [1.2.3.4]}`, `spec.loadBalancerSourceRanges[0]: Invalid value: "1.2.3.4"`},
		// Nodes, EndpointSlices.
		{"nodes", `spec: {taints: [{key: a, effect: Odd}]}`, `spec.taints[0].effect: Unsupported value: "Odd"`},
		{"nodes", `spec: {taints: [{key: a, effect: NoSchedule}, {key: a, value: b, effect: NoSchedule}]}`, `spec.taints[1]: Duplicate value`},
		{"nodes", `spec: {podCIDR: nope, podCIDRs: [nope]}`, `spec.podCIDRs[0]: Invalid value: "nope": must be a valid CIDR value`},
		{"nodes", `spec: {podCIDR: 10.0.0.0/24, podCIDRs: [10.0.1.0/24]}`, "must match `podCIDR`"},
		{"nodes", `status: {capacity: {cpu: -1}}`, `status.capacity[cpu]: Invalid value`},
		{"endpointslices", `addressType: Odd`, `addressType: Unsupported value: "Odd"`},
		{"endpointslices", `endpoints: [{addresses: []}]`, `must contain at least 1 address`},
		{"endpointslices", `endpoints: [{addresses: [127.0.0.1]}]`, `may not be an unspecified, loopback, link-local or multicast address`},
		{"endpointslices", `endpoints: [{addresses: ["fd00::1"]}]`, `must be an IPv4 address`},
		{"endpointslices", `ports: [{name: a}, {name: a}]`, `ports[1].name: Duplicate value: "a"`},
	} {
		obj := patched(t, c.kind, c.patch)
		expect(t, c.kind+" "+c.patch, ForObject(obj).Validate(obj), c.want)
	}
}

func TestValidateUpdate(t *testing.T) {
	for _, c := range []struct{ kind, patch, want string }{
		{"configmaps", `data: {k: other}`, ``},
		{"configmaps", `metadata: {uid: other}`, `metadata.uid: Invalid value: "other": field is immutable`},
		{"configmaps", `metadata: {creationTimestamp: "2020-01-01T00:00:00Z"}`, `metadata.creationTimestamp: Invalid value`},
		{"secrets", `type: other`, `type: Invalid value: "other": field is immutable`},
		{"deployments", `spec: {selector: {matchLabels: {more: x}}, template: {metadata: {labels: {more: x}}}}`, `spec.selector: Invalid value`},
		{"deployments", `spec: {template: {metadata: {labels: {more: x}}}}`, ``},
		{"replicasets", `spec: {selector: {matchLabels: {more: x}}, template: {metadata: {labels: {more: x}}}}`, `spec.selector: Invalid value`},
		{"pods", `spec: {containers: [{name: web, image: "web:2"}]}`, ``},
		{"pods", `spec: {activeDeadlineSeconds: 5}`, ``},
		{"pods", `spec: {tolerations: [{operator: Exists}]}`, ``},
		{"pods", `metadata: {labels: {a: b}}`, ``},
		{"pods", `spec: {nodeName: w1}`, `changed: nodeName`},
		{"pods", `spec: {containers: [{name: web, image: "web:1", command: [a]}]}`, `changed: containers`},
		{"pods", `spec: {containers: [{name: web, image: x}, {name: b, image: x}]}`, `pod updates may not add or remove containers`},
		{"endpointslices", `{addressType: IPv6, endpoints: [{addresses: ["fd00::1"]}]}`, `addressType: Invalid value: "IPv6": field is immutable`},
		{"nodes", `spec: {podCIDR: 10.42.9.0/24, podCIDRs: [10.42.9.0/24]}`, `node updates may not change podCIDR except from "" to valid`},
		{"namespaces", `metadata: {labels: {kubernetes.io/metadata.name: other}}`, ``}, // defaulting puts it back
	} {
		old := samples(t)[c.kind]
		old.SetResourceVersion("5")
		obj := patched(t, c.kind, c.patch)
		obj.(metav1.Object).SetResourceVersion("5")
		k := ForObject(obj)
		k.PrepareForUpdate(obj, old)
		expect(t, c.kind+" "+c.patch, k.ValidateUpdate(obj, old), c.want)
	}
}

func TestSealedData(t *testing.T) {
	old := samples(t)["configmaps"].(*corev1.ConfigMap)
	old.Immutable, old.ResourceVersion = ptr.To(true), "5"
	for name, change := range map[string]func(*corev1.ConfigMap){
		"data":      func(c *corev1.ConfigMap) { c.Data["k"] = "other" },
		"unsealing": func(c *corev1.ConfigMap) { c.Immutable = nil },
	} {
		c := old.DeepCopy()
		change(c)
		expect(t, name, configMapKind.ValidateUpdate(c, old), "field is immutable when `immutable` is set")
	}
	labelled := old.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	expect(t, "label", configMapKind.ValidateUpdate(labelled, old), "")
}

func TestClusterIPIsImmutable(t *testing.T) {
	old := samples(t)["services"].(*corev1.Service)
	old.ResourceVersion = "5"
	given := old.DeepCopy()
	given.Spec.ClusterIP, given.Spec.ClusterIPs = "10.43.0.7", []string{"10.43.0.7"}
	expect(t, "first address", serviceKind.ValidateUpdate(given, old), "")
	moved := given.DeepCopy()
	moved.Spec.ClusterIP, moved.Spec.ClusterIPs = "10.43.0.8", []string{"10.43.0.8"}
	expect(t, "another address", serviceKind.ValidateUpdate(moved, given), "field is immutable")
}

func TestDeadlineAndGates(t *testing.T) {
	old := samples(t)["pods"].(*corev1.Pod)
	old.ResourceVersion = "5"
	old.Spec.ActiveDeadlineSeconds = ptr.To[int64](10)
	old.Spec.Tolerations = []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"later deadline":  {func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](11) }, "must be less than or equal to previous value"},
		"sooner deadline": {func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](9) }, ""},
		"no deadline":     {func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = nil }, "must not update from a positive integer to nil value"},
		"lost toleration": {func(p *corev1.Pod) { p.Spec.Tolerations = nil }, "existing toleration can not be modified"},
		"added toleration": {func(p *corev1.Pod) {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists})
		}, ""},
		"new gate": {func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a/b"}} }, "only deletion is allowed"},
	} {
		p := old.DeepCopy()
		c.change(p)
		expect(t, name, podKind.ValidateUpdate(p, old), c.want)
	}
}

func TestStatusValidation(t *testing.T) {
	d := samples(t)["deployments"].(*appsv1.Deployment)
	d.ResourceVersion = "5"
	bad := d.DeepCopy()
	bad.Status = appsv1.DeploymentStatus{Replicas: 1, ReadyReplicas: 2}
	expect(t, "deployment", deploymentKind.ValidateStatusUpdate(bad, d), "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas")
	p := samples(t)["pods"].(*corev1.Pod)
	p.ResourceVersion = "5"
	wrong := p.DeepCopy()
	wrong.Status.PodIPs = []corev1.PodIP{{IP: "nope"}}
	expect(t, "pod", podKind.ValidateStatusUpdate(wrong, p), `status.podIPs[0]: Invalid value: "nope"`)
	n := samples(t)["nodes"].(*corev1.Node)
	n.ResourceVersion = "5"
	odd := n.DeepCopy()
	odd.Status.Capacity = corev1.ResourceList{corev1.ResourcePods: apiresource.MustParse("1500m")}
	expect(t, "node", nodeKind.ValidateStatusUpdate(odd, n), "status.capacity[pods]: Invalid value")
}

func TestIntOrPercent(t *testing.T) {
	path := field.NewPath("x")
	for text, want := range map[string]int{"0": 0, "3": 3, "25%": 25, "100%": 100} {
		value := intstr.Parse(text)
		if n, errs := validateIntOrPercent(&value, path); n != want || len(errs) > 0 {
			t.Errorf("%s: %d, %v", text, n, errs)
		}
	}
	for _, text := range []string{"-1", "x", "5.5%", "%"} {
		value := intstr.Parse(text)
		if _, errs := validateIntOrPercent(&value, path); len(errs) == 0 {
			t.Errorf("%s was accepted", text)
		}
	}
}
