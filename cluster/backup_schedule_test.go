package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/fsm"
)

func TestBackupNames(t *testing.T) {
	h := BackupHeader{ClusterID: "c0ffee", Created: time.Date(2031, 2, 3, 4, 5, 6, 7, time.FixedZone("", 3600)), Revision: 1 << 40}
	name := nameBackup(h)
	if b, ok := parseBackupName(name); !ok || b.begun || b.cluster != h.ClusterID || b.revision != h.Revision || !b.made.Equal(h.Created.Truncate(time.Second)) {
		t.Errorf("%s: %+v %v", name, b, ok)
	}
	if b, ok := parseBackupName("." + name + ".123"); !ok || !b.begun {
		t.Errorf("begun: %+v %v", b, ok)
	}
	for _, foreign := range []string{
		"", "cluster.backup", name + ".old", "." + name, "x" + name, strings.Replace(name, "T", "_", 1),
		"shepherd-c0ffee-20311303T040506Z-1.backup", "shepherd-c0ffee-20310203T040506Z-99999999999999999999.backup",
	} {
		if b, ok := parseBackupName(foreign); ok {
			t.Errorf("%q was taken for %+v", foreign, b)
		}
	}
}

// TestBackupsToPrune: b names backups by their hour; the letters in want are
// what goes.
func TestBackupsToPrune(t *testing.T) {
	at := func(name string, hour int, revision uint64) savedBackup {
		return savedBackup{name: name, made: time.Date(2031, 1, 1, hour, 0, 0, 0, time.UTC), revision: revision}
	}
	latest := at("new", 100, 50)
	for what, c := range map[string]struct {
		keep        int
		good, begun []savedBackup
		want        []string
	}{
		"nothing else":            {keep: 1},
		"one too many":            {keep: 1, good: []savedBackup{at("a", 99, 49)}, want: []string{"a"}},
		"room left":               {keep: 3, good: []savedBackup{at("a", 99, 49), latest}},
		"the new one counts once": {keep: 2, good: []savedBackup{latest, at("a", 98, 48), at("b", 99, 49)}, want: []string{"a"}},
		"a clock from the future makes nothing newer": {keep: 2, good: []savedBackup{at("a", 5000, 3), at("b", 99, 49)}, want: []string{"a"}},
		"the time decides where nothing was written":  {keep: 2, good: []savedBackup{at("a", 98, 50), at("b", 99, 50)}, want: []string{"a"}},
		"of what was begun only the abandoned":        {keep: 1, begun: []savedBackup{at("a", 76, 50), at("b", 75, 50)}, want: []string{"b"}},
	} {
		if got := backupsToPrune(latest, c.keep, c.good, c.begun); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}

// crown is a cluster whose leader is told by the test.
type crown struct {
	still
	mu      sync.Mutex // guards what follows
	leading bool
	changed chan struct{}
}

func (c *crown) Now() time.Time { return time.Now() }

func (c *crown) Leadership() (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return 1, c.leading
}

func (c *crown) leadershipChanged() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

func (c *crown) set(leading bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leading = leading
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *crown) pass(to *crown) {
	c.set(false)
	to.set(true)
}

func valueOf(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

// TestBackupKeeper lives through some hours of a schedule.
func TestBackupKeeper(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		store := fsm.New(fsm.DefaultConfig())
		store.Apply(&raft.Log{Index: 7, Term: 3, Data: fsm.EncodeEntry([]fsm.Command{{Term: 3, Time: 1, Ops: []fsm.Op{
			{Verb: fsm.Create, Key: fsm.Key{Resource: "secrets", Namespace: "default", Name: "s"}, UID: newUID(), Data: []byte("x")}}}})})
		stop := make(chan struct{})
		keeper := func() (*crown, *BackupKeeper, chan struct{}) {
			c := &crown{changed: make(chan struct{})}
			k, err := NewBackupKeeper(BackupKeeperConfig{
				BackupSchedule:    BackupSchedule{Dir: dir, Interval: time.Hour, Keep: 2, Plain: true},
				Source:            &BackupSource{CA: ca, Store: store, Cluster: c, Name: "s"},
				LeadershipChanged: c.leadershipChanged,
				Logger:            hclog.NewNullLogger(), Registerer: prometheus.NewPedanticRegistry(),
			})
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() { defer close(done); k.Run(stop) }()
			return c, k, done
		}
		first, a, aDone := keeper()
		second, b, bDone := keeper()
		count := func(k *BackupKeeper, result string) float64 {
			return valueOf(t, k.results.WithLabelValues(result))
		}
		files := func() (names []string) {
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if b, ok := parseBackupName(e.Name()); ok && b.cluster == ca.ClusterID() {
					names = append(names, e.Name())
				}
			}
			return names
		}
		old := time.Now().Add(-time.Minute)
		foreign := nameBackup(BackupHeader{ClusterID: "0ther", Created: old})
		damaged := nameBackup(BackupHeader{ClusterID: ca.ClusterID(), Created: old, Revision: 1})
		abandoned := "." + nameBackup(BackupHeader{ClusterID: ca.ClusterID(), Created: old.Add(-48 * time.Hour)}) + ".1"
		for _, name := range []string{foreign, damaged, abandoned, "mine.backup"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("no backup"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Hour)
		if n := count(a, "saved") + count(b, "saved"); n != 0 {
			t.Fatalf("%v backups by followers", n)
		}
		second.pass(first)
		time.Sleep(time.Second)
		if got := files(); len(got) != 2 || got[0] != damaged { // the damaged one does not count, and is left
			t.Fatalf("at once: %v", got)
		}
		time.Sleep(30 * time.Minute)
		first.pass(second) // no more and no later than it would be without
		time.Sleep(29 * time.Minute)
		if n := count(b, "saved"); n != 0 {
			t.Errorf("a new leader made %v backups before one was due", n)
		}
		time.Sleep(2 * time.Minute)
		if n := count(b, "saved"); n != 1 || count(a, "saved") != 1 {
			t.Errorf("a new leader made %v backups when one was due", n)
		}
		before := files()
		time.Sleep(time.Hour)
		after := files()
		if len(after) != 3 || after[1] != before[2] || slices.Contains(after, before[1]) {
			t.Errorf("of %v stayed %v", before, after)
		}
		made, _ := parseBackupName(after[2])
		if got := valueOf(t, b.latest); got != float64(made.made.Unix()) {
			t.Errorf("newest at %v, want %v", got, made.made)
		}
		if _, err := OpenBackup(filepath.Join(dir, after[2]), nil); err != nil {
			t.Error(err)
		}
		aside := dir + ".gone"
		if err := os.Rename(dir, aside); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if n := count(b, "failed"); n < 50 || count(b, "saved") != 2 {
			t.Errorf("without a directory: %v failed", n)
		}
		if err := os.Rename(aside, dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if n := count(b, "saved"); n != 3 {
			t.Errorf("with the directory again: %v saved", n)
		}
		for name, want := range map[string]error{foreign: nil, damaged: nil, "mine.backup": nil, abandoned: os.ErrNotExist} {
			if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		close(stop)
		<-aDone
		<-bDone
	})
}

// TestBackupScheduleCheck finds what would fail only at night.
func TestBackupScheduleCheck(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		BackupSchedule
		want string
	}{
		"good":              {BackupSchedule{Dir: dir, Interval: time.Hour, PassphraseFile: file}, ""},
		"off":               {BackupSchedule{Dir: "/nowhere"}, ""},
		"no such file":      {BackupSchedule{Dir: dir, Interval: time.Hour, PassphraseFile: dir + "/none"}, "--backup-passphrase-file: read the passphrase"},
		"no such dir":       {BackupSchedule{Dir: dir + "/none", Interval: time.Hour, Plain: true}, "--backup-dir: cannot write a backup into " + dir + "/none"},
		"not a directory":   {BackupSchedule{Dir: file, Interval: time.Hour, Plain: true}, "must be a directory that exists"},
		"not to be written": {BackupSchedule{Dir: "/proc", Interval: time.Hour, Plain: true}, "--backup-dir"},
	} {
		err := c.Check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("a check left %v %v", entries, err)
	}
}
