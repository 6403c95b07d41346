package cluster

import (
	"context"
	"time"

	"github.com/shepherd-project/shepherd/cluster/pki"
)

const (
	// maxRenewPause is how often an agent looks at its certificate at least.
	maxRenewPause = time.Hour
	// renewTries is how often it looks within the certificate's life at least:
	// about half of them come after the renewal is due.
	renewTries = 20
	// renewAttempt bounds one attempt.
	renewAttempt = time.Minute
)

// KeepRenewed renews the agent's certificate at half of its life, until ctx
// ends. servers says whom to ask at that moment: over a year, all of a cluster's
// servers may have been replaced. The joiner's own servers are not used.
func (h *AgentHome) KeepRenewed(ctx context.Context, j Joiner, verifier *pki.Verifier, servers func() []string) {
	for {
		if h.Source.NeedsRenewal(time.Now()) {
			j.Servers = servers()
			h.renew(ctx, &j, verifier)
		}
		leaf := h.Source.Leaf()
		select {
		case <-time.After(max(min(maxRenewPause, leaf.NotAfter.Sub(leaf.NotBefore.Add(pki.Backdate))/renewTries), time.Second)):
		case <-ctx.Done():
			return
		}
	}
}

func (h *AgentHome) renew(ctx context.Context, j *Joiner, verifier *pki.Verifier) {
	attempt, cancel := context.WithTimeout(ctx, renewAttempt)
	defer cancel()
	err := j.Renew(attempt, verifier, h.Source)
	if j.Logger == nil || ctx.Err() != nil {
		return
	}
	if err != nil {
		j.Logger.Warn("the certificate was not renewed; it is tried again", "valid until", h.Source.Leaf().NotAfter, "error", err)
		return
	}
	j.Logger.Info("the certificate was renewed", "valid until", h.Source.Leaf().NotAfter)
}
