package check

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var programs = []string{"shepherd", "sheepctl", "shepherd-shim"}

// checkout is a copy of scripts beside stand-ins for the programs: install does
// not look into them, and building them is another tier's business.
func checkout(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "scripts"), os.DirFS("..")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		if err := os.WriteFile(filepath.Join(dir, "bin", p), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func runScript(t *testing.T, dir, name, destdir, prefix string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(dir, "scripts", name))
	cmd.Env = append(os.Environ(), "DESTDIR="+destdir, "PREFIX="+prefix)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// files returns the mode of each file below root.
func files(t *testing.T, root string) map[string]fs.FileMode {
	t.Helper()
	found := map[string]fs.FileMode{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		found[strings.TrimPrefix(path, root)] = info.Mode().Perm()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestInstallAndUninstall(t *testing.T) {
	dir, dest := checkout(t), t.TempDir()
	runScript(t, dir, "install", dest, "/opt/shepherd")
	config := map[string]fs.FileMode{"/etc/shepherd/server.yaml": 0o600, "/etc/shepherd/agent.yaml": 0o600}
	want := map[string]fs.FileMode{
		"/etc/systemd/system/shepherd-server.service": 0o644,
		"/etc/systemd/system/shepherd-agent.service":  0o644,
	}
	maps.Copy(want, config)
	for _, p := range programs {
		want["/opt/shepherd/bin/"+p] = 0o755
	}
	if got := files(t, dest); !maps.Equal(got, want) {
		t.Errorf("installed %v, want %v", got, want)
	}
	if info, err := os.Stat(filepath.Join(dest, "etc/shepherd")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("/etc/shepherd: %v, %v, want mode 0700", info, err)
	}

	edited := []byte("bootstrap: true\n")
	path := filepath.Join(dest, "etc/shepherd/server.yaml")
	if err := os.WriteFile(path, edited, 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dest, "var/lib/shepherd")
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "kept"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	runScript(t, dir, "install", dest, "/opt/shepherd")
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, edited) {
		t.Errorf("a second install left %q, %v in server.yaml, want what was edited", got, err)
	}

	for range 2 { // a second time there is nothing to remove, which is no error
		out := runScript(t, dir, "uninstall", dest, "/opt/shepherd")
		for _, kept := range []string{"/etc/shepherd", "/var/lib/shepherd", "shepherd cleanup"} {
			if !strings.Contains(out, kept) {
				t.Errorf("uninstall does not speak of %s: %s", kept, out)
			}
		}
	}
	want = map[string]fs.FileMode{"/var/lib/shepherd/kept": 0o600}
	maps.Copy(want, config)
	if got := files(t, dest); !maps.Equal(got, want) {
		t.Errorf("uninstall left %v, want %v", got, want)
	}
}

// The units hold what keeps containers running and a cluster coming back.
func TestUnits(t *testing.T) {
	dir, dest := checkout(t), t.TempDir()
	runScript(t, dir, "install", dest, filepath.Join(dest, "usr")) // ExecStart must exist for the verifier
	units := map[string][]string{
		"shepherd-server": {"Restart=always", "StartLimitIntervalSec=0", "After=network-online.target", "LimitNOFILE=65536"},
		"shepherd-agent": {"Restart=always", "StartLimitIntervalSec=0", "After=network-online.target", "LimitNOFILE=65536",
			"KillMode=process", "Delegate=yes"},
	}
	for unit, settings := range units {
		text, err := os.ReadFile(filepath.Join(dest, "etc/systemd/system", unit+".service"))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(text), "\n")
		for _, s := range settings {
			if !slices.Contains(lines, s) {
				t.Errorf("%s has no line %s", unit, s)
			}
		}
		if bytes.Contains(text, []byte("@")) {
			t.Errorf("%s has a place that was not filled in:\n%s", unit, text)
		}
	}
	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("no systemd-analyze here: the units are checked by their lines only")
		return
	}
	// The first run put the programs below DESTDIR and PREFIX; where ExecStart
	// says they are, put them too.
	if err := os.CopyFS(filepath.Join(dest, "usr/bin"), os.DirFS(filepath.Join(dir, "bin"))); err != nil {
		t.Fatal(err)
	}
	for unit := range units {
		path := filepath.Join(dest, "etc/systemd/system", unit+".service")
		// It exits 0 for an unknown key, and only prints it.
		if out, err := exec.Command(verify, "verify", "--man=no", path).CombinedOutput(); err != nil || bytes.Contains(out, []byte(unit)) {
			t.Errorf("systemd-analyze verify %s: %v\n%s", unit, err, out)
		}
	}
}
