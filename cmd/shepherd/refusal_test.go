package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shepherd-project/shepherd/cluster/pki"
)

// TestRefusals starts daemons that must not run: each ends with code 1, or 2
// for its command line, and a sentence that says why.
func TestRefusals(t *testing.T) {
	a := bootstrap(t, "a")
	other := bootstrap(t, "o")
	dir := func(t *testing.T) string { return filepath.Join(t.TempDir(), "data") }
	file := func(t *testing.T, text string) string {
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca, err := pki.LoadCA(filepath.Join(a.dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args func(t *testing.T) []string
		code int
		want string
	}{
		{"empty directory", func(t *testing.T) []string { return []string{"--data-dir", dir(t)} }, 1, "is empty: give --bootstrap"},
		{"no token", func(t *testing.T) []string { return []string{"--data-dir", dir(t), "--join", a.address} }, 1, "--token-file"},
		{"no token file", func(t *testing.T) []string {
			return []string{"--data-dir", dir(t), "--join", a.address, "--token-file", "/nowhere/token"}
		}, 1, "/nowhere/token"},
		{"damaged token", func(t *testing.T) []string {
			return []string{"--data-dir", dir(t), "--join", a.address, "--token-file", file(t, "shp1.server.abc")}
		}, 1, "malformed token"},
		{"unknown token", func(t *testing.T) []string {
			return []string{"--data-dir", dir(t), "--join", a.address, "--token-file", file(t, pki.NewToken(pki.RoleServer, ca).Reveal())}
		}, 1, "the token is not valid"},
		{"agent token for a server", func(t *testing.T) []string {
			return []string{"--data-dir", dir(t), "--join", a.address, "--token-file", a.token(pki.RoleAgent)}
		}, 1, "server token"},
		{"token of another cluster", func(t *testing.T) []string {
			return []string{"--data-dir", dir(t), "--join", a.address, "--token-file", other.token(pki.RoleServer)}
		}, 1, "not the one that the token pins"},
		{"used name", func(t *testing.T) []string {
			return []string{"--name", "a", "--data-dir", dir(t), "--join", a.address, "--token-file", a.token(pki.RoleServer)}
		}, 1, `the server name "a" is in use`},
		{"directory in use", func(t *testing.T) []string { return []string{"--data-dir", a.dir} }, 1, "in use by another process"},
		{"address in use", func(t *testing.T) []string {
			return []string{"--addr", a.address, "--bootstrap", "--data-dir", dir(t)}
		}, 1, "address already in use"},
		{"directory is a file", func(t *testing.T) []string { return []string{"--bootstrap", "--data-dir", file(t, "x")} }, 1, "not a directory"},
		{"agent without a server", func(t *testing.T) []string { return []string{"--mode", "agent", "--data-dir", dir(t)} }, 1, "--join"},
		{"agent with a server token", func(t *testing.T) []string {
			return []string{"--mode", "agent", "--data-dir", dir(t), "--join", a.address, "--token-file", a.token(pki.RoleServer)}
		}, 1, "agent token"},
		{"unknown flag", func(t *testing.T) []string { return []string{"--bogus"} }, 2, "--bogus"},
		{"bad mode", func(t *testing.T) []string { return []string{"--mode", "king"} }, 2, "king"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"--mode", "server", "--name", "x", "--addr", freeAddress(t)}, c.args(t)...)
			p := start(t, nil, args...)
			if code := p.wait(20 * time.Second); code != c.code || !strings.Contains(p.out.String(), c.want) {
				t.Errorf("exit %d, want %d with %q:\n%s", code, c.code, c.want, p.out)
			}
			if strings.Contains(p.out.String(), "controller started") {
				t.Error("a controller ran")
			}
		})
	}
	if st, err := a.status(); err != nil || len(st.Members) != 1 {
		t.Errorf("the refused changed the cluster: %v %v", st, err)
	}
}

