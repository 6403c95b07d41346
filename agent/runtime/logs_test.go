package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLogOptions(t *testing.T) {
	r := newRuntime(t)
	start(t, r, guest("a", "lines", "5"))
	waitExit(t, r, "a")
	line := func(i int) string { return fmt.Sprintf("line %06d %s\n", i, strings.Repeat("x", 80)) }
	n := func(n int64) *int64 { return &n }
	for name, test := range map[string]struct {
		o    LogOptions
		want string
	}{
		"all":         {LogOptions{}, line(0) + line(1) + line(2) + line(3) + line(4)},
		"follow":      {LogOptions{Follow: true, TailLines: n(1)}, line(4)},
		"tail":        {LogOptions{TailLines: n(2)}, line(3) + line(4)},
		"tail none":   {LogOptions{TailLines: n(0)}, ""},
		"tail many":   {LogOptions{TailLines: n(100)}, line(0) + line(1) + line(2) + line(3) + line(4)},
		"limit":       {LogOptions{LimitBytes: 10}, line(0)[:10]},
		"since later": {LogOptions{SinceTime: time.Now().Add(time.Hour)}, ""},
		"since":       {LogOptions{SinceTime: time.Now().Add(-time.Hour), TailLines: n(1)}, line(4)},
	} {
		if got := readLog(t, r, "a", test.o); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	stamp, _, _ := strings.Cut(readLog(t, r, "a", LogOptions{Timestamps: true, TailLines: n(1)}), " ")
	if at, err := time.Parse(time.RFC3339Nano, stamp); err != nil || time.Since(at) > time.Minute {
		t.Errorf("%q %v", stamp, err)
	}
	for _, o := range []LogOptions{{Previous: true}, {Attempt: new(int)}} {
		_, err := r.Logs(testContext(t), "uid-1", "a", o)
		if o.Previous != errors.Is(err, ErrNotFound) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := r.Logs(testContext(t), "uid-9", "a", LogOptions{}); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

func TestLogRotation(t *testing.T) {
	c := testConfig(t)
	c.LogMaxBytes, c.LogMaxFiles = 64<<10, 3
	r := openRuntime(t, c)
	createPod(t, r)
	const lines = 5000 // about 600 kB
	start(t, r, guest("a", "lines", fmt.Sprint(lines)))
	l, err := r.Logs(testContext(t), "uid-1", "a", LogOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b, err := io.ReadAll(l)
	if err != nil {
		t.Fatal(err)
	}
	waitExit(t, r, "a")
	// A follower may lose files that were removed before it got to them, but
	// never a line in the middle of a file, and never the end.
	if !bytes.HasSuffix(b, fmt.Appendf(nil, "line %06d %s\n", lines-1, strings.Repeat("x", 80))) {
		t.Errorf("the end is missing: %q", b[max(0, len(b)-200):])
	}
	last := -1
	for line := range strings.Lines(string(b)) {
		var i int
		if _, err := fmt.Sscanf(line, "line %d", &i); err != nil || i <= last {
			t.Fatalf("line %d after %d: %q %v", i, last, line, err)
		}
		last = i
	}
	files, err := filepath.Glob(filepath.Join(c.DataDir, "logs", "default_web_uid-1", "a", "*"))
	if err != nil || len(files) != c.LogMaxFiles {
		t.Errorf("%v %v", files, err)
	}
	for _, f := range files {
		if st, err := os.Stat(f); err != nil || st.Size() > c.LogMaxBytes {
			t.Errorf("%s: %v %v", f, st.Size(), err)
		}
	}
	n := int64(900) // reaches into a rotated file
	got := readLog(t, r, "a", LogOptions{TailLines: &n})
	if !strings.HasPrefix(got, fmt.Sprintf("line %06d ", lines-n)) || strings.Count(got, "\n") != int(n) {
		t.Errorf("tail over files: %d lines, %q", strings.Count(got, "\n"), got[:min(40, len(got))])
	}
}

func TestFollowEndsWithContext(t *testing.T) {
	r := newRuntime(t)
	start(t, r, guest("a", "sleep"))
	ctx, cancel := context.WithCancel(context.Background())
	l, err := r.Logs(ctx, "uid-1", "a", LogOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() { _, err := io.ReadAll(l); done <- err }()
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the reader waits still")
	}
}

func TestExec(t *testing.T) {
	r := newRuntime(t)
	c := guest("a", "sleep")
	c.User, c.Env = "web", []string{"A=1"}
	start(t, r, c)
	awaitLine(t, r, "a", "ready")
	var out, errOut bytes.Buffer
	run := func(e ExecConfig) int {
		t.Helper()
		out.Reset()
		errOut.Reset()
		e.Stdout, e.Stderr = &out, &errOut
		code, err := r.Exec(testContext(t), "uid-1", "a", e)
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	if code := run(ExecConfig{Args: []string{"/guest", "exit", "9"}}); code != 9 {
		t.Errorf("code %d", code)
	}
	if run(ExecConfig{Args: []string{"/guest", "id"}}); !strings.HasPrefix(out.String(), "uid=1000 gid=1001 groups=[1002] cwd=/ host=web-host") {
		t.Errorf("%q", out.String())
	}
	if run(ExecConfig{Args: []string{"/guest", "try"}, User: "0"}); !strings.Contains(out.String(), "Seccomp:\t2") || !strings.Contains(out.String(), "mount: operation not permitted") {
		t.Errorf("%q", out.String())
	}
	big := strings.Repeat("0123456789abcdef", 1<<15)
	if run(ExecConfig{Args: []string{"/guest", "copy"}, Stdin: strings.NewReader(big)}); out.String() != big || errOut.String() != fmt.Sprintln("copied", len(big)) {
		t.Errorf("%d bytes, %q", out.Len(), errOut.String())
	}
	if run(ExecConfig{Args: []string{"/guest", "echo", "tty"}, TTY: true}); out.String() != "tty\r\n" {
		t.Errorf("%q", out.String())
	}
	var se *StartError
	if _, err := r.Exec(testContext(t), "uid-1", "a", ExecConfig{Args: []string{"/nope"}}); !errors.As(err, &se) {
		t.Errorf("%v", err)
	}
	if _, err := r.Exec(testContext(t), "uid-1", "b", ExecConfig{Args: []string{"/nope"}}); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	// The end of the caller's interest is the end of the process.
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	started := make(chan struct{})
	go func() {
		_, err := r.Exec(ctx, "uid-1", "a", ExecConfig{Args: []string{"/guest", "sleep"}, Stdout: notify(started)})
		done <- err
	}()
	<-started
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// notify is a writer that tells of its first write.
type notify chan struct{}

func (n notify) Write(p []byte) (int, error) { close(n); return len(p), nil }

func TestTerminal(t *testing.T) {
	r := newRuntime(t)
	c := guest("a", "env")
	c.TTY = true
	if got := output(t, r, c); !strings.Contains(got, "TERM=xterm\r\n") {
		t.Errorf("%q", got)
	}
}
