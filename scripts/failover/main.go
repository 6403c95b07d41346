// Command failover measures how long a cluster takes no writes when it loses
// its leader: real servers, the leader killed, stopped, cut off or its disk
// hung again and again while writers go on through every server. It keeps
// every sample, tells the story of slow rounds from the servers' logs, and
// fails if an acknowledged write is lost or doubled.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/shepherd-project/shepherd/scripts/machines"
)

const (
	label      = "failover"
	perServer  = 2 // writers that always go through the same server
	before     = 500 * time.Millisecond
	writeBound = 15 * time.Second
)

// bench is one run. It is used by one goroutine, but for the acknowledgements.
type bench struct {
	bin, dir, fault, samples  string
	size, burners             int
	slow, after, settle, pace time.Duration
	extra                     []string

	servers []*server
	lab     *machines.Lab     // for cut
	desk    *machines.Machine // where the writers are then
	burning []*exec.Cmd

	mu    sync.Mutex
	acks  []ack
	acked map[string]bool
}

// sample is what one loss of the leader cost, in milliseconds.
type sample struct {
	Round       int    `json:"round"`
	Leader      string `json:"leader"`
	Gap         int64  `json:"gapMs"`         // without an acknowledgement
	Began       int64  `json:"beganMs"`       // that time, after the fault
	Elected     int64  `json:"electedMs"`     // from the fault to a leader with its state complete, -1 if not seen
	Controllers int64  `json:"controllersMs"` // and to the first complete reconcile of all its controllers
	Stood       int64  `json:"stoodMs"`       // this program itself, at most
}

func main() {
	b := &bench{acked: map[string]bool{}}
	flag.StringVar(&b.bin, "bin", "bin/shepherd", "the daemon")
	times := flag.Int("n", 30, "how often the leader is lost")
	flag.StringVar(&b.fault, "fault", "kill", "kill (SIGKILL), stop (SIGSTOP), cut (packets dropped) or freeze (its file system); all but the first two need root")
	flag.StringVar(&b.dir, "dir", "", "where the servers keep their data and logs (default: a temporary directory)")
	flag.StringVar(&b.samples, "samples", "", "file to append the samples to, as lines of JSON")
	flag.IntVar(&b.size, "servers", 3, "how many servers")
	flag.IntVar(&b.burners, "burn", 0, "how many processes take all the CPU time that they get meanwhile")
	flag.DurationVar(&b.slow, "slow", 150*time.Millisecond, "tell the story of a round that takes longer")
	flag.DurationVar(&b.after, "after", 2500*time.Millisecond, "how long writers go on after the fault")
	flag.DurationVar(&b.settle, "settle", time.Second, "how long a whole cluster is left alone before the next fault")
	flag.DurationVar(&b.pace, "pace", 10*time.Millisecond, "how long a writer waits after an acknowledgement; 0 keeps two cores busy with writing alone")
	flag.Parse()
	b.extra = flag.Args() // the daemons' own
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := b.run(ctx, *times); err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, times int) (err error) {
	if !slices.Contains([]string{"kill", "stop", "cut", "freeze"}, b.fault) {
		return fmt.Errorf("unknown fault %q", b.fault)
	}
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "failover-"); err != nil {
			return err
		}
		defer os.RemoveAll(b.dir)
	}
	defer func() { err = errors.Join(err, b.stopAll()) }()
	if err := b.startAll(ctx); err != nil {
		return err
	}
	if err := b.burn(); err != nil {
		return err
	}
	var samples []sample
	for i := range times {
		s, err := b.lose(ctx, i)
		if err != nil {
			return errors.Join(fmt.Errorf("time %d: %w", i+1, err), b.tell(time.Now(), -20_000, 0))
		}
		fmt.Printf("%3d: %s lost, gap %d ms from %d ms on, elected after %d ms, controllers after %d ms (this program itself stood still for %d ms at most)\n",
			i+1, s.Leader, s.Gap, s.Began, s.Elected, s.Controllers, s.Stood)
		if err := b.keep(s); err != nil {
			return err
		}
		samples = append(samples, s)
	}
	fmt.Printf("%s of the leader of %d with %d burners, %d times, %d writes acknowledged; p50 / p90 / max in ms:\n", b.fault, b.size, b.burners, times, len(b.acked))
	summarise("without an acknowledgement", samples, func(s sample) int64 { return s.Gap })
	summarise("until a leader was elected", samples, func(s sample) int64 { return s.Elected })
	summarise("until its controllers had reconciled once", samples, func(s sample) int64 { return s.Controllers })
	return b.check(ctx)
}

// summarise leaves out what was not seen, and says how often.
func summarise(what string, samples []sample, of func(sample) int64) {
	var all []int64
	for _, s := range samples {
		if of(s) >= 0 {
			all = append(all, of(s))
		}
	}
	if len(all) == 0 {
		fmt.Printf("  %-42s never seen\n", what)
		return
	}
	slices.Sort(all)
	at := func(q int) int64 { return all[(len(all)*q+99)/100-1] }
	fmt.Printf("  %-42s %d / %d / %d  (n=%d)\n", what, at(50), at(90), at(100), len(all))
}

// keep appends the sample to the file for them.
func (b *bench) keep(s sample) error {
	if b.samples == "" {
		return nil
	}
	f, err := os.OpenFile(b.samples, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(json.NewEncoder(f).Encode(s), f.Close())
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

// stopAll ends every process and gives back disks and machines.
func (b *bench) stopAll() error {
	for _, cmd := range b.burning {
		_ = cmd.Process.Kill() // the measurement is over
		_ = cmd.Wait()
	}
	var errs []error
	for _, s := range b.servers {
		if s.disk != nil {
			errs = append(errs, s.disk.thaw()) // nothing ends that waits for it
		}
		if s.cmd != nil && s.cmd.Process != nil {
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait()
		}
		if s.disk != nil {
			errs = append(errs, s.disk.close())
		}
	}
	if b.lab != nil {
		errs = append(errs, b.lab.Close())
	}
	return errors.Join(errs...)
}

// check reads back through every server.
func (b *bench) check(ctx context.Context) error {
	if err := poll(ctx, func() error { _, err := b.healthy(ctx, b.servers[0], len(b.servers)); return err }); err != nil {
		return err
	}
	var lost []string
	for _, s := range b.servers {
		found, err := s.list(ctx)
		if err != nil {
			return err
		}
		for name := range b.acked {
			if !found[name] {
				lost = append(lost, filepath.Join(s.name, name))
			}
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("%d acknowledged writes are lost: %s", len(lost), strings.Join(lost, " "))
	}
	fmt.Println("no acknowledged write is lost on any server")
	return nil
}
