// Command agents puts many simulated agents on a cluster of real servers and
// measures what they cost it: the leader's processor time, what the servers
// log, elections, nodes declared dead, and the rate of requests when the leader
// is killed. An agent here is the real one's client (agent/upstream: its pool of
// servers, its connections and pings) with its loops: heartbeats, and a list and
// a watch of the pods bound to it. Machines and pods it has none.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// bench is one run. It is used by one goroutine.
type bench struct {
	bin, dir              string
	size, agents, burners int
	every, length, settle time.Duration
	reconnect, watch      bool
	kill                  bool

	servers []*server
	burning []*exec.Cmd
	fleet   *fleet
}

const usage = `Usage: agents [flags]

Starts servers on this machine, joins simulated agents, waits until all of them
are heard, and measures for a while. Every second is printed; the last lines sum
up, and the exit code is 1 if an election was held that -kill did not cause, a
node was declared dead, or (with -kill) the herd exceeded its bounds.

  agents                            5,000 agents: what heartbeats cost the leader
  agents -reconnect -burn 2 -for 10m
                                    each heartbeat over a new connection, all CPUs busy
  agents -agents 500 -kill          the leader is killed: how large is the herd?

Flags:
`

func main() {
	b := &bench{}
	flag.StringVar(&b.bin, "bin", "bin/shepherd", "the daemon")
	flag.StringVar(&b.dir, "dir", "", "where the servers keep their data and logs (default: a temporary directory)")
	flag.IntVar(&b.size, "servers", 3, "how many servers")
	flag.IntVar(&b.agents, "agents", 5000, "how many agents")
	flag.DurationVar(&b.every, "every", 10*time.Second, "time between two heartbeats of one agent")
	flag.DurationVar(&b.length, "for", time.Minute, "how long to measure")
	flag.DurationVar(&b.settle, "settle", 20*time.Second, "how long to leave the cluster alone before, once all agents are heard")
	flag.BoolVar(&b.reconnect, "reconnect", false, "send each heartbeat over a new connection")
	flag.BoolVar(&b.watch, "watch", true, "list and watch the pods of each agent's node")
	flag.BoolVar(&b.kill, "kill", false, "kill the leader after a third of the time")
	flag.IntVar(&b.burners, "burn", 0, "how many processes take all the CPU time that they get meanwhile")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := b.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "agents:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context) (err error) {
	if flag.NArg() > 0 || b.size < 1 || b.agents < 1 || b.every <= 0 || b.length < 3*time.Second {
		return errors.New("servers, agents and times must be positive, -for at least 3s, and there are no arguments; see -help")
	}
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "agents-"); err != nil {
			return err
		}
		defer os.RemoveAll(b.dir)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		if b.fleet != nil {
			b.fleet.wait()
		}
		err = errors.Join(err, b.stopAll())
	}()
	if err := b.startAll(ctx); err != nil {
		return err
	}
	if err := b.join(ctx); err != nil {
		return err
	}
	if err := b.burn(); err != nil {
		return err
	}
	return b.measure(ctx)
}

// join makes the agents' nodes and starts the agents, and waits until each was heard.
func (b *bench) join(ctx context.Context) (err error) {
	begun := time.Now()
	if b.fleet, err = newFleet(b); err != nil {
		return err
	}
	if err := b.register(ctx); err != nil {
		return err
	}
	b.fleet.start(ctx)
	for end := time.Now().Add(2*time.Minute + 6*b.every + time.Duration(b.agents)*joinPace); b.fleet.heard() < b.agents; {
		if time.Now().After(end) {
			return fmt.Errorf("only %d of %d agents were heard", b.fleet.heard(), b.agents)
		}
		if !pause(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
	fmt.Printf("%d agents on %d servers, all heard after %v\n", b.agents, b.size, time.Since(begun).Round(100*time.Millisecond))
	return nil
}

// burn starts what keeps the processors busy.
func (b *bench) burn() error {
	for range b.burners {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			return err
		}
		b.burning = append(b.burning, cmd)
	}
	return nil
}

func (b *bench) stopAll() error {
	var errs []error
	for _, cmd := range b.burning {
		_ = cmd.Process.Kill() // the measurement is over
		_ = cmd.Wait()
	}
	for _, s := range b.servers {
		if s.cmd != nil && s.cmd.Process != nil {
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait()
		}
		if s.log != nil {
			errs = append(errs, s.log.Close())
		}
	}
	return errors.Join(errs...)
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// quantile of a list that it may sort.
func quantile(list []float64, q float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[min(int(float64(len(list))*q), len(list)-1)]
}
