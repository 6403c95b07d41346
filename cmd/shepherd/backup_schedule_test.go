package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestScheduledBackups has two servers share a directory: the leader writes
// into it, old files go, a new leader goes on, and a blank machine restores the
// newest one.
func TestScheduledBackups(t *testing.T) {
	ctl := sheepctl(t)
	shared := t.TempDir()
	pass := filepath.Join(t.TempDir(), "pass")
	schedule := []string{"--backup-dir", shared, "--backup-interval", "2s", "--backup-keep", "3", "--backup-passphrase-file", pass}

	refused := start(t, nil, append([]string{"--mode", "server", "--bootstrap", "--addr", freeAddress(t), "--data-dir", filepath.Join(t.TempDir(), "x")}, schedule...)...)
	if code := refused.wait(20 * time.Second); code != 1 || !strings.Contains(refused.out.String(), "--backup-passphrase-file: read the passphrase: open "+pass) {
		t.Errorf("without its passphrase file: %d %s", code, refused.out)
	}
	if err := os.WriteFile(pass, []byte("correct horse\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, b := newServer(t, "a"), newServer(t, "b")
	a.run(t, append(schedule, "--bootstrap")...)
	a.awaitReady()
	b.run(t, append(schedule, "--join", a.address, "--token-file", a.token("server"))...)
	b.awaitReady()
	a.awaitVoters(2)
	last := a.writeSecrets(1, 5)

	saved := func() []string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(shared, "shepherd-*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	newerThan := func(what string, old []string, n int) {
		t.Helper()
		eventually(t, 40*time.Second, what, func() error {
			fresh := slices.DeleteFunc(saved(), func(f string) bool { return slices.Contains(old, f) })
			if len(fresh) < n {
				return &unexpected{fmt.Sprintf("%d new backups", len(fresh))}
			}
			return nil
		})
	}
	newerThan("three new backups", saved(), 3)
	eventually(t, 10*time.Second, "old ones are removed", func() error {
		if n := len(saved()); n > 3 {
			return &unexpected{fmt.Sprintf("%d files", n)}
		}
		return nil
	})
	for _, metric := range []string{`shepherd_backups_total{result="saved"}`, "shepherd_backup_seconds_count"} {
		eventually(t, 10*time.Second, metric, func() error { // on a busy machine both may have led
			if n := a.metric(metric) + b.metric(metric); n < 3 {
				return &unexpected{fmt.Sprint(n)}
			}
			return nil
		})
	}
	if got := a.metric("shepherd_backup_last_success_timestamp_seconds"); got == 0 {
		t.Error("a does not say when it made a backup")
	}
	eventually(t, 40*time.Second, "a backup by another leader", func() error {
		if n := b.metric(`shepherd_backups_total{result="saved"}`); n > 0 {
			return nil
		}
		out, ok := ctl(a, "cluster", "transfer", "b")
		return &unexpected{fmt.Sprintf("%s (%v)", out, ok)}
	})
	newerThan("backups by the new leader", saved(), 2)
	for _, s := range []*testServer{a, b} {
		if n := s.metric(`shepherd_backups_total{result="failed"}`); n != 0 {
			t.Errorf("%s: %v failed", s.name, n)
		}
	}
	a.kill()
	b.kill()

	newest := slices.Max(saved()) // their names sort by time
	info, err := os.Stat(newest)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	out, ok := ctl(a, "backup", "inspect", newest, "--passphrase-file", pass)
	if !ok || !strings.Contains(strings.Join(strings.Fields(out), " "), "secrets 5") || !strings.Contains(out, "and hash") {
		t.Errorf("inspect %s: %s", newest, out)
	}
	n := newServer(t, "n")
	if out, ok := ctl(n, "backup", "restore", newest, "--data-dir", n.dir, "--name", "n", "--passphrase-file", pass); !ok {
		t.Fatal(out)
	}
	n.run(t)
	n.awaitReady()
	n.checkEpoch(5, last)
}

// metric is one value of the server's metrics.
func (s *testServer) metric(name string) float64 {
	s.t.Helper()
	code, body, err := s.get("/metrics")
	if err != nil || code != 200 {
		s.t.Fatalf("metrics: %d %v", code, err)
	}
	v, err := findMetric(body, name)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// findMetric finds a value, with its labels in the name, in what /metrics shows.
func findMetric(text, name string) (float64, error) {
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("there is no metric %s", name)
	}
	return strconv.ParseFloat(m[1], 64)
}
