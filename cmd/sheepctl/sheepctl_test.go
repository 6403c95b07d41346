package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

const kubeconfig = `apiVersion: v1
kind: Config
current-context: s2
clusters:
- {name: s1, cluster: {server: "https://10.0.0.1:9876", certificate-authority-data: Y2E=}}
- {name: s2, cluster: {server: "https://10.0.0.2:9876", certificate-authority-data: Y2E=}}
- {name: s3, cluster: {server: "https://10.0.0.3:9876", certificate-authority-data: Y2E=}}
- {name: other, cluster: {server: "https://10.9.9.9", certificate-authority-data: b3RoZXI=}}
contexts:
- {name: s1, context: {cluster: s1, user: admin}}
- {name: s2, context: {cluster: s2, user: admin}}
- {name: s3, context: {cluster: s3, user: admin}}
- {name: other, context: {cluster: other, user: admin}}
users:
- {name: admin, user: {token: x}}
`

func testClients(t *testing.T, content string) *clients {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := genericclioptions.NewConfigFlags(true)
	flags.KubeConfig = &path
	c := &clients{flags: flags}
	flags.WithWrapConfigFn(c.tryEveryServer)
	return c
}

// The servers are those of the current cluster, the current one first, and a
// configuration can reach all of them.
func TestServersOfTheKubeconfig(t *testing.T) {
	c := testClients(t, kubeconfig)
	servers, err := c.servers()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range servers {
		names = append(names, s.context)
	}
	if want := []string{"s2", "s1", "s3"}; !slices.Equal(names, want) {
		t.Fatalf("servers %v, want %v", names, want)
	}
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	if config.Dial == nil || config.TLSClientConfig.ServerName != anyServerName {
		t.Fatalf("the configuration reaches one server only: %+v", config)
	}
}

// Whoever names a server gets that server and no other.
func TestServerFlagIsObeyed(t *testing.T) {
	c := testClients(t, kubeconfig)
	one := "https://10.0.0.3:9876"
	c.flags.APIServer = &one
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	if config.Dial != nil || config.Host != one {
		t.Fatalf("--server was not obeyed: %+v", config)
	}
}

func TestMissingContextIsNamed(t *testing.T) {
	c := testClients(t, strings.Replace(kubeconfig, "current-context: s2", "current-context: gone", 1))
	if _, err := c.servers(); err == nil || !strings.Contains(err.Error(), `"gone"`) {
		t.Fatalf("error does not name the context: %v", err)
	}
}

func TestDialerFindsTheLivingServer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	d := newServerDialer([]server{{address: dead.Addr().String()}, {address: ln.Addr().String()}})
	conn, err := d.dial(context.Background(), "tcp", dead.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if conn.RemoteAddr().String() != ln.Addr().String() || d.addresses[0] != ln.Addr().String() {
		t.Fatalf("connected to %v, prefers %v", conn.RemoteAddr(), d.addresses)
	}
	ln.Close()
	if _, err := d.dial(context.Background(), "tcp", dead.Addr().String()); err == nil || !strings.Contains(err.Error(), "no server") {
		t.Fatalf("with all dead: %v", err)
	}
}

func TestMachineKubeconfigIsFound(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("SHEPHERD_DATA_DIR", dir)
	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", dir)
	path := filepath.Join(dir, "admin.kubeconfig")
	useMachineKubeconfig(nil)
	if got := os.Getenv("KUBECONFIG"); got != "" {
		t.Fatalf("a missing file was used: %q", got)
	}
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	useMachineKubeconfig([]string{"get", "--kubeconfig=x"})
	if got := os.Getenv("KUBECONFIG"); got != "" {
		t.Fatalf("--kubeconfig was overruled: %q", got)
	}
	useMachineKubeconfig([]string{"get", "pods"})
	if got := os.Getenv("KUBECONFIG"); got != path {
		t.Fatalf("KUBECONFIG is %q, want %q", got, path)
	}
}

func TestGap(t *testing.T) {
	t0 := time.Unix(1000, 0)
	at := func(ms ...int) *ackLog {
		l := &ackLog{}
		for _, m := range ms {
			l.times = append(l.times, t0.Add(time.Duration(m)*time.Millisecond))
		}
		return l
	}
	for _, c := range []struct {
		log  *ackLog
		want time.Duration
	}{
		{at(0, 500, 990, 1040, 1050), 50 * time.Millisecond}, // the pause before the fault is not its
		{at(0, 1040, 990, 1050), 50 * time.Millisecond},      // writers report out of order
		{at(990, 1010, 1400, 1401), 390 * time.Millisecond},
	} {
		if got := c.log.gapAround(t0.Add(time.Second)); got != c.want {
			t.Errorf("gap %v, want %v", got, c.want)
		}
	}
	if got := at(1, 2).gapAround(t0.Add(time.Second)); got < time.Hour {
		t.Errorf("no write after the fault is a gap of %v", got)
	}
}

func TestNeverArrived(t *testing.T) {
	gr := schema.GroupResource{Resource: "configmaps"}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, true},
		{apierrors.NewForbidden(gr, "x", nil), true},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, false},
		{context.DeadlineExceeded, false},
		{errors.New("http2: server sent GOAWAY"), false},
		{apierrors.NewServiceUnavailable("no leader"), false},
	} {
		if got := neverArrived(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

func TestRestartsNamesPods(t *testing.T) {
	before := podState{"u1": {"d/a", 0}, "u2": {"d/b", 1}, "u3": {"d/c", 0}}
	after := podState{"u1": {"d/a", 0}, "u2": {"d/b", 2}, "u4": {"d/c", 0}}
	if got := restarts(before, after); !slices.Equal(got, []string{"d/b", "d/c"}) {
		t.Fatalf("restarted: %v", got)
	}
}

// Global flags may stand before our own commands, as before kubectl's.
func TestFlagsBeforeCommands(t *testing.T) {
	for _, args := range [][]string{{"--kubeconfig", "x", "cluster", "status"}, {"drill"}, {"get", "pods"}, {"image", "import", "f"}} {
		cmd, _, err := newCommand().Find(args)
		if err != nil || cmd.Name() == "sheepctl" {
			t.Errorf("%v finds %q: %v", args, cmd.Name(), err)
		}
	}
}
