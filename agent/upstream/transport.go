package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Host is the host that requests through a Transport name: whichever server
// they go to.
const Host = "shepherd.invalid"

type retryKey struct{}

// WithRetry marks requests as safe to be sent to a second server even if the
// first may have acted on them: heartbeats, for example. Reads always are.
func WithRetry(ctx context.Context) context.Context {
	return context.WithValue(ctx, retryKey{}, true)
}

// Transport sends requests to a live server of its pool. It is safe for
// concurrent use.
type Transport struct {
	pool *Pool
	http *http.Transport
}

// NewTransport returns a transport over HTTP/2 with one connection for each
// server in use.
func (p *Pool) NewTransport() *Transport {
	t := &http.Transport{
		ForceAttemptHTTP2: true,
		DialTLSContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			conn, err := p.DialTLS(ctx, addr, "h2", "http/1.1")
			if err != nil {
				return nil, &dialError{err}
			}
			return conn, nil
		},
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:  p.cfg.PingInterval,
			PingTimeout:      p.cfg.PingTimeout,
			WriteByteTimeout: p.cfg.PingInterval + p.cfg.PingTimeout,
		},
	}
	return &Transport{pool: p, http: t}
}

// CloseIdleConnections closes the connections that no request uses.
func (t *Transport) CloseIdleConnections() { t.http.CloseIdleConnections() }

// dialError marks failures before a single byte of the request was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// RoundTrip sends the request to the current server. If that fails, the next
// ones are asked: always when nothing was sent yet, and for reads and requests
// marked WithRetry also when the answer did not come or says that the server
// cannot work (502, 503, 504).
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := bodySource(req)
	if err != nil {
		return nil, err
	}
	marked, _ := req.Context().Value(retryKey{}).(bool)
	safe := marked || req.Method == http.MethodGet || req.Method == http.MethodHead
	errs := []error{ErrNoServer}
	candidates := t.pool.candidates()
	for i, addr := range candidates {
		resp, err := t.attempt(req, addr, body, safe)
		last := i == len(candidates)-1
		switch {
		case err == nil && !unavailable(resp.StatusCode):
			t.pool.succeed(addr)
			return resp, nil
		case err == nil:
			t.pool.fail(addr, fmt.Errorf("status %s", resp.Status))
			if !safe || last {
				return resp, nil
			}
			drain(resp)
			continue
		case errors.Is(req.Context().Err(), context.Canceled):
			return nil, err
		}
		t.pool.fail(addr, err)
		if req.Context().Err() != nil {
			return nil, err
		}
		var dial *dialError
		if !safe && !errors.As(err, &dial) {
			return nil, err
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func unavailable(status int) bool {
	return status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
}

// drain lets the connection be used again.
func drain(resp *http.Response) {
	io.CopyN(io.Discard, resp.Body, 64<<10)
	resp.Body.Close()
}

// bodySource returns a function that gives the body once for each attempt.
func bodySource(req *http.Request) (func() (io.ReadCloser, error), error) {
	if req.Body == nil || req.Body == http.NoBody {
		return func() (io.ReadCloser, error) { return nil, nil }, nil
	}
	if req.GetBody != nil {
		return req.GetBody, req.Body.Close()
	}
	data, err := io.ReadAll(req.Body)
	if err := errors.Join(err, req.Body.Close()); err != nil {
		return nil, fmt.Errorf("read request body: %w", err)
	}
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }, nil
}

// attempt asks one server. The header timeout applies to reads: a write is
// bounded by its own context, since giving it up says nothing about it.
func (t *Transport) attempt(req *http.Request, addr string, body func() (io.ReadCloser, error), timed bool) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	out := req.Clone(ctx)
	out.URL.Scheme, out.URL.Host = "https", addr
	out.Host = addr
	b, err := body()
	if err != nil {
		cancel(nil)
		return nil, err
	}
	out.Body = b
	var timer *time.Timer
	if timed {
		timer = time.AfterFunc(t.pool.cfg.HeaderTimeout, func() {
			cancel(fmt.Errorf("no answer in %v", t.pool.cfg.HeaderTimeout))
		})
	}
	resp, err := t.http.RoundTrip(out)
	if timer != nil && !timer.Stop() && err == nil {
		// Too late by a hair: the context is gone, and the body with it.
		resp.Body.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && req.Context().Err() == nil {
			err = fmt.Errorf("%s: %w", addr, cause)
		}
		cancel(nil)
		return nil, err
	}
	resp.Request = req
	if w, ok := resp.Body.(io.ReadWriteCloser); ok && resp.StatusCode == http.StatusSwitchingProtocols {
		resp.Body = &upgradedBody{w, releaseOnce(cancel)}
		return resp, nil
	}
	resp.Body = &trackedBody{ReadCloser: resp.Body, release: releaseOnce(cancel), broken: func(err error) {
		if req.Context().Err() == nil {
			t.pool.fail(addr, err)
		}
	}}
	return resp, nil
}

func releaseOnce(cancel context.CancelCauseFunc) func() {
	return sync.OnceFunc(func() { cancel(nil) })
}

// trackedBody keeps the attempt's context until the body is closed and tells
// the pool when the connection breaks under a stream.
type trackedBody struct {
	io.ReadCloser
	release func()
	broken  func(error)
	failed  sync.Once
}

func (b *trackedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.failed.Do(func() { b.broken(err) })
	}
	return n, err
}

func (b *trackedBody) Close() error {
	b.failed.Do(func() {}) // what follows is our own doing
	err := b.ReadCloser.Close()
	b.release()
	return err
}

type upgradedBody struct {
	io.ReadWriteCloser
	release func()
}

func (b *upgradedBody) Close() error {
	err := b.ReadWriteCloser.Close()
	b.release()
	return err
}
