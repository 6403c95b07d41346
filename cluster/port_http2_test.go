package cluster

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/shepherd-project/shepherd/cluster/pki"
)

// heldConn counts its Writes, which wait until they may go on.
type heldConn struct {
	net.Conn
	mayGo chan struct{} // closed, or one for each Write

	mu     sync.Mutex
	writes [][]byte
	fails  error
}

func (c *heldConn) ConnectionState() tls.ConnectionState { return tls.ConnectionState{} }

func (c *heldConn) Write(p []byte) (int, error) {
	<-c.mayGo
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fails != nil {
		return 0, c.fails
	}
	c.writes = append(c.writes, bytes.Clone(p))
	return len(p), nil
}

func (c *heldConn) SetWriteDeadline(time.Time) error { return nil }
func (c *heldConn) Close() error                     { return nil }

func (c *heldConn) written() (count int, all []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.writes), bytes.Join(c.writes, nil)
}

// TestGatheredWritesLeaveTogether: what comes while a Write is under way is one
// Write, in order; Close waits for it; and there is a bound on what may wait.
func TestGatheredWritesLeaveTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		held := &heldConn{mayGo: make(chan struct{})}
		c := newGatherConn(held)
		write := func(p []byte) {
			if n, err := c.Write(p); n != len(p) || err != nil {
				t.Errorf("%d of %d bytes: %v", n, len(p), err)
			}
		}
		write([]byte("a"))
		synctest.Wait() // the first one is being sent
		write([]byte("b"))
		write([]byte("c"))
		large := bytes.Repeat([]byte("d"), maxGathered)
		write(large)
		var blocked sync.WaitGroup
		blocked.Go(func() { write([]byte("e")) })
		synctest.Wait()
		if n, _ := held.written(); n != 0 {
			t.Fatalf("%d writes went through", n)
		}
		held.mayGo <- struct{}{}
		blocked.Wait() // there is room once the second one is being sent
		closed := make(chan error)
		go func() { closed <- c.Close() }()
		synctest.Wait()
		select {
		case <-closed:
			t.Fatal("closed before all was sent")
		default:
		}
		close(held.mayGo)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		n, all := held.written()
		if want := append(append([]byte("abc"), large...), 'e'); n != 3 || !bytes.Equal(all, want) {
			t.Errorf("%d writes of %d bytes together, want 3 of %d", n, len(all), len(want))
		}
		if _, err := c.Write([]byte("f")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write after the end: %v", err)
		}
	})
}

// TestGatheredWriteFailsLater: the error of sending is that of the next Write.
func TestGatheredWriteFailsLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		held := &heldConn{mayGo: make(chan struct{}), fails: io.ErrShortWrite}
		close(held.mayGo)
		c := newGatherConn(held)
		if _, err := c.Write([]byte("a")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := c.Write([]byte("b")); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("got %v", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestHTTP2OnThePort: a client of the API speaks HTTP/2 and is known by its
// certificate, its answers are whole, small and large ones, and the server
// ends in order while one of them is being sent.
func TestHTTP2OnThePort(t *testing.T) {
	t.Parallel()
	creds := newCredentials(t)
	port := creds.port(nil)
	large := bytes.Repeat([]byte("large"), 1<<18)
	begun, goOn := make(chan struct{}), make(chan struct{})
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.ProtoMajor != 2 || r.TLS == nil || len(r.TLS.PeerCertificates) == 0:
			http.Error(w, "who are you", http.StatusForbidden)
		case r.URL.Path == "/large":
			_, _ = w.Write(large[:len(large)/2])
			close(begun)
			<-goOn
			_, _ = w.Write(large[len(large)/2:])
		default:
			_, _ = w.Write([]byte("small"))
		}
	})}
	if err := ServeHTTP2(srv, &http2.Server{}); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(port.API()) }()

	cfg := pki.NewVerifier(creds.ca, creds.now).ClientConfig(creds.source(pki.RoleAdmin, pki.AdminUser, 0, creds.now()))
	transport := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	get := func(path string) []byte {
		resp, err := client.Get("https://" + port.Addr().String() + path)
		if err != nil {
			t.Error(err)
			return nil
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s, %v", path, resp.Status, err)
		}
		return body
	}
	for range 10 {
		if got := get("/"); string(got) != "small" {
			t.Fatalf("got %q", got)
		}
	}
	answer := make(chan []byte)
	go func() { answer <- get("/large") }()
	<-begun
	stopped := make(chan error, 1)
	go func() { stopped <- srv.Shutdown(t.Context()) }()
	close(goOn)
	if got := <-answer; !bytes.Equal(got, large) {
		t.Errorf("%d bytes, want %d", len(got), len(large))
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}
