package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/shepherd-project/shepherd/agent"
	"github.com/shepherd-project/shepherd/api"
	"github.com/shepherd-project/shepherd/cluster"
	"github.com/shepherd-project/shepherd/cluster/pki"
)

// agentDir is where the agent's certificate is, below DATA.
const agentDir = "agent"

// runAgent joins if needed and runs the agent until ctx ends.
func runAgent(ctx context.Context, s *settings, logger hclog.Logger) (err error) {
	home, err := cluster.OpenAgentHome(filepath.Join(s.DataDir, agentDir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, home.Close()) }()
	if s.isSet("node-name") {
		if err := home.CheckNode(s.NodeName); err != nil {
			return err
		}
	}
	if err := joinAgent(ctx, s, home, logger); err != nil {
		return err
	}
	cfg := s.agent
	cfg.NodeName, cfg.DataDir, cfg.RunDir, cfg.CgroupRoot = home.Node(), s.DataDir, s.RunDir, s.CgroupRoot
	cfg.Servers = agentServers(s, home)
	verifier := pki.NewVerifier(home.CA, time.Now)
	cfg.TLS = func() (*tls.Config, error) { return verifier.ClientConfig(home.Source), nil }
	cfg.Version, cfg.Logger = api.Version.GitVersion, logger
	a, err := agent.New(cfg)
	if err != nil {
		return err
	}
	var renewal sync.WaitGroup
	defer renewal.Wait() // before the directory is given up
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	renewal.Go(func() {
		home.KeepRenewed(ctx, cluster.Joiner{Logger: logger.Named("renew")}, verifier, a.Servers)
	})
	logger.Info("agent started", "node", cfg.NodeName, "servers", cfg.Servers)
	if err := a.Run(ctx.Done()); err != nil {
		return err
	}
	logger.Info("agent stopped; its pods go on running, and the command `shepherd cleanup` stops them")
	return nil
}

func agentServers(s *settings, home *cluster.AgentHome) []string {
	if s.Mode == modeStandalone {
		return []string{s.Advertise}
	}
	servers := append([]string{}, s.Join...)
	seen := map[string]bool{}
	for _, a := range servers {
		seen[a] = true
	}
	for _, a := range home.Servers() {
		if !seen[a] {
			servers = append(servers, a)
		}
	}
	return servers
}

// joinAgent gets a certificate if there is none that is still good.
func joinAgent(ctx context.Context, s *settings, home *cluster.AgentHome, logger hclog.Logger) error {
	tokenFile := s.TokenFile
	if s.Mode == modeStandalone {
		tokenFile = cluster.TokenPath(s.DataDir, pki.RoleAgent)
	}
	if home.Joined(time.Now()) {
		if token, err := readToken(tokenFile); err == nil {
			return home.CheckToken(token)
		}
		return nil // joined already: the token is not needed, and may be gone by now
	}
	servers := agentServers(s, home)
	if len(servers) == 0 {
		return errors.New("this machine has not joined a cluster yet: give --join HOST:PORT and --token-file")
	}
	if tokenFile == "" {
		return errors.New("joining a cluster needs --token-file: the file DATA/token/agent of any of its servers")
	}
	if s.Mode == modeStandalone {
		if err := awaitFile(ctx, tokenFile); err != nil {
			return err
		}
	}
	token, err := readToken(tokenFile)
	if err != nil {
		return err
	}
	node := home.Node()
	if node == "" {
		node = s.NodeName
	}
	j := &cluster.Joiner{Servers: servers, Logger: logger.Named("join")}
	return home.Join(ctx, j, token, node, api.Version.GitVersion)
}

// awaitFile waits until this process's server has written its token.
func awaitFile(ctx context.Context, path string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		} else if !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("wait for the join token: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
