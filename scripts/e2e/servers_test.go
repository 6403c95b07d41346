package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shepherd-project/shepherd/api/wire"
)

func statusJSON(t *testing.T, out string) wire.ClusterStatus {
	t.Helper()
	var s wire.ClusterStatus
	// With an error the client says so after the document.
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&s); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return s
}

func TestClusterStatus(t *testing.T) {
	c := sharedCluster(t)
	p := c.sheepctl(t)
	leader := c.leader(t).Name
	out := p.run(t, "cluster", "status")
	for _, want := range []string{"Leader: " + leader, "Term: ", "APPLIED", "s1", "s2", "s3", "10.99.0.3:9876", "true"} {
		if !strings.Contains(out, want) {
			t.Errorf("the status lacks %q:\n%s", want, out)
		}
	}
	for _, s := range c.servers {
		asked := statusJSON(t, p.run(t, "cluster", "status", "-o", "json", "--server", "https://"+s.IP+":"+port))
		if asked.Server != s.Name || asked.Leader != leader || len(asked.Members) != 3 {
			t.Errorf("%s was asked: %+v", s.Name, asked)
		}
		for _, m := range asked.Members {
			if !m.Healthy || m.AppliedIndex == 0 || m.LastIndex < m.AppliedIndex || m.Address == "" {
				t.Errorf("%s says of %s: %+v", s.Name, m.Name, m)
			}
		}
	}
	if out, code := p.try(t, "", "cluster", "status", "-o", "xml"); code == 0 || !strings.Contains(out, "xml") {
		t.Errorf("an unknown format: exit code %d\n%s", code, out)
	}
}

func TestClusterTransfer(t *testing.T) {
	c := sharedCluster(t)
	p := c.sheepctl(t)
	before := c.leader(t).Name
	p.run(t, "cluster", "transfer")
	if after := c.leader(t).Name; after == before {
		t.Errorf("%s still leads", after)
	}
	out := p.run(t, "cluster", "transfer", before)
	if !strings.Contains(out, before+" leads in term") {
		t.Errorf("transfer says %q", out)
	}
	if after := c.leader(t).Name; after != before {
		t.Errorf("%s leads, want %s", after, before)
	}
	if out, code := p.try(t, "", "cluster", "transfer", "nobody"); code == 0 || !strings.Contains(out, "nobody") {
		t.Errorf("transfer to an unknown server: exit code %d\n%s", code, out)
	}
}

// With two of three servers dead, the third still says what is missing.
func TestStatusWithoutLeader(t *testing.T) {
	c := sharedCluster(t)
	t.Cleanup(func() { c.restore(t) })
	p := c.sheepctl(t)
	leader := c.leader(t)
	alive := c.servers[0]
	if alive == leader {
		alive = c.servers[1]
	}
	for _, s := range c.servers {
		if s == alive {
			continue
		}
		if err := s.kill(); err != nil {
			t.Fatal(err)
		}
	}
	var out string
	c.await(t, 20*time.Second, "a server without a leader", func(context.Context) error {
		var code int
		if out, code = p.try(t, "", "cluster", "status"); code == 0 {
			return errors.New(out)
		}
		return nil
	})
	for _, want := range []string{"Leader: none", "Asked: " + alive.Name, "s1", "s2", "s3", "there is no leader", "false"} {
		if !strings.Contains(out, want) {
			t.Errorf("the status lacks %q:\n%s", want, out)
		}
	}
	out, code := p.try(t, "", "cluster", "status", "-o", "json", "--server", "https://"+alive.IP+":"+port)
	s := statusJSON(t, out)
	if code != 1 || s.Leader != "" || len(s.Members) != 3 {
		t.Errorf("exit code %d, %+v", code, s)
	}
	t.Log(s.Message)
	for _, dead := range c.servers {
		if dead != alive && !strings.Contains(s.Message, dead.Name) {
			t.Errorf("the message does not name %s, which is missing: %s", dead.Name, s.Message)
		}
	}
}

func TestDrillTransfer(t *testing.T) {
	c := sharedCluster(t)
	checkDrill(t, c.sheepctl(t).run(t, "drill", "--before", "1s", "--after", "2s"), 3)
}

// The drill's command kills the leader: it names its victim to this test
// through one pipe and waits at another one, since no machine sees the
// processes of another.
func TestDrillKill(t *testing.T) {
	c := sharedCluster(t)
	t.Cleanup(func() { c.restore(t) })
	ask, answer := filepath.Join(t.TempDir(), "ask"), filepath.Join(t.TempDir(), "answer")
	for _, p := range []string{ask, answer} {
		if err := syscall.Mkfifo(p, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	killed := make(chan error, 1)
	go func() {
		name, err := os.ReadFile(ask)
		if h := c.server(strings.TrimSpace(string(name))); err == nil && h != nil {
			err = h.kill()
		} else if err == nil {
			err = fmt.Errorf("the drill named no server: %q", name)
		}
		killed <- errors.Join(err, os.WriteFile(answer, nil, 0o600))
	}()
	out := c.sheepctl(t).run(t, "drill", "--before", "1s", "--after", "3s", "--kill-command", fmt.Sprintf("echo $LEADER > %s; cat %s", ask, answer))
	if err := <-killed; err != nil {
		t.Fatal(err)
	}
	checkDrill(t, out, 2)
}

var clean = regexp.MustCompile(`(?m)^s\d +0 lost, 0 doubled$`)

// checkDrill wants so many servers read back, and nothing wrong.
func checkDrill(t *testing.T, out string, read int) {
	t.Helper()
	t.Log(out)
	if got := len(clean.FindAllString(out, -1)); got != read {
		t.Errorf("%d servers were read back without a loss, want %d", got, read)
	}
	if !regexp.MustCompile(`(?m)^acknowledged +[1-9]`).MatchString(out) || !regexp.MustCompile(`(?m)^pods restarted +0`).MatchString(out) {
		t.Error("the drill acknowledged nothing or restarted pods")
	}
}
