package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
)

var stamp = time.Unix(1_600_000_000, 0)

type entry struct {
	name, body, link string
	typ              byte
	mode             int64
	uid              int
	pax              map[string]string
}

func tarOf(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.typ, Mode: e.mode, Uid: e.uid, Gid: e.uid,
			Size: int64(len(e.body)), ModTime: stamp, PAXRecords: e.pax}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(e.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func file(name, body string) entry {
	return entry{name: name, body: body, typ: tar.TypeReg, mode: 0o644}
}
func dir(name string) entry { return entry{name: name, typ: tar.TypeDir} }

func imageOf(t *testing.T, layers ...[]byte) v1.Image {
	t.Helper()
	img, err := mutate.Config(empty.Image, v1.Config{Cmd: []string{"/bin/app"}, Env: []string{"A=1"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(l)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

// layoutTar returns an OCI layout archive with img under ref.
func layoutTar(t *testing.T, ref string, img v1.Image) []byte {
	t.Helper()
	d := t.TempDir()
	p, err := layout.Write(d, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img, layout.WithAnnotations(map[string]string{annotationRefName: ref})); err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	if err := tw.AddFS(os.DirFS(d)); err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func dockerTar(t *testing.T, ref string, img v1.Image) []byte {
	t.Helper()
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := tarball.Write(tag, img, &buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// contents lists every path below the store with its size: what a refused
// import must leave alone.
func contents(t *testing.T, s *Store) string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(s.cfg.Dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Base(p) != ".lock" {
			out = append(out, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, "\n")
}

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("unpacking keeps owners and makes whiteouts: needs root")
	}
}

func TestImportBothFormats(t *testing.T) {
	requireRoot(t)
	img := imageOf(t,
		tarOf(t, dir("bin/"), entry{name: "bin/app", body: "v1", typ: tar.TypeReg, mode: 0o4755, uid: 7}, file("etc/old", "x")),
		tarOf(t, dir("etc"), file("etc/.wh.old", ""), dir("data/"), file("data/.wh..wh..opq", ""), file("data/new", "n")))
	for format, data := range map[string][]byte{
		"oci":    layoutTar(t, "demo:1", img),
		"docker": dockerTar(t, "demo:1", img),
	} {
		t.Run(format, func(t *testing.T) {
			s := newStore(t)
			refs, err := s.Import(t.Context(), bytes.NewReader(data))
			if err != nil {
				t.Fatal(err)
			}
			if want := "docker.io/library/demo:1"; len(refs) != 1 || refs[0] != want {
				t.Fatalf("refs %v, want %s", refs, want)
			}
			got, err := s.Ensure(t.Context(), "demo:1", PullNever)
			if err != nil {
				t.Fatal(err)
			}
			if got.Config.Cmd[0] != "/bin/app" || len(got.Layers) != 2 {
				t.Fatalf("unexpected image %+v", got)
			}
			checkLower(t, got.Layers[1])
			checkUpper(t, got.Layers[0])
		})
	}
}

func checkLower(t *testing.T, dir string) {
	st, err := os.Stat(filepath.Join(dir, "bin/app"))
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode() != os.ModeSetuid|0o755 || st.Sys().(*syscall.Stat_t).Uid != 7 || !st.ModTime().Equal(stamp) {
		t.Fatalf("mode %v, owner %d, time %v", st.Mode(), st.Sys().(*syscall.Stat_t).Uid, st.ModTime())
	}
	if st, err := os.Stat(filepath.Join(dir, "bin")); err != nil || !st.ModTime().Equal(stamp) {
		t.Fatalf("directory time %v, %v", st.ModTime(), err)
	}
}

func checkUpper(t *testing.T, dir string) {
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "etc/old"), &st); err != nil {
		t.Fatal(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
		t.Fatalf("whiteout has mode %o, device %d", st.Mode, st.Rdev)
	}
	val := make([]byte, 8)
	n, err := unix.Getxattr(filepath.Join(dir, "data"), opaqueXattr, val)
	if err != nil || string(val[:n]) != "y" {
		t.Fatalf("opaque attribute %q, %v", val[:n], err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "data/new")); err != nil {
		t.Fatal(err)
	}
}

func TestHostileLayers(t *testing.T) {
	requireRoot(t)
	outside := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(outside, []byte("safe"), 0o600); err != nil {
		t.Fatal(err)
	}
	victimDir := filepath.Dir(outside)
	cases := map[string][]entry{
		"dot dot":               {file("../evil", "x")},
		"dot dot inside":        {file("a/../../evil", "x")},
		"block device":          {{name: "sda", typ: tar.TypeBlock}},
		"char device":           {{name: "mem", typ: tar.TypeChar}},
		"symlink then write":    {{name: "out", link: victimDir, typ: tar.TypeSymlink}, file("out/victim", "pwned")},
		"relative symlink":      {{name: "out", link: strings.Repeat("../", 40) + victimDir, typ: tar.TypeSymlink}, file("out/victim", "pwned")},
		"symlink then whiteout": {{name: "out", link: victimDir, typ: tar.TypeSymlink}, file("out/.wh.victim", "")},
		"symlink then opaque":   {{name: "out", link: victimDir, typ: tar.TypeSymlink}, file("out/.wh..wh..opq", "")},
		"hard link dot dot":     {{name: "h", link: "../../victim", typ: tar.TypeLink}},
		"hard link via symlink": {{name: "out", link: victimDir, typ: tar.TypeSymlink}, {name: "h", link: "out/victim", typ: tar.TypeLink}},
		"hard link to nothing":  {{name: "h", link: outside, typ: tar.TypeLink}},
		"whiteout dot dot":      {file(".wh...", "")},
		"unknown entry type":    {{name: "x", typ: 'Z'}},
	}
	for title, entries := range cases {
		t.Run(title, func(t *testing.T) {
			s := newStore(t)
			before := contents(t, s)
			good := tarOf(t, file("fine", "y"))
			data := layoutTar(t, "evil:1", imageOf(t, good, tarOf(t, entries...)))
			_, err := s.Import(t.Context(), bytes.NewReader(data))
			if !errors.Is(err, ErrArchive) {
				t.Fatalf("error %v, want ErrArchive", err)
			}
			if after := contents(t, s); after != before {
				t.Fatalf("the store changed:\n%s\nwas\n%s", after, before)
			}
		})
	}
	got, err := os.ReadFile(outside)
	entriesLeft, _ := os.ReadDir(victimDir)
	if err != nil || string(got) != "safe" || len(entriesLeft) != 1 {
		t.Fatalf("the file outside changed: %q, %v, %v", got, err, entriesLeft)
	}
}

func TestHostileArchives(t *testing.T) {
	requireRoot(t)
	good := layoutTar(t, "demo:1", imageOf(t, tarOf(t, file("a", strings.Repeat("data", 4096)))))
	gz := func(b []byte) []byte {
		var buf bytes.Buffer
		w := gzip.NewWriter(&buf)
		w.Write(b)
		w.Close()
		return buf.Bytes()
	}
	flipped := bytes.Clone(good)
	flipped[bytes.Index(flipped, []byte("blobs/sha256/"))+512+40] ^= 1
	cases := map[string][]byte{
		"empty":              {},
		"garbage":            bytes.Repeat([]byte("no tar"), 1000),
		"truncated":          good[:len(good)/2],
		"truncated at edge":  good[:1024],
		"truncated gzip":     gz(good)[:200],
		"flipped bit":        flipped,
		"no image":           tarOf(t, file("readme", "hello")),
		"absolute name":      append(tarOf(t, file("/index.json", "{}"))[:1024], good...),
		"dot dot":            append(tarOf(t, file("../index.json", "{}"))[:1024], good...),
		"device":             append(tarOf(t, entry{name: "d", typ: tar.TypeChar})[:512], good...),
		"symlinked index":    tarOf(t, entry{name: "index.json", link: "/etc/passwd", typ: tar.TypeSymlink}),
		"symlinked manifest": tarOf(t, entry{name: "manifest.json", link: "../../../../../../etc/passwd", typ: tar.TypeSymlink}),
	}
	for title, data := range cases {
		t.Run(title, func(t *testing.T) {
			s := newStore(t)
			before := contents(t, s)
			_, err := s.Import(t.Context(), bytes.NewReader(data))
			if !errors.Is(err, ErrArchive) && !errors.Is(err, ErrDigest) {
				t.Fatalf("error %v, want ErrArchive or ErrDigest", err)
			}
			if after := contents(t, s); after != before {
				t.Fatalf("the store changed:\n%s", after)
			}
		})
	}
	if _, err := newStore(t).Import(t.Context(), bytes.NewReader(gz(good))); err != nil {
		t.Fatalf("a compressed archive: %v", err)
	}
}

func TestOverlayAttributesAreStripped(t *testing.T) {
	requireRoot(t)
	s := newStore(t)
	data := layoutTar(t, "x:1", imageOf(t, tarOf(t, entry{name: "d", typ: tar.TypeDir, pax: map[string]string{
		xattrRecord + "trusted.overlay.redirect": "/etc", xattrRecord + "user.kept": "1"}})))
	if _, err := s.Import(t.Context(), bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	img, err := s.Lookup("x:1")
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1024)
	n, err := unix.Listxattr(filepath.Join(img.Layers[0], "d"), buf)
	if err != nil || strings.Contains(string(buf[:n]), "overlay") {
		t.Fatalf("attributes %q, %v", buf[:n], err)
	}
}

func TestWhiteoutsOfTheSameLayer(t *testing.T) {
	requireRoot(t)
	dst := t.TempDir()
	layer := tarOf(t,
		file(".wh.before", ""), dir("before"), // whiteout first: the directory hides the lower one
		dir("after"), file(".wh.after", ""),
		file("kept", "k"), file(".wh.kept", ""),
		file(".wh..wh.plnk", ""))
	if _, err := unpackLayer(bytes.NewReader(layer), dst, 1<<20); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"before", "after"} {
		if _, err := unix.Getxattr(filepath.Join(dst, d), opaqueXattr, make([]byte, 8)); err != nil {
			t.Errorf("%s is not opaque: %v", d, err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dst, "kept")); err != nil || string(b) != "k" {
		t.Errorf("kept: %q, %v", b, err)
	}
}

func TestLayerBound(t *testing.T) {
	requireRoot(t)
	_, err := unpackLayer(bytes.NewReader(tarOf(t, file("big", strings.Repeat("0", 1<<20)))), t.TempDir(), 64<<10)
	if !errors.Is(err, ErrArchive) {
		t.Fatalf("error %v, want ErrArchive", err)
	}
}

func TestPull(t *testing.T) {
	requireRoot(t)
	srv := httptest.NewServer(registry.New())
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	push := func(body string) string {
		ref, err := name.ParseReference(host + "/app:1")
		if err != nil {
			t.Fatal(err)
		}
		img := imageOf(t, tarOf(t, file("f", body)))
		if err := remote.Write(ref, img); err != nil {
			t.Fatal(err)
		}
		d, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d.String()
	}
	s := newStore(t)
	ctx := t.Context()
	if _, err := s.Ensure(ctx, host+"/app:1", PullNever); !errors.Is(err, ErrNotPresent) {
		t.Fatalf("error %v, want ErrNotPresent", err)
	}
	if _, err := s.Ensure(ctx, host+"/missing:1", PullIfNotPresent); err == nil {
		t.Fatal("a missing image was pulled")
	}
	first := push("one")
	img, err := s.Ensure(ctx, host+"/app:1", PullIfNotPresent)
	if err != nil {
		t.Fatal(err)
	}
	if img.Digest != first {
		t.Fatalf("digest %s, want %s", img.Digest, first)
	}
	second := push("two")
	if img, err = s.Ensure(ctx, host+"/app:1", PullIfNotPresent); err != nil || img.Digest != first {
		t.Fatalf("IfNotPresent gave %v, %v", img, err)
	}
	if img, err = s.Ensure(ctx, host+"/app:1", PullAlways); err != nil || img.Digest != second {
		t.Fatalf("Always gave %v, %v", img, err)
	}
	if img, err = s.Ensure(ctx, host+"/app@"+second, PullNever); err != nil || img.Digest != second {
		t.Fatalf("by digest: %v, %v", img, err)
	}
	if n, err := s.Prune(ctx, nil); err != nil || n != 1 {
		t.Fatalf("pruned %d layers, %v; want the one that nothing names", n, err)
	}
	if _, err := s.Ensure(ctx, "UPPER CASE", PullAlways); !errors.Is(err, ErrInvalidReference) {
		t.Fatalf("error %v, want ErrInvalidReference", err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Ensure(cancelled, host+"/app:1", PullAlways); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v, want Canceled", err)
	}
}

func TestImportDirRemembersAcrossProcesses(t *testing.T) {
	requireRoot(t)
	s := newStore(t)
	good := layoutTar(t, "demo:1", imageOf(t, tarOf(t, file("f", "1"))))
	for base, data := range map[string][]byte{"good.tar": good, "bad.tar": good[:700]} {
		if err := os.WriteFile(filepath.Join(s.cfg.Dir, base), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refs, err := s.ImportDir(t.Context())
	if err == nil || !strings.Contains(err.Error(), "bad.tar") || len(refs) != 1 {
		t.Fatalf("refs %v, error %v", refs, err)
	}
	again, err := Open(s.cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if refs, err := again.ImportDir(t.Context()); err != nil || len(refs) != 0 {
		t.Fatalf("second pass: %v, %v", refs, err)
	}
	if _, err := again.Lookup("demo:1"); err != nil {
		t.Fatal(err)
	}
	// What another process changes is seen here.
	if err := again.Remove("demo:1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lookup("demo:1"); !errors.Is(err, ErrNotPresent) {
		t.Fatalf("error %v, want ErrNotPresent", err)
	}
}

func TestOpenRemovesAbandonedStaging(t *testing.T) {
	s := newStore(t)
	live, err := s.stage()
	if err != nil {
		t.Fatal(err)
	}
	defer live.close()
	dead := filepath.Join(s.cfg.Dir, "tmp", "stage-dead")
	if err := os.Mkdir(dead, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(s.cfg.Dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("abandoned staging is still there: %v", err)
	}
	if _, err := os.Stat(live.dir); err != nil {
		t.Errorf("staging in use was removed: %v", err)
	}
}
