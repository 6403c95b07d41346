package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shepherd-project/shepherd/cluster"
)

// buildSheepctl returns the path of the client program.
func buildSheepctl(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sheepctl")
	if out, err := exec.Command("go", "build", "-o", path, "../sheepctl").CombinedOutput(); err != nil {
		t.Fatalf("build sheepctl: %v\n%s", err, out)
	}
	return path
}

// TestRemoveAndReplace runs the commands about members as an administrator does:
// a server is removed while it runs, it says so and ends, and the same machine
// joins again under its name with an empty directory.
func TestRemoveAndReplace(t *testing.T) {
	program := buildSheepctl(t)
	a := bootstrap(t, "a")
	b := newServer(t, "b").joinVia(t, a)
	c := newServer(t, "c").joinVia(t, a)
	a.awaitVoters(3)
	sheepctl := func(args ...string) (string, int) {
		cmd := exec.Command(program, append([]string{"--kubeconfig", filepath.Join(a.dir, cluster.KubeconfigFile), "cluster"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	expect := func(code int, want string, args ...string) string {
		t.Helper()
		out, got := sheepctl(args...)
		if got != code || !strings.Contains(out, want) {
			t.Errorf("%v: exit %d, want %d with %q: %s", args, got, code, want, out)
		}
		return out
	}

	if out := expect(0, "SUFFRAGE", "members"); strings.Count(out, "voter") != 3 {
		t.Errorf("members: %s", out)
	}
	expect(0, "server/b\n", "members", "-o", "name")
	expect(0, "suffrage: voter", "members", "-o", "yaml")
	expect(1, "unknown output format", "members", "-o", "xml")
	var list struct{ Items []struct{ Name, ID string } }
	if err := json.Unmarshal([]byte(expect(0, "ServerList", "members", "-o", "json")), &list); err != nil || len(list.Items) != 3 {
		t.Fatalf("members: %+v, %v", list, err)
	}
	oldC := list.Items[slices.IndexFunc(list.Items, func(m struct{ Name, ID string }) bool { return m.Name == "c" })].ID
	expect(1, "sheepctl cluster transfer", "remove", "a")
	expect(0, "there is no server nobody", "remove", "nobody")
	expect(0, "has a vote already", "promote", "b")
	expect(1, "no such server", "promote", "nobody")

	// Without c, b must answer.
	b.kill()
	expect(1, "would lose its quorum", "remove", "c")
	b.run(t)
	b.awaitReady()
	a.awaitVoters(3)

	expect(0, "server c was removed", "remove", "server/c")
	expect(0, "was removed at", "remove", "c")
	if code := c.wait(20 * time.Second); code != 1 || !strings.Contains(c.out.String(), "this server was removed from the cluster") || !strings.Contains(c.out.String(), "empty its data directory") {
		t.Errorf("the removed server: exit %d, %s", code, c.out)
	}
	c.run(t) // as systemd does: it ends again, with the same reason
	if code := c.wait(20 * time.Second); code != 1 || !strings.Contains(c.out.String(), "this server was removed from the cluster") {
		t.Errorf("the removed server, started again: exit %d, %s", code, c.out)
	}
	if st := a.awaitVoters(2); len(st.Members) != 2 || st.Leader != "a" {
		t.Errorf("after the removal: %+v", st)
	}

	// The machine comes back under its name with an empty directory.
	again := newServer(t, "c")
	again.address = c.address
	again.joinVia(t, b)
	st := a.awaitVoters(3)
	for _, m := range st.Members {
		if m.Name == "c" && m.ID == oldC {
			t.Errorf("the removed ID %s came back", oldC)
		}
	}
	if code, body, err := again.post("after"); err != nil || code != http.StatusCreated {
		t.Errorf("a write through the new server: %d %s %v", code, body, err)
	}
}

// TestRebuildAndMove wipes a server and starts it again with the command that it
// first joined with, and lets another one come back at another address: neither
// needs anything else, nor a change of leader.
func TestRebuildAndMove(t *testing.T) {
	a := bootstrap(t, "a")
	b := newServer(t, "b").joinVia(t, a)
	c := newServer(t, "c").joinVia(t, a)
	before := a.awaitVoters(3)
	b.kill()
	if err := os.RemoveAll(b.dir); err != nil {
		t.Fatal(err)
	}
	b.joinVia(t, a)
	rebuilt := a.awaitVoters(3)
	for i, m := range rebuilt.Members {
		if (m.ID == before.Members[i].ID) != (m.Name != "b") || m.Address != before.Members[i].Address {
			t.Errorf("member %+v was %+v", m, before.Members[i])
		}
	}

	c.kill()
	c.address = freeAddress(t)
	c.run(t)
	c.awaitReady()
	eventually(t, 20*time.Second, "the move", func() error {
		st, err := a.status()
		if err != nil {
			return err
		}
		if m := st.Members[2]; m.Address != c.address || !m.Healthy || m.ID != before.Members[2].ID {
			return &unexpected{fmt.Sprintf("%+v", m)}
		}
		return nil
	})
	if st := a.awaitVoters(3); st.Leader != before.Leader || st.Term != before.Term {
		t.Errorf("the leader changed: %s in term %d, then %s in term %d", before.Leader, before.Term, st.Leader, st.Term)
	}
	if code, body, err := c.post("moved"); err != nil || code != http.StatusCreated {
		t.Errorf("a write through the moved server: %d %s %v", code, body, err)
	}
}
