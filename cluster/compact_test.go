package cluster

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// TestCompactLog shrinks a log most of which was truncated, keeps every entry
// and vote that is left, and changes nothing where it must refuse.
func TestCompactLog(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, logFile)
	if _, _, err := CompactLog(dir); err == nil || !strings.Contains(err.Error(), "no Raft log") {
		t.Errorf("a directory without a log: %v", err)
	}
	log, err := raftboltdb.NewBoltStore(path)
	if err != nil {
		t.Fatal(err)
	}
	var entries []*raft.Log
	for i := range uint64(2000) {
		entries = append(entries, &raft.Log{Index: i + 1, Term: 1, Data: bytes.Repeat([]byte{byte(i)}, 4096)})
	}
	err = errors.Join(log.StoreLogs(entries), log.SetUint64([]byte("CurrentTerm"), 7), log.DeleteRange(1, 1900), log.Close())
	if err != nil {
		t.Fatal(err)
	}

	lock, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := CompactLog(dir); !errors.Is(err, ErrInUse) {
		t.Errorf("a running server: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}

	before, after, err := CompactLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != after || after*4 > before {
		t.Errorf("%d bytes became %d: %v", before, after, err)
	}
	if log, err = raftboltdb.NewBoltStore(path); err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if term, err := log.GetUint64([]byte("CurrentTerm")); err != nil || term != 7 {
		t.Errorf("term %d, %v", term, err)
	}
	for i := uint64(1901); i <= 2000; i++ {
		var e raft.Log
		if err := log.GetLog(i, &e); err != nil || !bytes.Equal(e.Data, entries[i-1].Data) {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
}

// TestCompactLogLeavesDamageAlone does not touch a file that is no log.
func TestCompactLogLeavesDamageAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, logFile)
	text := bytes.Repeat([]byte("not a log "), 2000)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := CompactLog(dir); err == nil {
		t.Fatal("it was taken for a log")
	}
	if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, text) {
		t.Errorf("the file was changed: %v", err)
	}
}
