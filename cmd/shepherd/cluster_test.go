package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster"
	"github.com/shepherd-project/shepherd/cluster/pki"
)

// TestThreeServers goes through a cluster's life: it is born, grows, loses its
// leader by SIGKILL and by SIGTERM, loses its first server for good, and takes
// in new machines through the others.
func TestThreeServers(t *testing.T) {
	begun := time.Now()
	a := bootstrap(t, "a")
	b, c := newServer(t, "b"), newServer(t, "c")
	b.joinVia(t, a)
	c.joinVia(t, b) // any server lets machines in
	st := a.awaitVoters(3)
	t.Logf("from nothing to three ready servers: %v", time.Since(begun).Round(time.Millisecond))
	if st.Leader != "a" {
		t.Errorf("leader %q", st.Leader)
	}
	checkKubeconfig(t, a, "a", "b", "c")
	checkKubeconfig(t, c, "a", "b", "c")
	checkCredentials(t, b)
	if code, body, err := c.post("one"); err != nil || code != http.StatusCreated {
		t.Fatalf("a write through a follower: %d %s %v", code, body, err)
	}

	// The leader dies; the others go on, and take it back with its log.
	a.kill()
	eventually(t, 15*time.Second, "a write after the leader's death", func() error {
		return created(b.post("two"))
	})
	a.run(t)
	a.awaitReady()
	if code, body, err := a.get("/api/v1/namespaces/default/configmaps/two"); err != nil || code != http.StatusOK {
		t.Errorf("the returned server lacks a write: %d %s %v", code, body, err)
	}

	// The leader is asked to stop: it hands over and ends at once.
	leader := byName(t, a.awaitVoters(3).Leader, a, b, c)
	stopping := time.Now()
	leader.signal(syscall.SIGTERM)
	if code := leader.wait(10 * time.Second); code != 0 {
		t.Errorf("SIGTERM: exit code %d", code)
	}
	t.Logf("the leader stopped within %v", time.Since(stopping).Round(time.Millisecond))
	for _, want := range []string{"leadership was handed over", "controllers stopped", "server stopped"} {
		if !strings.Contains(leader.out.String(), want) {
			t.Errorf("the leader's log lacks %q", want)
		}
	}
	leader.run(t)
	leader.awaitReady()

	// The first server is gone with its disk. Others issue, and take in new ones.
	a.awaitVoters(3)
	a.kill()
	if err := os.RemoveAll(a.dir); err != nil {
		t.Fatal(err)
	}
	d := newServer(t, "d").joinVia(t, c)
	d.awaitVoters(3) // b, c, d; a is still a member, and unhealthy
	checkAgentJoins(t, d)

	// Its name is not free for another machine.
	again := newServer(t, "a").run(t, "--join", b.address, "--token-file", b.token(pki.RoleServer))
	if code := again.wait(20 * time.Second); code != 1 || !strings.Contains(again.out.String(), `the server name "a" is in use`) {
		t.Errorf("a second server with a used name: exit %d, %s", code, again.out)
	}
}

func created(code int, body string, err error) error {
	if err == nil && code != http.StatusCreated && code != http.StatusConflict {
		return &unexpected{body}
	}
	return err
}

func byName(t *testing.T, name string, servers ...*testServer) *testServer {
	t.Helper()
	for _, s := range servers {
		if s.name == name {
			return s
		}
	}
	t.Fatalf("there is no server %q", name)
	return nil
}