// TestDamagedDirectories breaks a server's directory in several ways and
// starts it again.
func TestDamagedDirectories(t *testing.T) {
	whole := bootstrap(t, "a")
	other := bootstrap(t, "o")
	whole.signal(syscall.SIGTERM)
	if code := whole.wait(10 * time.Second); code != 0 {
		t.Fatalf("exit %d", code)
	}
	truncate := func(name string, size int64) func(string) error {
		return func(dir string) error { return os.Truncate(filepath.Join(dir, name), size) }
	}
	garble := func(name string, from, to int64) func(string) error {
		return func(dir string) error {
			path := filepath.Join(dir, name)
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt([]byte(strings.Repeat("torn", int(min(to, info.Size())-from)/4)), from)
			return err
		}
	}
	remove := func(name string) func(string) error {
		return func(dir string) error { return os.Remove(filepath.Join(dir, name)) }
	}
	for _, c := range []struct {
		name  string
		spoil func(dir string) error
		args  []string
		want  string
	}{
		{"truncated record", truncate("server.json", 20), nil, "is damaged"},
		{"no record", remove("server.json"), nil, "says whose it is"},
		{"no log", remove("raft.db"), nil, "its votes"},
		{"empty log", truncate("raft.db", 0), nil, "its votes"},
		{"truncated log", truncate("raft.db", 5000), nil, "raft.db"},
		{"log that is none", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "raft.db"), []byte(strings.Repeat("not a log ", 4096)), 0o600)
		}, nil, "damaged or not a log"},
		{"log without its tail", truncate("raft.db", 3*4096), nil, "it is cut off"},
		{"first meta page torn", garble("raft.db", 0, 4096), nil, "meta page 0"},
		{"second meta page torn", garble("raft.db", 4096, 8192), nil, "empty the data directory"},
		{"all other pages torn", garble("raft.db", 8192, 1<<30), nil, "start the server with the command that it joined with"},
		{"no CA key", remove("pki/ca.key"), nil, "CA's key is missing"},
		{"truncated CA", truncate("pki/ca.crt", 100), nil, "is damaged"},
		{"CA of another cluster", func(dir string) error {
			ca, err := pki.LoadCA(filepath.Join(other.dir, "pki"))
			if err != nil {
				return err
			}
			return pki.SaveCA(filepath.Join(dir, "pki"), ca)
		}, nil, "its CA of cluster"},
		{"another name", nil, []string{"--name", "b"}, `belongs to server "a"`},
		{"another cluster", nil, []string{"--join", other.address, "--token-file", other.token(pki.RoleServer)}, "belongs to cluster"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			if err := os.CopyFS(dir, os.DirFS(whole.dir)); err != nil {
				t.Fatal(err)
			}
			if c.spoil != nil {
				if err := c.spoil(dir); err != nil {
					t.Fatal(err)
				}
			}
			p := start(t, nil, append([]string{"--mode", "server", "--addr", freeAddress(t), "--data-dir", dir}, c.args...)...)
			if code := p.wait(20 * time.Second); code != 1 || !strings.Contains(p.out.String(), c.want) {
				t.Errorf("exit %d, want 1 with %q:\n%s", code, c.want, p.out)
			}
			if strings.Contains(p.out.String(), "controller started") || strings.Contains(p.out.String(), "panic") {
				t.Errorf("it went too far:\n%s", p.out)
			}
		})
	}
	whole.run(t) // the original is as good as before
	whole.awaitReady()
}

// TestStoreCannotBeOpened has the store refused by the kernel: wrong owner,
// and no space.
func TestStoreCannotBeOpened(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to become another user and to mount a full disk")
	}
	t.Run("wrong owner", func(t *testing.T) {
		dir := t.TempDir() // ours, mode 0755 at most
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		p := start(t, func(cmd *exec.Cmd) {
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
			// The test's program may be where that user cannot go: run it from an open file.
			self, err := os.Open(cmd.Path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { self.Close() })
			cmd.ExtraFiles, cmd.Path = []*os.File{self}, fmt.Sprintf("/proc/self/fd/%d", 3)
			cmd.Dir = "/"
		}, "--mode", "server", "--name", "a", "--addr", freeAddress(t), "--bootstrap", "--data-dir", filepath.Join(dir, "data"))
		if code := p.wait(20 * time.Second); code != 1 || !strings.Contains(p.out.String(), "wrong owner or mode") {
			t.Errorf("exit %d: %s", code, p.out)
		}
	})
	t.Run("no space", func(t *testing.T) {
		full := t.TempDir()
		p := start(t, func(cmd *exec.Cmd) {
			// A file system of a few pages, in a mount namespace of its own.
			cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
			cmd.Args = append([]string{"sh", "-c", `mount --make-rprivate / && mount -t tmpfs -o size=40k none "$0" && exec "$@"`, full, cmd.Path}, cmd.Args[1:]...)
			cmd.Path = "/bin/sh"
		}, "--mode", "server", "--name", "a", "--addr", freeAddress(t), "--bootstrap", "--data-dir", filepath.Join(full, "data"))
		if code := p.wait(20 * time.Second); code != 1 || !strings.Contains(p.out.String(), "no space") {
			t.Errorf("exit %d: %s", code, p.out)
		}
		if strings.Contains(p.out.String(), "controller started") {
			t.Error("a controller ran on a nil store")
		}
	})
}

// TestJoinerStopsAtOnce stops a joiner that waits for a server that never comes.
func TestJoinerStopsAtOnce(t *testing.T) {
	ca, err := pki.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := pki.WriteFile(token, []byte(pki.NewToken(pki.RoleServer, ca).Reveal())); err != nil {
		t.Fatal(err)
	}
	s := newServer(t, "a").run(t, "--join", freeAddress(t), "--token-file", token)
	eventually(t, 10*time.Second, "the joiner tries", func() error {
		if !strings.Contains(s.out.String(), "still trying") {
			return &unexpected{s.out.String()}
		}
		return nil
	})
	s.signal(syscall.SIGTERM)
	if code := s.wait(5 * time.Second); code != 0 {
		t.Errorf("exit %d", code)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "server.json")); err == nil {
		t.Error("it took the directory without having joined")
	}
}
