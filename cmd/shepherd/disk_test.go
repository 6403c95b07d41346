package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// smallDisk makes the server's data directory a file system of its own.
func smallDisk(t *testing.T, s *testServer, size string) {
	t.Helper()
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("shepherd-test", s.dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		t.Fatalf("mount a small disk (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(s.dir, 0); err != nil {
			t.Errorf("unmount %s: %v", s.dir, err)
		}
	})
}

// fill leaves no byte on the server's disk; removing the file frees it.
func fill(t *testing.T, s *testServer) string {
	t.Helper()
	path := filepath.Join(s.dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// fillUntilFelt writes until the server says once more that there is no space.
func fillUntilFelt(t *testing.T, via, sick *testServer, prefix string) {
	t.Helper()
	const word = "no space left on device"
	n, before := 0, strings.Count(sick.out.String(), word)
	eventually(t, 40*time.Second, "the full disk is not felt", func() error {
		n++
		if err := created(via.post(fmt.Sprintf("%s-%d", prefix, n))); err != nil {
			return err
		}
		if strings.Count(sick.out.String(), word) == before {
			return errors.New("no word of it")
		}
		return nil
	})
}

func (s *testServer) mustRun() {
	s.t.Helper()
	select {
	case <-s.done:
		s.t.Fatalf("server %s ended:\n%s", s.name, s.out)
	default:
	}
}

// TestFullDisk fills the disk of a follower and of the leader: writes go on,
// no server ends, each comes back by itself when there is space, and one that
// is killed and started meanwhile waits for it.
func TestFullDisk(t *testing.T) {
	a, b, c := newServer(t, "a"), newServer(t, "b"), newServer(t, "c")
	smallDisk(t, a, "24m")
	smallDisk(t, c, "24m")
	a.run(t, "--bootstrap")
	a.awaitReady()
	b.joinVia(t, a)
	c.joinVia(t, a)
	a.awaitVoters(3)

	filler := fill(t, c)
	fillUntilFelt(t, a, c, "follower")
	c.mustRun()
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	a.awaitVoters(3)

	filler = fill(t, a)
	fillUntilFelt(t, b, a, "leader")
	eventually(t, 15*time.Second, "a leader with a good disk", func() error {
		st, err := b.status()
		if err == nil && st.Leader != "b" && st.Leader != "c" {
			err = fmt.Errorf("leader %q", st.Leader)
		}
		return err
	})
	eventually(t, 15*time.Second, "a write beside the full disk", func() error { return created(b.post("beside")) })
	a.mustRun()
	eventually(t, 15*time.Second, "a write through the full disk's server", func() error { return created(a.post("past")) })
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	b.awaitVoters(3)
	eventually(t, 10*time.Second, "a write through the server that has space again", func() error { return created(a.post("through")) })

	filler = fill(t, a)
	fillUntilFelt(t, b, a, "again")
	a.kill()
	a.run(t) // while it is full
	eventually(t, 20*time.Second, "a server that starts with a full disk says so", func() error {
		a.mustRun()
		if !strings.Contains(a.out.String(), "no space left on device") {
			return errors.New("no word of it")
		}
		return nil
	})
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	a.awaitReady()
	b.awaitVoters(3)
}
