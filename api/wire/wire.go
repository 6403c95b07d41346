// Package wire holds what servers and agents say to each other: protocol
// names, paths, message types and their codecs, and nothing else. It imports
// none of the other packages and starts nothing.
//
// There are two encodings. What people and agents meet on the API port (join,
// heartbeat, status, server list) is JSON. What only servers exchange over
// their links, many times a second, is a versioned binary form (see codec.go).
// Both ignore fields they do not know, so servers of neighbouring versions
// understand each other.
package wire

import (
	"errors"
	"time"
)

// ErrAmbiguous is part of the error when a command or a request may or may not
// have been applied. Sending it again under the same ID is safe; as a new
// request it could happen twice, so no client must be invited to.
var ErrAmbiguous = errors.New("outcome unknown")

// ALPN names that tell the protocols on the one TLS port apart. Everything
// else on that port is the API (h2, http/1.1).
const (
	// ProtoRaft carries Raft's own RPCs; server certificates only.
	ProtoRaft = "shepherd-raft/1"
	// ProtoLink carries what servers ask of each other, as HTTP/2; server
	// certificates only.
	ProtoLink = "shepherd-link/1"
	// ProtoAgent carries an agent's multiplexed streams; agent certificates only.
	ProtoAgent = "shepherd-agent/1"
)

// Paths on the API port that are Shepherd's own.
const (
	// PathPrefix begins every path that is not Kubernetes' API.
	PathPrefix = "/shepherd/v1/"
	// PathJoin takes a JoinRequest with a bearer token and no certificate.
	PathJoin = "/shepherd/v1/join"
	// PathRenew takes a RenewRequest under the certificate to be renewed.
	PathRenew = "/shepherd/v1/renew"
	// PathHeartbeat takes a Heartbeat under an agent's certificate.
	PathHeartbeat = "/shepherd/v1/heartbeat"
	// PathStatus answers with a ClusterStatus.
	PathStatus = "/shepherd/v1/status"
	// PathTransfer takes a TransferRequest and moves leadership.
	PathTransfer = "/shepherd/v1/transfer"
	// PathRemove takes a MemberRequest and removes that server for good.
	PathRemove = "/shepherd/v1/remove"
	// PathPromote takes a MemberRequest and gives that server a vote.
	PathPromote = "/shepherd/v1/promote"
	// PathRotateKey makes the servers seal with a new data key. It takes an empty
	// object and answers with a RotateKeyResponse.
	PathRotateKey = "/shepherd/v1/rotate-key"
	// PathServers answers with a ServerList, so that agents know every server.
	PathServers = "/shepherd/v1/servers"
)

// Paths on a server link.
const (
	LinkForward   = "/link/v1/forward"
	LinkReadIndex = "/link/v1/readindex"
	LinkTerm      = "/link/v1/term"
	LinkHeartbeat = "/link/v1/heartbeat"
	LinkAges      = "/link/v1/ages"
	LinkStatus    = "/link/v1/status"
	LinkTransfer  = "/link/v1/transfer"
	LinkLevel     = "/link/v1/level"
	LinkKeys      = "/link/v1/keys"
	LinkDigest    = "/link/v1/digest"
	// LinkWatch is upgraded to a stream of WatchReports in both directions:
	// each one is preceded by its length in two bytes, the high one first.
	LinkWatch = "/link/v1/watch"
)

// WatchProtocol is the name that LinkWatch upgrades a connection to.
const WatchProtocol = "shepherd-watch"

// HeaderTimeout tells the leader, on LinkForward, how many milliseconds the
// sender is still going to wait.
const HeaderTimeout = "Shepherd-Timeout-Ms"

// Bounds of what one message may hold. A decoder refuses more.
const (
	// MaxBody is the largest body of one write, in bytes.
	MaxBody = 3 << 20
	// MaxMessage is the largest encoded message, in bytes: a body and what
	// surrounds it, or a response with an object and its table row.
	MaxMessage = 16 << 20
	// MaxSmall is the largest encoded message that is not a Request or a Response.
	MaxSmall = 1 << 20
	// MaxReport is the largest encoded WatchReport, in bytes: its length fits in two.
	MaxReport = 1<<16 - 1
	// maxItems bounds the repeated fields of one message.
	maxItems = 65536
)

// Server is one server as agents and clients need to know it.
type Server struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Address string `json:"address"` // host:port of its one TLS port
}

// ServerList is the answer on PathServers.
type ServerList struct {
	Servers []Server `json:"servers"`
}

