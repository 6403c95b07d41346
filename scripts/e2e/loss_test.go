package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// lossBound is how long a lost worker's pods may take to run elsewhere: the
// grace times, the node controller's period, the worker's last heartbeat, and
// a margin for starting them on a busy machine. It is the same whether the
// leader is lost too or not.
const lossBound = monitorGrace + evictionGrace + 500*time.Millisecond + time.Second + 3500*time.Millisecond

// TestWorkerLoss powers a worker off alone, and another one together with the
// leader: a new leader gives nobody a second grace period.
func TestWorkerLoss(t *testing.T) {
	c := ownCluster(t, 3)
	p := c.sheepctl(t)
	if out, code := p.try(t, manifest("web", 6), "apply", "-f", "-"); code != 0 {
		t.Fatal(out)
	}
	p.run(t, "rollout", "status", "deployment/web", "--timeout=40s")

	alone := loseWorker(t, c, c.workers[2], nil)
	t.Logf("a worker alone: its pods run elsewhere after %v", alone)
	together := loseWorker(t, c, c.workers[1], c.leader(t))
	t.Logf("a worker together with the leader: after %v", together)
	for what, took := range map[string]time.Duration{"alone": alone, "with the leader": together} {
		if took > lossBound {
			t.Errorf("a worker lost %s: %v, the bound is %v", what, took, lossBound)
		}
		if took < monitorGrace+evictionGrace-1500*time.Millisecond { // the last heartbeat was up to a second ago
			t.Errorf("a worker lost %s: given up after %v, before its grace time", what, took)
		}
	}
}

// loseWorker powers the worker off, and kills the server if there is one, and
// returns how long until all pods run on other machines. No pod of a machine
// that is alive may be touched.
func loseWorker(t *testing.T, c *testCluster, w, server *host) time.Duration {
	t.Helper()
	before := mustRunningPods(t, c, "default")
	lost := 0
	for _, s := range before {
		if s.node == w.Name {
			lost++
		}
	}
	if lost == 0 || len(before) != 6 {
		t.Fatalf("%d of %d pods are on %s", lost, len(before), w.Name)
	}
	began := time.Now()
	if err := w.powerOff(); err != nil {
		t.Fatal(err)
	}
	if server != nil {
		if err := server.kill(); err != nil {
			t.Fatal(err)
		}
	}
	c.await(t, 2*lossBound, "6 pods on other machines", func(ctx context.Context) error {
		after, err := runningPods(ctx, c, "default")
		if err != nil {
			return err
		}
		elsewhere := 0
		for _, s := range after {
			if s.node != w.Name {
				elsewhere++
			}
		}
		if elsewhere != 6 {
			return fmt.Errorf("%d are", elsewhere)
		}
		return nil
	})
	took := time.Since(began)
	after := mustRunningPods(t, c, "default")
	for name, s := range before {
		if s.node != w.Name && after[name] != s {
			t.Errorf("pod %s on %s, which is alive, was %v and is %v", name, s.node, s, after[name])
		}
	}
	node, err := c.client.CoreV1().Nodes().Get(t.Context(), w.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if nodeReady(node) {
		t.Errorf("%s is Ready", w.Name)
	}
	return took.Round(time.Millisecond)
}
