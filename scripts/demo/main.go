// Command demo shows a Shepherd cluster on five machines that are namespaces of
// this one: it runs an application, loses its leader, loses all servers at
// once, loses a worker machine, and proves each time that nothing was lost.
//
// It needs root and what scripts/demo.sh has built. It leaves nothing behind,
// also when it is interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	bin := flag.String("bin", "bin", "directory with shepherd, sheepctl and shepherd-shim")
	image := flag.String("image", "dist/web.tar", "archive of the demo's image")
	manifest := flag.String("manifest", "scripts/demo/web.yaml", "what to apply")
	kubectl := flag.String("kubectl", "", "a kubectl to use beside sheepctl, if there is one")
	kills := flag.Int("kills", 0, "measure instead: kill the leader this often")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, &demo{bin: *bin, image: *image, manifest: *manifest, kubectl: *kubectl, kills: *kills})
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "\ninterrupted; everything was removed")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "\nthe demo failed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, d *demo) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute+time.Duration(d.kills)*30*time.Second)
	defer cancel()
	if d.dir, err = os.MkdirTemp("", "shepherd-demo-"); err != nil {
		return err
	}
	// On a machine, relative paths begin at its root.
	for _, path := range []*string{&d.bin, &d.image, &d.manifest, &d.kubectl} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return errors.Join(err, os.RemoveAll(d.dir))
		}
	}
	defer func() {
		if err != nil {
			d.printLogs()
		}
		err = errors.Join(err, d.close())
	}()
	steps := d.steps()
	if d.kills > 0 {
		steps = d.measurements()
	}
	for _, step := range steps {
		fmt.Printf("\n== %s\n", step.title)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
	}
	d.results.print()
	return nil
}

type step struct {
	title string
	do    func(context.Context) error
}

func (d *demo) steps() []step {
	return []step{
		{"Three servers on three machines", d.startServers},
		{"Two workers", d.startWorkers},
		{"Apply a Deployment of 6 and a Service", d.apply},
		{"Call every pod from the other worker, over HTTP", d.callEveryPod},
		{"Kill the leader while four writers write", d.killLeader},
		{"Use the cluster while the server that the kubeconfig names is dead", d.useWithoutServer},
		{"Start it again", d.restartServer},
		{"Kill all three servers at once", d.killAllServers},
		{"Power off a worker", d.powerOffWorker},
	}
}

// results is the table at the end.
type results [][2]string

func (r *results) add(what, format string, args ...any) {
	value := fmt.Sprintf(format, args...)
	*r = append(*r, [2]string{what, value})
	fmt.Printf("   %s: %s\n", what, value)
}

func (r results) print() {
	fmt.Println("\n== Measured")
	for _, row := range r {
		fmt.Printf("%-58s %s\n", row[0], row[1])
	}
}
