package main

import (
	"context"
	"flag"
	"math/rand"
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/scripts/histories"
)

var (
	historyTime = flag.Duration("histories.time", 20*time.Second, "how long servers are killed and stopped")
	historySeed = flag.Int64("histories.seed", 1, "what decides which and when")
)

// TestHistoriesOfProcesses kills, stops and restarts real servers under clients
// and watchers that use all of them, and checks what these were told.
func TestHistoriesOfProcesses(t *testing.T) {
	a := bootstrap(t, "a")
	servers := []*testServer{a, newServer(t, "b").joinVia(t, a), newServer(t, "c").joinVia(t, a)}
	a.awaitVoters(3)
	run := &histories.Run{
		Namespace: "default", Seed: *historySeed, Clients: 6, Watchers: 3, Keys: 4, Think: 20 * time.Millisecond,
		Patience: 4 * time.Second, Settle: 40 * time.Second, Drawing: filepath.Join(t.ArtifactDir(), "history.html"),
	}
	for _, s := range servers {
		run.Replicas = append(run.Replicas, histories.Replica{Name: s.name, URL: "https://" + s.address, Client: s.historyClient()})
	}
	rng := rand.New(rand.NewSource(*historySeed))
	faults := map[string]int{}
	if err := run.Do(t.Context(), func() {
		pause := func(d time.Duration) {
			select {
			case <-time.After(d):
			case <-t.Context().Done():
			}
		}
		for end := time.Now().Add(*historyTime); time.Now().Before(end); {
			pause(time.Duration(500+rng.Intn(1500)) * time.Millisecond)
			victim := servers[rng.Intn(len(servers))]
			if st, err := victim.status(); err == nil && st.Leader != "" && rng.Intn(3) > 0 {
				victim = byName(t, st.Leader, servers...)
			}
			if rng.Intn(2) == 0 {
				faults["kill"]++
				victim.kill()
				pause(time.Duration(rng.Intn(1000)) * time.Millisecond)
				victim.run(t)
				victim.awaitReady()
				continue
			}
			faults["stop"]++
			victim.signal(syscall.SIGSTOP)
			pause(time.Duration(100+rng.Intn(1500)) * time.Millisecond)
			victim.signal(syscall.SIGCONT)
		}
		a.awaitVoters(3)
		whole, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := run.AwaitService(whole); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	report := run.Check()
	t.Logf("%v: %v", faults, report)
	for _, p := range report.Problems {
		t.Error(p)
	}
	if t.Failed() {
		t.Logf("again: go test ./cmd/shepherd -run 'TestHistoriesOfProcesses$' -histories.seed %d -histories.time %v -artifacts", *historySeed, *historyTime)
	}
}

// historyClient is an administrator's client that makes a connection for every
// request: on one that turns out to be broken, net/http would send it again.
func (s *testServer) historyClient() *http.Client {
	s.t.Helper()
	ca, err := pki.LoadCA(filepath.Join(s.dir, "pki"))
	if err != nil {
		s.t.Fatal(err)
	}
	source, err := pki.OpenSource(filepath.Join(s.dir, "pki"), "admin")
	if err != nil {
		s.t.Fatal(err)
	}
	tls := pki.NewVerifier(ca, time.Now).ClientConfig(source)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: tls, DisableKeepAlives: true}}
}
