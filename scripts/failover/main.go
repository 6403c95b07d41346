// Command failover measures how long a cluster takes no writes when it loses
// its leader: three real servers on the loopback interface, the leader killed
// or stopped again and again while writers go on through every server. It
// keeps every sample, and fails if an acknowledged write is lost or doubled.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shepherd-project/shepherd/api/wire"
)

const (
	label      = "failover"
	perServer  = 2 // writers that always go through the same server
	before     = 500 * time.Millisecond
	after      = 2500 * time.Millisecond
	settle     = time.Second
	writeBound = 15 * time.Second
)

type server struct {
	name, dir, address string
	args               []string
	cmd                *exec.Cmd
	log                *os.File
	client             kubernetes.Interface
	config             *rest.Config
}

type bench struct {
	bin, dir string
	extra    []string
	servers  []*server

	mu    sync.Mutex
	acks  []time.Time
	acked map[string]bool
}

func main() {
	b := &bench{acked: map[string]bool{}}
	flag.StringVar(&b.bin, "bin", "bin/shepherd", "the daemon")
	times := flag.Int("n", 30, "how often the leader is lost")
	fault := flag.String("fault", "kill", "kill (SIGKILL) or stop (SIGSTOP)")
	flag.StringVar(&b.dir, "dir", "", "where the servers keep their data (default: a temporary directory)")
	flag.Parse()
	b.extra = flag.Args() // the daemons' own
	if err := b.run(*fault, *times); err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
}

func (b *bench) run(fault string, times int) (err error) {
	if fault != "kill" && fault != "stop" {
		return fmt.Errorf("unknown fault %q", fault)
	}
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "failover-"); err != nil {
			return err
		}
		defer os.RemoveAll(b.dir)
	}
	defer b.stopAll()
	ctx := context.Background()
	if err := b.startAll(ctx); err != nil {
		return err
	}
	var gaps []time.Duration
	for i := range times {
		machine := watchMachine()
		gap, err := b.lose(ctx, fault, i)
		stood := machine()
		if err != nil {
			return fmt.Errorf("time %d: %w", i+1, err)
		}
		fmt.Printf("%d ms (this program itself stood still for %d ms at most)\n", gap.Milliseconds(), stood.Milliseconds())
		gaps = append(gaps, gap)
	}
	slices.Sort(gaps)
	fmt.Printf("%s of the leader, %d times: p50 %d, p90 %d, max %d ms without an acknowledgement; %d writes acknowledged\n", fault, times,
		gaps[len(gaps)/2].Milliseconds(), gaps[len(gaps)*9/10].Milliseconds(), gaps[len(gaps)-1].Milliseconds(), len(b.acked))
	return b.check(ctx)
}

