package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// giveUp ends the process without asking any part of it, for some of them wait
// for a disk. All connections are cut first: the kernel may keep a process that
// waits for a disk, and its sockets with it, for as long as that takes.
func (srv *server) giveUp(reason error) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		err := srv.port.Close()
		if srv.http != nil {
			err = errors.Join(err, srv.http.Close())
		}
		if srv.api != nil {
			err = errors.Join(err, srv.api.Streams().Close())
		}
		if err != nil {
			srv.logger.Debug("connections were cut", "error", err)
		}
	}()
	select {
	case <-closed:
	case <-time.After(500 * time.Millisecond): // some other process may have to end this one
	}
	fmt.Fprintf(os.Stderr, "shepherd: this server cannot go on: %v\n", reason)
	os.Exit(1)
}

// stop ends everything that was started, in an order in which clients notice
// least: leadership goes first, so that writes go on elsewhere; then the
// controllers; then the requests under way; then Raft and the port.
func (srv *server) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), srv.settings.StopTimeout)
	defer cancel()
	var errs []error
	if srv.node != nil {
		srv.handOver(ctx)
	}
	close(srv.stopCh)
	errs = append(errs, wait(ctx, &srv.controllers, "a controller"))
	if srv.api != nil {
		srv.api.Close()
	}
	if srv.http != nil {
		// Idle keep-alive connections are not worth more than this.
		drain, done := context.WithTimeout(ctx, 2*time.Second)
		if err := srv.http.Shutdown(drain); err != nil {
			srv.logger.Debug("connections were cut", "reason", err)
			errs = append(errs, srv.http.Close())
		}
		done()
	}
	if srv.node != nil {
		errs = append(errs, srv.node.Shutdown(ctx))
	}
	if srv.port != nil {
		errs = append(errs, srv.port.Close())
	}
	if srv.api != nil {
		errs = append(errs, srv.api.Streams().Close())
	}
	errs = append(errs, wait(ctx, &srv.loops, "a loop"))
	if srv.home != nil {
		errs = append(errs, srv.home.Close())
	}
	err := errors.Join(errs...)
	if err == nil {
		srv.logger.Info("server stopped")
	}
	return err
}

// wait waits for the group, or until ctx ends.
func wait(ctx context.Context, group *sync.WaitGroup, what string) error {
	ended := make(chan struct{})
	go func() {
		group.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return errors.New(what + " did not stop in time")
	}
}

// handOver moves leadership to another voter, if this server leads and there
// is one. Failing to is no reason not to stop: the others hold an election.
func (srv *server) handOver(ctx context.Context) {
	if _, leading := srv.node.Leadership(); !leading || len(srv.node.Servers()) < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	if err := srv.node.Transfer(ctx, ""); err != nil {
		srv.logger.Warn("leadership was not handed over", "error", err)
		return
	}
	srv.logger.Info("leadership was handed over")
}
