package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// limitDescriptors bounds how many files a running server may have open. What
// is open stays open. It returns the limit as it was.
func limitDescriptors(t *testing.T, s *testServer, limit uint64) (was uint64) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Prlimit(s.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(s.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: old.Max}, nil); err != nil {
		t.Fatal(err)
	}
	return old.Cur
}

// TestDescriptorsExhausted leaves the leader without a file descriptor for
// anything new: it goes on leading over the connections that it has, says what
// is wrong, and takes clients again by itself.
func TestDescriptorsExhausted(t *testing.T) {
	a := bootstrap(t, "a")
	b, c := newServer(t, "b").joinVia(t, a), newServer(t, "c").joinVia(t, a)
	term := a.awaitVoters(3).Term
	if err := created(b.post("before")); err != nil {
		t.Fatal(err)
	}
	was := limitDescriptors(t, a, 3)
	begun := time.Now()
	tried := make(chan error, 1)
	go func() { tried <- created(a.post("waits")) }() // it waits for the server to accept it
	eventually(t, 15*time.Second, "the server without descriptors says so", func() error {
		if !strings.Contains(a.out.String(), "too many open files") {
			return errors.New("no word of it")
		}
		return nil
	})
	for i := range 20 {
		for _, s := range []*testServer{b, c} {
			if code, body, err := s.post(fmt.Sprintf("meanwhile-%s-%d", s.name, i)); err != nil || code != http.StatusCreated {
				t.Fatalf("a write through %s: %d %s %v", s.name, code, body, err)
			}
		}
	}
	a.mustRun()
	if st, err := b.status(); err != nil || st.Leader != "a" || st.Term != term {
		t.Errorf("leader %q in term %d, was a in term %d: %v", st.Leader, st.Term, term, err)
	}
	t.Logf("without descriptors for %v", time.Since(begun).Round(time.Millisecond))
	limitDescriptors(t, a, was)
	if err := <-tried; err != nil {
		t.Logf("the client that waited: %v", err) // it may have lost its patience
	}
	eventually(t, 10*time.Second, "a write through the server that has descriptors again", func() error { return created(a.post("after")) })
	a.awaitVoters(3)
}

// fewDescriptors runs a command in a process that may have that many files open
// and cannot raise that.
func fewDescriptors(limit int) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		cmd.Args = append([]string{"sh", "-c", `ulimit -n "$0" && exec "$@"`, strconv.Itoa(limit), cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/bin/sh"
	}
}

// metricThrough is one value of the server's metrics, which a client asks for.
func (s *testServer) metricThrough(client *http.Client, name string) (float64, error) {
	res, err := client.Get("https://" + s.address + "/metrics")
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	return findMetric(string(text), name)
}

// idleClient opens a connection, asks for the health on it, and keeps it.
func idleClient(t *testing.T, address string) error {
	t.Helper()
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", address, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return err
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, len("HTTP/1.1 200 OK")))
	return err
}

// TestClientsLeaveDescriptors has more idle clients connect to the leader than it
// may have files open, and as many that say nothing at all. It leads on, writes
// go on through connections that were open and through the other servers, and a
// server that was killed meanwhile finds its way back to it.
func TestClientsLeaveDescriptors(t *testing.T) {
	const limit = 256
	a := newServer(t, "a").runAs(t, fewDescriptors(limit), "--bootstrap")
	a.awaitReady()
	b, c := newServer(t, "b").joinVia(t, a), newServer(t, "c").joinVia(t, a)
	term := a.awaitVoters(3).Term
	before := a.client()
	before.Transport.(*http.Transport).DisableKeepAlives = false
	if open, err := a.metricThrough(before, "process_max_fds"); err != nil || open != limit {
		t.Fatalf("the limit is %v, not %d: %v", open, limit, err)
	}
	refused := 0
	for range limit {
		if err := idleClient(t, a.address); err != nil {
			refused++
		}
	}
	for range limit {
		conn, err := net.Dial("tcp", a.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
	}
	most, err := a.metricThrough(before, "shepherd_port_max_clients")
	if err != nil {
		t.Fatal(err)
	}
	clients, err := a.metricThrough(before, "shepherd_port_clients")
	if err != nil || clients > most || clients < most-10 {
		t.Errorf("%v clients are connected, %v may be: %v", clients, most, err)
	}
	if refused == 0 || refused > limit-int(most)+10 {
		t.Errorf("%d of %d clients were refused, %v may be there", refused, limit, most)
	}
	open, err := a.metricThrough(before, "process_open_fds")
	if err != nil || open > limit-20 {
		t.Errorf("%v of %d files are open: %v", open, limit, err)
	}
	if !strings.Contains(a.out.String(), "too many connections") || strings.Contains(a.out.String(), "too many open files") {
		t.Error("the server does not say so, or was without descriptors")
	}
	t.Logf("%d of %d idle clients refused, %v of %d files open", refused, limit, open, limit)

	c.kill()
	for i := range 10 {
		body := strings.NewReader(fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"kept-%d"}}`, i))
		res, err := before.Post("https://"+a.address+"/api/v1/namespaces/default/configmaps", "application/json", body)
		if err != nil {
			t.Fatalf("a write through a connection that was open: %v", err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusCreated {
			t.Fatalf("a write through a connection that was open: %s %v", res.Status, err)
		}
		res.Body.Close()
		if err := created(b.post(fmt.Sprintf("other-%d", i))); err != nil {
			t.Fatalf("a write through another server: %v", err)
		}
	}
	c.run(t)
	c.awaitReady()
	if st := c.awaitVoters(3); st.Leader != "a" || st.Term != term {
		t.Errorf("leader %q in term %d, was a in term %d", st.Leader, st.Term, term)
	}
	a.mustRun()
}

// TestTooFewDescriptors refuses to start where a server cannot work.
func TestTooFewDescriptors(t *testing.T) {
	a := newServer(t, "a").runAs(t, fewDescriptors(100), "--bootstrap")
	if code := a.wait(20 * time.Second); code != 1 || !strings.Contains(a.out.String(), "LimitNOFILE=") {
		t.Errorf("exit %d:\n%s", code, a.out)
	}
}
