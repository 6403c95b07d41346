package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRestoreKeepsPods loses all servers and restores a backup that is older
// than the pods of a worker. They run on, and nothing but they: the cluster
// starts others beside them. Only the administrator's word ends them.
func TestRestoreKeepsPods(t *testing.T) {
	c := ownCluster(t, 1)
	p, w := c.sheepctl(t), c.workers[0]
	file := filepath.Join(t.TempDir(), "cluster.backup")
	p.run(t, "backup", "save", file, "--no-encryption")
	if out, code := p.try(t, manifest("web", 2), "apply", "-f", "-"); code != 0 {
		t.Fatal(out)
	}
	p.run(t, "rollout", "status", "deployment/web", "--timeout=40s")
	unknown := containerProcesses(t, c, w, "none")
	if len(unknown) == 0 {
		t.Fatalf("no processes of containers on %s", w.Name)
	}

	for _, s := range c.servers {
		if err := s.kill(); err != nil {
			t.Fatal(err)
		}
	}
	first := c.servers[0]
	if err := os.RemoveAll(first.data()); err != nil {
		t.Fatal(err)
	}
	restore := exec.Command(p.path, "backup", "restore", file, "--data-dir", first.data(), "--name", first.Name, "--advertise", first.IP+":"+port)
	if out, err := restore.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := first.start(); err != nil {
		t.Fatal(err)
	}
	c.await(t, 60*time.Second, "the worker's agent at the restored cluster, holding kills", func(ctx context.Context) error {
		text, err := os.ReadFile(filepath.Join(w.dir, "log"))
		if err == nil && !bytes.Contains(text, []byte("kills are held back")) {
			err = errors.New("it does not say so")
		}
		return errors.Join(err, c.nodesReady(ctx, 1))
	})
	if out := p.run(t, "get", "deployments,pods", "-A"); strings.Contains(out, "web") {
		t.Errorf("the backup was made before they were:\n%s", out)
	}
	if out, code := p.try(t, manifest("later", 1), "apply", "-f", "-"); code != 0 {
		t.Fatal(out)
	}
	p.run(t, "rollout", "status", "deployment/later", "--timeout=40s") // it acts on the restored state
	all := containerProcesses(t, c, w, "none")
	for pid, started := range unknown {
		if all[pid] != started {
			t.Errorf("process %d of an unknown pod, started at %s, is gone or another one (%q)", pid, started, all[pid])
		}
	}

	if out := p.run(t, "cluster", "confirm-restore"); !strings.Contains(out, "node/"+w.Name+" confirmed in restore epoch") {
		t.Errorf("confirm-restore: %s", out)
	}
	c.await(t, 40*time.Second, "the end of the unknown pods", func(context.Context) error {
		left := containerProcesses(t, c, w, "none")
		for pid, started := range unknown {
			if left[pid] == started {
				return fmt.Errorf("process %d runs", pid)
			}
		}
		return nil
	})
	left := containerProcesses(t, c, w, "none")
	for pid, started := range all {
		if unknown[pid] == "" && left[pid] != started {
			t.Errorf("process %d of a known pod is gone", pid)
		}
	}
}
