package cluster

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/fsm"
)

// backupOf makes a backup of a store with n Secrets of 1 KB.
func backupOf(t *testing.T, n int, passphrase string) (string, *fsm.Store) {
	t.Helper()
	ca, err := pki.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	store := fsm.New(fsm.DefaultConfig())
	cmd := fsm.Command{Term: 3, Time: 1}
	for i := range n {
		key := fsm.Key{Resource: "secrets", Namespace: "default", Name: "s" + strings.Repeat("x", i)}
		cmd.Ops = append(cmd.Ops, fsm.Op{Verb: fsm.Create, Key: key, UID: newUID(), Data: bytes.Repeat([]byte{byte(i)}, 1024)})
	}
	store.Apply(&raft.Log{Index: 7, Term: 3, Data: fsm.EncodeEntry([]fsm.Command{cmd})})
	path := filepath.Join(t.TempDir(), "b")
	s := &BackupSource{CA: ca, Store: store, Cluster: still{}, Name: "s1"}
	_, write, err := s.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := SaveBackup(path, []byte(passphrase), func(w io.Writer) error { return write(w, []byte(passphrase)) }); err != nil {
		t.Fatal(err)
	}
	return path, store
}

// TestBackupHoldsEverything reads back what was written, sealed or not, and
// shows the objects to nobody without the passphrase.
func TestBackupHoldsEverything(t *testing.T) {
	for _, pass := range []string{"", "correct horse"} {
		path, store := backupOf(t, 200, pass) // several sealed chunks
		b, err := OpenBackup(path, []byte(pass))
		if err != nil {
			t.Fatal(err)
		}
		if b.Store.View().Hash() != store.View().Hash() || b.Counts()["secrets"] != 200 || !b.CA.CanIssue() || len(b.Servers) != 1 {
			t.Errorf("%v, %d servers", b.Counts(), len(b.Servers))
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", info.Mode(), err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if plain := bytes.Contains(text, []byte("PRIVATE KEY")); plain != (pass == "") {
			t.Errorf("passphrase %q: the key is readable: %v", pass, plain)
		}
	}
}

// TestBackupDamage finds each flipped byte, each cut and each other format, and
// says which it is; a wrong passphrase is told from damage.
func TestBackupDamage(t *testing.T) {
	for _, pass := range []string{"", "correct horse"} {
		path, _ := backupOf(t, 100, pass)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		try := func(text []byte, passphrase string) error {
			bad := filepath.Join(t.TempDir(), "bad")
			if err := os.WriteFile(bad, text, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := OpenBackup(bad, []byte(passphrase))
			return err
		}
		step := len(good)/150 + 1
		for i := 0; i < len(good); i += step {
			text := bytes.Clone(good)
			text[i] ^= 0x10
			if err := try(text, pass); !errors.Is(err, ErrBackupDamaged) && !errors.Is(err, ErrBackupVersion) {
				t.Fatalf("byte %d of %d flipped: %v", i, len(good), err)
			}
			if err := try(good[:i], pass); !errors.Is(err, ErrBackupDamaged) {
				t.Fatalf("cut to %d of %d bytes: %v", i, len(good), err)
			}
		}
		if err := try(append(bytes.Clone(good), 0), pass); !errors.Is(err, ErrBackupDamaged) {
			t.Errorf("a byte more: %v", err)
		}
		newer := bytes.Clone(good)
		newer[11] = 2
		if err := try(newer, pass); !errors.Is(err, ErrBackupVersion) {
			t.Errorf("version 2: %v", err)
		}
		if pass == "" {
			continue
		}
		for _, wrong := range []string{"", "wrong"} {
			if err := try(good, wrong); !errors.Is(err, ErrPassphrase) {
				t.Errorf("passphrase %q: %v", wrong, err)
			}
		}
	}
}

// TestBackupSaveIsWholeOrNothing leaves an older file and no half one when a
// save breaks off.
func TestBackupSaveIsWholeOrNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b")
	if err := os.WriteFile(path, []byte("older"), 0o600); err != nil {
		t.Fatal(err)
	}
	good, _ := backupOf(t, 3, "")
	text, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	_, err = SaveBackup(path, nil, func(w io.Writer) error {
		return CopyBackup(w, bytes.NewReader(text[:len(text)-1]), nil)
	})
	if !errors.Is(err, ErrBackupDamaged) {
		t.Errorf("%v", err)
	}
	if have, err := os.ReadFile(path); err != nil || string(have) != "older" {
		t.Errorf("%q %v", have, err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("%v %v", left, err)
	}
}

// TestRestoreTwice begins two epochs, the later one higher, whose revisions
// exceed all of before; refuses a directory in use; and leaves the old server
// behind.
func TestRestoreTwice(t *testing.T) {
	path, store := backupOf(t, 10, "")
	now := epochStart.Add(1000 * time.Hour)
	var last uint64
	for i := range 2 {
		b, err := OpenBackup(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		cfg := RestoreConfig{DataDir: t.TempDir(), Name: "n", Address: "127.0.0.1:1", Now: now.Add(time.Duration(i) * epochStep)}
		out, err := b.Restore(cfg)
		if err != nil {
			t.Fatal(err)
		}
		v := b.Store.View()
		if out.Epoch <= last || v.Epoch() != out.Epoch || !Superseded(v, still{}.Servers()[0].ID) || Superseded(v, out.ServerID) {
			t.Errorf("epoch %d after %d", out.Epoch, last)
		}
		for o := range v.All() {
			if o.Modified <= store.View().Revision() || o.Modified>>fsm.EpochBits != out.Epoch {
				t.Fatalf("%s has revision %d", o.Key, o.Modified)
			}
		}
		last = out.Epoch
		if b, err = OpenBackup(path, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Restore(cfg); err == nil || !strings.Contains(err.Error(), "holds server n-") {
			t.Errorf("into a directory in use: %v", err)
		}
		if b, err = OpenBackup(path, nil); err != nil {
			t.Fatal(err)
		}
		empty := t.TempDir()
		if _, err := b.Restore(RestoreConfig{DataDir: empty, Name: "n", Address: "127.0.0.1:1", Epoch: 1 << 40}); err == nil {
			t.Error("an epoch out of range")
		}
		if has, err := HasState(empty); has || err != nil {
			t.Errorf("a refused restore left a log: %v", err)
		}
	}
	if NextEpoch(9, epochStart.Add(-time.Hour)) != 10 || NextEpoch(1<<20, now) != 1<<20+1 {
		t.Error("a clock that went back takes the epoch with it")
	}
}

// still is a cluster of one server that does nothing.
type still struct{ Membership }

func (still) ReadIndex(context.Context) error { return nil }
func (still) Now() time.Time                  { return time.Unix(1<<31, 0) }
func (still) Servers() []wire.Server {
	return []wire.Server{{ID: "s1-00000000", Name: "s1", Address: "127.0.0.1:1"}}
}
