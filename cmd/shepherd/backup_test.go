package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/fsm"
)

// sheepctl builds the client and returns what runs it against a server's
// kubeconfig: its output, both streams, and whether it succeeded.
func sheepctl(t *testing.T) func(s *testServer, args ...string) (string, bool) {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "sheepctl")
	if out, err := exec.Command("go", "build", "-o", bin, "../sheepctl").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return func(s *testServer, args ...string) (string, bool) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), bin, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(s.dir, "admin.kubeconfig"))
		out, err := cmd.CombinedOutput()
		return string(out), err == nil
	}
}

// writeSecrets creates Secrets first to last and returns the highest revision.
func (s *testServer) writeSecrets(first, last int) (revision uint64) {
	s.t.Helper()
	for i := first; i <= last; i++ {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s%d"},"stringData":{"k":"value-%d"}}`, i, i)
		res, err := s.client().Post("https://"+s.address+"/api/v1/namespaces/default/secrets", "application/json", strings.NewReader(body))
		if err != nil {
			s.t.Fatal(err)
		}
		var secret struct {
			Metadata struct{ ResourceVersion string }
		}
		err = json.NewDecoder(res.Body).Decode(&secret)
		if err != nil || res.StatusCode != http.StatusCreated || res.Body.Close() != nil {
			s.t.Fatalf("%s %v", res.Status, err)
		}
		if revision, err = strconv.ParseUint(secret.Metadata.ResourceVersion, 10, 64); err != nil {
			s.t.Fatal(err)
		}
	}
	return revision
}

// checkEpoch sees that all n Secrets are there, that every revision exceeds the
// ones of before, and that a watch from before is told 410.
func (s *testServer) checkEpoch(n int, before uint64) {
	s.t.Helper()
	_, body, err := s.get("/api/v1/namespaces/default/secrets")
	if err != nil {
		s.t.Fatal(err)
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name, ResourceVersion string }
			Data     map[string][]byte
		}
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Items) != n {
		s.t.Fatalf("%d secrets, want %d: %v", len(list.Items), n, err)
	}
	for _, i := range list.Items {
		rev, err := strconv.ParseUint(i.Metadata.ResourceVersion, 10, 64)
		if err != nil || rev>>fsm.EpochBits <= before>>fsm.EpochBits || "value-"+i.Metadata.Name[1:] != string(i.Data["k"]) {
			s.t.Errorf("%s: revision %s, before %d, data %q", i.Metadata.Name, i.Metadata.ResourceVersion, before, i.Data["k"])
		}
	}
	code, body, err := s.get(fmt.Sprintf("/api/v1/namespaces/default/secrets?watch=1&timeoutSeconds=2&resourceVersion=%d", before))
	if err != nil || code != http.StatusGone && !strings.Contains(body, `"code":410`) {
		s.t.Errorf("a watch from before: %d %s %v", code, body, err)
	}
}

// TestBackupRestore loses three servers with all their disks, and gets
// everything back on a blank one from one file and one passphrase.
func TestBackupRestore(t *testing.T) {
	ctl := sheepctl(t)
	a := bootstrap(t, "a")
	b, c := newServer(t, "b").joinVia(t, a), newServer(t, "c").joinVia(t, a)
	a.awaitVoters(3)
	a.writeSecrets(1, 30)
	dir := t.TempDir()
	file, pass, wrong := filepath.Join(dir, "cluster.backup"), filepath.Join(dir, "pass"), filepath.Join(dir, "wrong")
	for path, text := range map[string]string{pass: "correct horse\n", wrong: "battery staple\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, ok := ctl(a, "backup", "save", file); ok || !strings.Contains(out, "--no-encryption") {
		t.Errorf("neither passphrase nor terminal: %s", out)
	}
	plain := filepath.Join(dir, "plain.backup")
	if out, ok := ctl(b, "backup", "save", plain, "--no-encryption"); !ok || !strings.Contains(out, "Warning") {
		t.Errorf("a plain one: %s", out)
	}
	out, ok := ctl(b, "backup", "save", file, "--passphrase-file", pass) // through any server
	if !ok {
		t.Fatal(out)
	}
	t.Log(out)
	out, ok = ctl(a, "backup", "inspect", file, "--passphrase-file", pass)
	for _, want := range []string{"secrets 30", "Restore epoch: 0", "Encrypted: yes", "and hash"} {
		if !ok || !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("inspect lacks %q:\n%s", want, out)
		}
	}
	if out, ok := ctl(a, "backup", "inspect", file); !ok || !strings.Contains(out, "not looked at") {
		t.Errorf("inspect without passphrase: %s", out)
	}
	last := a.writeSecrets(31, 40) // acknowledged after the backup, lost with the disks

	for _, s := range []*testServer{a, b, c} {
		s.kill()
		if err := os.RemoveAll(s.dir); err != nil {
			t.Fatal(err)
		}
	}
	n := newServer(t, "n")
	if out, ok := ctl(n, "backup", "restore", file, "--data-dir", n.dir, "--name", "n", "--passphrase-file", wrong); ok || !strings.Contains(out, "passphrase is wrong") {
		t.Errorf("a wrong passphrase: %s", out)
	}
	if _, err := os.Stat(n.dir); !os.IsNotExist(err) {
		t.Errorf("it changed the directory: %v", err)
	}
	begun := time.Now()
	out, ok = ctl(n, "backup", "restore", file, "--data-dir", n.dir, "--name", "n", "--passphrase-file", pass)
	if !ok {
		t.Fatal(out)
	}
	t.Log(out)
	n.run(t)
	n.awaitReady()
	t.Logf("from the blank machine to ready: %v", time.Since(begun).Round(time.Millisecond))
	n.checkEpoch(30, last)
	checkAbsent(t, n.dir, "value-17") // encrypted with a key of its own
	b = newServer(t, "b").joinVia(t, n)
	newServer(t, "c").joinVia(t, n)
	n.awaitVoters(3)
	b.checkEpoch(30, last)
	b.writeSecrets(31, 31)
	checkAgentJoins(t, b)
	if out, ok := ctl(n, "cluster", "confirm-restore"); !ok || !strings.Contains(out, "there are no nodes") {
		t.Errorf("confirm-restore: %s", out)
	}
	if _, err := os.Stat(n.token(pki.RoleAgent)); err != nil {
		t.Error(err)
	}
}
