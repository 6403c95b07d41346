package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/yamux"

	"github.com/shepherd-project/shepherd/agent/upstream"
	"github.com/shepherd-project/shepherd/api/wire"
)

// streams holds one multiplexed connection to every server, over which the
// servers ask this agent for logs. The agent dials; no server dials an agent.
type streams struct {
	pool    *upstream.Pool
	handler http.Handler
	logger  hclog.Logger
}

// run keeps a connection to each server of the list, as the list changes,
// until ctx ends.
func (s *streams) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	held := map[string]context.CancelFunc{}
	for {
		servers, changed := s.pool.Servers()
		want := map[string]bool{}
		for _, addr := range servers {
			want[addr] = true
			if held[addr] != nil {
				continue
			}
			one, cancel := context.WithCancel(ctx)
			held[addr] = cancel
			wg.Go(func() {
				persist(one, s.logger, "stream to "+addr, 5*time.Second, func(ctx context.Context) error { return s.hold(ctx, addr) })
			})
		}
		for addr, cancel := range held {
			if !want[addr] {
				cancel()
				delete(held, addr)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			for _, cancel := range held {
				cancel()
			}
			return
		}
	}
}

// hold connects to one server and serves its requests until the connection
// breaks or ctx ends.
func (s *streams) hold(ctx context.Context, addr string) error {
	conn, err := s.pool.DialTLS(ctx, addr, wire.ProtoAgent)
	if err != nil {
		return err
	}
	defer conn.Close()
	if got := conn.ConnectionState().NegotiatedProtocol; got != wire.ProtoAgent {
		return fmt.Errorf("server %s speaks %q, want %q", addr, got, wire.ProtoAgent)
	}
	config := yamux.DefaultConfig()
	config.KeepAliveInterval = 10 * time.Second
	config.ConnectionWriteTimeout = 10 * time.Second
	config.LogOutput = s.logger.Named("yamux").StandardWriter(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug})
	session, err := yamux.Server(conn, config)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    s.logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	stop := context.AfterFunc(ctx, func() { server.Close(); session.Close() })
	defer stop()
	defer session.Close()
	defer server.Close()
	s.logger.Debug("stream held", "server", addr)
	if err := server.Serve(session); err != nil && ctx.Err() == nil {
		return fmt.Errorf("stream to %s: %w", addr, err)
	}
	return nil
}
