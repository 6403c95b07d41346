package agent

import (
	"errors"
	"path/filepath"
	"strconv"
	"testing"
)

func TestRevisionsOverRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent", "revision")
	open := func() *revisions {
		r, err := openRevisions(path)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := open()
	if err := errors.Join(r.see("100", true), r.see("120", false), r.see("110", false), r.save()); err != nil {
		t.Fatal(err)
	}
	again := open()
	if err := again.see("119", true); !errors.Is(err, errStale) {
		t.Errorf("error %v, want errStale", err)
	}
	if err := errors.Join(again.see("120", true), again.mayKill()); err != nil {
		t.Error(err)
	}
	// A restore: kills wait for an administrator, also over a restart.
	restored := strconv.FormatUint(120+1<<epochBits, 10)
	if err := errors.Join(again.see(restored, true), again.save()); err != nil {
		t.Fatal(err)
	}
	third := open()
	if err := third.mayKill(); !errors.Is(err, errEpoch) {
		t.Errorf("error %v, want errEpoch", err)
	}
	third.confirm(7) // of another restore
	if third.mayKill() == nil {
		t.Error("the wrong epoch was confirmed")
	}
	third.confirm(1)
	if err := third.mayKill(); err != nil {
		t.Error(err)
	}
	if err := third.see("soon", true); err == nil {
		t.Error("a version that is no number was taken")
	}
}
