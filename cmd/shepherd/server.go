package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/net/http2"

	"github.com/shepherd-project/shepherd/api"
	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster"
	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/controllers"
	"github.com/shepherd-project/shepherd/fsm"
)

// server is one server's parts, in the order in which they start.
type server struct {
	settings *settings
	logger   hclog.Logger
	registry *prometheus.Registry

	home     *cluster.Home
	verifier *pki.Verifier
	port     *cluster.Port
	store    *fsm.Store
	node     *cluster.Node
	gate     *cluster.Gate
	backups  *cluster.BackupSource
	api      *api.Server
	http     *http.Server

	decoder *resource.Decoder // shared by the API and the controllers

	forwards    atomic.Pointer[forwards]
	standing    atomic.Bool // the others do not say that the cluster went on without this server
	ready       atomic.Bool // the upkeep has run once
	stopCh      chan struct{}
	controllers sync.WaitGroup
	loops       sync.WaitGroup

	failed   chan struct{} // closed when a part ended by itself
	failOnce sync.Once
	err      error
}

// forwards is where the leader's half of a request goes.
type forwards struct {
	node *cluster.Node
	gate *cluster.Gate
	api  *api.Server
}

// startServer returns when the server serves, though not yet ready. It leaves
// nothing behind when it fails.
func startServer(ctx context.Context, s *settings, logger hclog.Logger) (_ *server, err error) {
	srv := &server{settings: s, logger: logger, registry: prometheus.NewRegistry(), stopCh: make(chan struct{}), failed: make(chan struct{})}
	srv.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	defer func() {
		if err != nil {
			err = errors.Join(err, srv.stop())
		}
	}()
	if err := s.backups.Check(); err != nil {
		return nil, err
	}
	if srv.home, err = cluster.OpenHome(s.DataDir); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", s.Addr, err)
	}
	if err := srv.settle(ctx); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	if err := srv.openPort(listener); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	if err := srv.startNode(); err != nil {
		return nil, err
	}
	if err := srv.startAPI(); err != nil {
		return nil, err
	}
	if err := srv.startControllers(); err != nil {
		return nil, err
	}
	if err := srv.startBackups(); err != nil {
		return nil, err
	}
	srv.loops.Go(srv.watchNode)
	srv.loops.Go(func() { paceGC(srv.stopCh) })
	srv.loops.Go(srv.watchStanding)
	srv.loops.Go(func() { srv.upkeep(ctx) })
	logger.Info("server started", "name", srv.home.Name(), "id", srv.home.ID(), "cluster", srv.home.CA.ClusterID(),
		"addr", srv.port.Addr(), "advertise", s.Advertise)
	return srv, nil
}

// settle makes sure that the data directory says which server this is.
func (srv *server) settle(ctx context.Context) error {
	s, h := srv.settings, srv.home
	if !h.Empty() {
		return srv.resume()
	}
	switch {
	case s.Bootstrap || s.Mode == modeStandalone:
		srv.logger.Info("beginning a new cluster", "name", s.Name)
		return h.Begin(s.Name, s.Advertise, time.Now())
	case len(s.Join) > 0:
		if s.TokenFile == "" {
			return errors.New("joining a cluster needs --token-file: the file DATA/token/server of any of its servers")
		}
		token, err := readToken(s.TokenFile)
		if err != nil {
			return err
		}
		return h.Join(ctx, srv.joiner(), token, s.Name, s.Advertise, api.Version.GitVersion)
	default:
		return fmt.Errorf("data directory %s is empty: give --bootstrap to begin a new cluster, or --join HOST:PORT and --token-file to join one", s.DataDir)
	}
}

// resume checks that the directory is the one that the settings mean.
func (srv *server) resume() error {
	s, h := srv.settings, srv.home
	if s.isSet("name") {
		if err := h.CheckName(s.Name); err != nil {
			return err
		}
	}
	if len(s.Join) > 0 && s.TokenFile != "" {
		// Joined already: the token is not needed, and may be gone by now.
		token, err := readToken(s.TokenFile)
		if err != nil {
			srv.logger.Debug("the join token is not needed any more, and cannot be read", "error", err)
		} else if err := h.CheckToken(token); err != nil {
			return err
		}
	}
	return nil
}

