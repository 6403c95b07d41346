package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/shepherd-project/shepherd/cluster"
)

// TestRecover loses two servers of three, recovers the third with one command,
// and takes the two back with their old data directories, both at once, though
// they are the old majority.
func TestRecover(t *testing.T) {
	ctl := sheepctl(t)
	a := bootstrap(t, "a")
	b, c := newServer(t, "b").joinVia(t, a), newServer(t, "c").joinVia(t, a)
	a.awaitVoters(3)
	b.writeSecrets(1, 10)
	if out, ok := ctl(b, "cluster", "rotate-key"); !ok { // the log is sealed with two keys then
		t.Fatal(out)
	}
	last := b.writeSecrets(11, 20)
	recoverA := func() *process { return start(t, nil, "recover", "--data-dir", a.dir) }

	if p := recoverA(); p.wait(20*time.Second) != 1 || !strings.Contains(p.out.String(), "stop the server first") {
		t.Errorf("while it runs: %s", p.out)
	}
	b.kill()
	c.kill()
	eventually(t, 10*time.Second, "the leader is gone", func() error {
		if st, err := a.status(); err != nil || st.Leader != "" {
			return &unexpected{"there is a leader: " + st.Leader}
		}
		return nil
	})
	out, ok := ctl(a, "cluster", "status")
	for _, want := range []string{"1 more needed", "b (" + b.address, "c (" + c.address, "shepherd recover --data-dir " + a.dir} {
		if ok || !strings.Contains(out, want) {
			t.Errorf("status without a leader lacks %q:\n%s", want, out)
		}
	}
	a.kill()
	b.run(t)
	eventually(t, 20*time.Second, "b answers", func() error { _, err := b.status(); return err })
	if p := recoverA(); p.wait(20*time.Second) != 1 || !strings.Contains(p.out.String(), "quorum is not lost") {
		t.Errorf("while b answers: %s", p.out)
	}
	b.kill()

	begun := time.Now()
	p := recoverA()
	if code := p.wait(60 * time.Second); code != 0 {
		t.Fatalf("recover: %d", code)
	}
	took := time.Since(begun)
	for _, want := range []string{"last entry: index", "may be lost", "left behind: b (", "restore epoch"} {
		if !strings.Contains(p.out.String(), want) {
			t.Errorf("recover does not say %q:\n%s", want, p.out)
		}
	}
	a.run(t)
	a.awaitReady()
	t.Logf("recover took %v, with the start until ready %v", took.Round(time.Millisecond), time.Since(begun).Round(time.Millisecond))
	a.checkEpoch(20, last)
	a.writeSecrets(21, 25)

	begun = time.Now()
	b.run(t)
	c.run(t)
	st := a.awaitVoters(3)
	t.Logf("the old majority was back after %v", time.Since(begun).Round(time.Millisecond))
	if st.Leader != "a" {
		t.Errorf("leader %q", st.Leader)
	}
	for _, s := range []*testServer{b, c} {
		s.awaitReady()
		s.checkEpoch(25, last)
		if kept, err := filepath.Glob(filepath.Join(s.dir, "superseded", s.name+"-*", "raft.db")); err != nil || len(kept) != 1 {
			t.Errorf("the old log of %s was not kept: %v %v", s.name, kept, err)
		}
	}
	c.writeSecrets(26, 26)
	a.kill() // what was taken in counts
	eventually(t, 20*time.Second, "a write by those who returned", func() error { return created(b.post("after")) })
	b.kill()
	b.run(t) // no second time
	b.awaitReady()
	if kept, err := os.ReadDir(filepath.Join(b.dir, "superseded")); err != nil || len(kept) != 1 {
		t.Errorf("%v %v", kept, err)
	}
}

// TestRecoverRefusesWrongState: a server that the majority found to differ is
// no ground for a cluster, unless the administrator has nothing else.
func TestRecoverRefusesWrongState(t *testing.T) {
	a := bootstrap(t, "a")
	b := newServer(t, "b").joinVia(t, a)
	a.awaitVoters(2)
	last := a.writeSecrets(1, 5)
	b.kill()
	a.kill()
	db, err := raftboltdb.NewBoltStore(filepath.Join(a.dir, "raft.db"))
	if err != nil {
		t.Fatal(err)
	}
	err = db.Set([]byte("ShepherdDiffers"), []byte(cluster.ErrDiffers.Error()+": b, c at index 7"))
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	p := start(t, nil, "recover", "--data-dir", a.dir)
	if code := p.wait(20 * time.Second); code != 1 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"differs from that of the other servers", "b, c at index 7", "restore a backup", "--accept-different-state"} {
		if !strings.Contains(p.out.String(), want) {
			t.Errorf("the refusal lacks %q:\n%s", want, p.out)
		}
	}
	if p := start(t, nil, "recover", "--data-dir", a.dir, "--accept-different-state"); p.wait(20*time.Second) != 0 {
		t.Fatalf("with the administrator's word: %s", p.out)
	}
	a.run(t)
	a.awaitReady() // it counts again, and is not refused at its start
	a.checkEpoch(5, last)
}
