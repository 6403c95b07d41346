package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shepherd-project/shepherd/scripts/machines"
)

// port is every server's one port.
const port = "9876"

// demo is the state of one run.
type demo struct {
	bin, image, manifest, kubectl string
	kills                         int

	dir string

	lab     *machines.Lab
	desk    *machines.Machine // where the administrator sits
	servers []*host
	workers []*host
	client  kubernetes.Interface
	results results
}

// host is a machine with a daemon on it.
type host struct {
	*machines.Machine
	args []string
	dir  string
	cmd  *exec.Cmd
	log  *os.File
}

func (h *host) data() string   { return filepath.Join(h.dir, "data") }
func (h *host) cgroup() string { return "/" + filepath.Base(filepath.Dir(h.dir)) + "/" + h.Name }

// addHost makes a machine whose daemon will get these arguments.
func (d *demo) addHost(name string, number byte, args ...string) (*host, error) {
	m, err := d.lab.Add(name, number)
	if err != nil {
		return nil, err
	}
	h := &host{Machine: m, dir: filepath.Join(d.dir, name)}
	if err := os.MkdirAll(h.data(), 0o700); err != nil {
		return nil, err
	}
	h.args = append([]string{
		"--data-dir", h.data(), "--run-dir", filepath.Join(h.dir, "run"), "--cgroup-root", h.cgroup(),
	}, args...)
	return h, nil
}

// start starts the host's daemon; its output goes to a file.
func (d *demo) start(h *host) (err error) {
	if h.log == nil {
		if h.log, err = os.Create(filepath.Join(h.dir, "log")); err != nil {
			return err
		}
	}
	h.cmd = exec.Command(filepath.Join(d.bin, "shepherd"), h.args...)
	h.cmd.Stdout, h.cmd.Stderr = h.log, h.log
	return h.Start(h.cmd)
}

// kill ends the host's daemon without a warning.
func (h *host) kill() error {
	if h.cmd == nil {
		return nil
	}
	if err := h.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return h.reap()
}

func (h *host) reap() error {
	var exit *exec.ExitError
	err := h.cmd.Wait()
	h.cmd = nil
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// close ends everything and removes it, and says what it could not remove.
func (d *demo) close() error {
	if d.lab == nil {
		return os.RemoveAll(d.dir)
	}
	errs := []error{d.lab.Close()}
	for _, h := range slices.Concat(d.servers, d.workers) {
		if h.cmd != nil {
			errs = append(errs, h.reap())
		}
		if h.log != nil {
			errs = append(errs, h.log.Close())
		}
		<-h.Gone()
	}
	errs = append(errs, removeCgroups(filepath.Base(d.dir)), os.RemoveAll(d.dir))
	return errors.Join(errs...)
}

// removeCgroups removes the demo's own tree from each hierarchy. Its processes
// are dead; the kernel may take a moment to let go of their cgroups.
func removeCgroups(name string) error {
	roots, err := filepath.Glob("/sys/fs/cgroup/*/" + name)
	if err != nil {
		return err
	}
	roots = append(roots, "/sys/fs/cgroup/"+name)
	var errs []error
	for _, root := range roots {
		var dirs []string
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, dir := range slices.Backward(dirs) {
			errs = append(errs, removeCgroup(dir))
		}
	}
	return errors.Join(errs...)
}

func removeCgroup(dir string) error {
	deadline := time.Now().Add(5 * time.Second)
	for {
		err := syscall.Rmdir(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// printLogs shows the end of each daemon's log, after a failure.
func (d *demo) printLogs() {
	for _, h := range slices.Concat(d.servers, d.workers) {
		out, err := os.ReadFile(filepath.Join(h.dir, "log"))
		if err != nil {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		fmt.Fprintf(os.Stderr, "\n-- %s, the last lines of its log\n%s\n", h.Name, strings.Join(lines[max(0, len(lines)-25):], "\n"))
	}
}

// kubeconfig is the first server's; it names all of them.
func (d *demo) kubeconfig() string { return filepath.Join(d.servers[0].data(), "admin.kubeconfig") }

// connect makes a client that sits at the administrator's desk and reaches any
// living server, as sheepctl does.
func (d *demo) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", d.kubeconfig())
	if err != nil {
		return err
	}
	config.QPS, config.Timeout = -1, 20*time.Second
	config.TLSClientConfig.ServerName = "localhost"
	config.Dial = (&anyServer{d}).dial
	d.client, err = kubernetes.NewForConfig(rest.CopyConfig(config))
	return err
}

// sheepctl runs the project's client at the desk and returns what it printed.
func (d *demo) sheepctl(ctx context.Context, args ...string) (string, error) {
	return d.runAt(ctx, d.desk, filepath.Join(d.bin, "sheepctl"), append([]string{"--kubeconfig", d.kubeconfig()}, args...)...)
}

func (d *demo) runAt(ctx context.Context, m *machines.Machine, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	cmd.Env = append(os.Environ(), "HOME="+d.dir)
	if err := m.Run(cmd); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(program), strings.Join(args, " "), err, out.String(), errOut.String())
	}
	return out.String(), nil
}

// show prints what a command said, indented.
func show(out string) {
	for line := range strings.Lines(out) {
		fmt.Print("   ", line)
	}
}

// until polls fn until it is satisfied. An error of fn is only the reason that
// is shown when the time is up: the cluster is being broken on purpose.
func until(ctx context.Context, bound time.Duration, what string, fn func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("not within %v: %s", bound, what))
	defer cancel()
	for {
		ok, err := fn(ctx)
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
