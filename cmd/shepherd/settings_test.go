package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// minimal is a command line that needs nothing of the machine.
var minimal = []string{"--mode", "server", "--addr", "127.0.0.1:9876", "--name", "a", "--node-name", "a"}

func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPrecedence(t *testing.T) {
	path := configFile(t, `
name: from-file
log-level: debug
data-dir: /from/file
scheduler-period: 7s
tls-san: [one.example.com, 10.0.0.9]
join: 10.0.0.1:9876,10.0.0.2:9876
node-labels: {zone: a, disk: ssd}
node-taints: ["dedicated=gpu:NoSchedule"]
cluster-cidr: 10.99.0.0/16
max-pods: 42
log-json: true
`)
	s := newSettings()
	err := s.load(
		[]string{"--mode", "server", "--addr", "10.0.0.7:1234", "--config", path, "--name", "from-flag"},
		[]string{"SHEPHERD_NAME=from-env", "SHEPHERD_DATA_DIR=/from/env", "SHEPHERD_REPLICATION_PERIOD=9s", "SHEPHERD_SERVICE_HOST=10.43.0.9"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"flag over environment", s.Name, "from-flag"},
		{"environment over file", s.DataDir, "/from/env"},
		{"file over default", s.LogLevel, "debug"},
		{"environment over default", s.controllers.ReplicationPeriod, 9 * time.Second},
		{"duration", s.controllers.SchedulerPeriod, 7 * time.Second},
		{"default", s.controllers.NodePeriod, 10 * time.Second},
		{"list", strings.Join(s.TLSSAN, " "), "one.example.com 10.0.0.9"},
		{"list in one text", strings.Join(s.Join, " "), "10.0.0.1:9876 10.0.0.2:9876"},
		{"mapping", s.agent.Labels["zone"] + s.agent.Labels["disk"], "assd"},
		{"taint", s.agent.Taints[0].ToString(), "dedicated=gpu:NoSchedule"},
		{"text value", s.controllers.ClusterCIDR.String(), "10.99.0.0/16"},
		{"number", s.agent.MaxPods, 42},
		{"bool", s.LogJSON, true},
		{"advertise from addr", s.Advertise, "10.0.0.7:1234"},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %v, want %v", c.what, c.got, c.want)
		}
	}
	if hosts := s.hosts(); !slices.Equal(hosts, []string{"10.0.0.7", "one.example.com", "10.0.0.9"}) {
		t.Errorf("hosts %v", hosts)
	}
}

func TestConfigFileFromEnvironment(t *testing.T) {
	s := newSettings()
	path := configFile(t, "mode: agent\nname: x\nnode-name: x\n")
	if err := s.load(nil, []string{"SHEPHERD_CONFIG=" + path}); err != nil {
		t.Fatal(err)
	}
	if s.Mode != modeAgent {
		t.Errorf("mode %q", s.Mode)
	}
}