// checkKubeconfig waits for a context for each server and uses all of them.
func checkKubeconfig(t *testing.T, s *testServer, names ...string) {
	t.Helper()
	path := filepath.Join(s.dir, cluster.KubeconfigFile)
	eventually(t, 10*time.Second, "kubeconfig", func() error {
		config, err := clientcmd.LoadFromFile(path)
		if err != nil {
			return err
		}
		if config.CurrentContext != s.name || len(config.Contexts) != len(names) {
			return &unexpected{config.CurrentContext}
		}
		for _, name := range names {
			if config.Contexts[name] == nil || config.Clusters[name] == nil {
				return &unexpected{"no context " + name}
			}
		}
		return nil
	})
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig: %v %v", info.Mode(), err)
	}
	for _, name := range names {
		rest, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, &clientcmd.ConfigOverrides{CurrentContext: name}).ClientConfig()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(rest.Host, "https://127.0.0.1:") || len(rest.CAData) == 0 || len(rest.KeyData) == 0 {
			t.Errorf("context %s: %s", name, rest.Host)
		}
	}
}

// checkCredentials asks with none, with a foreign one, and with an agent's.
func checkCredentials(t *testing.T, s *testServer) {
	t.Helper()
	ca, err := pki.LoadCA(filepath.Join(s.dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := pki.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string, issuer *pki.CA, role pki.Role, name string, issued time.Time) int {
		t.Helper()
		cfg := pki.NewVerifier(ca, time.Now).ClientConfig(nil)
		if issuer != nil {
			source, err := pki.OpenSource(t.TempDir(), "x")
			if err != nil {
				t.Fatal(err)
			}
			cert, err := issuer.Issue(pki.Request{Role: role, Name: name, Public: source.Key().Public(), TTL: time.Hour}, issued)
			if err != nil {
				t.Fatal(err)
			}
			if err := source.Install(cert); err != nil {
				t.Fatal(err)
			}
			cfg.GetClientCertificate = source.GetClientCertificate
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}, Timeout: 5 * time.Second}
		res, err := client.Get("https://" + s.address + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	const namespaces = "/api/v1/namespaces"
	now := time.Now()
	for _, c := range []struct {
		name string
		got  int
		want int
	}{
		{"no certificate", get(namespaces, nil, "", "", now), 401},
		{"a foreign administrator", get(namespaces, foreign, pki.RoleAdmin, pki.AdminUser, now), 401},
		{"an expired administrator", get(namespaces, ca, pki.RoleAdmin, pki.AdminUser, now.Add(-2*time.Hour)), 401},
		{"a server", get(namespaces, ca, pki.RoleServer, "b-00000000", now), 401},
		{"an administrator", get(namespaces, ca, pki.RoleAdmin, pki.AdminUser, now), 200},
		{"health without a certificate", get("/livez", nil, "", "", now), 200},
		{"version without a certificate", get("/version", nil, "", "", now), 200},
		{"metrics without a certificate", get("/metrics", nil, "", "", now), 401},
		{"metrics", get("/metrics", ca, pki.RoleAdmin, pki.AdminUser, now), 200},
		{"status as an agent", get(wire.PathStatus, ca, pki.RoleAgent, "w1", now), 401},
		{"server list as an agent", get(wire.PathServers, ca, pki.RoleAgent, "w1", now), 200},
	} {
		if c.got != c.want {
			t.Errorf("%s: status %d, want %d", c.name, c.got, c.want)
		}
	}
}

// checkAgentJoins joins as a node through a server, and renews.
func checkAgentJoins(t *testing.T, s *testServer) {
	t.Helper()
	home, err := cluster.OpenAgentHome(filepath.Join(t.TempDir(), "agent"))
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	settings := &settings{Mode: modeAgent, Join: []string{s.address}, TokenFile: s.token(pki.RoleAgent), NodeName: "w9"}
	if err := joinAgent(t.Context(), settings, home, hclog.NewNullLogger()); err != nil {
		t.Fatal(err)
	}
	if home.Node() != "w9" || !home.Joined(time.Now()) || len(home.Servers()) < 3 {
		t.Errorf("node %q, servers %v", home.Node(), home.Servers())
	}
	j := cluster.Joiner{Servers: home.Servers(), Timeout: 2 * time.Second} // one of them is dead
	if err := j.Renew(t.Context(), pki.NewVerifier(home.CA, time.Now), home.Source); err != nil {
		t.Error(err)
	}
}
