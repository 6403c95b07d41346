package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/scripts/machines"
)

const replicas = 6

// Short grace times, so that the demo is: see the README for the defaults.
var serverSettings = []string{"--mode", "server", "--node-period", "500ms", "--node-monitor-grace", "4s", "--eviction-grace", "1s"}

func (d *demo) startServers(ctx context.Context) (err error) {
	if d.lab, err = machines.New(); err != nil {
		return err
	}
	if d.desk, err = d.lab.Add("desk", 100); err != nil {
		return err
	}
	for i := range 3 {
		name := fmt.Sprintf("s%d", i+1)
		args := append(slices.Clone(serverSettings), "--name", name)
		if i == 0 {
			args = append(args, "--bootstrap")
		} else {
			args = append(args, "--join", net.JoinHostPort(d.servers[0].IP, port), "--token-file", filepath.Join(d.servers[0].data(), "token", "server"))
		}
		h, err := d.addHost(name, byte(i+1), args...)
		if err != nil {
			return err
		}
		d.servers = append(d.servers, h)
	}
	began := time.Now()
	if err := d.start(d.servers[0]); err != nil {
		return err
	}
	if err := until(ctx, 20*time.Second, "the first server's token", func(context.Context) (bool, error) {
		_, err := os.Stat(filepath.Join(d.servers[0].data(), "token", "agent"))
		return err == nil, err
	}); err != nil {
		return err
	}
	for _, h := range d.servers[1:] {
		if err := d.start(h); err != nil {
			return err
		}
	}
	if err := d.connect(); err != nil {
		return err
	}
	if err := d.allServersHealthy(ctx); err != nil {
		return err
	}
	d.results.add("from nothing to three ready servers", "%d ms", time.Since(began).Milliseconds())
	if err := until(ctx, 10*time.Second, "a kubeconfig that names all servers", func(context.Context) (bool, error) {
		text, err := os.ReadFile(d.kubeconfig())
		return err == nil && strings.Count(string(text), "server: https://") == 3, err
	}); err != nil {
		return err
	}
	out, err := d.sheepctl(ctx, "cluster", "status")
	show(out)
	return err
}

// allServersHealthy waits until three voters are.
func (d *demo) allServersHealthy(ctx context.Context) error {
	return until(ctx, 30*time.Second, "three healthy servers", func(ctx context.Context) (bool, error) {
		s, err := d.status(ctx)
		if err != nil {
			return false, err
		}
		healthy := 0
		for _, m := range s.Members {
			if m.Healthy && m.Role != wire.RoleNonvoter {
				healthy++
			}
		}
		return s.Leader != "" && healthy == 3, fmt.Errorf("%d of 3 servers are healthy voters: %s", healthy, s.Message)
	})
}

func (d *demo) status(ctx context.Context) (*wire.ClusterStatus, error) {
	raw, err := d.client.Discovery().RESTClient().Get().AbsPath(wire.PathStatus).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	s := &wire.ClusterStatus{}
	return s, json.Unmarshal(raw, s)
}

func (d *demo) startWorkers(ctx context.Context) error {
	var addresses []string
	for _, s := range d.servers {
		addresses = append(addresses, net.JoinHostPort(s.IP, port))
	}
	for i := range 2 {
		name := fmt.Sprintf("w%d", i+1)
		h, err := d.addHost(name, byte(11+i), "--mode", "agent", "--node-name", name, "--heartbeat-interval", "1s",
			"--join", strings.Join(addresses, ","), "--token-file", filepath.Join(d.servers[0].data(), "token", "agent"))
		if err != nil {
			return err
		}
		d.workers = append(d.workers, h)
		if _, err := d.runAt(ctx, h.Machine, filepath.Join(d.bin, "sheepctl"), "image", "import", "--data-dir", h.data(), d.image); err != nil {
			return err
		}
		if err := d.start(h); err != nil {
			return err
		}
	}
	if err := until(ctx, 30*time.Second, "two ready nodes", func(ctx context.Context) (bool, error) {
		nodes, err := d.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		ready := 0
		for i := range nodes.Items {
			for _, c := range nodes.Items[i].Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && nodes.Items[i].Spec.PodCIDR != "" {
					ready++
				}
			}
		}
		return ready == 2, fmt.Errorf("%d of 2 nodes are ready", ready)
	}); err != nil {
		return err
	}
	out, err := d.sheepctl(ctx, "get", "nodes", "-o", "wide")
	show(out)
	return err
}

func (d *demo) apply(ctx context.Context) error {
	began := time.Now()
	out, err := d.sheepctl(ctx, "apply", "-f", d.manifest)
	if err != nil {
		return err
	}
	show(out)
	if err := d.podsRunning(ctx, 60*time.Second); err != nil {
		return err
	}
	d.results.add("apply to 6 pods Running (image there)", "%d ms", time.Since(began).Milliseconds())
	if out, err = d.sheepctl(ctx, "rollout", "status", "deployment/web", "--timeout=60s"); err != nil {
		return err
	}
	show(out)
	out, err = d.sheepctl(ctx, "get", "pods,services,endpointslices", "-o", "wide")
	show(out)
	return err
}

