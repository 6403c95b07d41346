package api

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shepherd-project/shepherd/fsm"
)

// readView gives the state that a read is answered from: after a read index
// when no revision is asked for (rev 0), else the newest state once this
// replica has reached rev.
func (s *Server) readView(ctx context.Context, rev uint64) (*fsm.View, error) {
	if rev == 0 {
		if err := s.readIndex(ctx); err != nil {
			return nil, err
		}
		return s.cfg.Store.View(), nil
	}
	if err := s.waitRevision(ctx, rev); err != nil {
		return nil, err
	}
	return s.cfg.Store.View(), nil
}

// readIndex waits until the local store holds all that was acknowledged before.
func (s *Server) readIndex(ctx context.Context) error {
	err := s.cfg.Consensus.ReadIndex(ctx)
	var status apierrors.APIStatus
	switch {
	case err == nil || errors.As(err, &status) || ctx.Err() != nil:
		return err
	default:
		return unavailable("read index: " + err.Error())
	}
}

// waitRevision waits, for a bounded time, until this replica has reached rev.
func (s *Server) waitRevision(ctx context.Context, rev uint64) error {
	if err := s.cfg.Store.Err(); err != nil {
		return unavailable("read: " + err.Error())
	}
	if s.cfg.Store.View().Revision() >= rev {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, s.cfg.RevisionWait)
	defer cancel()
	err := s.cfg.Store.WaitRevision(bounded, rev)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return errTooLargeResourceVersion(rev, s.cfg.Store.View().Revision())
	}
	return err
}
