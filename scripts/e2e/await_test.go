package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shepherd-project/shepherd/api/wire"
)

// dialAny connects from the desk to the first server that runs.
func (c *testCluster) dialAny(ctx context.Context, network, _ string) (net.Conn, error) {
	err := errors.New("no server is running")
	for _, s := range c.servers {
		if !s.running() {
			continue
		}
		var conn net.Conn
		if conn, err = c.desk.Dial(ctx, network, s.IP+":"+port); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

func (c *testCluster) status(ctx context.Context) (*wire.ClusterStatus, error) {
	raw, err := c.client.Discovery().RESTClient().Get().AbsPath(wire.PathStatus).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	s := &wire.ClusterStatus{}
	return s, json.Unmarshal(raw, s)
}

// leader is the server that leads now.
func (c *testCluster) leader(t *testing.T) *host {
	t.Helper()
	s, err := c.status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h := c.server(s.Leader)
	if h == nil {
		t.Fatalf("no leader: %s", s.Message)
	}
	return h
}

func (c *testCluster) server(name string) *host {
	for _, h := range c.servers {
		if h.Name == name {
			return h
		}
	}
	return nil
}

func (c *testCluster) serversHealthy() error {
	return c.until(30*time.Second, "three healthy servers", func(ctx context.Context) error {
		s, err := c.status(ctx)
		if err != nil {
			return err
		}
		healthy := 0
		for _, m := range s.Members {
			if m.Healthy && m.Role != wire.RoleNonvoter {
				healthy++
			}
		}
		if s.Leader == "" || healthy != 3 {
			return fmt.Errorf("leader %q, %d healthy: %s", s.Leader, healthy, s.Message)
		}
		return nil
	})
}

// restore starts every daemon that does not run. It is for clean-up too, where
// a Fatal would hide a panic.
func (c *testCluster) restore(t *testing.T) {
	t.Helper()
	for _, h := range c.hosts() {
		if h.running() {
			continue
		}
		if err := h.start(); err != nil {
			t.Error(err)
		}
	}
	if err := c.serversHealthy(); err != nil {
		t.Error(err)
	}
	if err := c.until(20*time.Second, "ready nodes", func(ctx context.Context) error { return c.nodesReady(ctx, len(c.workers)) }); err != nil {
		t.Error(err)
	}
}

func (c *testCluster) nodesReady(ctx context.Context, want int) error {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ready := 0
	for _, n := range nodes.Items {
		if nodeReady(&n) && n.Spec.PodCIDR != "" {
			ready++
		}
	}
	if ready != want {
		return fmt.Errorf("%d of %d are ready", ready, want)
	}
	return nil
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// until polls check, whose error is the reason shown when the time is up.
func (c *testCluster) until(bound time.Duration, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var reason error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if reason == nil || ctx.Err() == nil { // not that the time was up
			reason = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %v: %s: %w", bound, what, reason)
		case <-tick.C:
		}
	}
}

func (c *testCluster) await(t *testing.T, bound time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	if err := c.until(bound, what, check); err != nil {
		t.Fatal(err)
	}
}
