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
)

// failingDisk is an ext4 file system of its own, in a file.
type failingDisk struct{ image, dir string }

// newFailingDisk makes the server's data directory one.
func newFailingDisk(t *testing.T, s *testServer) *failingDisk {
	t.Helper()
	d := &failingDisk{image: filepath.Join(t.TempDir(), "image"), dir: s.dir}
	for _, err := range []error{os.MkdirAll(s.dir, 0o700), os.WriteFile(d.image, nil, 0o600), os.Truncate(d.image, 64<<20)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	d.command(t, "mkfs.ext4", "-q", "-F", d.image)
	d.mount(t)
	t.Cleanup(func() { d.command(t, "umount", d.dir) })
	return d
}

func (d *failingDisk) command(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v (needs root): %v: %s", args, err, out)
	}
}

func (d *failingDisk) mount(t *testing.T) {
	t.Helper()
	d.command(t, "mount", "-o", "loop,errors=remount-ro", d.image, d.dir)
}

// fail has the kernel find an error in the file system, after which it lets
// nobody write to it any more, not even through files that are open.
func (d *failingDisk) fail(t *testing.T) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(d.dir, &st); err != nil {
		t.Fatal(err)
	}
	device, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", st.Dev>>8&0xfff, st.Dev&0xff|st.Dev>>12&0xfff00))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("/sys/fs/ext4", filepath.Base(device), "trigger_fs_error"), []byte("test"), 0); err != nil {
		t.Fatal(err)
	}
}

// TestReadOnlyDisk makes the file system of the leader read-only under it, as the
// kernel does after an error: the server stays, another one leads, writes go on
// through all three. Such a file system can only be written again once it was
// mounted again, for which the server must be stopped: then it is back with its
// log, and until then it does not start, and says why.
func TestReadOnlyDisk(t *testing.T) {
	const readOnly = "read-only file system"
	a, b, c := newServer(t, "a"), newServer(t, "b"), newServer(t, "c")
	disk := newFailingDisk(t, a)
	a.run(t, "--bootstrap")
	a.awaitReady()
	b.joinVia(t, a)
	c.joinVia(t, a)
	a.awaitVoters(3)
	if err := created(a.post("before")); err != nil {
		t.Fatal(err)
	}

	disk.fail(t)
	begun := time.Now()
	eventually(t, 20*time.Second, "a write beside the read-only disk", func() error { return created(b.post("first")) })
	t.Logf("written again after %v", time.Since(begun).Round(time.Millisecond))
	for _, s := range []*testServer{a, b, c} {
		eventually(t, 15*time.Second, "a write through "+s.name, func() error { return created(s.post("through-" + s.name)) })
	}
	st, err := b.status()
	if err != nil || st.Leader != "b" && st.Leader != "c" {
		t.Errorf("leader %q: %v", st.Leader, err)
	}
	for _, m := range st.Members {
		if m.Name == "a" && !strings.Contains(m.Detail, readOnly) {
			t.Errorf("the status says of a: %q", m.Detail)
		}
	}
	res, body, err := a.request("GET", configMaps+"/through-c", "")
	mustNameDisk(t, "a read of what the read-only disk does not have", readOnly, res, body, err)
	a.mustRun()

	a.kill()
	a.run(t)
	if code := a.wait(20 * time.Second); code != 1 || !strings.Contains(a.out.String(), "the file system is read-only") {
		t.Errorf("a start on a read-only disk: exit %d:\n%s", code, a.out)
	}
	disk.command(t, "umount", a.dir)
	disk.mount(t)
	a.run(t)
	a.awaitReady()
	b.awaitVoters(3)
	for _, name := range []string{"before", "through-c"} {
		if code, body, err := a.get(configMaps + "/" + name); err != nil || code != 200 {
			t.Errorf("%s through the server that is back: %d %s %v", name, code, body, err)
		}
	}
	if err := created(a.post("back")); err != nil {
		t.Error(err)
	}
}
