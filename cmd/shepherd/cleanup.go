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
)

// cleanup stops all pods of this machine and removes what they leave.
func cleanup(ctx context.Context, s *settings, logger hclog.Logger) (err error) {
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
