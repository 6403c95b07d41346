package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const volumesManifest = `apiVersion: v1
kind: Pod
metadata:
  name: volumes
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - name: web
    image: %s
    volumeMounts:
    - {name: memory, mountPath: /memory}
    - {name: disk, mountPath: /disk}
    - {name: account, mountPath: /account}
  volumes:
  - name: memory
    emptyDir: {medium: Memory}
  - name: disk
    emptyDir: {}
  - name: account
    downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
`

// TestCleanup ends an agent without a warning while its pods run, and has
// `shepherd cleanup` remove them: processes, cgroups, mounts, links,
// namespaces and volumes.
func TestCleanup(t *testing.T) {
	c := ownCluster(t, 1)
	p, w := c.sheepctl(t), c.workers[0]
	for _, m := range []string{manifest("web", 2), fmt.Sprintf(volumesManifest, webRef)} {
		if out, code := p.try(t, m, "apply", "-f", "-"); code != 0 {
			t.Fatal(out)
		}
	}
	p.run(t, "rollout", "status", "deployment/web", "--timeout=40s")
	p.run(t, "wait", "--for=condition=Ready", "pod/volumes", "--timeout=40s")
	if err := w.kill(); err != nil {
		t.Fatal(err)
	}
	before := traces(t, c, w)
	for _, kind := range []string{"process", "cgroup", "mount", "link", "volume"} {
		if !strings.Contains(strings.Join(before, "\n"), kind+" ") {
			t.Fatalf("the test looks at too little: no %s in %q", kind, before)
		}
	}

	cmd := exec.Command(filepath.Join(binDir, "shepherd"), append([]string{"cleanup"}, w.args[:6]...)...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := w.Run(cmd); err != nil {
		t.Fatalf("cleanup: %v\n%s", err, out.String())
	}
	if after := traces(t, c, w); len(after) > 0 {
		t.Errorf("cleanup left:\n%s", strings.Join(after, "\n"))
	}
}

// traces lists what the worker's pods have on it.
func traces(t *testing.T, c *testCluster, w *host) (found []string) {
	t.Helper()
	for pid := range containerProcesses(t, c, w, "no pod") {
		found = append(found, fmt.Sprintf("process %d", pid))
	}
	for _, root := range cgroupDirs(filepath.Join(c.name, w.Name)) {
		entries, err := os.ReadDir(root)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() {
				found = append(found, "cgroup "+filepath.Join(root, e.Name()))
			}
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", w.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, w.dir) {
			found = append(found, "mount "+strings.TrimSpace(line))
		}
	}
	links, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", w.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(links)) {
		name, _, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok && name != "lo" && name != "eth0" {
			found = append(found, "link "+name)
		}
	}
	for _, pattern := range []string{"data/volumes/*", "run/volumes/*", "run/pods/*", "run/netns/*"} {
		paths, err := filepath.Glob(filepath.Join(w.dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			found = append(found, "volume or directory "+path)
		}
	}
	return found
}
