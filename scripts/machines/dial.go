package machines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Dial connects from the machine's network. The address must be numeric. The
// connection lives as long as both ends do, like any other of the machine.
func (m *Machine) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		// A socket belongs to the network namespace of the thread that makes
		// it. The thread ends with this goroutine, which never unlocks it.
		runtime.LockOSThread()
		conn, err := m.dialHere(ctx, network, address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

func (m *Machine) dialHere(ctx context.Context, network, address string) (net.Conn, error) {
	fd, err := unix.PidfdOpen(m.ns.pid(), 0)
	if err != nil {
		return nil, fmt.Errorf("machine %s is off: %w", m.Name, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("enter machine %s: %w", m.Name, err)
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

// Get reads a URL with a numeric host from the machine. An answer other than
// 200 is an error; at most 4 KB of the body are returned.
func (m *Machine) Get(ctx context.Context, url string) (string, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: m.Dial, DisableKeepAlives: true}, Timeout: 5 * time.Second}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return string(body), err
}
