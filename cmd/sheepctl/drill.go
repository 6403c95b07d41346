package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shepherd-project/shepherd/api/wire"
)

const (
	drillWriters = 4
	drillLabel   = "drill.shepherd-project.github.io/run"
	numberLabel  = "drill.shepherd-project.github.io/number"
)

var errDrillFailed = errors.New("the drill failed: acknowledged writes were lost, writes were doubled, or pods restarted")

type drill struct {
	clients   *clients
	streams   genericiooptions.IOStreams
	namespace string
	kill      string
	before    time.Duration
	after     time.Duration
	keep      bool
}

func newDrillCommand(c *clients, streams genericiooptions.IOStreams) *cobra.Command {
	d := &drill{clients: c, streams: streams}
	cmd := &cobra.Command{
		Use:   "drill",
		Short: "Lose the leader under load, and prove that nothing was lost",
		Long: "Lose the leader under load, and prove that nothing was lost.\n\n" +
			"Four writers create numbered ConfigMaps through all servers of the kubeconfig. Then the\n" +
			"leader goes: leadership is transferred, or --kill-command ends it. Shown are the gap (the\n" +
			"longest time in which no writer got an acknowledgement), the acknowledged writes that are\n" +
			"missing and the writes that happened twice, as read back from each server, and the pods\n" +
			"that restarted. The exit code is 1 on any of these, 0 otherwise.\n\n" +
			"The command runs in a shell; LEADER and LEADER_ADDRESS name its victim.",
		Example: "  sheepctl drill\n  sheepctl drill --kill-command 'ssh \"$LEADER\" systemctl kill -s KILL shepherd-server'",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&d.kill, "kill-command", "", "Shell command that kills the leader; without it leadership is transferred")
	f.DurationVar(&d.before, "before", 2*time.Second, "How long to write before the fault")
	f.DurationVar(&d.after, "after", 5*time.Second, "How long to write after the fault")
	f.BoolVar(&d.keep, "keep", false, "Keep the ConfigMaps that were written")
	return cmd
}

// replica is a server with a client that talks to it alone.
type replica struct {
	server server
	config *rest.Config
	client kubernetes.Interface
}

func (d *drill) replicas() ([]replica, error) {
	servers, err := d.clients.servers()
	if err != nil {
		return nil, err
	}
	base, err := d.clients.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	if d.namespace, _, err = d.clients.flags.ToRawKubeConfigLoader().Namespace(); err != nil {
		return nil, err
	}
	var out []replica
	for _, s := range servers {
		config := rest.CopyConfig(base)
		config.Host, config.Dial, config.QPS, config.Timeout = s.url, nil, -1, 0
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		out = append(out, replica{server: s, config: config, client: client})
	}
	return out, nil
}

func (d *drill) run(ctx context.Context) error {
	replicas, err := d.replicas()
	if err != nil {
		return err
	}
	status, err := askStatus(ctx, replicas)
	if err != nil {
		return err
	}
	if status.Leader == "" {
		return fmt.Errorf("there is no leader to lose: %s", status.Message)
	}
	podsBefore, err := d.pods(ctx, replicas)
	if err != nil {
		return err
	}

	run := rand.String(6)
	log := &ackLog{}
	writing, stop := context.WithCancel(ctx)
	defer stop()
	var writers sync.WaitGroup
	for w := range drillWriters {
		writers.Go(func() { d.write(writing, replicas, run, w, log) })
	}
	fmt.Fprintf(d.streams.Out, "%d writers through %d servers; %s leads in term %d\n", drillWriters, len(replicas), status.Leader, status.Term)
	if err := sleep(ctx, d.before); err != nil {
		return err
	}
	fault := time.Now()
	if err := d.loseLeader(ctx, replicas, status); err != nil {
		return err
	}
	faultErr := sleep(ctx, d.after)
	stop()
	writers.Wait()
	if faultErr != nil {
		return faultErr
	}

	report, err := d.readBack(ctx, replicas, run, log)
	if err != nil {
		return err
	}
	report.gap = log.gapAround(fault)
	if after, err := askStatus(ctx, replicas); err != nil {
		return err
	} else {
		report.leader, report.term = after.Leader, after.Term
	}
	podsAfter, err := d.pods(ctx, replicas)
	if err != nil {
		return err
	}
	report.restarted = restarts(podsBefore, podsAfter)
	report.print(d.streams.Out)
	if !d.keep {
		if err := d.cleanUp(ctx, replicas, run); err != nil {
			return err
		}
	}
	if report.failed() {
		return errDrillFailed
	}
	return nil
}

