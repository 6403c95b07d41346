// Command throughput measures how many small writes a second three servers
// take, beside three members of etcd in the same run: on the same disk, with
// mutual TLS, values of the same size, the same number of writers and of
// client connections, each write a new key. The peers take turns in rounds,
// each on fresh directories and alone on the machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// peer is a cluster that takes writes.
type peer interface {
	begin(ctx context.Context, dir string) error
	load(ctx context.Context, l load) result
	cpu() (time.Duration, error)
	stop()
}

// row is what one way to write gave over all rounds with a number of writers.
type row struct {
	micros  []int64
	elapsed time.Duration
	cpu     time.Duration
	rates   []float64 // of each round
}

type bench struct {
	bin, etcd, loader, dir string
	writers                []int
	only                   []string
	rounds, conns, size    int
	runFor                 time.Duration
	extra                  []string
	rows                   map[string]*row
}

// contestants in the order of the table. Both ways through the API are
// measured on one cluster.
var contestants = []string{"etcd put", "core", "API protobuf", "API JSON"}

func main() {
	b := &bench{rows: map[string]*row{}}
	flag.StringVar(&b.bin, "bin", "bin/shepherd", "the daemon")
	flag.StringVar(&b.etcd, "etcd", "", "the etcd program")
	flag.StringVar(&b.loader, "etcdload", "", "the program that writes to etcd")
	flag.StringVar(&b.dir, "data", "", "where the servers keep their data (default: a temporary directory)")
	writers := flag.String("writers", "1,16,64,256", "how many writers at once")
	only := flag.String("only", strings.Join(contestants, ","), "what to measure")
	flag.IntVar(&b.rounds, "rounds", 3, "how often the peers take turns")
	flag.IntVar(&b.conns, "conns", 12, "client connections at most, spread over the servers; fewer for fewer writers")
	flag.IntVar(&b.size, "size", 1024, "bytes of a value")
	flag.DurationVar(&b.runFor, "for", 3*time.Second, "how long to write each time")
	name, address := flag.String("node", "", "be a server of the core with this name"), flag.String("address", "", "of it")
	dir, ca, bootstrap := flag.String("dir", "", "of it"), flag.String("ca", "", "of it"), flag.Bool("bootstrap", false, "it begins the cluster")
	flag.Parse()
	b.extra, b.only = flag.Args(), strings.Split(*only, ",")
	err := b.setWriters(*writers)
	switch {
	case *name != "":
		err = runNode(*name, *address, *dir, *ca, *bootstrap)
	case err == nil:
		err = b.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "throughput:", err)
		os.Exit(1)
	}
}

func (b *bench) setWriters(list string) error {
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is no number of writers", text)
		}
		b.writers = append(b.writers, n)
	}
	return nil
}

func (b *bench) run() (err error) {
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "throughput-"); err != nil {
			return err
		}
		defer os.RemoveAll(b.dir)
	}
	for round := range b.rounds {
		for _, turn := range []struct {
			peer  peer
			names []string
		}{
			{&etcd{program: b.etcd, loader: b.loader}, contestants[:1]},
			{&core{}, contestants[1:2]},
			{&server{program: b.bin, extra: b.extra}, contestants[2:]},
		} {
			names := slices.DeleteFunc(slices.Clone(turn.names), func(n string) bool { return !slices.Contains(b.only, n) })
			if len(names) == 0 {
				continue
			}
			dir := filepath.Join(b.dir, fmt.Sprintf("%d-%s", round, strings.Fields(names[0])[0]))
			if err := b.turn(turn.peer, names, dir); err != nil {
				return fmt.Errorf("%s: %w", strings.Join(names, " and "), err)
			}
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	b.print()
	return nil
}

func (b *bench) turn(p peer, names []string, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	defer p.stop()
	ctx := context.Background()
	if err := p.begin(ctx, dir); err != nil {
		return err
	}
	for _, writers := range b.writers {
		for i, name := range names {
			if s, ok := p.(*server); ok {
				s.mediaType = map[string]string{contestants[2]: typeProtobuf, contestants[3]: typeJSON}[name]
			}
			l := load{Writers: writers, Conns: min(writers, b.conns), Size: b.size, For: b.runFor, Prefix: fmt.Sprintf("w%d-%d", writers, i)}
			if err := b.measure(ctx, p, name, l); err != nil {
				return fmt.Errorf("%d writers: %w", writers, err)
			}
		}
	}
	return nil
}

func (b *bench) measure(ctx context.Context, p peer, name string, l load) error {
	before, err := p.cpu()
	if err != nil {
		return err
	}
	res := p.load(ctx, l)
	after, cpuErr := p.cpu()
	if err := errors.Join(res.err(), cpuErr); err != nil {
		return err
	}
	key := fmt.Sprint(name, l.Writers)
	r := b.rows[key]
	if r == nil {
		r = &row{}
		b.rows[key] = r
	}
	rate := float64(len(res.Micros)) / res.Elapsed.Seconds()
	r.micros, r.elapsed, r.cpu = append(r.micros, res.Micros...), r.elapsed+res.Elapsed, r.cpu+after-before
	r.rates = append(r.rates, rate)
	fmt.Fprintf(os.Stderr, "%s, %d writers: %.0f/s\n", name, l.Writers, rate)
	return nil
}

// err says what became of writes that failed: there must be none.
func (r result) err() error {
	if r.Errors > 0 {
		return fmt.Errorf("%d writes failed: %s", r.Errors, r.First)
	}
	if len(r.Micros) == 0 {
		return errors.New("nothing was written")
	}
	return nil
}

func (b *bench) print() {
	fmt.Printf("New keys with values of %d bytes; %d rounds of %v; at most %d connections, spread over three servers.\n", b.size, b.rounds, b.runFor, b.conns)
	fmt.Println("core: proposed in the leader's process, without a client's protocol; its writers count in its CPU.")
	fmt.Println("\n| writers | | writes/s | least to most of a round | p50 ms | p99 ms | servers' CPU, us/write | of etcd's rate |")
	fmt.Println("|---|---|---|---|---|---|---|---|")
	for _, writers := range b.writers {
		etcdRate := 0.0
		for _, name := range contestants {
			r := b.rows[fmt.Sprint(name, writers)]
			if r == nil {
				continue
			}
			slices.Sort(r.micros)
			n := len(r.micros)
			rate := float64(n) / r.elapsed.Seconds()
			ratio := "-"
			if name == contestants[0] {
				etcdRate = rate
			} else if etcdRate > 0 {
				ratio = fmt.Sprintf("%.2f", rate/etcdRate)
			}
			fmt.Printf("| %d | %s | %.0f | %.0f-%.0f | %.1f | %.1f | %d | %s |\n", writers, name, rate, slices.Min(r.rates), slices.Max(r.rates),
				float64(r.micros[n/2])/1000, float64(r.micros[n*99/100])/1000, r.cpu.Microseconds()/int64(n), ratio)
		}
	}
}