func (d *demo) pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := d.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func (d *demo) podsRunning(ctx context.Context, bound time.Duration) error {
	return until(ctx, bound, "6 pods Running", func(ctx context.Context) (bool, error) {
		pods, err := d.pods(ctx)
		if err != nil {
			return false, err
		}
		running := 0
		for i := range pods {
			if pods[i].Status.Phase == corev1.PodRunning && pods[i].DeletionTimestamp == nil {
				running++
			}
		}
		if running == replicas {
			return true, nil
		}
		return false, fmt.Errorf("%d of %d pods are Running", running, replicas)
	})
}

func (d *demo) callEveryPod(ctx context.Context) error {
	slicesOf, err := d.client.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
	if err != nil {
		return err
	}
	called := 0
	for _, s := range slicesOf.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready == nil || !*e.Conditions.Ready || e.NodeName == nil || len(s.Ports) == 0 {
				continue
			}
			from := d.workers[0]
			if *e.NodeName == from.Name {
				from = d.workers[1]
			}
			body, err := from.Get(ctx, fmt.Sprintf("http://%s:%d/", e.Addresses[0], *s.Ports[0].Port))
			if err != nil {
				return fmt.Errorf("from %s to %s on %s: %w", from.Name, e.Addresses[0], *e.NodeName, err)
			}
			fmt.Printf("   %s -> %s: %s", from.Name, *e.NodeName, body)
			called++
		}
	}
	if called != replicas {
		return fmt.Errorf("%d ready endpoints answered, want %d", called, replicas)
	}
	d.results.add("ready endpoints that answered from the other worker", "%d of %d", called, replicas)
	return nil
}

func (d *demo) server(name string) *host {
	i := slices.IndexFunc(d.servers, func(h *host) bool { return h.Name == name })
	if i < 0 {
		return nil
	}
	return d.servers[i]
}

// drill runs sheepctl drill with a kill. Its kill command cannot see the
// processes of other machines, so it asks the demo through two pipes.
func (d *demo) drill(ctx context.Context, args ...string) (string, error) {
	ask, answer := filepath.Join(d.dir, "ask"), filepath.Join(d.dir, "answer")
	for _, p := range []string{ask, answer} {
		if err := syscall.Mkfifo(p, 0o600); err != nil {
			return "", err
		}
		defer os.Remove(p)
	}
	killed := make(chan error, 1)
	go func() {
		name, err := os.ReadFile(ask)
		if h := d.server(strings.TrimSpace(string(name))); err == nil && h != nil {
			err = h.kill()
		} else if err == nil {
			err = fmt.Errorf("the drill named no server: %q", name)
		}
		killed <- errors.Join(err, os.WriteFile(answer, []byte("done\n"), 0o600))
	}()
	kill := fmt.Sprintf("echo $LEADER > %s; cat %s > /dev/null", ask, answer)
	out, err := d.sheepctl(ctx, append([]string{"drill", "--kill-command", kill}, args...)...)
	if err != nil {
		return out, err
	}
	return out, <-killed
}

func (d *demo) killLeader(ctx context.Context) error {
	out, err := d.drill(ctx, "--after", "3s")
	show(out)
	if err != nil {
		return err
	}
	for _, row := range [][2]string{
		{"kill -9 of the leader: longest time without an answer", `(?m)^gap +(\d+ ms)`},
		{"writes acknowledged during the drill", `(?m)^acknowledged +(\d+)`},
		{"pods restarted by the loss of the leader", `(?m)^pods restarted +(\d+)`},
	} {
		m := regexp.MustCompile(row[1]).FindStringSubmatch(out)
		if m == nil {
			return fmt.Errorf("the drill did not say: %s", row[0])
		}
		d.results.add(row[0], "%s", m[1])
	}
	d.results.add("acknowledged writes lost or doubled", "0")
	return nil
}

// dead returns the server whose daemon is not running.
func (d *demo) dead() *host {
	i := slices.IndexFunc(d.servers, func(h *host) bool { return h.cmd == nil })
	return d.servers[i]
}

func (d *demo) useWithoutServer(ctx context.Context) error {
	dead := d.dead().Name
	fmt.Printf("   $ sheepctl --context %s get deployment web   (%s is dead)\n", dead, dead)
	out, err := d.sheepctl(ctx, "--context", dead, "get", "deployment", "web")
	if err != nil {
		return err
	}
	show(out)
	d.results.add("sheepctl while its server is dead", "works")
	if d.kubectl == "" {
		fmt.Println("   no kubectl here: skipping it")
		return nil
	}
	w := d.workers[0]
	fmt.Printf("   $ kubectl --server https://127.0.0.1:9875 get deployment web   (on %s, through its agent)\n", w.Name)
	out, err = d.runAt(ctx, w.Machine, d.kubectl, "--kubeconfig", d.kubeconfig(), "--server", "https://127.0.0.1:9875", "get", "deployment", "web")
	if err != nil {
		return err
	}
	show(out)
	d.results.add("kubectl through a worker's agent while a server is dead", "works")
	return nil
}

