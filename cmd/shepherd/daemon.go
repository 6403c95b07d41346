package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/hashicorp/go-hclog"

	"github.com/shepherd-project/shepherd/cluster"
	"github.com/shepherd-project/shepherd/cluster/pki"
)

// runDaemon runs what the mode says until ctx ends or a part of it fails, then
// stops everything.
func runDaemon(ctx context.Context, s *settings, logger hclog.Logger) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if s.isServer() {
		srv, failure := startServer(ctx, s, logger)
		if failure != nil {
			return stopped(ctx, failure)
		}
		ended := make(chan error, 1)
		go func() { ended <- keepServer(ctx, srv, cancel) }()
		defer func() {
			cancel(nil)
			err = errors.Join(err, <-ended)
		}()
	}
	if s.isAgent() {
		if err := runAgent(ctx, s, logger); err != nil {
			return stopped(ctx, err)
		}
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// keepServer waits for ctx and stops the server. One that the cluster went on
// without is stopped, sets its log aside and starts as a new one.
func keepServer(ctx context.Context, srv *server, cancel context.CancelCauseFunc) error {
	for {
		select {
		case <-ctx.Done():
			return srv.stop()
		case <-srv.failed:
		}
		var superseded *cluster.SupersededError
		failure := srv.failure()
		if !errors.As(failure, &superseded) {
			cancel(failure)
			return srv.stop()
		}
		next, err := startAnew(ctx, srv, superseded)
		if err != nil {
			cancel(err)
			return nil
		}
		srv = next
	}
}

// stopped turns an error that comes from being told to stop into none.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// readToken reads a join token from a file. The error never holds the token.
func readToken(path string) (pki.Token, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return pki.Token{}, fmt.Errorf("read the join token: %w", err)
	}
	token, err := pki.ParseToken(string(text))
	if err != nil {
		return token, fmt.Errorf("read the join token from %s: %w", path, err)
	}
	return token, nil
}