func TestBadSettings(t *testing.T) {
	file := func(text string) []string { return append([]string{"--config", configFile(t, text)}, minimal...) }
	with := func(args ...string) []string { return append(slices.Clone(minimal), args...) }
	for name, c := range map[string]struct {
		args, env []string
		want      []string // all in the error
	}{
		"no mode":              {args: []string{"--addr", "127.0.0.1:1"}, want: []string{"--mode", "standalone"}},
		"unknown flag":         {args: with("--bogus"), want: []string{"--bogus"}},
		"argument":             {args: with("extra"), want: []string{`"extra"`}},
		"bad duration":         {args: with("--scheduler-period", "fast"), want: []string{"--scheduler-period", "fast"}},
		"bad addr":             {args: with("--addr", "9876"), want: []string{"--addr", "HOST:PORT"}},
		"port zero":            {args: with("--addr", "127.0.0.1:0"), want: []string{"--addr", `"0"`}},
		"advertise nobody":     {args: with("--advertise", "0.0.0.0:9876"), want: []string{"--advertise"}},
		"bad join":             {args: with("--join", "host"), want: []string{"--join", `"host"`}},
		"bad name":             {args: with("--name", "A_B"), want: []string{"--name", "A_B"}},
		"bad node name":        {args: with("--node-name", "-x"), want: []string{"--node-name"}},
		"bootstrap and join":   {args: with("--bootstrap", "--join", "10.0.0.1:9876"), want: []string{"--bootstrap", "--join"}},
		"agent bootstraps":     {args: with("--mode", "agent", "--bootstrap"), want: []string{"--bootstrap", "agent"}},
		"backups nowhere":      {args: with("--backup-interval", "1h"), want: []string{"--backup-interval", "--backup-dir", "--backup-passphrase-file", "--backup-no-encryption"}},
		"backups both ways":    {args: with("--backup-interval", "1h", "--backup-dir", "/b", "--backup-no-encryption", "--backup-passphrase-file", "/p"), want: []string{"exclude one another"}},
		"backups too often":    {args: with("--backup-interval", "1ms", "--backup-dir", "/b", "--backup-no-encryption"), want: []string{"--backup-interval", "at least 1s"}},
		"backups backwards":    {args: with("--backup-interval", "-1h", "--backup-dir", "/b", "--backup-no-encryption"), want: []string{"--backup-interval", "0 turns scheduled backups off"}},
		"no backup kept":       {args: with("--backup-interval", "1h", "--backup-dir", "/b", "--backup-no-encryption"), env: []string{"SHEPHERD_BACKUP_KEEP=0"}, want: []string{"--backup-keep", "at least 1"}},
		"bad log level":        {args: with("--log-level", "loud"), want: []string{"--log-level", "loud"}},
		"bad taint":            {args: with("--node-taints", "x"), want: []string{"--node-taints", "EFFECT"}},
		"bad environment":      {args: minimal, env: []string{"SHEPHERD_MAX_PODS=many"}, want: []string{"SHEPHERD_MAX_PODS", "many"}},
		"environment's name":   {args: []string{"--addr", "127.0.0.1:1"}, env: []string{"SHEPHERD_MODE=boss"}, want: []string{"SHEPHERD_MODE", "boss"}},
		"unknown key":          {args: file("shceduler-period: 2s\n"), want: []string{"config.yaml", "shceduler-period", "no such setting"}},
		"bad value in file":    {args: file("max-pods: lots\n"), want: []string{"config.yaml", "max-pods", "lots"}},
		"list for one value":   {args: file("data-dir: [a, b]\n"), want: []string{"data-dir", "one value"}},
		"empty value":          {args: file("data-dir:\n"), want: []string{"data-dir", "missing"}},
		"key twice":            {args: file("max-pods: 1\nmax-pods: 2\n"), want: []string{"max-pods"}},
		"not a mapping":        {args: file("- a\n"), want: []string{"KEY: VALUE"}},
		"nested file":          {args: file("config: other.yaml\n"), want: []string{"config", "no such setting"}},
		"missing file":         {args: with("--config", "/nowhere/c.yaml"), want: []string{"/nowhere/c.yaml"}},
		"bad CIDR":             {args: with("--cluster-cidr", "10.42.0.0/33"), want: []string{"--cluster-cidr"}},
		"overlapping ranges":   {args: with("--cluster-cidr", "10.43.0.0/16"), want: []string{"overlap"}},
		"lease over heartbeat": {args: with("--raft-leader-lease", "2s"), want: []string{"leaderLease"}},
		"value from file":      {args: file("log-level: loud\n"), want: []string{"config.yaml", "log-level"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := newSettings().load(c.args, c.env)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
		})
	}
}

func TestHelpIsComplete(t *testing.T) {
	if err := newSettings().load([]string{"--help"}, nil); !errors.Is(err, pflag.ErrHelp) {
		t.Fatalf("got %v", err)
	}
	var out, errOut strings.Builder
	if code := run([]string{"--help"}, nil, &out, &errOut); code != 0 || errOut.Len() > 0 {
		t.Fatalf("exit %d, %s", code, errOut.String())
	}
	for _, want := range []string{"--mode", "--bootstrap", "--join", "--token-file", "--advertise", "--tls-san", "--data-dir", "--run-dir", "--cgroup-root", "--node-name", "--config", "SHEPHERD_", "cleanup", "admin.kubeconfig"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("--help says nothing about %s", want)
		}
	}
	newSettings().flags.VisitAll(func(f *pflag.Flag) {
		if f.Usage == "" {
			t.Errorf("--%s is not explained", f.Name)
		}
	})
}
