package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/shepherd-project/shepherd/agent/runtime/shim"
	"golang.org/x/sys/unix"
)

// client is one connection to a shim. Requests may run side by side.
type client struct {
	conn  net.Conn
	event func(shim.Status)   // event and state are called from one goroutine, in order
	state func([]shim.Status) // all containers, when the shim was greeted
	done  chan struct{}       // closed when the connection has ended

	wmu sync.Mutex

	mu      sync.Mutex
	pending map[uint64]chan shim.Reply
	next    uint64
	ended   bool
}

func newClient(conn net.Conn, event func(shim.Status), state func([]shim.Status)) *client {
	return &client{conn: conn, event: event, state: state, done: make(chan struct{}), pending: map[uint64]chan shim.Reply{}}
}

// dialShim connects to the shim of the pod directory dir. A directory
// descriptor keeps the path under the kernel's 108 bytes.
func dialShim(ctx context.Context, dir string) (net.Conn, error) {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("connect to shim: %w", err)
	}
	defer d.Close()
	var nd net.Dialer
	conn, err := nd.DialContext(ctx, "unix", filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), shim.SocketName))
	if err != nil {
		return nil, fmt.Errorf("connect to shim: %w", err)
	}
	return conn, nil
}

// read serves the connection until it ends.
func (c *client) read() {
	defer close(c.done)
	for {
		f, err := shim.ReadFrame(c.conn)
		if err != nil {
			c.end()
			return
		}
		switch f.Type {
		case shim.TypeEvent:
			var s shim.Status
			if f.Decode(&s) == nil {
				c.event(s)
			}
		case shim.TypeReply:
			var r shim.Reply
			if err := f.Decode(&r); err != nil {
				r.Error = &shim.Error{Code: shim.CodeInternal, Message: err.Error()}
			}
			if r.Pod != nil {
				c.state(r.Containers)
			}
			c.mu.Lock()
			ch := c.pending[f.ID]
			delete(c.pending, f.ID)
			c.mu.Unlock()
			if ch != nil {
				ch <- r
			}
		}
	}
}

func (c *client) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for _, ch := range c.pending {
		close(ch)
	}
	c.pending = nil
	_ = c.conn.Close() // nothing unsent is owed to anyone
}

// errShimGone: the connection ended before the answer came.
var errShimGone = errors.New("the shim is gone")

// call sends a request and waits for its answer. An answer with an error is
// returned as that error.
func (c *client) call(ctx context.Context, t shim.Type, request any) (shim.Reply, error) {
	ch := make(chan shim.Reply, 1)
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return shim.Reply{}, errShimGone
	}
	c.next++
	id := c.next
	c.pending[id] = ch
	c.mu.Unlock()

	c.wmu.Lock()
	err := shim.WriteJSON(c.conn, t, id, request)
	c.wmu.Unlock()
	if err != nil {
		c.forget(id)
		return shim.Reply{}, fmt.Errorf("%w: %w", errShimGone, err)
	}
	select {
	case r, ok := <-ch:
		if !ok {
			return shim.Reply{}, errShimGone
		}
		if r.Error != nil {
			return r, shimError(r.Error)
		}
		return r, nil
	case <-ctx.Done():
		c.forget(id)
		return shim.Reply{}, ctx.Err()
	}
}

func (c *client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

// shimError gives a shim's error this package's sentinel.
func shimError(e *shim.Error) error {
	switch {
	case e.Step != nil:
		return e.Step
	case e.Code == shim.CodeExists:
		return fmt.Errorf("%w: %s", ErrExists, e.Message)
	case e.Code == shim.CodeNotFound:
		return fmt.Errorf("%w: %s", ErrNotFound, e.Message)
	case e.Code == shim.CodeNotRunning:
		return fmt.Errorf("%w: %s", ErrNotRunning, e.Message)
	}
	return e
}

var _ io.Closer = (*client)(nil)

// Close ends the connection; the shim goes on.
func (c *client) Close() error { return c.conn.Close() }
