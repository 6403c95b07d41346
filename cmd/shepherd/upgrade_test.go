package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// steadyWriter creates ConfigMaps through all servers in turn until it is
// stopped, and tells which were acknowledged.
func steadyWriter(client *http.Client, addresses []string) (stop func() (acknowledged []string)) {
	quit, done := make(chan struct{}), make(chan []string)
	go func() {
		var names []string
		for i := 0; ; i++ {
			select {
			case <-quit:
				done <- names
				return
			default:
			}
			name := fmt.Sprintf("upgrade-%d", i)
			body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"}}`
			res, err := client.Post("https://"+addresses[i%len(addresses)]+"/api/v1/namespaces/default/configmaps", "application/json", strings.NewReader(body))
			if err != nil {
				continue // that server is down
			}
			_, err = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close() // read to its end
			if err == nil && res.StatusCode == http.StatusCreated {
				names = append(names, name)
			}
		}
	}()
	return func() []string {
		close(quit)
		return <-done
	}
}

// TestRollingUpgrade takes three servers to a newer build, one at a time and the
// leader first, while a client writes. Then an older build neither returns nor
// joins: it ends with code 1 and says which build is needed.
func TestRollingUpgrade(t *testing.T) {
	ctl := sheepctl(t)
	a := bootstrap(t, "a")
	b, c := newServer(t, "b").joinVia(t, a), newServer(t, "c").joinVia(t, a)
	a.awaitVoters(3)
	servers := []*testServer{a, b, c}
	stop := steadyWriter(a.client(), []string{a.address, b.address, c.address})
	status := func(s *testServer, want string) {
		t.Helper()
		eventually(t, 30*time.Second, "the status", func() error {
			out, ok := ctl(s, "cluster", "status")
			if !ok || !strings.Contains(out, want) {
				return &unexpected{out}
			}
			return nil
		})
	}
	upgrade := func(s *testServer) {
		t.Helper()
		s.signal(syscall.SIGTERM)
		if code := s.wait(20 * time.Second); code != 0 {
			t.Fatalf("%s: exit %d", s.name, code)
		}
		s.runBuild(t, 2)
		s.awaitReady()
		s.awaitVoters(3)
	}
	status(a, "Command level: 1\n")
	upgrade(a)
	eventually(t, 20*time.Second, "the newer build leads", func() error {
		if out, ok := ctl(b, "cluster", "transfer", "a"); !ok {
			return &unexpected{out}
		}
		return nil
	})
	status(c, "Command level: 1 (level 2 needs every server: the build of b can apply level 1, the build of c can apply level 1)\n")
	upgrade(b)
	status(a, "Command level: 1 (level 2 needs every server: the build of c can apply level 1)\n")
	upgrade(c)
	for _, s := range servers {
		status(s, "Command level: 2\n")
	}
	names := stop()
	if len(names) < 20 {
		t.Fatalf("%d writes only were acknowledged", len(names))
	}
	for _, s := range servers {
		code, list, err := s.get("/api/v1/namespaces/default/configmaps")
		if err != nil || code != http.StatusOK {
			t.Fatal(code, err)
		}
		for _, name := range names {
			if strings.Count(list, `"name":"`+name+`"`) != 1 {
				t.Errorf("%s has no %s, or more than one", s.name, name)
			}
		}
	}
	t.Logf("%d writes acknowledged", len(names))

	b.signal(syscall.SIGTERM)
	b.wait(20 * time.Second)
	refused := func(s *testServer) {
		t.Helper()
		if code := s.wait(20 * time.Second); code != 1 || !strings.Contains(s.out.String(), "run a build that can apply level 2") {
			t.Errorf("server %s: exit %d:\n%s", s.name, code, s.out)
		}
	}
	refused(b.run(t))
	b.runBuild(t, 2).awaitReady()
	a.awaitVoters(3)

	d := newServer(t, "d")
	refused(d.run(t, "--join", a.address, "--token-file", a.token("server")))
	d.runBuild(t, 2, "--join", a.address, "--token-file", a.token("server")).awaitReady()
	a.awaitVoters(4)
}
