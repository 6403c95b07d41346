package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// noSpace is what a full disk is called by the system.
const noSpace = "no space left on device"

// smallDisk makes the server's data directory a file system of its own.
func smallDisk(t *testing.T, s *testServer, size string) {
	t.Helper()
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("shepherd-test", s.dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		t.Fatalf("mount a small disk (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(s.dir, 0); err != nil {
			t.Errorf("unmount %s: %v", s.dir, err)
		}
	})
}

// fill leaves no byte on the server's disk; removing the file frees it.
func fill(t *testing.T, s *testServer) string {
	t.Helper()
	path := filepath.Join(s.dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// fillUntilFelt writes until the server says once more that there is no space.
func fillUntilFelt(t *testing.T, via, sick *testServer, prefix string) {
	t.Helper()
	n, before := 0, strings.Count(sick.out.String(), noSpace)
	eventually(t, 40*time.Second, "the full disk is not felt", func() error {
		n++
		if res, body, err := via.postLarge(fmt.Sprintf("%s-%d", prefix, n)); err != nil || res.StatusCode != http.StatusCreated {
			return fmt.Errorf("%v %s", err, body)
		}
		if strings.Count(sick.out.String(), noSpace) == before {
			return errors.New("no word of it")
		}
		return nil
	})
}

func (s *testServer) mustRun() {
	s.t.Helper()
	select {
	case <-s.done:
		s.t.Fatalf("server %s ended:\n%s", s.name, s.out)
	default:
	}
}

// request asks the server's API as the administrator, with a body of JSON unless
// that is empty, and waits for the answer however long it takes.
func (s *testServer) request(method, path, body string) (*http.Response, string, error) {
	req, err := http.NewRequest(method, "https://"+s.address+path, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	client := s.client()
	client.Timeout = time.Minute
	res, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res, string(text), err
}

// postLarge creates a ConfigMap that does not fit in what is left of a full disk.
func (s *testServer) postLarge(name string) (*http.Response, string, error) {
	return s.request("POST", configMaps, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"x":%q}}`, name, strings.Repeat("x", 512<<10)))
}

const configMaps = "/api/v1/namespaces/default/configmaps"

// mustNameDisk checks an answer that the disk is the reason for.
func mustNameDisk(t *testing.T, what, why string, res *http.Response, body string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || !strings.Contains(body, why) {
		t.Errorf("%s: %s, Retry-After %q: %.1000s", what, res.Status, res.Header.Get("Retry-After"), body)
	}
}

// TestFullDisk fills the disk of a follower, of the leader, and of all three:
// writes go on while two can be written, and are refused with the reason after
// that; nothing old is read; no server ends, each comes back by itself when there
// is space, and one that is killed and started meanwhile waits for it.
func TestFullDisk(t *testing.T) {
	a, b, c := newServer(t, "a"), newServer(t, "b"), newServer(t, "c")
	for _, s := range []*testServer{a, b, c} {
		smallDisk(t, s, "32m")
	}
	a.run(t, "--bootstrap")
	a.awaitReady()
	b.joinVia(t, a)
	c.joinVia(t, a)
	a.awaitVoters(3)

	if err := created(a.post("early")); err != nil {
		t.Fatal(err)
	}
	filler := fill(t, c)
	if code, body, err := c.get(configMaps + "/early"); err != nil || code != http.StatusOK {
		t.Errorf("a read through the full disk's server: %d %s %v", code, body, err)
	}
	fillUntilFelt(t, a, c, "follower")
	if res, body, err := a.postLarge("beyond"); err != nil || res.StatusCode != http.StatusCreated {
		t.Fatalf("a large write beside the full disk: %v %.1000s %v", res, body, err)
	}
	res, body, err := c.request("GET", configMaps+"/beyond", "")
	mustNameDisk(t, "a read of what the full disk has no room for", noSpace, res, body, err)
	c.mustRun()
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	a.awaitVoters(3)

	filler = fill(t, a)
	fillUntilFelt(t, b, a, "leader")
	eventually(t, 15*time.Second, "a leader with a good disk", func() error {
		st, err := b.status()
		if err == nil && st.Leader != "b" && st.Leader != "c" {
			err = fmt.Errorf("leader %q", st.Leader)
		}
		return err
	})
	eventually(t, 15*time.Second, "a write beside the full disk", func() error { return created(b.post("beside")) })
	a.mustRun()
	eventually(t, 15*time.Second, "a write through the full disk's server", func() error { return created(a.post("past")) })
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	b.awaitVoters(3)
	eventually(t, 10*time.Second, "a write through the server that has space again", func() error { return created(a.post("through")) })

	filler = fill(t, a)
	fillUntilFelt(t, b, a, "again")
	a.kill()
	a.run(t) // while it is full
	eventually(t, 20*time.Second, "a server that starts with a full disk says so", func() error {
		a.mustRun()
		if !strings.Contains(a.out.String(), noSpace) {
			return errors.New("no word of it")
		}
		return nil
	})
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	a.awaitReady()
	b.awaitVoters(3)
	fillAll(t, a, b, c)
}

// fillAll fills the disks of all servers. No write is stored then, and each
// server says so and why; what it refused is not there when there is space.
func fillAll(t *testing.T, servers ...*testServer) {
	t.Helper()
	var fillers []string
	for _, s := range servers {
		fillers = append(fillers, fill(t, s))
	}
	begun := time.Now()
	refused := make([]string, len(servers))
	var writers sync.WaitGroup
	for i, s := range servers {
		writers.Go(func() {
			var res *http.Response
			var body string
			var err error
			for n := range 20 {
				refused[i] = fmt.Sprintf("refused-%s-%d", s.name, n)
				res, body, err = s.postLarge(refused[i])
				if err != nil || res.StatusCode != http.StatusCreated && res.StatusCode != http.StatusGatewayTimeout {
					break
				}
				// One server, or two, had room for it: their files have pages to be used again.
			}
			mustNameDisk(t, "a write through "+s.name+" that no disk has room for", noSpace, res, body, err)
			t.Logf("%s was refused after %v", refused[i], time.Since(begun).Round(time.Millisecond))
		})
	}
	writers.Wait()
	for i, s := range servers {
		s.mustRun()
		if err := os.Remove(fillers[i]); err != nil {
			t.Fatal(err)
		}
	}
	begun = time.Now()
	for _, s := range servers {
		eventually(t, 30*time.Second, "a write through "+s.name+" with space again", func() error { return created(s.post("space-" + s.name)) })
	}
	t.Logf("written again after %v", time.Since(begun).Round(time.Millisecond))
	servers[0].awaitVoters(len(servers))
	for i, s := range servers {
		if code, body, err := s.get(configMaps + "/" + refused[i]); err != nil || code != http.StatusNotFound {
			t.Errorf("a write that was refused took effect: %d %.1000s %v", code, body, err)
		}
	}
}