// JoinRequest asks for a certificate, and for a place in the cluster. The
// bearer token says for which role; the name may only be used by one server or
// one node. The private key never leaves the joiner.
type JoinRequest struct {
	// Role is "server" or "agent" and must be that of the token.
	Role string `json:"role"`
	// Name is the server's or the node's name.
	Name string `json:"name"`
	// ID is a server's Raft ID: its name plus a random suffix. Empty for agents.
	ID string `json:"id,omitempty"`
	// Address is the host:port at which a server can be reached. Empty for agents.
	Address string `json:"address,omitempty"`
	// CSR is a PEM certificate request with the joiner's public key.
	CSR string `json:"csr"`
	// SANs are further names and addresses for a server's certificate.
	SANs []string `json:"sans,omitempty"`
	// Version is the joiner's version, for the log.
	Version string `json:"version,omitempty"`
}

// JoinResponse is what a joiner needs to take part. Secret: it holds the CA key
// and the data keys when a server joins.
type JoinResponse struct {
	ClusterID   string   `json:"clusterID"`
	Certificate string   `json:"certificate"`        // PEM, the joiner's own first
	CA          string   `json:"ca"`                 // PEM, all CAs to trust
	CAKey       string   `json:"caKey,omitempty"`    // PEM, servers only
	DataKeys    string   `json:"dataKeys,omitempty"` // all that the cluster ever sealed with, servers only
	AgentToken  string   `json:"agentToken,omitempty"`
	ServerToken string   `json:"serverToken,omitempty"`
	Servers     []Server `json:"servers"`
}

// RenewRequest asks for a new certificate of the same role and name.
type RenewRequest struct {
	CSR  string   `json:"csr"`
	SANs []string `json:"sans,omitempty"`
}

// RenewResponse carries the renewed certificate.
type RenewResponse struct {
	Certificate string   `json:"certificate"`
	CA          string   `json:"ca"`
	Servers     []Server `json:"servers,omitempty"`
}

// Heartbeat says that an agent is alive. Who it is comes from its certificate
// alone.
type Heartbeat struct {
	// Sequence is echoed, so that an agent can tell to which of its heartbeats
	// an answer belongs: its lease runs from the moment it SENT that one.
	Sequence uint64 `json:"sequence"`
	// BootID identifies the boot of the machine.
	BootID string `json:"bootID,omitempty"`
}

// HeartbeatAck is sent only after a majority of the replicas has recorded the
// heartbeat.
type HeartbeatAck struct {
	Sequence uint64 `json:"sequence"`
	Replicas int    `json:"replicas"` // how many had recorded it by then
}

// TransferRequest moves leadership to the named server, or to the one that is
// furthest ahead if Name is empty.
type TransferRequest struct {
	Name string `json:"name,omitempty"`
}

// TransferResponse says who leads after a transfer.
type TransferResponse struct {
	Leader string `json:"leader"`
	Term   uint64 `json:"term"`
}

// MemberRequest names the server, by name or ID, that is to be changed.
type MemberRequest struct {
	Name string `json:"name"`
}

// MemberResponse says whether the server was changed, and what it is now.
type MemberResponse struct {
	Changed bool   `json:"changed"`
	Message string `json:"message"`
}

// RotateKeyResponse says which data key the servers seal with now.
type RotateKeyResponse struct {
	Key      uint32 `json:"key"`
	Previous uint32 `json:"previous"` // 0: nothing was sealed before
}

// Member roles in a ClusterStatus.
const (
	RoleLeader   = "leader"
	RoleVoter    = "voter"
	RoleNonvoter = "nonvoter"
)

// Member is one server as the others see it.
type Member struct {
	ID           string `json:"id"`
	Name         string `json:"name"`
	Address      string `json:"address"`
	Role         string `json:"role"` // leader, voter or nonvoter
	LastIndex    uint64 `json:"lastIndex"`
	AppliedIndex uint64 `json:"appliedIndex"`
	// LastContact is how many milliseconds ago the server that was asked heard
	// it; nil if it never did.
	LastContact *int64 `json:"lastContactMillis,omitempty"`
	// MaxLevel is the highest command level that its build can apply; 0 if it
	// did not answer.
	MaxLevel uint64 `json:"maxLevel,omitempty"`
	Healthy  bool   `json:"healthy"`
	Detail   string `json:"detail,omitempty"` // why it is not healthy
}

