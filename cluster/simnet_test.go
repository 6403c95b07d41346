package cluster

import (
	"context"
	"net"
	"time"

	"github.com/shepherd-project/shepherd/cluster/simnet"
)

// simNet is the network of this package's simulations.
type simNet struct{ *simnet.Net }

func newSimNet(seed int64) *simNet { return &simNet{simnet.New(seed)} }

func (s *simNet) set(from, to string, blocked bool) { s.Block(from, to, blocked) }
func (s *simNet) isBlocked(from, to string) bool    { return s.Blocked(from, to) }
func (s *simNet) isolate(host string, others []string, blocked bool) {
	s.Isolate(host, others, blocked)
}
func (s *simNet) slow(from, to string, d time.Duration) { s.Slow(from, to, d) }
func (s *simNet) refuse(protocol, from, to string)      { s.Refuse(protocol, from, to) }
func (s *simNet) heal()                                 { s.Heal() }
func (s *simNet) crash(host string)                     { s.Crash(host) }
func (s *simNet) listen(protocol, host string) net.Listener {
	return s.Listen(protocol, host)
}
func (s *simNet) dial(ctx context.Context, protocol, from, to string) (net.Conn, error) {
	return s.Dial(ctx, protocol, from, to)
}
