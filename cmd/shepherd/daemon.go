package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/hashicorp/go-hclog"

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
		defer func() { err = errors.Join(err, srv.stop()) }()
		go func() {
			select {
			case <-srv.failed:
				cancel(srv.failure())
			case <-ctx.Done():
			}
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
