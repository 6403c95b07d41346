package main

import (
	"bytes"
	"encoding/base64"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// secretHolding creates a Secret through the server.
func (s *testServer) secretHolding(name, value string) error {
	body := `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"` + name + `"},"stringData":{"canary":"` + value + `"}}`
	res, err := s.client().Post("https://"+s.address+"/api/v1/namespaces/default/secrets", "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusCreated {
		return &unexpected{res.Status}
	}
	return nil
}

// checkAbsent looks for the text, plain and in base64, in every byte of a
// directory.
func checkAbsent(t *testing.T, dir string, canary string) (bytesRead int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		bytesRead += len(text)
		for _, form := range []string{canary, base64.StdEncoding.EncodeToString([]byte(canary))} {
			if bytes.Contains(text, []byte(form)) {
				t.Errorf("%s holds the secret", path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytesRead
}

// TestEncryptedAtRest: no byte of three servers' data directories tells a
// Secret, neither in their logs nor in their snapshots, before and after the
// data key was rotated; and all of it can be read after a restart and a
// compaction.
func TestEncryptedAtRest(t *testing.T) {
	ctl := sheepctl(t)
	snapshots := []string{"--snapshot-threshold", "16", "--trailing-logs", "64", "--snapshot-interval", "1s"}
	a := newServer(t, "a").run(t, append(snapshots, "--bootstrap")...)
	a.awaitReady()
	servers := []*testServer{a}
	for _, name := range []string{"b", "c"} {
		s := newServer(t, name)
		s.run(t, append(snapshots, "--join", a.address, "--token-file", a.token("server"))...)
		s.awaitReady()
		servers = append(servers, s)
	}
	a.awaitVoters(3)
	rotate := func(s *testServer) (string, bool) { return ctl(s, "cluster", "rotate-key") }
	const before, after = "canary-before-the-rotation-5a1f", "canary-after-the-rotation-77e0"
	if err := a.secretHolding("before", before); err != nil {
		t.Fatal(err)
	}
	writeMany(t, a, "first")
	out, ok := rotate(servers[1])
	if !ok || !regexp.MustCompile(`^data key [1-9]\d* is in use \(before: [1-9]\d*\)\n$`).MatchString(out) {
		t.Fatalf("rotate-key: %s", out)
	}
	if err := servers[2].secretHolding("after", after); err != nil {
		t.Fatal(err)
	}
	writeMany(t, a, "second")
	for _, s := range servers {
		awaitSnapshot(t, s)
	}

	// One server is down: refused by name, nothing changes.
	down := servers[2]
	down.signal(os.Interrupt)
	down.wait(20 * time.Second)
	eventually(t, 20*time.Second, "a refusal that names the server", func() error {
		out, ok := rotate(a)
		if ok {
			t.Fatalf("rotated without a server: %s", out)
		}
		if !strings.Contains(out, "c ("+down.address+")") || !strings.Contains(out, "stays as it is") {
			return &unexpected{out}
		}
		return nil
	})
	for _, s := range servers {
		if s != down {
			s.signal(os.Interrupt)
			s.wait(20 * time.Second)
		}
	}
	for _, s := range servers {
		if n := checkAbsent(t, s.dir, before); n < 64<<10 {
			t.Errorf("server %s wrote %d bytes only: was anything looked at?", s.name, n)
		}
		checkAbsent(t, s.dir, after)
		info, err := os.Stat(filepath.Join(s.dir, "data.keys"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the keys of %s: %v %v", s.name, info, err)
		}
		if p := start(t, nil, "compact", "--data-dir", s.dir); p.wait(20*time.Second) != 0 {
			t.Fatalf("compact: %s", p.out)
		}
	}
	for _, s := range servers {
		s.run(t, snapshots...)
	}
	for _, s := range servers {
		s.awaitReady()
		for name, value := range map[string]string{"before": before, "after": after} {
			code, body, err := s.get("/api/v1/namespaces/default/secrets/" + name)
			if err != nil || code != http.StatusOK || !strings.Contains(body, base64.StdEncoding.EncodeToString([]byte(value))) {
				t.Errorf("secret %s on %s: %d %v %s", name, s.name, code, err, body)
			}
		}
	}
}

// writeMany writes enough for a snapshot.
func writeMany(t *testing.T, s *testServer, prefix string) {
	t.Helper()
	for i := range 40 {
		name := prefix + "-" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		if code, body, err := s.post(name); err != nil || code != http.StatusCreated {
			t.Fatalf("%s: %d %s %v", name, code, body, err)
		}
	}
}

func awaitSnapshot(t *testing.T, s *testServer) {
	t.Helper()
	eventually(t, 20*time.Second, "a snapshot of "+s.name, func() error {
		found, err := filepath.Glob(filepath.Join(s.dir, "snapshots", "*", "state.bin"))
		if err == nil && len(found) == 0 {
			err = &unexpected{"there is none"}
		}
		return err
	})
}
