package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shepherd-project/shepherd/scripts/machines"
)

// clientProgram is a client at a machine, with a namespace of its own.
type clientProgram struct {
	machine    *machines.Machine
	path       string
	kubeconfig string
	namespace  string
	home       string
}

func (c *testCluster) sheepctl(t *testing.T) *clientProgram {
	return &clientProgram{machine: c.desk, path: filepath.Join(binDir, "sheepctl"), kubeconfig: c.kubeconfig(), namespace: "default", home: t.TempDir()}
}

// kubectl is Debian's, or the test is skipped.
func (c *testCluster) kubectl(t *testing.T) *clientProgram {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cache, "shepherd", "kubectl")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("Debian's kubectl is not here (scripts/setup fetches it where apt-get exists): %v", err)
	}
	p := c.sheepctl(t)
	p.path = path
	return p
}

func (p *clientProgram) command(stdin string, args ...string) *exec.Cmd {
	// Not bound to the test's context: clean-up runs commands too.
	cmd := exec.Command(p.path, append([]string{"--kubeconfig", p.kubeconfig, "-n", p.namespace}, args...)...)
	cmd.Env = []string{"HOME=" + p.home, "PATH=" + os.Getenv("PATH")}
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

// try runs the client and returns what it printed and its exit code,
// -1 when it was not to be started.
func (p *clientProgram) try(t *testing.T, stdin string, args ...string) (string, int) {
	t.Helper()
	cmd := p.command(stdin, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := p.machine.Run(cmd)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err.Error(), -1
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

func (p *clientProgram) name(args []string) string {
	return filepath.Base(p.path) + " " + strings.Join(args, " ")
}

// run runs the client and wants success.
func (p *clientProgram) run(t *testing.T, args ...string) string {
	t.Helper()
	out, code := p.try(t, "", args...)
	if code != 0 {
		t.Fatalf("%s: exit code %d\n%s", p.name(args), code, out)
	}
	return out
}

// afterwards runs the client when the test has ended, however it has.
func (p clientProgram) afterwards(t *testing.T, args ...string) {
	t.Helper()
	t.Cleanup(func() {
		if out, code := p.try(t, "", args...); code != 0 {
			t.Errorf("%s: exit code %d\n%s", p.name(args), code, out)
		}
	})
}

// background is a client that runs on, such as a watch.
type background struct {
	cmd  *exec.Cmd
	name string
	done chan struct{}

	mu     sync.Mutex
	text   bytes.Buffer
	change chan struct{} // closed and replaced at each write
}

// Write takes the client's output.
func (b *background) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.change)
	b.change = make(chan struct{})
	return b.text.Write(p)
}

func (b *background) output() (string, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String(), b.change
}

func (p *clientProgram) start(t *testing.T, args ...string) *background {
	t.Helper()
	b := &background{cmd: p.command("", args...), name: p.name(args), done: make(chan struct{}), change: make(chan struct{})}
	b.cmd.Stdout, b.cmd.Stderr = b, b
	if err := p.machine.Start(b.cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(b.done)
		_ = b.cmd.Wait() // the exit code is read from ProcessState
	}()
	t.Cleanup(b.stop)
	return b
}

func (b *background) stop() {
	_ = b.cmd.Process.Kill() // it may have ended
	<-b.done
}

// await waits until the output holds the text.
func (b *background) await(t *testing.T, text string) {
	t.Helper()
	deadline := time.After(15 * time.Second)
	for {
		out, change := b.output()
		if strings.Contains(out, text) {
			return
		}
		select {
		case <-change:
		case <-b.done:
			if out, _ := b.output(); !strings.Contains(out, text) {
				t.Fatalf("%s ended without %q:\n%s", b.name, text, out)
			}
			return
		case <-deadline:
			t.Fatalf("%s did not say %q:\n%s", b.name, text, out)
		}
	}
}

// end waits for the client to end by itself, and returns its exit code.
func (b *background) end(t *testing.T) int {
	t.Helper()
	select {
	case <-b.done:
	case <-time.After(20 * time.Second):
		out, _ := b.output()
		t.Fatalf("%s does not end:\n%s", b.name, out)
	}
	return b.cmd.ProcessState.ExitCode()
}
