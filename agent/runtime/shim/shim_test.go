package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

// TestLean: every pod pays for what the shim links.
func TestLean(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "../../../cmd/shepherd-shim").Output()
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range strings.FieldsSeq(string(out)) {
		host, _, _ := strings.Cut(pkg, "/")
		ours := strings.HasPrefix(pkg, "github.com/shepherd-project/shepherd/agent/runtime/") ||
			pkg == "github.com/shepherd-project/shepherd/cmd/shepherd-shim" || strings.HasPrefix(pkg, "golang.org/x/sys/")
		if strings.Contains(host, ".") && !ours || pkg == "net" || pkg == "net/http" || pkg == "os/exec" {
			t.Errorf("the shim links %s", pkg)
		}
	}
}

func TestFrames(t *testing.T) {
	var b bytes.Buffer
	want := Frame{Type: TypeStdout, ID: 1<<63 + 5, Payload: []byte("bytes")}
	if err := WriteFrame(&b, want); err != nil {
		t.Fatal(err)
	}
	if err := WriteJSON(&b, TypeStop, 2, StopRequest{Name: "a", Grace: 7}); err != nil {
		t.Fatal(err)
	}
	encoded := bytes.Clone(b.Bytes())
	r := iotest.OneByteReader(&b)
	f, err := ReadFrame(r)
	if err != nil || f.Type != want.Type || f.ID != want.ID || string(f.Payload) != "bytes" {
		t.Errorf("%+v %v", f, err)
	}
	f, err = ReadFrame(r)
	var s StopRequest
	if err != nil || f.Decode(&s) != nil || s.Name != "a" || s.Grace != 7 {
		t.Errorf("%+v %v", s, err)
	}
	if _, err := ReadFrame(r); err != io.EOF {
		t.Error(err)
	}
	if _, err := ReadFrame(bytes.NewReader(encoded[:18])); err != io.ErrUnexpectedEOF {
		t.Error(err)
	}
	encoded[4] = 9
	if _, err := ReadFrame(bytes.NewReader(encoded)); !errors.Is(err, ErrVersion) {
		t.Error(err)
	}
	encoded[0], encoded[4] = 0xff, Version
	if _, err := ReadFrame(bytes.NewReader(encoded)); err == nil {
		t.Error("a frame of 4 GB was accepted")
	}
	if err := WriteFrame(io.Discard, Frame{Payload: make([]byte, MaxPayload+1)}); err == nil {
		t.Error("a frame that nobody reads was written")
	}
}

func FuzzReadFrame(f *testing.F) {
	var b bytes.Buffer
	if err := WriteFrame(&b, Frame{Type: TypeReply, ID: 3, Payload: []byte("{}")}); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, in []byte) {
		fr, err := ReadFrame(bytes.NewReader(in))
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := WriteFrame(&out, fr); err != nil {
			t.Fatal(err)
		}
		again, err := ReadFrame(&out)
		if err != nil || again.Type != fr.Type || again.ID != fr.ID || !bytes.Equal(again.Payload, fr.Payload) {
			t.Errorf("%+v %+v %v", fr, again, err)
		}
	})
}

func texts(t *testing.T, path string) (out []string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		out = append(out, strings.Join(f[1:], " "))
	}
	return out
}

func TestLogLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	l, err := openLog(path, 1<<20, 3)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("y", maxLine+10)
	copyLines(l, "stdout", iotest.OneByteReader(strings.NewReader("one\n\ntwo")))
	copyLines(l, "stderr", strings.NewReader(long+"\n"))
	if d := l.close(); d != 0 {
		t.Errorf("dropped %d", d)
	}
	want := []string{"stdout F one", "stdout F ", "stdout P two", "stderr P " + long[:maxLine], "stderr F " + long[maxLine:]}
	if got := texts(t, path); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%.300q", got)
	}
}

func TestLogRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	l, err := openLog(path, 4096, 3)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		copyLines(l, "stdout", strings.NewReader(fmt.Sprintf("line %d\n", i)))
	}
	l.close()
	rotated, err := RotatedLogs(path)
	if err != nil || len(rotated) != 2 || rotated[1] != rotated[0]+1 {
		t.Fatalf("%v %v", rotated, err)
	}
	var all []string
	for _, p := range []string{RotatedLog(path, rotated[0]), RotatedLog(path, rotated[1]), path} {
		if st, err := os.Stat(p); err != nil || st.Size() > 4096 {
			t.Errorf("%s: %v", p, err)
		}
		all = append(all, texts(t, p)...)
	}
	for i, text := range all {
		if want := fmt.Sprintf("stdout F line %d", 1000-len(all)+i); text != want {
			t.Fatalf("%q, want %q", text, want)
		}
	}
	// Another shim goes on with the numbers.
	if l, err = openLog(path, 4096, 3); err != nil || l.next != rotated[1]+1 {
		t.Errorf("next %d %v", l.next, err)
	}
	l.close()
}

func TestLogWithoutSpace(t *testing.T) {
	dir := t.TempDir()
	l, err := openLog(filepath.Join(dir, "0.log"), 4096, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.f.Close(); err != nil { // writing fails from now on
		t.Fatal(err)
	}
	copyLines(l, "stdout", strings.NewReader("lost\n"))
	if d := l.close(); d == 0 {
		t.Error("nobody noticed")
	}
}

func TestRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	start, err := StartTime(os.Getpid())
	if err != nil || start == 0 {
		t.Fatal(start, err)
	}
	want := Record{Version: Version, UID: "u", PID: 7, StartTime: start}
	if err := WriteRecord(path, want); err != nil {
		t.Fatal(err)
	}
	var got Record
	if err := ReadRecord(path, &got); err != nil || got != want {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := os.Stat(path + ".tmp"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the temporary file is left")
	}
	if err := WriteRecord(filepath.Join(path, "x"), want); err == nil {
		t.Error("written below a file")
	}
}

func TestLookupUser(t *testing.T) {
	files := map[string]string{
		"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nbad:x:-1:0::/:\nshort:x\nweb:x:10:20:web:/w:/bin/sh\n",
		"/etc/group":  "root:x:0:\nextra:x:30:a,web\nmore:x:4294967295:web\n",
	}
	read := func(p string, _ int64) ([]byte, error) {
		if f, ok := files[p]; ok {
			return []byte(f), nil
		}
		return nil, fs.ErrNotExist
	}
	for spec, want := range map[string]string{
		"": "{0 0 [] /root}", "root": "{0 0 [] /root}", "web": "{10 20 [30] /w}", "10": "{10 20 [30] /w}", "web:extra": "{10 30 [] /w}",
		"77": "{77 0 [] /}", "77:88": "{77 88 [] /}",
		"bad": "error", "nobody": "error", "web:none": "error", "web:more": "error", "4294967295": "error", "-1": "error",
	} {
		id, err := lookupUser(read, spec, nil)
		got := fmt.Sprint(id)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: %s (%v), want %s", spec, got, err, want)
		}
	}
	files = nil
	if id, err := lookupUser(read, "5:6", []uint32{9, 9, 8}); err != nil || fmt.Sprint(id) != "{5 6 [8 9] /}" {
		t.Errorf("%+v %v", id, err)
	}
}