// ClusterStatus is what `sheepctl cluster status` shows. Leader is empty when
// there is none; Message then says who answers and which votes are missing.
type ClusterStatus struct {
	Leader  string   `json:"leader"`
	Term    uint64   `json:"term"`
	Members []Member `json:"members"`
	Server  string   `json:"server"` // who answered
	// Level is up to which level commands are proposed, as far as the server that
	// was asked knows; LevelNote is why it is not higher, if some could apply more.
	Level     uint64 `json:"level"`
	LevelNote string `json:"levelNote,omitempty"`
	Message   string `json:"message,omitempty"`
}

// Error is the JSON body of every failed request on Shepherd's own paths.
type Error struct {
	Message string `json:"message"`
}

// ServerStatus is one server's own view, exchanged over links.
type ServerStatus struct {
	ID           string
	Name         string
	Term         uint64
	Leader       string // ID of the leader it follows, "" if none
	LastIndex    uint64
	AppliedIndex uint64
	Problem      string // why it cannot do its work, "" if it can
	Notice       string // what an administrator has to look at, although it works
	MaxLevel     uint64 // the highest command level that its build can apply; 0: of a build without levels, which is 1
}

// LevelPromise asks a server to write down, before it answers, that no build that
// cannot apply this level must ever run on its data.
type LevelPromise struct{ Level uint64 }

// DataKeys hands the sender's data keys to another server, which stores them and
// answers with all of its own. Without keys it only asks. Secret.
type DataKeys struct {
	ID   string // of the sender
	Keys []byte // as cluster/seal encodes them
}

// TermQuery asks a voter for its term. From is the asker's ID, Term its own.
type TermQuery struct {
	From string
	Term uint64
}

// TermReply is a voter's term at some moment after the query arrived.
type TermReply struct {
	ID   string
	Term uint64
	// Wall is its wall clock in Unix nanoseconds.
	Wall int64
}

// ReadIndexReply tells a replica up to which entry it must have applied.
type ReadIndexReply struct {
	Term  uint64
	Index uint64
	// NotLeader: ask somebody else.
	NotLeader bool
}

// DigestQuery asks a server for the digest of its state after one entry.
type DigestQuery struct{ Index uint64 }

// DigestReply is the answer to a DigestQuery. Version is what the digest
// covers, 0 if the server does not have that entry, or not any more.
type DigestReply struct {
	ID      string
	Version uint64
	Epoch   uint64
	Sum     []byte
}

// Age is how long ago a node was last heard. Ages are never clock times, so
// they mean the same on every machine.
type Age struct {
	Node string
	Age  time.Duration
}

// HeartbeatRecord passes heartbeats on to the other replicas.
type HeartbeatRecord struct {
	From string
	Ages []Age
}

// HeartbeatRecorded is a replica's answer: it has recorded all of them.
type HeartbeatRecorded struct{ ID string }

// AgesReply holds what one replica knows about the nodes' heartbeats.
type AgesReply struct {
	ID   string
	Term uint64
	// Uptime is the age of any node that is not listed.
	Uptime time.Duration
	Ages   []Age
}

// WatchReport is what a server knows about itself and its peers. It is sent as
// the question "are you there" and as the answer.
type WatchReport struct {
	ID string
	// Incarnation names one run of the server's process.
	Incarnation string
	Term        uint64
	// State is Raft's: 0 follower, 1 candidate, 2 leader, 3 shut down.
	State uint64
	// LastTerm and LastIndex are of the log's last entry. They are 0 while the
	// sender hears all peers and nobody's disk hangs.
	LastTerm, LastIndex uint64
	// Elect is the ID of the server that the sender wants to lead, because the
	// leader of Term is lost; "" if none.
	Elect string
	Peers []PeerView
	// Sequence grows with each report of one incarnation: reports travel on two
	// connections, and an older one may arrive later.
	Sequence uint64
	// DiskHangs: a call to the sender's log does not return. Whoever hears that
	// tries its own disk; DiskWorks: that has just succeeded.
	DiskHangs, DiskWorks bool
	// DiskFails is why the sender's log could not be written a moment ago; empty
	// if it could.
	DiskFails string
	// Behind: the sender has started not long ago and is still applying what
	// was committed before. It should not lead if another one can.
	Behind bool
}

// PeerView is whether a server hears another one. A peer that it never heard is
// not listed.
type PeerView struct {
	ID string
	// Incarnation is the last one that it heard.
	Incarnation string
	Heard       bool
}