// watchMachine finds out for how long an idle process gets no time to run: what
// no server can be quicker than. The function that it returns ends it.
func watchMachine() func() time.Duration {
	stop, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		last, most := time.Now(), time.Duration(0)
		for {
			select {
			case <-tick.C:
				now := time.Now()
				last, most = now, max(most, now.Sub(last)-5*time.Millisecond)
			case <-stop:
				longest <- most
				return
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-longest
	}
}

func (b *bench) startAll(ctx context.Context) error {
	for _, name := range []string{"a", "b", "c"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		s := &server{name: name, dir: filepath.Join(b.dir, name), address: l.Addr().String()}
		if err := errors.Join(l.Close(), os.MkdirAll(s.dir, 0o700)); err != nil {
			return err
		}
		s.args = append([]string{"--mode", "server", "--name", name, "--addr", s.address, "--data-dir", s.dir}, b.extra...)
		join := []string{"--bootstrap"}
		if name != "a" {
			first := b.servers[0]
			token := filepath.Join(first.dir, "token", "server")
			if err := poll(ctx, func() error { _, err := os.Stat(token); return err }); err != nil {
				return err
			}
			join = []string{"--join", first.address, "--token-file", token}
		}
		b.servers = append(b.servers, s)
		if err := b.start(s, join...); err != nil {
			return err
		}
		if err := b.connect(ctx, s, len(b.servers)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) start(s *server, args ...string) (err error) {
	if s.log == nil {
		if s.log, err = os.Create(filepath.Join(b.dir, s.name+".log")); err != nil {
			return err
		}
	}
	s.cmd = exec.Command(b.bin, append(slices.Clone(s.args), args...)...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
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
		if s.client, err = kubernetes.NewForConfig(s.config); err != nil {
			return err
		}
		_, err = b.healthy(ctx, s, members)
		return err
	})
}

// healthy asks a server, and fails unless that many voters are well.
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
	return &st, nil
}

func poll(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// lose takes the leader away under writes, measures, and brings it back.
func (b *bench) lose(ctx context.Context, fault string, round int) (time.Duration, error) {
	var st *wire.ClusterStatus
	if err := poll(ctx, func() (err error) {
		for _, s := range b.servers {
			if st, err = b.healthy(ctx, s, len(b.servers)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return 0, err
	}
	time.Sleep(settle)
	leader := b.servers[slices.IndexFunc(b.servers, func(s *server) bool { return s.name == st.Leader })]
	writing, stop := context.WithCancel(ctx)
	var writers sync.WaitGroup
	for _, s := range b.servers {
		for w := range perServer {
			writers.Go(func() { b.write(writing, s, fmt.Sprintf("%d-%s%d", round, s.name, w)) })
		}
	}
	time.Sleep(before)
	at := time.Now()
	var err error
	if fault == "kill" {
		err = leader.cmd.Process.Kill()
	} else {
		err = leader.cmd.Process.Signal(syscall.SIGSTOP)
	}
	time.Sleep(after)
	stop()
	if fault == "kill" {
		_ = leader.cmd.Wait() // it was killed
		err = errors.Join(err, b.start(leader))
	} else {
		err = errors.Join(err, leader.cmd.Process.Signal(syscall.SIGCONT))
	}
	writers.Wait()
	return b.gap(at), err
}

func (b *bench) write(ctx context.Context, s *server, writer string) {
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("f-%s-%05d", writer, n)
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeBound)
		_, err := s.client.CoreV1().ConfigMaps("default").Create(bound, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: "1"}},
		}, metav1.CreateOptions{})
		cancel()
		if err != nil {
			if apierrors.IsAlreadyExists(err) {
				fmt.Fprintln(os.Stderr, "a create was applied and then refused:", name)
			}
			time.Sleep(5 * time.Millisecond)
			continue
		}
		b.mu.Lock()
		b.acks = append(b.acks, time.Now())
		b.acked[name] = true
		b.mu.Unlock()
	}
}

// gap is the longest time without an acknowledgement that ended after the fault.
func (b *bench) gap(fault time.Time) (gap time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.SortFunc(b.acks, time.Time.Compare)
	for i, t := range b.acks {
		if i > 0 && t.After(fault) && b.acks[i-1].Before(fault.Add(after)) {
			gap = max(gap, t.Sub(b.acks[i-1]))
		}
	}
	b.acks = nil
	return gap
}

// check reads back through every server.
func (b *bench) check(ctx context.Context) error {
	if err := poll(ctx, func() error { _, err := b.healthy(ctx, b.servers[0], len(b.servers)); return err }); err != nil {
		return err
	}
	var lost []string
	for _, s := range b.servers {
		list, err := s.client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{LabelSelector: label})
		if err != nil {
			return err
		}
		found := map[string]bool{}
		for _, m := range list.Items {
			found[m.Name] = true
		}
		for name := range b.acked {
			if !found[name] {
				lost = append(lost, s.name+": "+name)
			}
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("%d acknowledged writes are lost: %s", len(lost), strings.Join(lost, " "))
	}
	fmt.Println("no acknowledged write is lost on any server")
	return nil
}

func (b *bench) stopAll() {
	for _, s := range b.servers {
		if s.cmd != nil && s.cmd.Process != nil {
			_ = s.cmd.Process.Kill() // the measurement is over
			_ = s.cmd.Wait()
		}
	}
}
