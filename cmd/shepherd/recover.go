package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster"
)

// standingInterval is how often a server without a leader asks the others
// whether the cluster went on without it.
const standingInterval = 2 * time.Second

// recoverServer lets this machine's stopped server go on without the others.
func recoverServer(ctx context.Context, s *settings, logger hclog.Logger, stdout io.Writer) error {
	r, err := cluster.Recover(ctx, cluster.RecoverConfig{
		DataDir: s.DataDir, Store: s.store, Now: time.Now(), AcceptDifference: s.acceptDifference, Logger: logger,
	})
	if err != nil {
		return err
	}
	var left []string
	for _, o := range r.Left {
		left = append(left, fmt.Sprintf("%s (%s)", o.Name, o.Address))
	}
	newest := "none"
	if !r.Newest.IsZero() {
		newest = r.Newest.Format(time.RFC3339Nano)
	}
	_, err = fmt.Fprintf(stdout, `Recovered server %[1]s in %[2]s: it is now the only member of its cluster.
  last entry: index %[3]d, term %[4]d; newest write: %[5]s
  kept: everything up to that entry, also writes that were never acknowledged
  may be lost: writes acknowledged after it by the others without this server
  left behind: %[6]s
  restore epoch %[7]d, revision %[8]d
Next: start it as always. The others may be started with their data directories as they are: they set their
old logs aside, below superseded in the data directory, and join again. When the state is found good, run
`+"`sheepctl cluster confirm-restore`"+`: until then agents kill no pod that the cluster does not know.
`, r.Server.Name, s.DataDir, r.Index, r.Term, newest, strings.Join(left, ", "), r.Epoch, r.Revision)
	return err
}

// watchStanding asks the other members at the start, before this server takes
// any write as leader, and then while there is no leader, whether the cluster
// went on without this server.
func (srv *server) watchStanding() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-srv.stopCh:
			cancel()
		case <-ctx.Done():
		}
	}()
	tick := time.NewTicker(standingInterval)
	defer tick.Stop()
	said := ""
	for {
		if leader, _ := srv.node.Leader(); leader == "" || !srv.standing.Load() {
			err := cluster.CheckStanding(ctx, srv.verifier, srv.home.Server, srv.store.View(), srv.others())
			var superseded *cluster.SupersededError
			switch {
			case errors.As(err, &superseded):
				srv.fail(err)
				return
			case err != nil && err.Error() != said:
				said = err.Error()
				srv.logger.Error("there are two clusters", "reason", err)
			}
			srv.standing.Store(true)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// others are the other members.
func (srv *server) others() (list []wire.Server) {
	for _, s := range srv.node.Servers() {
		if s.ID != srv.home.ID() {
			list = append(list, s)
		}
	}
	return list
}

// startAnew stops a server that the cluster went on without, keeps its log
// under another name and starts it as a new one.
func startAnew(ctx context.Context, srv *server, why *cluster.SupersededError) (*server, error) {
	srv.logger.Warn("setting the log aside to join anew", "reason", why, "via", why.Via)
	if err := srv.stop(); err != nil {
		return nil, errors.Join(why, err)
	}
	home, err := cluster.OpenHome(srv.settings.DataDir)
	if err != nil {
		return nil, errors.Join(why, err)
	}
	kept, err := home.SetAside(why.Via)
	if err = errors.Join(err, home.Close()); err != nil {
		return nil, errors.Join(why, err)
	}
	srv.logger.Info("the old log was set aside", "kept", kept)
	return startServer(ctx, srv.settings, srv.logger)
}
