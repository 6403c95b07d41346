package main

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"time"

	"github.com/shepherd-project/shepherd/api"
	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster"
	"github.com/shepherd-project/shepherd/cluster/pki"
)

// upkeepInterval is how often certificates, tokens and the kubeconfig are
// looked at. Looking costs next to nothing, writing happens on a change.
const upkeepInterval = 500 * time.Millisecond

// tokenInterval is the same for the join tokens, and tokenLooks how often they
// are looked at within their life at least.
const (
	tokenInterval = time.Minute
	tokenLooks    = 20
)

// errUpkeep is why a server is not ready before its files are there.
var errUpkeep = errors.New("the server is still starting")

func (srv *server) isReady() error {
	if err := srv.node.Ready(); err != nil {
		return err
	}
	if !srv.ready.Load() {
		return errUpkeep
	}
	return nil
}

// upkeep makes the server a member and keeps what it holds in DATA fresh.
func (srv *server) upkeep(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-srv.stopCh:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := srv.enter(ctx); err != nil {
		if ctx.Err() == nil {
			srv.fail(err)
		}
		return
	}
	srv.loops.Go(func() { srv.watchMembership(ctx) })
	wait := 20 * time.Millisecond // until the first success
	var tokens time.Time
	for ctx.Err() == nil {
		changed := srv.node.LeadershipChanged()
		err := srv.upkeepOnce(ctx, &tokens)
		switch {
		case err == nil:
			srv.ready.Store(true)
			wait = upkeepInterval
		case ctx.Err() != nil:
			return
		case srv.ready.Load():
			srv.logger.Warn("upkeep failed; it is tried again", "error", err)
		default:
			srv.logger.Debug("upkeep has to wait", "reason", err)
			wait = min(2*wait, 100*time.Millisecond)
		}
		select {
		case <-time.After(wait):
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// enter makes the server a member at its advertised address, unless it is.
func (srv *server) enter(ctx context.Context) error {
	address := srv.settings.Advertise
	if !srv.home.MustEnter(address) {
		return nil
	}
	j := srv.joiner()
	j.Servers = append(append(j.Servers, srv.addresses()...), srv.home.Via()...)
	if srv.home.Member() { // it moves, and may be the only one
		j.Servers = append(j.Servers, address)
	}
	self := wire.Server{ID: srv.home.ID(), Name: srv.home.Name(), Address: address}
	if err := j.Enter(ctx, srv.verifier, srv.home.Server, self); err != nil {
		return err
	}
	srv.logger.Info("this server is a member of the cluster", "address", address)
	return srv.home.Entered(address)
}

// leaderless is how long a server may know no leader before it asks the others
// whether it is a member still.
const leaderless = 3 * time.Second

// watchMembership ends the server when it was removed from the cluster. It may
// never be told: nobody speaks Raft with it any more. So it asks, for as long as
// it knows no leader.
func (srv *server) watchMembership(ctx context.Context) {
	tick := time.NewTicker(leaderless)
	defer tick.Stop()
	for before := true; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		leader, _ := srv.node.Leader()
		if leader != "" || before {
			before = leader != ""
			continue
		}
		err := srv.askWhetherMember(ctx)
		if errors.Is(err, cluster.ErrRemoved) {
			srv.fail(err)
			return
		}
		if err != nil {
			srv.logger.Debug("nobody says whether this server is a member", "reason", err)
		}
	}
}

func (srv *server) askWhetherMember(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*leaderless)
	defer cancel()
	j := &cluster.Joiner{Servers: srv.settings.Join, Timeout: leaderless}
	for _, address := range srv.addresses() {
		if address != srv.settings.Advertise {
			j.Servers = append(j.Servers, address)
		}
	}
	if len(j.Servers) == 0 {
		return nil // it is alone
	}
	self := wire.Server{ID: srv.home.ID(), Name: srv.home.Name(), Address: srv.settings.Advertise}
	return j.Enter(ctx, srv.verifier, srv.home.Server, self)
}

// upkeepOnce brings everything up to date. tokens is when the tokens were last
// looked at, which asks the whole cluster.
func (srv *server) upkeepOnce(ctx context.Context, tokens *time.Time) error {
	s := srv.settings
	renewed, err := srv.home.Renew(s.hosts(), s.CertificateTTL, srv.now())
	if err != nil {
		return err
	}
	if renewed {
		srv.logger.Info("certificates were renewed")
	}
	if err := srv.home.WriteKubeconfig(s.Advertise, srv.node.Servers()); err != nil {
		return err
	}
	if srv.node.Ready() != nil {
		return srv.node.Ready()
	}
	if time.Since(*tokens) < min(tokenInterval, s.TokenTTL/tokenLooks) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := srv.gate.EnsureTokens(ctx, s.DataDir, "server "+srv.home.Name()); err != nil {
		return err
	}
	*tokens = time.Now()
	return nil
}

// identify is who a request's certificate stands for.
func (srv *server) identify(r *http.Request) (pki.Identity, bool) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return pki.Identity{}, false
	}
	id, err := srv.verifier.Verify(r.TLS.PeerCertificates, pki.RoleAgent, pki.RoleAdmin)
	if err != nil {
		srv.logger.Debug("certificate refused", "remote", r.RemoteAddr, "reason", err)
		return pki.Identity{}, false
	}
	return id, srv.nodeKeyGood(id, r.TLS.PeerCertificates[0])
}

// nodeKeyGood refuses the certificate of a node whose name has passed to
// another machine.
func (srv *server) nodeKeyGood(id pki.Identity, cert *x509.Certificate) bool {
	if id.Role != pki.RoleAgent {
		return true
	}
	if err := cluster.CheckNodeKey(srv.store.View(), id.Name, pki.CertKeyHash(cert)); err != nil {
		srv.logger.Warn("an agent's certificate was refused", "reason", err)
		return false
	}
	return true
}

func (srv *server) authenticate(r *http.Request) (api.Identity, bool) {
	id, ok := srv.identify(r)
	if !ok {
		return api.Identity{}, false
	}
	out := api.Identity{User: id.User(), Groups: append(id.Groups(), "system:authenticated")}
	if id.Role == pki.RoleAgent {
		out.Node = id.Name
	}
	return out, true
}

func (srv *server) agentOf(r *http.Request) (string, bool) {
	id, ok := srv.identify(r)
	return id.Name, ok && id.Role == pki.RoleAgent
}

func (srv *server) isAdmin(r *http.Request) bool {
	id, ok := srv.identify(r)
	return ok && id.Role == pki.RoleAdmin
}
