package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// ServeHTTP2 makes an HTTP server serve HTTP/2 on the port's connections, and
// what is answered on one connection at about the same time leave it together.
// HTTP/2 itself sends the header of an answer before it asks for the body: that
// is a TLS record, a system call and a wake of the client for either, of which
// there are few bytes.
func ServeHTTP2(srv *http.Server, cfg *http2.Server) error {
	if err := http2.ConfigureServer(srv, cfg); err != nil {
		return fmt.Errorf("configure HTTP/2: %w", err)
	}
	srv.TLSNextProto[http2.NextProtoTLS] = func(hs *http.Server, conn *tls.Conn, h http.Handler) {
		var ctx context.Context
		if base, ok := h.(interface{ BaseContext() context.Context }); ok { // net/http's own way to pass it on
			ctx = base.BaseContext()
		}
		cfg.ServeConn(newGatherConn(conn), &http2.ServeConnOpts{Context: ctx, BaseConfig: hs, Handler: h})
	}
	return nil
}

const (
	// maxGathered is how many bytes may wait on one connection; a Write beyond
	// that waits itself.
	maxGathered = 64 << 10
	// gatherPatience is how long a connection that is closed may still take for
	// what was written before.
	gatherPatience = time.Second
)

// gatherConn is a connection whose Write returns before the bytes are sent:
// they leave with those that follow at once. An error of sending is that of
// the next Write. While nothing is to be sent it holds neither a goroutine nor
// a buffer. It is safe for concurrent use.
type gatherConn struct {
	secureConn
	settled sync.Cond // on mu: sending, or waiting has become less

	mu      sync.Mutex
	waiting *[]byte // not yet sent; nil: nothing
	sending bool    // a goroutine is in send
	err     error   // of sending, or net.ErrClosed
}

// secureConn is what HTTP/2 wants of a *tls.Conn.
type secureConn interface {
	net.Conn
	ConnectionState() tls.ConnectionState
}

// gatherBuffers are of at most maxGathered bytes and one Write.
var gatherBuffers = sync.Pool{New: func() any { return new([]byte) }}

func newGatherConn(conn secureConn) *gatherConn {
	c := &gatherConn{secureConn: conn}
	c.settled.L = &c.mu
	return c
}

// Write takes over all of p, or fails.
func (c *gatherConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && c.waiting != nil && len(*c.waiting) >= maxGathered {
		c.settled.Wait()
	}
	if c.err != nil {
		return 0, c.err
	}
	if c.waiting == nil {
		c.waiting = gatherBuffers.Get().(*[]byte)
	}
	*c.waiting = append(*c.waiting, p...)
	if !c.sending {
		c.sending = true
		go c.send()
	}
	return len(p), nil
}

// send sends until nothing waits.
func (c *gatherConn) send() {
	for {
		// Whoever else is about to write does so first.
		runtime.Gosched()
		c.mu.Lock()
		out := c.waiting
		c.waiting = nil
		c.sending = out != nil
		c.settled.Broadcast()
		c.mu.Unlock()
		if out == nil {
			return
		}
		_, err := c.secureConn.Write(*out)
		*out = (*out)[:0]
		gatherBuffers.Put(out)
		if err != nil {
			c.fail(err)
		}
	}
}

// fail makes all that follows fail.
func (c *gatherConn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.waiting = nil
	c.settled.Broadcast()
}

// Close sends what was written before, if the other side takes it soon, and
// closes the connection.
func (c *gatherConn) Close() error {
	c.mu.Lock()
	if c.err == nil {
		c.err = net.ErrClosed
	}
	if c.sending {
		if err := c.SetWriteDeadline(time.Now().Add(gatherPatience)); err != nil {
			c.waiting = nil // it is closed already
		}
	}
	for c.sending {
		c.settled.Wait()
	}
	c.mu.Unlock()
	return c.secureConn.Close()
}
