package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster"
	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/fsm"
	"github.com/shepherd-project/shepherd/scripts/machines"
)

// asDaemon makes this test's program be the daemon.
const asDaemon = "SHEPHERD_TEST_DAEMON"

func TestMain(m *testing.M) {
	if os.Getenv(asDaemon) != "" {
		if os.Getenv(ownNetwork) != "" {
			loopbackUp()
		}
		if text := os.Getenv(asBuild); text != "" {
			commandLevel = buildLevel(text)
		}
		main()
	}
	os.Exit(m.Run())
}

// asBuild is the command level of the build that the daemon is to be.
const asBuild = "SHEPHERD_TEST_LEVEL"

func buildLevel(text string) uint8 {
	level, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		fmt.Fprintln(os.Stderr, asBuild+":", err)
		os.Exit(3)
	}
	return uint8(level)
}

// ownNetwork says that the daemon was started in a network of its own.
const ownNetwork = "SHEPHERD_TEST_NETWORK"

func loopbackUp() {
	link, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "loopback:", err)
		os.Exit(3)
	}
}

// process is one daemon.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *buffer
	done chan struct{} // closed when it has ended
}

// buffer is a bytes.Buffer for concurrent use.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func start(t *testing.T, change func(*exec.Cmd), args ...string) *process {
	t.Helper()
	return startOn(t, nil, change, args...)
}

// startOn is start on a machine of a lab; nil is this one.
func startOn(t *testing.T, machine *machines.Machine, change func(*exec.Cmd), args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(self, args...), out: &buffer{}, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), asDaemon+"=1")
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	begin := p.cmd.Start
	if machine == nil {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	} else {
		begin = func() error { return machine.Start(p.cmd) } // it ends with its machine
	}
	if change != nil {
		change(p.cmd)
	}
	if err := begin(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // the code is in ProcessState
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s:\n%s", strings.Join(args, " "), p.out)
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.done
}

// wait returns the exit code.
func (p *process) wait(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		p.t.Fatalf("it did not end within %v:\n%s", within, p.out)
		return -1
	}
}

func (p *process) signal(sig os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// eventually polls what cannot be waited for across processes.
func eventually(t *testing.T, within time.Duration, what string, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// testServer is a daemon in server mode with its directory and address.
type testServer struct {
	*process
	name, dir, address string

	machine *machines.Machine // where it runs; nil: here
	desk    *machines.Machine // from where it is asked; nil: from here
}

// dial is how the server is reached; nil is the usual way.
func (s *testServer) dial() func(ctx context.Context, network, address string) (net.Conn, error) {
	if s.desk == nil {
		return nil
	}
	return s.desk.Dial
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func newServer(t *testing.T, name string) *testServer {
	t.Helper()
	return &testServer{name: name, dir: filepath.Join(t.TempDir(), name), address: freeAddress(t)}
}

// run starts the daemon on its directory.
func (s *testServer) run(t *testing.T, args ...string) *testServer {
	t.Helper()
	return s.runBuild(t, fsm.Level, args...)
}

// runBuild is run with a build of that command level.
func (s *testServer) runBuild(t *testing.T, level int, args ...string) *testServer {
	t.Helper()
	return s.runAs(t, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", asBuild, level)) }, args...)
}

// runAs is run with a command that was changed.
func (s *testServer) runAs(t *testing.T, change func(*exec.Cmd), args ...string) *testServer {
	t.Helper()
	s.process = startOn(t, s.machine, change, append([]string{"--mode", "server", "--name", s.name, "--addr", s.address, "--data-dir", s.dir}, args...)...)
	return s
}

func bootstrap(t *testing.T, name string) *testServer {
	t.Helper()
	s := newServer(t, name).run(t, "--bootstrap")
	s.awaitReady()
	return s
}

func (s *testServer) joinVia(t *testing.T, via *testServer) *testServer {
	t.Helper()
	s.run(t, "--join", via.address, "--token-file", via.token(pki.RoleServer))
	s.awaitReady()
	return s
}

func (s *testServer) token(role pki.Role) string { return cluster.TokenPath(s.dir, role) }

// client speaks with the administrator's certificate of the server's directory.
func (s *testServer) client() *http.Client {
	s.t.Helper()
	ca, err := pki.LoadCA(filepath.Join(s.dir, "pki"))
	if err != nil {
		s.t.Fatal(err)
	}
	source, err := pki.OpenSource(filepath.Join(s.dir, "pki"), "admin")
	if err != nil {
		s.t.Fatal(err)
	}
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		TLSClientConfig: pki.NewVerifier(ca, time.Now).ClientConfig(source), DisableKeepAlives: true, DialContext: s.dial(),
	}}
}

func (s *testServer) awaitReady() {
	s.t.Helper()
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true, DialContext: s.dial(),
	}}
	eventually(s.t, 20*time.Second, "server "+s.name+" is not ready", func() error {
		select {
		case <-s.done:
			s.t.Fatalf("server %s ended:\n%s", s.name, s.out)
		default:
		}
		res, err := client.Get("https://" + s.address + "/readyz")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode == http.StatusOK {
			return err
		}
		return &unexpected{res.Status + ": " + string(body)}
	})
}

type unexpected struct{ what string }

func (u *unexpected) Error() string { return u.what }

// get asks the server's API as the administrator.
func (s *testServer) get(path string) (int, string, error) {
	res, err := s.client().Get("https://" + s.address + path)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}

func (s *testServer) status() (st wire.ClusterStatus, err error) {
	_, body, err := s.get(wire.PathStatus)
	if err == nil {
		err = json.Unmarshal([]byte(body), &st)
	}
	return st, err
}

// awaitMembers waits until the server sees that many healthy voters.
func (s *testServer) awaitVoters(want int) wire.ClusterStatus {
	s.t.Helper()
	var st wire.ClusterStatus
	eventually(s.t, 20*time.Second, "voters", func() (err error) {
		if st, err = s.status(); err != nil {
			return err
		}
		voters := 0
		for _, m := range st.Members {
			if m.Healthy && (m.Role == wire.RoleVoter || m.Role == wire.RoleLeader) {
				voters++
			}
		}
		if voters != want || st.Leader == "" {
			text, err := json.Marshal(st)
			if err != nil {
				return err
			}
			return &unexpected{string(text)}
		}
		return nil
	})
	return st
}

// post creates a ConfigMap through the server.
func (s *testServer) post(name string) (int, string, error) {
	body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"}}`
	res, err := s.client().Post("https://"+s.address+"/api/v1/namespaces/default/configmaps", "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	return res.StatusCode, string(out), err
}