func (srv *server) joiner() *cluster.Joiner {
	return &cluster.Joiner{Servers: srv.settings.Join, Logger: srv.logger.Named("join")}
}

func (srv *server) openPort(listener net.Listener) error {
	s := srv.settings
	if _, err := srv.home.Renew(s.hosts(), s.CertificateTTL, time.Now()); err != nil {
		return err
	}
	srv.store = fsm.New(s.store)
	srv.verifier = pki.NewVerifier(srv.home.CA, srv.now)
	cfg := s.port
	cfg.Listener, cfg.Source, cfg.Verifier, cfg.Logger, cfg.Registerer = listener, srv.home.Server, srv.verifier, srv.logger, srv.registry
	cfg.Approved = srv.approved
	limit, err := descriptorLimit()
	if err == nil {
		err = cfg.FitDescriptors(limit)
	}
	if err != nil {
		return err
	}
	port, err := cluster.NewPort(cfg)
	if err != nil {
		return err
	}
	srv.port = port
	return nil
}

// now is the cluster's time, and the machine's until there is one: a node
// without a single command counts from the year one.
func (srv *server) now() time.Time {
	if f := srv.forwards.Load(); f != nil {
		if now := f.node.Now(); now.After(srv.home.CA.Certificate().NotBefore) {
			return now
		}
	}
	return time.Now()
}

// approved lets every server of the cluster in until there is a node to ask.
func (srv *server) approved(id string) bool {
	f := srv.forwards.Load()
	return !srv.home.LeftBehind(id) && (f == nil || f.node.Approved(id))
}

func (srv *server) startNode() error {
	s, cfg := srv.settings, srv.settings.cluster
	dialer := &cluster.Dialer{Source: srv.home.Server, Verifier: srv.verifier, Approved: srv.approved}
	cfg.ID, cfg.Name, cfg.Address, cfg.DataDir = srv.home.ID(), srv.home.Name(), s.Advertise, s.DataDir
	cfg.Bootstrap = srv.home.MustBootstrap()
	cfg.Store, cfg.Keys = srv.store, srv.home.Keys
	cfg.Transport = cluster.NewTransport(cluster.NewRaftLayer(srv.port, dialer, s.Advertise), cfg.Timing.Transport, srv.logger)
	cfg.DialLink, cfg.LinkListener = dialer.Link, srv.port.Link()
	cfg.Handler = srv.handleForwarded
	cfg.Agent, cfg.Admin = srv.agentOf, srv.isAdmin
	cfg.GiveUp = srv.giveUp
	cfg.Logger, cfg.Registerer = srv.logger, srv.registry
	node, err := cluster.New(cfg)
	if err != nil {
		return err
	}
	srv.node = node
	return srv.home.Opened()
}

// handleForwarded is the leader's half of a request.
func (srv *server) handleForwarded(ctx context.Context, req *wire.Request) *wire.Response {
	f := srv.forwards.Load()
	switch {
	case f == nil, !srv.standing.Load():
		return &wire.Response{NotLeader: true} // still starting
	case f.gate.Handles(req):
		return f.gate.HandleForwarded(ctx, req)
	default:
		return f.api.HandleForwarded(ctx, req)
	}
}

