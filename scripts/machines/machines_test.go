package machines

import (
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newLab(t *testing.T) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make namespaces")
	}
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func add(t *testing.T, l *Lab, name string, host byte) *Machine {
	t.Helper()
	m, err := l.Add(name, host)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func output(t *testing.T, m *Machine, script string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command("sh", "-c", script)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := m.Run(cmd); err != nil {
		t.Fatalf("%s: %s: %v\n%s", m.Name, script, err, out.String())
	}
	return strings.TrimSpace(out.String())
}

func TestMachinesTalkUntilUnplugged(t *testing.T) {
	l := newLab(t)
	a, b := add(t, l, "a", 1), add(t, l, "b", 2)
	reach := func() error {
		return a.Run(exec.Command("bash", "-c", "exec 3<>/dev/tcp/"+b.IP+"/7000 && read -t 2 <&3"))
	}
	server := exec.Command("python3", "-c", "import socket\n"+
		"s=socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"+
		"s.bind(('"+b.IP+"',7000)); s.listen()\nprint('up', flush=True)\n"+
		"while True:\n c,_=s.accept(); c.sendall(b'hello\\n'); c.close()\n")
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3 for a server")
	}
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(server); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if err := reach(); err != nil {
		t.Fatalf("a does not reach b: %v", err)
	}
	if err := b.Unplug(); err != nil {
		t.Fatal(err)
	}
	cut := exec.Command("timeout", "1", "bash", "-c", "exec 3<>/dev/tcp/"+b.IP+"/7000")
	if err := a.Run(cut); err == nil {
		t.Fatal("a reaches b without a cable")
	}
	if err := b.Plug(); err != nil {
		t.Fatal(err)
	}
	if err := reach(); err != nil {
		t.Fatalf("a does not reach b again: %v", err)
	}
	if err := b.PowerOff(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := server.Wait(); !errors.As(err, &exit) {
		t.Fatalf("the server outlived its machine: %v", err)
	}
}

// listen takes packets on the machine.
func listen(t *testing.T, m *Machine) (conn net.PacketConn) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is the machine's
		fd, err := unix.PidfdOpen(m.PID(), 0)
		if err == nil {
			err = errors.Join(unix.Setns(fd, unix.CLONE_NEWNET), unix.Close(fd))
		}
		if err == nil {
			conn, err = net.ListenPacket("udp", m.IP+":0")
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestDroppedOneWay: what a machine sends to one address vanishes. It still
// hears that address, and others are not concerned.
func TestDroppedOneWay(t *testing.T) {
	l := newLab(t)
	a, b, c := add(t, l, "a", 1), add(t, l, "b", 2), add(t, l, "c", 3)
	want := func(when string, from, to *Machine, want bool) {
		t.Helper()
		in := listen(t, to)
		defer in.Close()
		out, err := from.Dial(t.Context(), "udp", in.LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		if _, err := out.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		patience := 300 * time.Millisecond // for what must not come
		if want {
			patience = 20 * time.Second
		}
		if err := in.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := in.ReadFrom(make([]byte, 1)); (err == nil) != want {
			t.Errorf("%s: %s hears %s: %v", when, to.Name, from.Name, err == nil)
		}
	}
	want("at first", a, b, true)
	if err := a.Drop(b.IP, true); err != nil {
		t.Fatal(err)
	}
	want("dropped", a, b, false)
	want("dropped", b, a, true)
	want("dropped", a, c, true)
	for range 2 {
		if err := a.Drop(b.IP, false); err != nil {
			t.Fatal(err)
		}
	}
	want("not dropped any more", a, b, true)
}

// A machine sees its own processes and mounts, and the host none of the latter.
func TestMachinesAreSeparate(t *testing.T) {
	l := newLab(t)
	m := add(t, l, "a", 1)
	if pid := output(t, m, "echo $$"); len(pid) > 3 {
		t.Errorf("process IDs are the host's: %s", pid)
	}
	dir := t.TempDir()
	output(t, m, "mount -t tmpfs tmpfs "+dir+" && touch "+dir+"/inside")
	if _, err := os.Stat(dir + "/inside"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a mount of the machine is seen by the host: %v", err)
	}
	if got := output(t, m, "ls "+dir); got != "inside" {
		t.Errorf("the next command does not see the mount: %q", got)
	}
}

// Orphans are waited for: no zombie stays.
func TestInitReaps(t *testing.T) {
	l := newLab(t)
	m := add(t, l, "a", 1)
	pid := output(t, m, "(sleep 0.05 >/dev/null 2>&1 & echo $!)")
	if _, err := strconv.Atoi(pid); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(5 * time.Second)
	for output(t, m, "test -e /proc/"+pid+" && echo there || true") != "" {
		if time.Now().After(deadline) {
			t.Fatalf("process %s is still there: %s", pid, output(t, m, "cat /proc/"+pid+"/stat"))
		}
	}
}

// Closing ends every process, whatever it does.
func TestCloseEndsEverything(t *testing.T) {
	l := newLab(t)
	m := add(t, l, "a", 1)
	cmd := exec.Command("sh", "-c", "trap '' TERM INT; setsid sleep 1000 & echo up; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) {
		t.Fatalf("still alive: %v", err)
	}
	<-m.Gone()
	if err := m.Run(exec.Command("true")); err == nil {
		t.Fatal("a closed lab still runs commands")
	}
}