// loseLeader performs the fault.
func (d *drill) loseLeader(ctx context.Context, replicas []replica, s *wire.ClusterStatus) error {
	if d.kill == "" {
		fmt.Fprintf(d.streams.Out, "transferring leadership away from %s\n", s.Leader)
		var done wire.TransferResponse
		return tryReplicas(replicas, func(r replica) error {
			return callServer(ctx, r.config, http.MethodPost, wire.PathTransfer, wire.TransferRequest{}, &done)
		})
	}
	fmt.Fprintf(d.streams.Out, "killing %s\n", s.Leader)
	cmd := exec.CommandContext(ctx, "sh", "-c", d.kill)
	cmd.Env = append(os.Environ(), "LEADER="+s.Leader)
	if i := slices.IndexFunc(s.Members, func(m wire.Member) bool { return m.Name == s.Leader }); i >= 0 {
		cmd.Env = append(cmd.Env, "LEADER_ADDRESS="+s.Members[i].Address)
	}
	cmd.Stdout, cmd.Stderr = d.streams.ErrOut, d.streams.ErrOut
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the kill command failed: %w", err)
	}
	return nil
}

func askStatus(ctx context.Context, replicas []replica) (*wire.ClusterStatus, error) {
	var status wire.ClusterStatus
	err := tryReplicas(replicas, func(r replica) error {
		status = wire.ClusterStatus{}
		return callServer(ctx, r.config, http.MethodGet, wire.PathStatus, nil, &status)
	})
	return &status, err
}

// tryReplicas calls fn for each replica until one succeeds.
func tryReplicas(replicas []replica, fn func(replica) error) error {
	var failures []string
	for _, r := range replicas {
		err := fn(r)
		if err == nil {
			return nil
		}
		failures = append(failures, fmt.Sprintf("%s: %v", r.server.context, err))
	}
	return fmt.Errorf("no server could do it: %s", strings.Join(failures, "; "))
}

// podState is what must not change while the leader is lost: pod UID ->
// restarts of its containers.
type podState map[string]podRestarts

type podRestarts struct {
	name     string
	restarts int32
}

func (d *drill) pods(ctx context.Context, replicas []replica) (podState, error) {
	state := podState{}
	err := tryReplicas(replicas, func(r replica) error {
		list, err := r.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			p := &list.Items[i]
			s := podRestarts{name: p.Namespace + "/" + p.Name}
			for _, c := range p.Status.ContainerStatuses {
				s.restarts += c.RestartCount
			}
			state[string(p.UID)] = s
		}
		return nil
	})
	return state, err
}

// restarts names the pods of before that are gone or restarted in after.
func restarts(before, after podState) (names []string) {
	for uid, was := range before {
		if is, ok := after[uid]; !ok || is.restarts != was.restarts {
			names = append(names, was.name)
		}
	}
	slices.Sort(names)
	return names
}

// cleanUp deletes what the drill wrote.
func (d *drill) cleanUp(ctx context.Context, replicas []replica, run string) error {
	return tryReplicas(replicas, func(r replica) error {
		list, err := r.client.CoreV1().ConfigMaps(d.namespace).List(ctx, metav1.ListOptions{LabelSelector: drillLabel + "=" + run})
		if err != nil {
			return err
		}
		work := make(chan string)
		var wg sync.WaitGroup
		errs := make(chan error, len(list.Items))
		for range 8 {
			wg.Go(func() {
				for name := range work {
					if err := r.client.CoreV1().ConfigMaps(d.namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
						errs <- fmt.Errorf("delete ConfigMap %s: %w", name, err)
					}
				}
			})
		}
		for i := range list.Items {
			work <- list.Items[i].Name
		}
		close(work)
		wg.Wait()
		close(errs)
		return <-errs
	})
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// report is what the drill found.
type report struct {
	acknowledged int
	ambiguous    int
	gap          time.Duration
	servers      []serverReport
	leader       string
	term         uint64
	restarted    []string
}

type serverReport struct {
	name          string
	unreachable   string
	lost, doubled []string
}

func (r *report) failed() bool {
	bad := len(r.restarted) > 0
	read := 0
	for _, s := range r.servers {
		bad = bad || len(s.lost)+len(s.doubled) > 0
		if s.unreachable == "" {
			read++
		}
	}
	return bad || read == 0
}

func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "\nleader now        %s (term %d)\n", r.leader, r.term)
	fmt.Fprintf(w, "acknowledged      %d writes (%d more without an answer)\n", r.acknowledged, r.ambiguous)
	fmt.Fprintf(w, "gap               %d ms without an acknowledgement\n", r.gap.Milliseconds())
	for _, s := range r.servers {
		if s.unreachable != "" {
			fmt.Fprintf(w, "%-17s not read: %s\n", s.name, s.unreachable)
			continue
		}
		fmt.Fprintf(w, "%-17s %d lost, %d doubled\n", s.name, len(s.lost), len(s.doubled))
		for _, n := range s.lost {
			fmt.Fprintf(w, "  LOST    %s\n", n)
		}
		for _, n := range s.doubled {
			fmt.Fprintf(w, "  DOUBLED %s\n", n)
		}
	}
	fmt.Fprintf(w, "pods restarted    %d %s\n", len(r.restarted), strings.Join(r.restarted, " "))
}