func (d *demo) restartServer(ctx context.Context) error {
	began := time.Now()
	if err := d.start(d.dead()); err != nil {
		return err
	}
	if err := d.allServersHealthy(ctx); err != nil {
		return err
	}
	d.results.add("restart of the killed server to three healthy ones", "%d ms", time.Since(began).Milliseconds())
	return nil
}

func (d *demo) killAllServers(ctx context.Context) error {
	for n := range 100 {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("kept-%03d", n)}, Data: map[string]string{"n": fmt.Sprint(n)}}
		if _, err := d.client.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	before, err := d.objects(ctx)
	if err != nil {
		return err
	}
	for _, h := range d.servers {
		if err := h.cmd.Process.Kill(); err != nil {
			return err
		}
	}
	for _, h := range d.servers {
		if err := h.reap(); err != nil {
			return err
		}
	}
	began := time.Now()
	for _, h := range d.servers {
		if err := d.start(h); err != nil {
			return err
		}
	}
	if err := d.allServersHealthy(ctx); err != nil {
		return err
	}
	d.results.add("all servers killed: restart to three healthy ones", "%d ms", time.Since(began).Milliseconds())
	after, err := d.objects(ctx)
	if err != nil {
		return err
	}
	for name, was := range before {
		is, ok := after[name]
		if !ok || is.uid != was.uid || is.restarts != was.restarts {
			return fmt.Errorf("%s was %+v and is %+v", name, was, is)
		}
	}
	d.results.add("objects there before and after, pods not restarted", "%d of %d", len(before), len(before))
	return nil
}

// identity is what an object must keep.
type identity struct {
	uid      string
	restarts int32
}

// objects lists what users made and what was made for them.
func (d *demo) objects(ctx context.Context) (map[string]identity, error) {
	out := map[string]identity{}
	maps_, err := d.client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range maps_.Items {
		out["configmap "+o.Name] = identity{uid: string(o.UID)}
	}
	deployments, err := d.client.AppsV1().Deployments("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range deployments.Items {
		out["deployment "+o.Name] = identity{uid: string(o.UID)}
	}
	services, err := d.client.CoreV1().Services("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range services.Items {
		out["service "+o.Name] = identity{uid: string(o.UID)}
	}
	pods, err := d.pods(ctx)
	if err != nil {
		return nil, err
	}
	maps.Insert(out, maps.All(podIdentities(pods)))
	return out, nil
}

func podIdentities(pods []corev1.Pod) map[string]identity {
	out := map[string]identity{}
	for _, p := range pods {
		id := identity{uid: string(p.UID)}
		for _, c := range p.Status.ContainerStatuses {
			id.restarts += c.RestartCount
		}
		out["pod "+p.Name] = id
	}
	return out
}

func (d *demo) powerOffWorker(ctx context.Context) error {
	victim := d.workers[1]
	fmt.Printf("   %s: link down, every process gone\n", victim.Name)
	began := time.Now()
	if err := victim.PowerOff(); err != nil {
		return err
	}
	if err := victim.reap(); err != nil {
		return err
	}
	if err := until(ctx, 60*time.Second, "6 pods on the other worker", func(ctx context.Context) (bool, error) {
		pods, err := d.pods(ctx)
		if err != nil {
			return false, err
		}
		there := 0
		for i := range pods {
			if pods[i].Spec.NodeName == d.workers[0].Name && pods[i].Status.Phase == corev1.PodRunning && pods[i].DeletionTimestamp == nil {
				there++
			}
		}
		return there == replicas, fmt.Errorf("%d of %d pods run on %s", there, replicas, d.workers[0].Name)
	}); err != nil {
		return err
	}
	d.results.add("worker lost: all 6 pods on the other one (4 s + 1 s grace)", "%d ms", time.Since(began).Milliseconds())
	out, err := d.sheepctl(ctx, "get", "nodes,pods", "-o", "wide")
	show(out)
	return err
}

// anyServer dials the servers in turn from the desk.
type anyServer struct{ d *demo }

func (a *anyServer) dial(ctx context.Context, network, _ string) (conn net.Conn, err error) {
	for _, s := range a.d.servers {
		if s.cmd == nil {
			continue
		}
		if conn, err = a.d.desk.Dial(ctx, network, net.JoinHostPort(s.IP, port)); err == nil {
			return conn, nil
		}
	}
	if err == nil {
		err = errors.New("no server is running")
	}
	return nil, err
}
