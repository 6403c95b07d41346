package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"

	"github.com/shepherd-project/shepherd/agent"
	"github.com/shepherd-project/shepherd/cluster"
)

// cleanup stops all pods of this machine and removes what they leave.
func cleanup(ctx context.Context, s *settings, logger hclog.Logger) (err error) {
	unlock, err := lockAgent(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	cfg := s.agent
	cfg.NodeName, cfg.DataDir, cfg.RunDir, cfg.CgroupRoot, cfg.Logger = s.NodeName, s.DataDir, s.RunDir, s.CgroupRoot, logger
	if err := agent.Cleanup(ctx, cfg); err != nil {
		return err
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
