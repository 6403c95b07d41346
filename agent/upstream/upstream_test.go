package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// server is a real TLS server behind a relay that can go silent: it stays
// connected and passes nothing on, as a network that drops packets does.
type server struct {
	*httptest.Server
	addr   string // the relay's
	silent atomic.Bool
	hits   atomic.Int64
	wake   chan struct{}
}

func newServer(t *testing.T, handler http.Handler) *server {
	t.Helper()
	s := &server{wake: make(chan struct{})}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.hits.Add(1)
		handler.ServeHTTP(w, r)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = ln.Addr().String()
	var wg sync.WaitGroup
	t.Cleanup(func() { ln.Close(); s.CloseClientConnections(); s.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { s.relay(c) })
		}
	})
	return s
}

func (s *server) relay(client net.Conn) {
	defer client.Close()
	up, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		return
	}
	defer up.Close()
	var wg sync.WaitGroup
	pipe := func(dst, src net.Conn) {
		defer dst.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := src.Read(buf)
			if n > 0 && !s.silent.Load() {
				dst.Write(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}
	wg.Go(func() { pipe(up, client) })
	wg.Go(func() { pipe(client, up) })
	wg.Wait()
}

func newPool(t *testing.T, path string, servers ...*server) *Pool {
	t.Helper()
	roots := x509.NewCertPool()
	cfg := DefaultConfig()
	cfg.Path = path
	for _, s := range servers {
		roots.AddCert(s.Certificate())
		cfg.Seeds = append(cfg.Seeds, s.addr)
	}
	cfg.PingInterval, cfg.PingTimeout, cfg.HeaderTimeout = 200*time.Millisecond, 300*time.Millisecond, time.Second
	cfg.DialTimeout = 500 * time.Millisecond
	cfg.TLS = func() (*tls.Config, error) { return &tls.Config{RootCAs: roots}, nil }
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func named(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, name)
	})
}

func do(ctx context.Context, t *testing.T, tr *Transport, method, body string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "https://"+Host+"/x", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func closeIdle(t *testing.T, tr *Transport) { t.Cleanup(tr.CloseIdleConnections) }

func TestMovesOffADeadServer(t *testing.T) {
	a, b := newServer(t, named("a")), newServer(t, named("b"))
	p := newPool(t, "", a, b)
	tr := p.NewTransport()
	closeIdle(t, tr)
	if got, err := do(t.Context(), t, tr, "GET", ""); err != nil || got != "a" {
		t.Fatalf("got %q, %v", got, err)
	}
	a.CloseClientConnections()
	a.Close()
	for range 3 {
		if got, err := do(t.Context(), t, tr, "GET", ""); err != nil || got != "b" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	if p.Current() != b.addr {
		t.Errorf("current server is %s", p.Current())
	}
}

// A stream on a server that goes silent breaks within the two ping times, and
// requests that are waiting for it are answered by the other server.
func TestMovesOffASilentServer(t *testing.T) {
	stop := make(chan struct{})
	stream := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/watch" {
			fmt.Fprint(w, "a")
			return
		}
		fmt.Fprintln(w, "first")
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
		case <-stop:
		}
	})
	a, b := newServer(t, stream), newServer(t, named("b"))
	defer close(stop)
	p := newPool(t, "", a, b)
	tr := p.NewTransport()
	closeIdle(t, tr)
	req, _ := http.NewRequestWithContext(t.Context(), "GET", "https://"+Host+"/watch", nil)
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	if line, err := r.ReadString('\n'); err != nil || line != "first\n" {
		t.Fatalf("%q, %v", line, err)
	}
	a.silent.Store(true)
	start := time.Now()
	if _, err := do(WithRetry(t.Context()), t, tr, "POST", "beat"); err != nil {
		t.Fatalf("heartbeat: %v", err)
	}
	if _, err := r.ReadString('\n'); err == nil {
		t.Fatal("the stream of a silent server went on")
	}
	if d := time.Since(start); d > 3*time.Second {
		t.Errorf("took %v", d)
	}
	if p.Current() != b.addr {
		t.Errorf("current server is %s", p.Current())
	}
}

