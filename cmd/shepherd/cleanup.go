package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/shepherd-project/shepherd/agent/network"
	"github.com/shepherd-project/shepherd/agent/runtime"
	"github.com/shepherd-project/shepherd/cluster"
)

// cleanup stops all pods of this machine and removes what they leave.
func cleanup(ctx context.Context, s *settings, logger hclog.Logger) (err error) {
	unlock, err := lockAgent(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	shim := s.agent.ShimPath
	if shim == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find shepherd-shim: %w", err)
		}
		shim = filepath.Join(filepath.Dir(self), "shepherd-shim")
	}
	rc := runtime.DefaultConfig()
	rc.RunDir, rc.DataDir, rc.ShimPath, rc.Logger = s.RunDir, s.DataDir, shim, logger
	rc.CgroupRoot = strings.TrimPrefix(s.CgroupRoot, "/")
	r, err := runtime.New(rc)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := r.Cleanup(ctx); err != nil {
		return fmt.Errorf("stop the pods: %w", err)
	}
	n, err := network.New(network.Config{RunDir: s.RunDir, NodeName: s.NodeName, Logger: logger})
	if err != nil {
		return err
	}
	if err := n.Cleanup(ctx); err != nil {
		return fmt.Errorf("remove the pods' network: %w", err)
	}
	logger.Info("all pods of this machine are stopped")
	return nil
}

// lockAgent keeps an agent from starting, and fails if one runs: it would
// bring the pods back.
func lockAgent(s *settings) (unlock func() error, err error) {
	dir := filepath.Join(s.DataDir, agentDir)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return func() error { return nil }, nil // no agent ever ran here
	}
	home, err := cluster.OpenAgentHome(dir)
	if errors.Is(err, cluster.ErrInUse) {
		return nil, fmt.Errorf("stop the agent first, it would start the pods again: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return home.Close, nil
}
