package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/yamux"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shepherd-project/shepherd/agent/runtime"
	"github.com/shepherd-project/shepherd/agent/upstream"
	"github.com/shepherd-project/shepherd/api/wire"
)

// agentServer is a TLS server that speaks the agents' protocol and hands out
// their sessions.
func agentServer(t *testing.T) (addr string, roots *x509.CertPool, sessions <-chan *yamux.Session) {
	t.Helper()
	tmp := httptest.NewTLSServer(nil)
	cert := tmp.TLS.Certificates[0]
	roots = x509.NewCertPool()
	roots.AddCert(tmp.Certificate())
	tmp.Close()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{wire.ProtoAgent}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	ch := make(chan *yamux.Session, 4)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			config := yamux.DefaultConfig()
			config.LogOutput = io.Discard
			s, err := yamux.Client(conn, config)
			if err != nil {
				continue
			}
			ch <- s
		}
	}()
	return ln.Addr().String(), roots, ch
}

func testPool(t *testing.T, roots *x509.CertPool, addrs ...string) *upstream.Pool {
	t.Helper()
	cfg := upstream.DefaultConfig()
	cfg.Seeds = addrs
	cfg.TLS = func() (*tls.Config, error) { return &tls.Config{RootCAs: roots}, nil }
	p, err := upstream.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// fixedLogs has the log of one container.
type fixedLogs struct{}

func (fixedLogs) Logs(_ context.Context, uid, container string, o runtime.LogOptions) (io.ReadCloser, error) {
	if uid != "u1" || container != "c" || o.Previous {
		return nil, runtime.ErrNotFound
	}
	return io.NopCloser(strings.NewReader(fmt.Sprintf("line follow=%v tail=%d\n", o.Follow, *o.TailLines))), nil
}

func TestLogsOverAStream(t *testing.T) {
	addr, roots, sessions := agentServer(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u1"}}
	logs := &logServer{runtime: fixedLogs{}, logger: hclog.NewNullLogger(), find: func(uid string) *corev1.Pod {
		if uid == "u1" {
			return pod
		}
		return nil
	}}
	s := &streams{pool: testPool(t, roots, addr), handler: logs.handler(), logger: hclog.NewNullLogger()}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.run(ctx) }()

	session := <-sessions
	get := func(path string) (int, string) {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(context.Context, string, string) (net.Conn, error) { return session.Open() }}}
		resp, err := client.Get("http://node" + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, strings.TrimSpace(string(body))
	}
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/containerLogs/ns/web/c?podUID=u1&follow=true&tailLines=5":   {200, "line follow=true tail=5"},
		"/containerLogs/ns/web/d?podUID=u1":                           {400, `container "d" in pod "web" is waiting to start: ContainerCreating`},
		"/containerLogs/ns/web/c?podUID=u1&previous=true":             {400, `previous terminated container "c" in pod "web" not found`},
		"/containerLogs/ns/other/c?podUID=u1":                         {404, "the pod has another name"},
		"/containerLogs/ns/web/c?podUID=u2":                           {404, `pod "web" is not on this node`},
		"/containerLogs/ns/web/c?podUID=u1&tailLines=many&follow=yes": {400, ""},
		"/containerLogs/ns/web/c":                                     {400, ""},
	} {
		code, text := get(path)
		if code != want.code || want.text != "" && text != want.text {
			t.Errorf("%s: %d %q", path, code, text)
		}
	}
	session.Close() // the server is restarted: the agent comes back
	again := <-sessions
	cancel()
	<-done
	again.Close()
}

// A heartbeat that the first server swallows is acknowledged by the second,
// and the lease runs from before it was sent.
func TestHeartbeatFailsOver(t *testing.T) {
	var swallowed, beats atomic.Int64
	stop := make(chan struct{})
	handler := func(swallow bool) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			data, _ := io.ReadAll(r.Body)
			if swallow {
				swallowed.Add(1)
				select {
				case <-stop:
				case <-r.Context().Done():
				}
				return
			}
			beats.Add(1)
			w.Write(data) // the sequence comes back
		})
	}
	roots := x509.NewCertPool()
	var addrs []string
	for _, swallow := range []bool{true, false} {
		srv := httptest.NewUnstartedServer(handler(swallow))
		srv.EnableHTTP2 = true
		srv.StartTLS()
		defer srv.Close()
		defer srv.CloseClientConnections()
		roots.AddCert(srv.Certificate())
		addrs = append(addrs, srv.Listener.Addr().String())
	}
	defer close(stop)
	cfg := upstream.DefaultConfig()
	cfg.Seeds, cfg.HeaderTimeout = addrs, 200*time.Millisecond
	cfg.TLS = func() (*tls.Config, error) { return &tls.Config{RootCAs: roots}, nil }
	pool, err := upstream.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	transport := pool.NewTransport()
	defer transport.CloseIdleConnections()
	acked := make(chan struct{}, 16)
	h := &heartbeat{transport: transport, interval: 50 * time.Millisecond, logger: hclog.NewNullLogger(), acked: func() { kick(acked) }}
	h.interval = time.Second
	before, err := bootTime()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); h.run(ctx) }()
	<-acked
	lease := time.Duration(h.lease.Load())
	after, err := bootTime()
	if err != nil {
		t.Fatal(err)
	}
	if lease < before || lease > after-cfg.HeaderTimeout {
		t.Errorf("the lease runs from %v, the heartbeat was first sent at %v and acknowledged at %v", lease, before, after)
	}
	cancel()
	<-done
	if swallowed.Load() != 1 || beats.Load() != 1 {
		t.Errorf("%d swallowed, %d answered", swallowed.Load(), beats.Load())
	}
}
