package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// realLog writes a log file as a server does, with values that take many pages,
// and returns its content and the index of its last entry.
func realLog(t *testing.T) (content []byte, last uint64) {
	t.Helper()
	cfg := Config{ID: "s1-00000001", DataDir: t.TempDir(), SnapshotsKept: 2}
	s, err := openStorage(&cfg, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.stable.SetUint64([]byte(keyTerm), 3); err != nil {
		t.Fatal(err)
	}
	for last < 120 {
		last++
		size := 200
		if last%40 == 0 {
			size = 10000 // overflows its page
		}
		if err := s.log.StoreLog(&raft.Log{Index: last, Term: 3, Data: bytes.Repeat([]byte{byte(last)}, size)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.log.DeleteRange(1, 20); err != nil { // there are free pages
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if content, err = os.ReadFile(filepath.Join(cfg.DataDir, logFile)); err != nil {
		t.Fatal(err)
	}
	return content, last
}

// openDamaged opens a directory with that content as its log, and reads all of it.
func openDamaged(t *testing.T, content []byte, last uint64) error {
	t.Helper()
	cfg := Config{ID: "s1-00000001", DataDir: t.TempDir(), SnapshotsKept: 2}
	if err := os.WriteFile(filepath.Join(cfg.DataDir, logFile), content, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := openStorage(&cfg, hclog.NewNullLogger())
	if err != nil {
		return err
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if got, err := s.log.LastIndex(); err != nil || got != last {
		t.Errorf("it opens, and ends with entry %d, not %d: %v", got, last, err)
	}
	for i := uint64(21); i <= last; i++ {
		if err := s.log.GetLog(i, new(raft.Log)); err != nil {
			return damaged("entry %d: %w", i, err) // as Raft does before it starts
		}
	}
	return s.log.StoreLog(&raft.Log{Index: last + 1, Term: 3})
}

// TestDamagedLog spoils every page of a real log, in several ways, and cuts the
// file off at each: it opens with all that it held, or is refused as damaged.
// bbolt alone panics or is killed by the kernel at most of them.
func TestDamagedLog(t *testing.T) {
	content, last := realLog(t)
	if err := openDamaged(t, content, last); err != nil {
		t.Fatal(err)
	}
	size, rng := os.Getpagesize(), rand.New(rand.NewSource(1))
	refused, fine := 0, 0
	check := func(what string, content []byte) error {
		t.Helper()
		err := openDamaged(t, content, last)
		switch {
		case err == nil:
			fine++
		case errors.Is(err, ErrDamaged):
			refused++
		default:
			t.Errorf("%s: %v", what, err)
		}
		return err
	}
	for at := 0; at < len(content); at += size {
		for _, spoil := range []struct {
			how string
			do  func(page []byte)
		}{
			{"zeroed", func(p []byte) { clear(p) }},
			{"garbage", func(p []byte) { rng.Read(p) }},
			{"torn in half", func(p []byte) { clear(p[len(p)/2:]) }},
			{"head torn", func(p []byte) { rng.Read(p[:512]) }},
		} {
			other := bytes.Clone(content)
			spoil.do(other[at : at+size])
			what := fmt.Sprintf("page %d of %d %s", at/size, len(content)/size, spoil.how)
			if err := check(what, other); err == nil && at < 2*size && spoil.how != "torn in half" {
				t.Errorf("%s: a meta page is lost, and nobody says so", what)
			}
		}
		if at > 0 {
			check(fmt.Sprintf("cut off at page %d", at/size), content[:at])
			check(fmt.Sprintf("cut off in page %d", at/size), content[:at+100])
		}
	}
	for range 100 { // bits anywhere
		other := bytes.Clone(content)
		for range 1 + rng.Intn(20) {
			other[rng.Intn(len(other))] ^= 1 << rng.Intn(8)
		}
		check("flipped bits", other)
	}
	if refused < 100 || fine < 10 {
		t.Errorf("%d refused, %d fine: the test shows nothing", refused, fine)
	}
	t.Logf("%d pages: %d refused, %d fine", len(content)/size, refused, fine)
}

// TestLogWithoutVotes: a log that lost what was voted is not voted with.
func TestLogWithoutVotes(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(s *storage) error
		want  string
	}{
		{"older term", func(s *storage) error { return s.stable.SetUint64([]byte(keyTerm), 2) }, "its votes are lost"},
		{"no server", func(s *storage) error { return s.stable.Set(keyServerID, nil) }, "whose votes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Config{ID: "s1-00000001", DataDir: t.TempDir(), SnapshotsKept: 2}
			content, _ := realLog(t)
			if err := os.WriteFile(filepath.Join(cfg.DataDir, logFile), content, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := openStorage(&cfg, hclog.NewNullLogger())
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(c.spoil(s), s.Close()); err != nil {
				t.Fatal(err)
			}
			_, err = openStorage(&cfg, hclog.NewNullLogger())
			if !errors.Is(err, ErrDamaged) {
				t.Fatalf("it opens: %v", err)
			}
			for _, want := range []string{c.want, filepath.Join(cfg.DataDir, logFile), "empty the data directory " + cfg.DataDir} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
		})
	}
}
