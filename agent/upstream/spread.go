package upstream

import (
	"math/rand/v2"
	"time"
)

// A third of all agents loses its server when one of three dies, and each of
// them lists and watches anew. Few agents may do that at once; many must not
// make several times the requests of quiet times in the same second.
const (
	spreadEach  = 20 * time.Millisecond // for each node of the cluster
	spreadLimit = 8 * time.Second       // enough for any number: quiet times' rate grows with it
)

// Spread draws how long an agent that has lost its server waits before it lists
// anew, in a cluster of that many nodes.
func Spread(nodes int) time.Duration {
	return rand.N(min(time.Duration(max(nodes, 1))*spreadEach, spreadLimit))
}