// A server whose machine does not even answer the SYN costs one dial timeout.
func TestDialTimeout(t *testing.T) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	full := fmt.Sprintf("127.0.0.1:%d", sa.(*syscall.SockaddrInet4).Port)
	for { // until its queue is full and further connects are dropped
		c, err := net.DialTimeout("tcp", full, 100*time.Millisecond)
		if err != nil {
			break
		}
		defer c.Close()
	}
	b := newServer(t, named("b"))
	p := newPool(t, "", &server{Server: b.Server, addr: full}, b)
	tr := p.NewTransport()
	closeIdle(t, tr)
	start := time.Now()
	if got, err := do(t.Context(), t, tr, "POST", "write"); err != nil || got != "b" {
		t.Fatalf("got %q, %v", got, err)
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("took %v", d)
	}
}

func TestWhatIsSentTwice(t *testing.T) {
	broken := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	for _, c := range []struct {
		method string
		marked bool
		moved  bool
	}{{"GET", false, true}, {"POST", false, false}, {"POST", true, true}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			a, b := newServer(t, broken), newServer(t, named("b"))
			p := newPool(t, "", a, b)
			tr := p.NewTransport()
			closeIdle(t, tr)
			ctx := t.Context()
			if c.marked {
				ctx = WithRetry(ctx)
			}
			got, err := do(ctx, t, tr, c.method, "body")
			if err != nil || (got == "b") != c.moved {
				t.Fatalf("got %q, %v", got, err)
			}
			if a.hits.Load() != 1 {
				t.Fatalf("%d requests at the first server", a.hits.Load())
			}
			// Either way the next request goes to the server that works.
			if got, err := do(t.Context(), t, tr, "POST", "body"); err != nil || got != "b" {
				t.Fatalf("next: %q, %v", got, err)
			}
		})
	}
}

func TestAllDown(t *testing.T) {
	a := newServer(t, named("a"))
	a.Close()
	p := newPool(t, "", a)
	tr := p.NewTransport()
	closeIdle(t, tr)
	if _, err := do(t.Context(), t, tr, "GET", ""); !errors.Is(err, ErrNoServer) {
		t.Fatalf("error %v, want ErrNoServer", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := do(ctx, t, tr, "GET", ""); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v, want Canceled", err)
	}
}

func TestListIsKept(t *testing.T) {
	a := newServer(t, named("a"))
	path := filepath.Join(t.TempDir(), "agent", "servers.json")
	p := newPool(t, path, a)
	first, changed := p.Servers()
	if !slices.Equal(first, []string{a.addr}) {
		t.Fatalf("servers %v", first)
	}
	want := []string{"10.0.0.1:9876", "10.0.0.2:9876"}
	if err := errors.Join(p.Update([]string{want[1], want[0], want[1]}), p.Update(nil)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	default:
		t.Error("the change was not announced")
	}
	again := newPool(t, path, a)
	if got, _ := again.Servers(); !slices.Equal(got, want) {
		t.Fatalf("servers %v, want %v", got, want)
	}
	if c := again.candidates(); len(c) != 3 || c[2] != a.addr {
		t.Errorf("candidates %v: the seed must come last", c)
	}
	if err := os.WriteFile(path, []byte("{broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _ := newPool(t, path, a).Servers(); !slices.Equal(got, []string{a.addr}) {
		t.Errorf("with a broken file: %v", got)
	}
}

func TestPassthrough(t *testing.T) {
	a, b := newServer(t, named("a")), newServer(t, named("b"))
	p := newPool(t, "", a, b)
	pt, err := p.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- pt.Run(ctx) }()
	get := func() string {
		roots := x509.NewCertPool()
		roots.AddCert(a.Certificate())
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}
		resp, err := (&http.Client{Transport: tr}).Get("https://" + pt.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return string(body)
	}
	if got := get(); got != "a" {
		t.Fatalf("got %q", got)
	}
	p.fail(a.addr, errors.New("test"))
	if got := get(); got != "b" {
		t.Fatalf("after a failure: %q", got)
	}
	held, err := net.Dial("tcp", pt.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
