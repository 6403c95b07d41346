package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// manifest is a Deployment and a Service of the web image.
func manifest(name string, replicas int) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata:
  name: %[1]s
spec:
  replicas: %[2]d
  selector:
    matchLabels: {app: %[1]s}
  template:
    metadata:
      labels: {app: %[1]s}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: web
        image: %[3]s
        ports:
        - {name: http, containerPort: 8080}
        resources:
          requests: {cpu: 10m, memory: 16Mi}
          limits: {memory: 64Mi}
        readinessProbe:
          httpGet: {path: /healthz, port: http}
          periodSeconds: 1
---
apiVersion: v1
kind: Service
metadata:
  name: %[1]s
spec:
  selector: {app: %[1]s}
  ports:
  - {name: http, port: 80, targetPort: http}
`, name, replicas, webRef)
}

// step is a command and what it must print. A refused one must fail.
type step struct {
	args    string
	stdin   string
	want    []string
	refused bool
}

// TestClients drives the same commands through both clients, side by side.
func TestClients(t *testing.T) {
	c := sharedCluster(t)
	t.Run("sheepctl", func(t *testing.T) {
		t.Parallel()
		driveClient(t, c, c.sheepctl(t), "by-sheepctl")
	})
	t.Run("kubectl", func(t *testing.T) {
		t.Parallel()
		driveClient(t, c, c.kubectl(t), "by-kubectl")
	})
}

func driveClient(t *testing.T, c *testCluster, p *clientProgram, namespace string) {
	p.namespace = namespace
	p.steps(t, []step{
		{args: "create namespace " + namespace, want: []string{"namespace/" + namespace + " created"}},
		{args: "version", want: []string{"Server Version"}},
		{args: "api-resources", want: []string{"deployments", "apps/v1", "endpointslices", "po "}},
		{args: "get nodes", want: []string{"w1", "w2", "Ready"}},
		{args: "describe node w1", want: []string{"InternalIP", "10.99.0.11", "Capacity", "PodCIDR"}},
		{args: "describe ns " + namespace, want: []string{"Status:", "Active"}},

		{args: "apply -f -", stdin: manifest("web", 1), want: []string{"deployment.apps/web created", "service/web created"}},
		{args: "apply -f -", stdin: manifest("web", 1), want: []string{"deployment.apps/web unchanged", "service/web unchanged"}},
		{args: "apply -f -", stdin: manifest("web", 2), want: []string{"deployment.apps/web configured", "service/web unchanged"}},
		{args: "rollout status deployment/web --timeout=30s", want: []string{"successfully rolled out"}},
		{args: "wait --for=condition=Available deployment/web --timeout=30s", want: []string{"condition met"}},
		{args: "wait --for=condition=Ready pod -l app=web --timeout=30s", want: []string{"condition met"}},
		{args: "get deploy,pods,svc", want: []string{"READY", "2/2", "Running", "ClusterIP"}},
		{args: "get pods -o wide", want: []string{"NODE", "10.42."}},
		{args: "get deploy web -o yaml", want: []string{"kind: Deployment", "replicas: 2"}},
		{args: "get deploy web -o json", want: []string{`"kind": "Deployment"`, `"replicas": 2`}},
		{args: "get pods -l app=web -o name", want: []string{"pod/web-"}},
		{args: "get pods -l app=none", want: []string{"No resources found"}},
		{args: "get pods --field-selector status.phase=Running", want: []string{"web-"}},
		{args: "get pods --field-selector spec.nodeName=none", want: []string{"No resources found"}},
		{args: "describe deploy web", want: []string{"app=web", "2 desired", webRef}},
		{args: "describe svc web", want: []string{"app=web", "10.43."}},
		{args: "describe pod -l app=web", want: []string{"Container ID", webRef, "Ready", "10.42."}},
		{args: "logs deploy/web", want: []string{"serves on"}},
		{args: "scale deployment/web --replicas=3", want: []string{"scaled"}},
		{args: "rollout status deployment/web --timeout=30s", want: []string{"successfully rolled out"}},
		{args: "get deploy web -o jsonpath={.status.readyReplicas}", want: []string{"3"}},

		{args: "label deploy web tier=front", want: []string{"labeled"}},
		{args: "label deploy web tier=back", want: []string{"already has a value"}, refused: true},
		{args: "label deploy web tier=back --overwrite", want: []string{"labeled"}},
		{args: "get deploy -l tier=back -o name", want: []string{"deployment.apps/web"}},
		{args: "label deploy web tier-", want: []string{"web"}},
		{args: "get deploy -l tier", want: []string{"No resources found"}},
	})
	p.steps(t, []step{ // the README's quick start
		{args: "create deployment quick --image=" + webRef + " --replicas=2", want: []string{"deployment.apps/quick created"}},
		{args: "rollout status deployment/quick --timeout=30s", want: []string{"successfully rolled out"}},
		{args: "delete deployment quick", want: []string{`"quick" deleted`}},
	})
	followLogs(t, c, p)
	watchConfigMaps(t, p)
	p.steps(t, []step{
		{args: "create configmap a --from-literal=x=y", want: []string{"already exists"}, refused: true},
		{args: "get configmap none", want: []string{`"none" not found`}, refused: true},
		{args: "apply -f -", stdin: strings.Replace(manifest("bad", 1), "replicas:", "replicaz:", 1), want: []string{"unknown field", "replicaz"}, refused: true},
		{args: "apply -f -", stdin: "kind: Deployment\n metadata: [", want: []string{"error"}, refused: true},
		{args: "get deploy bad", want: []string{`"bad" not found`}, refused: true},
		{args: "-n nowhere create configmap b", want: []string{`namespaces "nowhere" not found`}, refused: true},
	})
	waitForDeletion(t, p)
	p.steps(t, []step{
		{args: "delete namespace " + namespace + " --timeout=30s", want: []string{"deleted"}},
		{args: "get namespace " + namespace, want: []string{"not found"}, refused: true},
	})
	wrong := *p
	wrong.kubeconfig = tokenConfig(t, p.kubeconfig, "not-a-token")
	// A client without a terminal and without a password says so in its own words.
	wrong.steps(t, []step{{args: "get pods", want: []string{"must be logged in", "Unauthorized"}, refused: true}})
}

// steps runs the commands in order. Of a refused one's texts the output needs
// one: the clients of different years have different words.
func (p *clientProgram) steps(t *testing.T, steps []step) {
	t.Helper()
	for _, s := range steps {
		out, code := p.try(t, s.stdin, strings.Fields(s.args)...)
		if refused := code != 0; refused != s.refused {
			t.Fatalf("%s: exit code %d\n%s", p.name([]string{s.args}), code, out)
		}
		missing := 0
		for _, text := range s.want {
			if !strings.Contains(out, text) {
				missing++
				if !s.refused {
					t.Errorf("%s does not say %q:\n%s", p.name([]string{s.args}), text, out)
				}
			}
		}
		if s.refused && missing == len(s.want) {
			t.Errorf("%s says none of %q:\n%s", p.name([]string{s.args}), s.want, out)
		}
	}
}

// followLogs reads a pod's logs until the pod is gone.
func followLogs(t *testing.T, c *testCluster, p *clientProgram) {
	t.Helper()
	pods, err := c.client.CoreV1().Pods(p.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil || len(pods.Items) == 0 {
		t.Fatalf("%d pods, %v", len(pods.Items), err)
	}
	pod := pods.Items[0].Name
	follow := p.start(t, "logs", "-f", pod)
	follow.await(t, pod+" serves on")
	p.run(t, "delete", "pod", pod)
	follow.await(t, "stopping") // said by the program after its SIGTERM
	if code := follow.end(t); code != 0 {
		t.Errorf("%s: exit code %d", follow.name, code)
	}
}

// waitForDeletion waits for pods to go. A client of 2020 fails when it comes
// too late to see one.
func waitForDeletion(t *testing.T, p *clientProgram) {
	t.Helper()
	wait := p.start(t, "wait", "--for=delete", "pod", "-l", "app=web", "--timeout=30s")
	p.steps(t, []step{{args: "delete deploy,svc web", want: []string{`"web" deleted`}}})
	code := wait.end(t)
	if out, _ := wait.output(); code != 0 && !strings.Contains(out, "no matching resources found") {
		t.Errorf("%s: exit code %d\n%s", wait.name, code, out)
	}
	if out := p.run(t, "get", "deploy", "-l", "app=web"); !strings.Contains(out, "No resources found") {
		t.Errorf("after their deletion:\n%s", out)
	}
}

// watchConfigMaps sees one come, change and go.
func watchConfigMaps(t *testing.T, p *clientProgram) {
	t.Helper()
	p.run(t, "create", "configmap", "first", "--from-literal=x=y")
	watch := p.start(t, "get", "configmap", "-w", "--output-watch-events", "--field-selector", "metadata.name!=none")
	watch.await(t, "first")
	p.run(t, "create", "configmap", "a", "--from-literal=x=y")
	watch.await(t, "ADDED      a ")
	p.run(t, "label", "configmap", "a", "b=c")
	watch.await(t, "MODIFIED   a ")
	p.run(t, "delete", "configmap", "first")
	watch.await(t, "DELETED    first ")
}

// tokenConfig is a kubeconfig whose user has nothing but a token.
func tokenConfig(t *testing.T, from, token string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(from)
	if err != nil {
		t.Fatal(err)
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	}
	path := filepath.Join(t.TempDir(), "token.kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// A body beyond the limit is refused in words, and changes nothing.
func TestOversizedBody(t *testing.T) {
	c := sharedCluster(t)
	file := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(file, []byte(strings.Repeat("0123456789abcdef", 4<<16)), 0o600); err != nil {
		t.Fatal(err)
	}
	revision := func(ctx context.Context) string {
		list, err := c.client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			if o.Name == "big" {
				t.Errorf("the oversized ConfigMap is there")
			}
		}
		return fmt.Sprint(len(list.Items))
	}
	before := revision(t.Context())
	began := time.Now()
	out, code := c.sheepctl(t).try(t, "", "create", "configmap", "big", "--from-file", file)
	if code == 0 || !strings.Contains(strings.ToLower(out), "too large") {
		t.Errorf("exit code %d after %v: %s", code, time.Since(began), out)
	}
	if after := revision(t.Context()); after != before {
		t.Errorf("%s ConfigMaps before, %s after", before, after)
	}
}
