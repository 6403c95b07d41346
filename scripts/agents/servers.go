package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shepherd-project/shepherd/api/wire"
)

// server is one of the cluster's.
type server struct {
	name, dir, address string
	cmd                *exec.Cmd
	log                *os.File
	client             kubernetes.Interface
}

func (b *bench) startAll(ctx context.Context) error {
	for i := range b.size {
		address, err := freeAddress()
		if err != nil {
			return err
		}
		s := &server{name: string(rune('a' + i)), address: address}
		s.dir = filepath.Join(b.dir, s.name)
		args := []string{"--mode", "server", "--name", s.name, "--addr", s.address, "--data-dir", s.dir, "--cluster-cidr", "10.0.0.0/8", "--service-cidr", "172.20.0.0/16"}
		if i == 0 {
			args = append(args, "--bootstrap")
		} else {
			token := filepath.Join(b.servers[0].dir, "token", "server")
			args = append(args, "--join", b.servers[0].address, "--token-file", token)
			if err := b.awaitFile(ctx, token); err != nil {
				return err
			}
		}
		if s.log, err = os.Create(filepath.Join(b.dir, s.name+".log")); err != nil {
			return err
		}
		b.servers = append(b.servers, s)
		s.cmd = exec.Command(b.bin, args...)
		s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
		s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := s.cmd.Start(); err != nil {
			return err
		}
		if err := b.connect(ctx, s, i+1); err != nil {
			return err
		}
	}
	return nil
}

// awaitFile waits for what the first server writes when it is a cluster.
func (b *bench) awaitFile(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	for {
		_, err := os.Stat(path)
		if err == nil {
			return nil
		}
		if !pause(ctx, 50*time.Millisecond) {
			return err
		}
	}
}

// connect waits until the server is one of that many voters.
func (b *bench) connect(ctx context.Context, s *server, voters int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	for {
		if err = s.dial(); err == nil {
			if err = b.wellBy(ctx, s, voters); err == nil {
				return nil
			}
		}
		if !pause(ctx, 50*time.Millisecond) {
			return fmt.Errorf("server %s does not come up: %w", s.name, err)
		}
	}
}

func (s *server) dial() error {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(s.dir, "admin.kubeconfig"))
	if err != nil {
		return err
	}
	config.Host, config.QPS = "https://"+s.address, -1
	s.client, err = kubernetes.NewForConfig(config)
	return err
}

func (b *bench) wellBy(ctx context.Context, s *server, voters int) error {
	st, err := s.status(ctx)
	if err != nil {
		return err
	}
	well := 0
	for _, m := range st.Members {
		if m.Healthy && m.Role != wire.RoleNonvoter {
			well++
		}
	}
	if well < voters || st.Leader == "" {
		return fmt.Errorf("%d of %d voters are well", well, voters)
	}
	return nil
}

func (s *server) status(ctx context.Context) (*wire.ClusterStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	data, err := s.client.CoreV1().RESTClient().Get().AbsPath(wire.PathStatus).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var st wire.ClusterStatus
	return &st, json.Unmarshal(data, &st)
}

// statusOf asks any server that runs.
func (b *bench) statusOf(ctx context.Context) (st *wire.ClusterStatus, err error) {
	for _, s := range b.servers {
		if st, err = s.status(ctx); err == nil && st.Leader != "" {
			return st, nil
		}
	}
	return nil, fmt.Errorf("no server names a leader: %w", err)
}

func (b *bench) byName(name string) *server {
	for _, s := range b.servers {
		if s.name == name {
			return s
		}
	}
	return nil
}

// register makes each agent's Node, as its agent does at its first start.
func (b *bench) register(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan *simAgent)
	var wg sync.WaitGroup
	for i := range 16 {
		nodes := b.servers[i%len(b.servers)].client.CoreV1().Nodes()
		wg.Go(func() {
			for a := range work {
				n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.node}}
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Simulated"}}
				made, err := nodes.Create(ctx, n, metav1.CreateOptions{})
				if err == nil {
					made.Status, made.ResourceVersion = n.Status, "" // a controller may have been here
					_, err = nodes.UpdateStatus(ctx, made, metav1.UpdateOptions{})
				}
				if err != nil {
					cancel(fmt.Errorf("make node %s: %w", a.node, err))
				}
			}
		})
	}
	for _, a := range b.fleet.agents {
		select {
		case work <- a:
		case <-ctx.Done():
		}
	}
	close(work)
	wg.Wait()
	return context.Cause(ctx)
}

// dead names the nodes that the cluster thinks dead.
func (b *bench) dead(ctx context.Context) (names []string, err error) {
	for _, s := range b.servers {
		bound, cancel := context.WithTimeout(ctx, 30*time.Second)
		list, lerr := s.client.CoreV1().Nodes().List(bound, metav1.ListOptions{})
		cancel()
		if err = lerr; err != nil {
			continue
		}
		for _, n := range list.Items {
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
					names = append(names, fmt.Sprintf("%s (%s)", n.Name, c.Reason))
				}
			}
		}
		return names, nil
	}
	return nil, err
}

// freeAddress is a loopback address that nobody listens at.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// ticks is the kernel's clock of processes: USER_HZ, which is 100 everywhere.
const ticks = 100

// cpu is the processor time that the server has used so far.
func (s *server) cpu() (sum time.Duration, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, after, _ := bytes.Cut(text, []byte(") ")) // the name may have blanks
	f := bytes.Fields(after)
	if len(f) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", s.cmd.Process.Pid, len(f))
	}
	for _, field := range f[11:13] { // utime and stime
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n) * time.Second / ticks
	}
	return sum, nil
}
