package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Passthrough copies TCP connections between a local address and any live
// server, byte for byte: TLS and credentials are the client's own.
type Passthrough struct {
	pool *Pool
	ln   net.Listener
}

// Listen opens the local address.
func (p *Pool) Listen(addr string) (*Passthrough, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("local pass-through: %w", err)
	}
	return &Passthrough{pool: p, ln: ln}, nil
}

// Addr is where it listens.
func (t *Passthrough) Addr() net.Addr { return t.ln.Addr() }

// Run serves until ctx ends and returns when the last connection is closed.
func (t *Passthrough) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { t.ln.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := t.ln.Accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			var temporary interface{ Temporary() bool }
			if !errors.As(err, &temporary) || !temporary.Temporary() {
				return fmt.Errorf("local pass-through: %w", err)
			}
			select { // out of descriptors, most likely
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		wg.Go(func() { t.serve(ctx, conn) })
	}
}

func (t *Passthrough) serve(ctx context.Context, client net.Conn) {
	defer client.Close()
	server, err := t.pool.DialAny(ctx)
	if err != nil {
		t.pool.logger.Warn("local pass-through", "error", err)
		return
	}
	defer server.Close()
	stop := context.AfterFunc(ctx, func() { client.Close(); server.Close() })
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { copyHalf(server, client) })
	wg.Go(func() { copyHalf(client, server) })
	wg.Wait()
}

// copyHalf copies one direction. Its end is passed on, so that a client that
// has said all it wants still gets the answer; a broken side ends both.
func copyHalf(dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	if half, ok := dst.(interface{ CloseWrite() error }); ok && err == nil && half.CloseWrite() == nil {
		return
	}
	dst.Close()
	src.Close()
}
