package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/scripts/machines"
)

// server is one of the cluster's.
type server struct {
	name, dir, address string
	args               []string
	cmd                *exec.Cmd
	log                *os.File
	machine            *machines.Machine // nil: this one
	disk               *disk             // nil: the directory is on the host's
	client             kubernetes.Interface
	config             *rest.Config
}

func (b *bench) startAll(ctx context.Context) (err error) {
	if b.fault == "cut" {
		if b.lab, err = machines.New(); err != nil {
			return err
		}
		if b.desk, err = b.lab.Add("desk", 100); err != nil {
			return err
		}
	}
	for i := range b.size {
		name := string(rune('a' + i))
		join := []string{"--bootstrap"}
		if i > 0 {
			first := b.servers[0]
			token := filepath.Join(first.dir, "token", "server")
			if err := poll(ctx, func() error { _, err := os.Stat(token); return err }); err != nil {
				return err
			}
			join = []string{"--join", first.address, "--token-file", token}
		}
		s, err := b.add(name, byte(i+1))
		if err != nil {
			return err
		}
		if err := b.start(s, join...); err != nil {
			return err
		}
		if err := b.connect(ctx, s, len(b.servers)); err != nil {
			return err
		}
	}
	return nil
}

// add makes a server's machine, disk and directory, as far as it has its own.
func (b *bench) add(name string, host byte) (s *server, err error) {
	s = &server{name: name, dir: filepath.Join(b.dir, name)}
	if b.lab != nil {
		if s.machine, err = b.lab.Add(name, host); err != nil {
			return nil, err
		}
		s.address = s.machine.IP + ":9876"
	} else {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		s.address = l.Addr().String()
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	b.servers = append(b.servers, s)
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	if b.fault == "freeze" {
		if s.disk, err = newDisk(s.dir); err != nil {
			return nil, err
		}
		s.dir = filepath.Join(s.disk.mount, "data")
	}
	s.args = append([]string{"--mode", "server", "--name", name, "--addr", s.address, "--data-dir", s.dir}, b.extra...)
	return s, nil
}

func (b *bench) start(s *server, args ...string) (err error) {
	if s.log == nil {
		if s.log, err = os.Create(filepath.Join(b.dir, s.name+".log")); err != nil {
			return err
		}
	}
	s.cmd = exec.Command(b.bin, append(slices.Clone(s.args), args...)...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if s.machine != nil {
		return s.machine.Start(s.cmd) // it ends with its machine
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return s.cmd.Start()
}

// connect waits until the server is one of that many healthy ones.
func (b *bench) connect(ctx context.Context, s *server, members int) error {
	return poll(ctx, func() (err error) {
		s.config, err = clientcmd.BuildConfigFromFlags("", filepath.Join(s.dir, "admin.kubeconfig"))
		if err != nil {
			return err
		}
		s.config.QPS = -1
		s.config.Host = "https://" + s.address
		if b.desk != nil {
			s.config.Dial = b.desk.Dial
		}
		if s.client, err = kubernetes.NewForConfig(s.config); err != nil {
			return err
		}
		_, err = b.healthy(ctx, s, members)
		return err
	})
}

// healthy asks a server, and fails unless that many voters are well and its own
// state has caught up.
func (b *bench) healthy(ctx context.Context, s *server, members int) (*wire.ClusterStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	data, err := s.client.CoreV1().RESTClient().Get().AbsPath(wire.PathStatus).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var st wire.ClusterStatus
	if err := json.Unmarshal(data, &st); err != nil {
		return nil, err
	}
	well := 0
	for _, m := range st.Members {
		if m.Healthy && m.Role != wire.RoleNonvoter {
			well++
		}
	}
	if well != members || st.Leader == "" {
		return nil, fmt.Errorf("%d of %d voters are well: %s", well, members, data)
	}
	if ready, err := s.client.CoreV1().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return nil, fmt.Errorf("%s is not ready: %s, %w", s.name, ready, err)
	}
	return &st, nil
}

// list is the names of what the writers wrote, as this server tells them.
func (s *server) list(ctx context.Context) (map[string]bool, error) {
	list, err := s.client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, m := range list.Items {
		found[m.Name] = true
	}
	return found, nil
}

// take takes the server away in the way that is measured.
func (b *bench) take(s *server) error {
	switch b.fault {
	case "kill":
		return s.cmd.Process.Kill()
	case "stop":
		return s.cmd.Process.Signal(syscall.SIGSTOP)
	case "cut":
		return s.machine.Unplug()
	default:
		return s.disk.freeze()
	}
}

// bring brings it back.
func (b *bench) bring(s *server) error {
	switch b.fault {
	case "kill":
		_ = s.cmd.Wait() // it was killed
		return b.start(s)
	case "stop":
		return s.cmd.Process.Signal(syscall.SIGCONT)
	case "cut":
		return s.machine.Plug()
	default:
		if err := s.disk.thaw(); err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- s.cmd.Wait() }()
		select {
		case err := <-ended:
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				return fmt.Errorf("the leader whose disk hung ended with %w, want a failure", err)
			}
		case <-time.After(20 * time.Second):
			return errors.Join(errors.New("the leader whose disk hung did not end"), s.cmd.Process.Kill())
		}
		return b.start(s)
	}
}
