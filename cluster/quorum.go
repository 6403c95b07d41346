package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
)

// servers is the latest configuration, committed or not, as Raft itself uses it.
func (n *Node) servers() []raft.Server {
	return n.raft.GetConfiguration().Configuration().Servers
}

func voters(servers []raft.Server) (list []raft.Server) {
	for _, s := range servers {
		if s.Suffrage == raft.Voter {
			list = append(list, s)
		}
	}
	return list
}

func majority(voters int) int { return voters/2 + 1 }

type answer[R any] struct {
	server raft.Server
	reply  R
	err    error
}

// gather asks all the servers at once and hands their answers to take, one by
// one, until take says that it has seen enough, all have answered or the
// context ends. Questions still open are then given up.
func gather[R any](ctx context.Context, t *tasks, servers []raft.Server, ask func(context.Context, raft.Server) (R, error), take func(raft.Server, R, error) (enough bool)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer[R], len(servers))
	for _, s := range servers {
		if !t.run(func() {
			reply, err := ask(ctx, s)
			answers <- answer[R]{s, reply, err}
		}) {
			return ErrStopped
		}
	}
	for range servers {
		select {
		case a := <-answers:
			if take(a.server, a.reply, a.err) {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// others leaves this server out.
func (n *Node) others(servers []raft.Server) (list []raft.Server) {
	for _, s := range servers {
		if string(s.ID) != n.cfg.ID {
			list = append(list, s)
		}
	}
	return list
}

func (n *Node) termReply() *wire.TermReply {
	return &wire.TermReply{ID: n.cfg.ID, Term: n.raft.CurrentTerm(), Wall: n.cfg.Wall().UnixNano()}
}

// confirmTerm returns nil if a majority of the voters says, each at some moment
// after the call began, that its term is at most the given one: no later leader
// existed when the call began, for its election would have raised the term of
// one of them. each, which may be nil, sees the replies that count, one by one.
func (n *Node) confirmTerm(ctx context.Context, term uint64, each func(*wire.TermReply)) error {
	all := voters(n.servers())
	need, got := majority(len(all)), 0
	later := n.raft.CurrentTerm()
	count := func(r *wire.TermReply) {
		if r.Term > term {
			later = max(later, r.Term)
			return
		}
		got++
		if each != nil {
			each(r)
		}
	}
	rest := n.others(all)
	if len(rest) < len(all) {
		count(n.termReply())
	}
	var failed []error
	if got < need && later <= term {
		query := wire.EncodeTermQuery(&wire.TermQuery{From: n.cfg.ID, Term: term})
		err := gather(ctx, &n.tasks, rest, func(ctx context.Context, s raft.Server) (*wire.TermReply, error) {
			return call(ctx, n, s.Address, wire.LinkTerm, query, wire.DecodeTermReply)
		}, func(s raft.Server, r *wire.TermReply, err error) bool {
			switch {
			case err != nil:
				failed = append(failed, fmt.Errorf("%s: %w", s.ID, err))
			case r.ID != string(s.ID):
				failed = append(failed, fmt.Errorf("%s: %s answers at its address", s.ID, r.ID))
			default:
				count(r)
			}
			return got >= need || later > term
		})
		if err != nil {
			failed = append(failed, err)
		}
	}
	switch {
	case later > term:
		return fmt.Errorf("%w: term %d has begun", ErrNotLeader, later)
	case got < need:
		return fmt.Errorf("%w: %d of %d voters: %w", ErrNoQuorum, got, len(all), errors.Join(failed...))
	}
	return nil
}
