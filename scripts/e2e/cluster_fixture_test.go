package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shepherd-project/shepherd/scripts/machines"
)

const (
	port      = "9876"
	localPass = "https://127.0.0.1:9875" // an agent's pass-through

	monitorGrace  = 4 * time.Second
	evictionGrace = time.Second
)

// serverConfig is the servers' configuration file: grace times for tests.
var serverConfig = fmt.Sprintf("node-period: 500ms\nnode-monitor-grace: %v\neviction-grace: %v\n", monitorGrace, evictionGrace)

// testCluster is three servers, some workers, and a desk for the administrator.
type testCluster struct {
	name    string // of its cgroups
	dir     string
	lab     *machines.Lab
	desk    *machines.Machine
	servers []*host
	workers []*host
	client  kubernetes.Interface
}

var (
	sharedOnce sync.Once
	shared     *testCluster
	sharedErr  error
)

// sharedCluster is for tests that leave it as it was: all machines up.
func sharedCluster(t *testing.T) *testCluster {
	t.Helper()
	sharedOnce.Do(func() { shared, sharedErr = startCluster(2) })
	if sharedErr != nil {
		t.Fatal(sharedErr)
	}
	showLogsOnFailure(t, shared)
	return shared
}

// ownCluster is for a test that breaks machines for good.
func ownCluster(t *testing.T, workers int) *testCluster {
	t.Helper()
	c, err := startCluster(workers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	showLogsOnFailure(t, c)
	return c
}

func showLogsOnFailure(t *testing.T, c *testCluster) {
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, h := range c.hosts() {
			text, err := os.ReadFile(filepath.Join(h.dir, "log"))
			if err != nil {
				t.Log(err)
				continue
			}
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			t.Logf("%s's log ends with\n%s", h.Name, strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
	})
}

func (c *testCluster) hosts() []*host { return slices.Concat(c.servers, c.workers) }

func startCluster(workers int) (_ *testCluster, err error) {
	c := &testCluster{name: fmt.Sprintf("%s%d-%06x", prefix, os.Getpid(), rand.Uint32N(1<<24))}
	c.dir = filepath.Join(workDir, c.name)
	if c.lab, err = machines.New(); err != nil {
		return nil, err
	}
	clustersMu.Lock()
	if cleaning {
		clustersMu.Unlock()
		return nil, errors.Join(errors.New("the tests are ending"), c.lab.Close())
	}
	clusters = append(clusters, c) // closed by cleanUp if by nobody else
	clustersMu.Unlock()
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return nil, err
	}
	if c.desk, err = c.lab.Add("desk", 100); err != nil {
		return nil, err
	}
	if err := c.startServers(); err != nil {
		return nil, fmt.Errorf("start servers: %w", err)
	}
	for i := range workers {
		if err := c.addWorker(i + 1); err != nil {
			return nil, fmt.Errorf("start worker %d: %w", i+1, err)
		}
	}
	return c, c.until(30*time.Second, "ready nodes", func(ctx context.Context) error { return c.nodesReady(ctx, workers) })
}

func (c *testCluster) startServers() error {
	config := filepath.Join(c.dir, "server.yaml")
	if err := os.WriteFile(config, []byte(serverConfig), 0o600); err != nil {
		return err
	}
	for i := range 3 {
		name := fmt.Sprintf("s%d", i+1)
		args := []string{"--mode", "server", "--name", name, "--config", config}
		if i == 0 {
			args = append(args, "--bootstrap")
		} else {
			args = append(args, "--join", c.servers[0].IP+":"+port, "--token-file", c.token("server"))
		}
		h, err := c.addHost(name, byte(i+1), args...)
		if err != nil {
			return err
		}
		c.servers = append(c.servers, h)
		if err := h.start(); err != nil {
			return err
		}
		if i > 0 {
			continue
		}
		if err := c.until(20*time.Second, "the first server's tokens", func(context.Context) error {
			_, err := os.Stat(c.token("agent"))
			return err
		}); err != nil {
			return err
		}
	}
	config2, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig())
	if err != nil {
		return err
	}
	config2.QPS, config2.Timeout = -1, 20*time.Second
	config2.TLSClientConfig.ServerName = "localhost"
	config2.Dial = c.dialAny
	if c.client, err = kubernetes.NewForConfig(rest.CopyConfig(config2)); err != nil {
		return err
	}
	if err := c.serversHealthy(); err != nil {
		return err
	}
	return c.until(10*time.Second, "a kubeconfig that names all servers", func(context.Context) error {
		text, err := os.ReadFile(c.kubeconfig())
		if n := strings.Count(string(text), "server: https://"); err == nil && n != 3 {
			err = fmt.Errorf("it names %d", n)
		}
		return err
	})
}

// addWorker starts the agent of the n-th worker, with the image there.
func (c *testCluster) addWorker(n int) error {
	var servers []string
	for _, s := range c.servers {
		servers = append(servers, s.IP+":"+port)
	}
	name := fmt.Sprintf("w%d", n)
	h, err := c.addHost(name, byte(10+n), "--mode", "agent", "--node-name", name, "--heartbeat-interval", "1s",
		"--join", strings.Join(servers, ","), "--token-file", c.token("agent"))
	if err != nil {
		return err
	}
	c.workers = append(c.workers, h)
	load := exec.Command(filepath.Join(binDir, "sheepctl"), "image", "import", "--data-dir", h.data(), webImage)
	if out, err := load.CombinedOutput(); err != nil {
		return fmt.Errorf("import the image: %w\n%s", err, out)
	}
	return h.start()
}

func (c *testCluster) token(role string) string {
	return filepath.Join(c.servers[0].data(), "token", role)
}

func (c *testCluster) kubeconfig() string {
	return filepath.Join(c.servers[0].data(), "admin.kubeconfig")
}

func (c *testCluster) addHost(name string, number byte, args ...string) (*host, error) {
	m, err := c.lab.Add(name, number)
	if err != nil {
		return nil, err
	}
	h := &host{Machine: m, dir: filepath.Join(c.dir, name)}
	if err := os.MkdirAll(h.data(), 0o700); err != nil {
		return nil, err
	}
	h.args = append([]string{
		"--data-dir", h.data(), "--run-dir", filepath.Join(h.dir, "run"), "--cgroup-root", "/" + c.name + "/" + name,
	}, args...)
	return h, nil
}

// close ends and removes everything of the cluster.
func (c *testCluster) close() error {
	clustersMu.Lock()
	clusters = slices.DeleteFunc(clusters, func(o *testCluster) bool { return o == c })
	clustersMu.Unlock()
	errs := []error{c.lab.Close()}
	for _, h := range c.hosts() {
		errs = append(errs, h.kill())
		<-h.Gone()
	}
	for _, dir := range cgroupDirs(c.name) {
		errs = append(errs, removeCgroupTree(dir))
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}
