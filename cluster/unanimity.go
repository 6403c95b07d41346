package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// everyOther asks all other members at once, for at most Timing.Transport, and
// returns those that did not say yes: by name, sorted, with what they said. An
// error means that the node stops.
func (n *Node) everyOther(ctx context.Context, members []raft.Server, ask func(context.Context, raft.Server) error) (missing []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, n.timing.Transport)
	defer cancel()
	said := map[raft.ServerID]error{}
	err = gather(ctx, &n.tasks, n.others(members), func(ctx context.Context, s raft.Server) (struct{}, error) {
		return struct{}{}, ask(ctx, s)
	}, func(s raft.Server, _ struct{}, err error) bool {
		said[s.ID] = err
		return false
	})
	if errors.Is(err, ErrStopped) {
		return nil, err
	}
	for _, s := range n.others(members) {
		err, answered := said[s.ID]
		if !answered {
			err = errors.New("no answer")
		}
		if err != nil {
			missing = append(missing, fmt.Sprintf("%s (%s): %v", ServerName(string(s.ID)), s.Address, err))
		}
	}
	slices.Sort(missing)
	return missing, nil
}

// whileLeading runs ensure whenever this server begins to lead, and again and
// again until it succeeds once; each new reason is told to failed.
func (n *Node) whileLeading(ensure func() error, failed func(error)) {
	logged := ""
	for n.ctx.Err() == nil {
		changed := n.LeadershipChanged()
		wait := time.Hour
		if _, leading := n.Leadership(); leading {
			err := ensure()
			if err != nil && !errors.Is(err, ErrNotLeader) && err.Error() != logged {
				logged = err.Error()
				failed(err)
			}
			if err != nil {
				wait = 10 * n.timing.Round
			}
		}
		n.pause(changed, wait)
	}
}