func (srv *server) startAPI() (err error) {
	s := srv.settings
	srv.gate, err = cluster.NewGate(cluster.GateConfig{
		CA: srv.home.CA, Keys: srv.home.Keys, Store: srv.store, Cluster: srv.node, CertificateTTL: s.CertificateTTL, TokenTTL: s.TokenTTL, Logger: srv.logger,
	})
	if err != nil {
		return err
	}
	cfg := s.api
	cfg.Store, cfg.Consensus, cfg.Registry, cfg.Logger = srv.store, srv.node, srv.registry, srv.logger.Named("api")
	cfg.Authenticate, cfg.Ready = srv.authenticate, srv.isReady
	srv.decoder = resource.NewDecoder(cfg.DecoderBytes)
	cfg.Decoder, cfg.Streams = srv.decoder, api.NewStreams(cfg.Logger)
	if srv.api, err = api.New(cfg); err != nil {
		return err
	}
	srv.forwards.Store(&forwards{node: srv.node, gate: srv.gate, api: srv.api})
	own := http.NewServeMux()
	own.Handle("/", srv.node.Handler())
	srv.gate.Register(own)
	srv.backups = &cluster.BackupSource{CA: srv.home.CA, Store: srv.store, Cluster: srv.node, Name: srv.home.Name(), Admin: srv.isAdmin, Logger: srv.logger.Named("backup")}
	own.Handle("GET "+cluster.PathBackup, srv.backups)
	srv.http = &http.Server{
		Handler: split(own, srv.api), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 3 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: srv.logger.Named("http").StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	cluster.KeepFresh(srv.http, srv.now)
	// All watches of a client share one connection.
	if err := cluster.ServeHTTP2(srv.http, &http2.Server{MaxConcurrentStreams: 2000, ReadIdleTimeout: 30 * time.Second}); err != nil {
		return err
	}
	srv.loops.Go(srv.serveHTTP)
	srv.loops.Go(srv.serveAgents)
	return nil
}

// split keeps the API's paths away from a mux, which would redirect some.
func split(own, rest http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, wire.PathPrefix) {
			own.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	})
}

func (srv *server) serveHTTP() {
	if err := srv.http.Serve(srv.port.API()); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		srv.fail(fmt.Errorf("the API server ended: %w", err))
	}
}

// serveAgents takes the streams that agents open.
func (srv *server) serveAgents() {
	streams := srv.api.Streams()
	for {
		conn, err := srv.port.Agents().Accept()
		if err != nil {
			return // the port was closed
		}
		peer, ok := conn.(*cluster.Conn)
		if !ok || !srv.nodeKeyGood(peer.Peer, peer.ConnectionState().PeerCertificates[0]) {
			_ = conn.Close() // its owner was told why when it tried to renew
			continue
		}
		srv.loops.Go(func() {
			if err := streams.Serve(conn, peer.Peer.Name); err != nil {
				srv.logger.Debug("an agent's stream ended", "node", peer.Peer.Name, "reason", err)
			}
		})
	}
}

func (srv *server) startControllers() error {
	s := srv.settings
	var seed [32]byte
	_, _ = rand.Read(seed[:]) // never fails: crypto/rand ends the process instead
	manager, err := controllers.NewManager(srv.node, controllers.Deps{
		Store: srv.store, Decoder: srv.decoder, Propose: srv.node.Propose, Ages: srv.node.Ages, Servers: srv.addresses, Now: srv.node.Now,
		Rand: mathrand.New(mathrand.NewChaCha8(seed)), Config: s.controllers, Logger: srv.logger.Named("controllers"), Registerer: srv.registry,
	})
	if err != nil {
		return err
	}
	srv.controllers.Go(func() { manager.Run(srv.stopCh) })
	return nil
}

func (srv *server) startBackups() error {
	if srv.settings.backups.Interval == 0 {
		return nil
	}
	keeper, err := cluster.NewBackupKeeper(cluster.BackupKeeperConfig{
		BackupSchedule: srv.settings.backups, Source: srv.backups, LeadershipChanged: srv.node.LeadershipChanged,
		Logger: srv.logger.Named("backup"), Registerer: srv.registry,
	})
	if err != nil {
		return err
	}
	srv.loops.Go(func() { keeper.Run(srv.stopCh) })
	return nil
}

func (srv *server) addresses() []string {
	var out []string
	for _, s := range srv.node.Servers() {
		out = append(out, s.Address)
	}
	return out
}

// watchNode ends the daemon when its node had to end.
func (srv *server) watchNode() {
	select {
	case <-srv.node.Done():
		if err := srv.node.Err(); err != nil {
			srv.fail(fmt.Errorf("this server cannot go on: %w", err))
		}
	case <-srv.stopCh:
	}
}

func (srv *server) fail(err error) {
	srv.failOnce.Do(func() {
		srv.err = err
		close(srv.failed)
	})
}

// failure is why failed was closed.
func (srv *server) failure() error { return srv.err }
