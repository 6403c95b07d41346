// Package cluster is one server's life in Raft: its log on disk, leadership as
// a level with its term, proposals, linearizable reads, requests forwarded to
// the leader, membership, and which nodes' agents are alive.
//
// A write's way, from any replica:
//
//	Forward ── link ──> leader: Config.Handler ──> Propose ──> batch ──> Raft ──> fsm
//	   │                                                                           │
//	   └── on a change of leader: the same request, same ID, to the next one      Result
//
// A read's way, on any replica:
//
//	ReadIndex ── link ──> leader in term T: commit index, then a majority says
//	   │                  that its term is at most T ──> index
//	   └── wait until the local store has applied that index, then read it
//
// Servers talk over two protocols: Raft's own, through the raft.Transport that
// the caller passes in, and links (HTTP/2, one connection for each peer) over
// the caller's dialer and listener. A second link to each peer carries nothing
// but the failure detector's pings; see detector.go for what they decide. Nothing here opens a socket by itself, so
// that whole clusters run inside testing/synctest.
//
// Nothing here trusts a clock or a lease for safety: elections may be forced at
// any time, and a frozen leader may wake up at any time. Reads confirm the term
// with a majority, writes carry the term they were planned in.
package cluster
