package main

import (
	"context"
	"flag"
	"math/rand"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shepherd-project/shepherd/scripts/histories"
	"github.com/shepherd-project/shepherd/scripts/machines"
)

var (
	historyTime = flag.Duration("histories.time", 20*time.Second, "how long servers are killed, stopped and cut off")
	historySeed = flag.Int64("histories.seed", 1, "what decides which and when")
)

// TestHistoriesOfProcesses kills, stops and restarts real servers under clients
// and watchers that use all of them, and checks what these were told. With root
// the servers are on machines of their own, and packets between them are dropped.
func TestHistoriesOfProcesses(t *testing.T) {
	d := &disturber{t: t, rng: rand.New(rand.NewSource(*historySeed)), done: map[string]int{}}
	d.startServers()
	run := &histories.Run{
		Namespace: "default", Seed: *historySeed, Clients: 6, Watchers: 3, Keys: 4, Think: 20 * time.Millisecond,
		Patience: 4 * time.Second, Settle: 40 * time.Second, Drawing: filepath.Join(t.ArtifactDir(), "history.html"),
	}
	for _, s := range d.servers {
		run.Replicas = append(run.Replicas, histories.Replica{Name: s.name, URL: "https://" + s.address, Client: s.historyClient()})
	}
	if err := run.Do(t.Context(), func() {
		for end := time.Now().Add(*historyTime); time.Now().Before(end); {
			d.disturb()
		}
		d.servers[0].awaitVoters(3)
		whole, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := run.AwaitService(whole); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	report := run.Check()
	t.Logf("%v: %v", d.done, report)
	for _, p := range report.Problems {
		t.Error(p)
	}
	if t.Failed() {
		t.Logf("again: go test ./cmd/shepherd -run 'TestHistoriesOfProcesses$' -histories.seed %d -histories.time %v -artifacts", *historySeed, *historyTime)
	}
}

// disturber takes servers away, one at a time, and brings them back.
type disturber struct {
	t       *testing.T
	rng     *rand.Rand
	servers []*testServer
	lab     *machines.Lab // nil without root
	done    map[string]int
}

// startServers starts three servers, each on a machine of its own if there can
// be any, with the clients on another one.
func (d *disturber) startServers() {
	d.t.Helper()
	machine := func(string, byte) *machines.Machine { return nil }
	if os.Geteuid() == 0 {
		lab, err := machines.New()
		if err != nil {
			d.t.Fatal(err)
		}
		d.t.Cleanup(func() {
			if err := lab.Close(); err != nil {
				d.t.Error(err)
			}
		})
		d.lab = lab
		machine = func(name string, host byte) *machines.Machine {
			m, err := lab.Add(name, host)
			if err != nil {
				d.t.Fatal(err)
			}
			return m
		}
	}
	desk := machine("desk", 100)
	for i, name := range []string{"a", "b", "c"} {
		s := newServer(d.t, name)
		if s.machine, s.desk = machine(name, byte(i+1)), desk; s.machine != nil {
			s.address = s.machine.IP + ":9876"
		}
		if d.servers = append(d.servers, s); i > 0 {
			s.joinVia(d.t, d.servers[0])
			continue
		}
		s.run(d.t, "--bootstrap")
		s.awaitReady()
	}
	d.servers[0].awaitVoters(3)
}

// disturb waits a little, does something to a server, mostly the leader, and
// returns when that is over.
func (d *disturber) disturb() {
	d.pause(500, 2000)
	victim := d.servers[d.rng.Intn(len(d.servers))]
	if st, err := victim.status(); err == nil && st.Leader != "" && d.rng.Intn(3) > 0 {
		victim = byName(d.t, st.Leader, d.servers...)
	}
	faults := []func(*testServer) string{d.kill, d.stop}
	if d.lab != nil {
		faults = append(faults, d.cut, d.split, d.deafen)
	}
	d.done[faults[d.rng.Intn(len(faults))](victim)]++
}

func (d *disturber) kill(s *testServer) string {
	s.kill()
	d.pause(0, 1000)
	s.run(d.t)
	s.awaitReady()
	return "kill"
}

func (d *disturber) stop(s *testServer) string {
	s.signal(syscall.SIGSTOP)
	d.pause(100, 1600)
	s.signal(syscall.SIGCONT)
	return "stop"
}

// cut pulls the server's cable.
func (d *disturber) cut(s *testServer) string {
	d.must(s.machine.Unplug())
	d.pause(100, 2500)
	d.must(s.machine.Plug())
	return "cut"
}

// split parts the server from the others. Clients reach all of them.
func (d *disturber) split(s *testServer) string {
	d.part(s, true, true)
	d.pause(100, 2500)
	d.part(s, false, true)
	return "split"
}

// deafen lets the server speak to the others, and not hear them.
func (d *disturber) deafen(s *testServer) string {
	d.part(s, true, false)
	d.pause(100, 2500)
	d.part(s, false, false)
	return "deafen"
}

func (d *disturber) part(s *testServer, drop, both bool) {
	d.t.Helper()
	for _, o := range d.servers {
		if o == s {
			continue
		}
		d.must(o.machine.Drop(s.machine.IP, drop))
		if both {
			d.must(s.machine.Drop(o.machine.IP, drop))
		}
	}
}

func (d *disturber) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// pause waits for a random number of milliseconds between the two.
func (d *disturber) pause(least, most int) {
	select {
	case <-time.After(time.Duration(least+d.rng.Intn(most-least)) * time.Millisecond):
	case <-d.t.Context().Done():
	}
}

// historyClient is an administrator's client that makes a connection for every
// request: on one that turns out to be broken, net/http would send it again. The
// history bounds how long it waits.
func (s *testServer) historyClient() *http.Client {
	s.t.Helper()
	client := s.client()
	client.Timeout = 0
	return client
}
