package api

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const kubectlManifest = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  replicas: 2
  selector:
    matchLabels: {app: web}
  template:
    metadata:
      labels: {app: web}
    spec:
      containers:
      - name: main
        image: web:1
        ports:
        - containerPort: 80
---
apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  selector: {app: web}
  ports:
  - port: 80
`

// TestKubectl drives the kubectl of the system, unmodified, through what a user
// does.
func TestKubectl(t *testing.T) {
	binary, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("no kubectl on this machine (Debian: kubernetes-client)")
	}
	f := newFixture(t)
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.http.Certificate().Raw})
	config := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {token: admin}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
`, f.http.URL, base64.StdEncoding.EncodeToString(ca))
	kubeconfig, manifest := filepath.Join(dir, "config"), filepath.Join(dir, "web.yaml")
	for path, text := range map[string]string{kubeconfig: config, manifest: kubectlManifest} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	command := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, binary, args...)
		cmd.Env = []string{"HOME=" + dir, "KUBECONFIG=" + kubeconfig, "PATH=" + os.Getenv("PATH")}
		return cmd
	}
	run := func(want string, args ...string) string {
		t.Helper()
		out, err := command(args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Fatalf("kubectl %s: %v\n%s\nwant %q", strings.Join(args, " "), err, out, want)
		}
		return string(out)
	}
	refused := func(want string, args ...string) {
		t.Helper()
		out, err := command(args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Fatalf("kubectl %s: %v\n%s\nwant a refusal with %q", strings.Join(args, " "), err, out, want)
		}
	}

	run("deployment.apps/web created\nservice/web created", "apply", "-f", manifest)
	run("deployment.apps/web unchanged", "apply", "-f", manifest)
	run("web    0/2", "get", "deployments")
	run("ClusterIP", "get", "svc,deploy", "-o", "wide")
	run("app=web", "describe", "deployment", "web")
	run("10.43.", "describe", "service", "web")
	run("scaled", "scale", "deployment/web", "--replicas=3")
	run("labeled", "label", "deployment", "web", "tier=front")
	run("web", "get", "deploy", "-l", "tier=front", "-o", "name")
	run("3", "get", "deploy", "web", "-o", "jsonpath={.spec.replicas}")
	run("configmap/c created", "create", "configmap", "c", "--from-literal=a=b")
	run("a: b", "get", "configmap", "c", "-o", "yaml")
	run("configmap/c patched", "patch", "configmap", "c", "-p", `{"data":{"x":"y"}}`)
	run("configmap \"c\" deleted", "delete", "configmap", "c")
	refused(`configmaps "c" not found`, "get", "configmap", "c")
	run("deployments", "api-resources")
	run("apps/v1", "api-versions")
	run("Number of desired pods", "explain", "deployment.spec.replicas")
	run("yes", "auth", "can-i", "create", "pods")

	// What a controller and an agent would do, for what waits for it.
	rollout := command("rollout", "status", "deployment/web", "--timeout=30s")
	done := make(chan error, 1)
	var output strings.Builder
	rollout.Stdout, rollout.Stderr = &output, &output
	if err := rollout.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { done <- rollout.Wait() }()
	deploy, err := f.typed().AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	deploy.Status = appsv1.DeploymentStatus{ObservedGeneration: deploy.Generation, Replicas: 3, UpdatedReplicas: 3, ReadyReplicas: 3, AvailableReplicas: 3,
		Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue}}}
	if _, err := f.typed().AppsV1().Deployments("default").UpdateStatus(ctx, deploy, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || !strings.Contains(output.String(), "successfully rolled out") {
		t.Fatalf("rollout status: %v\n%s", err, output.String())
	}
	run("condition met", "wait", "--for=condition=Available", "deployment/web", "--timeout=10s")

	f.put(testPod("default", "p", "n1"))
	startAgent(t, f.server.Streams(), "n1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "hello from "+r.URL.Path+"\n")
	}))
	run("hello from /containerLogs/default/p/main", "logs", "p")
	run("hello from", "logs", "-f", "p")
	run("n1", "get", "pods", "-o", "wide", "--field-selector", "spec.nodeName=n1")
	run("deleted", "delete", "deployment,service", "--all")
	refused("unknown field", "apply", "-f", badManifest(t, dir))
}

// badManifest is a manifest with a misspelt field.
func badManifest(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "bad.yaml")
	text := strings.Replace(kubectlManifest, "replicas: 2", "replicaz: 2", 1)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
