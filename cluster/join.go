package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/cluster/seal"
	"github.com/shepherd-project/shepherd/fsm"
)

// PathMembers takes a wire.Server under that server's own certificate: it is
// up and asks to be made a member at that address.
const PathMembers = wire.PathPrefix + "members"

// Paths of requests from one server's gate to the leader's. They exist on
// links alone.
const (
	pathClaim   = wire.PathPrefix + "gate/claim"
	pathMember  = wire.PathPrefix + "gate/member"
	pathTokens  = wire.PathPrefix + "gate/tokens"
	pathRemove  = wire.PathPrefix + "gate/remove"
	pathPromote = wire.PathPrefix + "gate/promote"
)

// maxJoinBody bounds a request to the gate, in bytes.
const maxJoinBody = 64 << 10

// Membership is what the gate needs of the cluster's node.
type Membership interface {
	Leadership() (term uint64, leading bool)
	Propose(context.Context, fsm.Command) (fsm.Result, error)
	ReadIndex(context.Context) error
	Forward(context.Context, *wire.Request) (*wire.Response, error)
	Now() time.Time
	// Servers are those of the latest configuration.
	Servers() []wire.Server
	// AddServer makes the server a non-voter, to be promoted once it has
	// caught up, or changes its address. Called on the leader alone.
	AddServer(ctx context.Context, id, address string) error
	// RemoveServer and PromoteServer report whether they changed anything.
	// Called on the leader alone.
	RemoveServer(ctx context.Context, name string) (removed bool, err error)
	PromoteServer(ctx context.Context, name string) (promoted bool, err error)
}

// GateConfig is what a Gate needs.
type GateConfig struct {
	CA *pki.CA
	// Keys are handed to servers that join. Nil: there are none.
	Keys    *seal.Ring
	Store   *fsm.Store
	Cluster Membership
	// CertificateTTL and TokenTTL are the lives of what the gate gives out.
	CertificateTTL, TokenTTL time.Duration
	Logger                   hclog.Logger
}

// Gate lets machines into the cluster. Every server has one: it checks tokens
// against its own store, issues with its own copy of the CA, and asks the
// leader to record who came in. Safe for concurrent use.
//
// A server comes in by two steps: with its token it gets a certificate and
// the CA's key; once its port is up it shows that certificate on PathMembers
// and becomes a member. So no address that nobody listens at is ever added.
type Gate struct {
	cfg      GateConfig
	logger   hclog.Logger
	verifier *pki.Verifier
	mu       sync.Mutex // held while the leader looks at the configuration and changes it
}

// NewGate returns a gate. The CA must be able to issue.
func NewGate(cfg GateConfig) (*Gate, error) {
	if cfg.CA == nil || !cfg.CA.CanIssue() || cfg.Store == nil || cfg.Cluster == nil {
		return nil, errors.New("gate: a CA that can issue, a store and a cluster are needed")
	}
	if cfg.CertificateTTL <= 0 {
		cfg.CertificateTTL = pki.DefaultTTL
	}
	if cfg.TokenTTL <= 0 {
		cfg.TokenTTL = DefaultTokenTTL
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	return &Gate{cfg: cfg, logger: cfg.Logger.Named("gate"), verifier: pki.NewVerifier(cfg.CA, cfg.Cluster.Now)}, nil
}

// Register puts the gate's paths on the mux.
func (g *Gate) Register(mux *http.ServeMux) {
	mux.HandleFunc("POST "+wire.PathJoin, g.serve(g.join))
	mux.HandleFunc("POST "+wire.PathRenew, g.serve(g.renew))
	mux.HandleFunc("POST "+PathMembers, g.serve(g.member))
	mux.HandleFunc("POST "+wire.PathRemove, g.serve(g.administer(pathRemove)))
	mux.HandleFunc("POST "+wire.PathPromote, g.serve(g.administer(pathPromote)))
	mux.HandleFunc("POST "+pathStanding, g.serve(g.standing))
}

// refused is an error with the status that it is answered with.
type refused struct {
	status int
	reason string
}

func (r *refused) Error() string { return r.reason }

func refuse(status int, format string, args ...any) error {
	return &refused{status, fmt.Sprintf(format, args...)}
}

// serve bounds, decodes and answers in JSON.
func (g *Gate) serve(fn func(*http.Request, []byte) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK
		var answer any
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJoinBody))
		if err == nil {
			answer, err = fn(r, body)
		} else {
			err = refuse(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes, or was cut off", maxJoinBody)
		}
		if err != nil {
			status = http.StatusServiceUnavailable // the cluster's trouble, not the caller's
			var no *refused
			if errors.As(err, &no) {
				status = no.status
			}
			answer = wire.Error{Message: err.Error()}
			g.logger.Warn("refused", "path", r.URL.Path, "remote", r.RemoteAddr, "status", status, "reason", err)
		}
		out, err := json.Marshal(answer)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if _, err := w.Write(out); err != nil {
			g.logger.Debug("the caller went away before its answer", "error", err)
		}
	}
}

// join is the first step of a server, and the only one of an agent.
func (g *Gate) join(r *http.Request, body []byte) (any, error) {
	token, err := bearer(r)
	if err != nil {
		return nil, err
	}
	var req wire.JoinRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, refuse(http.StatusBadRequest, "malformed join request: %v", err)
	}
	if err := g.cfg.Cluster.ReadIndex(r.Context()); err != nil {
		return nil, fmt.Errorf("the cluster cannot answer now: %w", err)
	}
	if err := CheckToken(g.cfg.Store.View(), token, g.cfg.Cluster.Now()); err != nil {
		return nil, refuse(http.StatusUnauthorized, "%v", err)
	}
	if string(token.Role) != req.Role {
		return nil, refuse(http.StatusForbidden, "%v: a %s token does not let a machine join as %q", pki.ErrTokenRole, token.Role, req.Role)
	}
	csr, err := pki.ParseCSR([]byte(req.CSR))
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	issue := pki.Request{Role: token.Role, Name: req.Name, Hosts: req.SANs, TTL: g.cfg.CertificateTTL}
	if token.Role == pki.RoleServer {
		if err := g.admitServer(req); err != nil {
			return nil, err
		}
		issue.Name = req.ID
	} else {
		hash, err := pki.KeyHash(csr.PublicKey)
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "%v", err)
		}
		if err := g.ask(r.Context(), pathClaim, nodeClaim{Node: req.Name, KeyHash: hash}); err != nil {
			return nil, err
		}
	}
	cert, err := g.cfg.CA.IssueCSR([]byte(req.CSR), issue, g.cfg.Cluster.Now())
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	g.logger.Info("a machine joins", "role", req.Role, "name", req.Name, "token", token.ID, "version", req.Version)
	res := wire.JoinResponse{
		ClusterID: g.cfg.CA.ClusterID(), Certificate: string(cert), CA: string(g.cfg.CA.CertPEM()), Servers: g.cfg.Cluster.Servers(),
	}
	if token.Role == pki.RoleServer {
		res.CAKey = string(g.cfg.CA.KeyPEM())
		if g.cfg.Keys != nil {
			res.DataKeys = string(g.cfg.Keys.Keys().Encode())
		}
	}
	return res, nil
}

func bearer(r *http.Request) (pki.Token, error) {
	text, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return pki.Token{}, refuse(http.StatusUnauthorized, "a join needs a token")
	}
	token, err := pki.ParseToken(text)
	if err != nil {
		return token, refuse(http.StatusUnauthorized, "%v", err)
	}
	return token, nil
}

var serverID = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?-[0-9a-f]{8}$`)

// NewServerID makes the Raft ID of a server with this name: the name is a
// label, the suffix is drawn once for each data directory. A server that lost
// its disk is another server to Raft, because its votes are forgotten.
func NewServerID(name string) string {
	var raw [4]byte
	_, _ = rand.Read(raw[:]) // never fails: crypto/rand ends the process instead
	return fmt.Sprintf("%s-%x", name, raw)
}

// ServerName is the name within a Raft ID.
func ServerName(id string) string {
	if serverID.MatchString(id) {
		return id[:len(id)-9]
	}
	return id
}

// admitServer refuses a joiner that could not become a member, before it
// learns the CA's key.
func (g *Gate) admitServer(req wire.JoinRequest) error {
	if !serverID.MatchString(req.ID) || ServerName(req.ID) != req.Name {
		return refuse(http.StatusBadRequest, "server ID %q must be the name %q, a dash and eight hexadecimal digits", req.ID, req.Name)
	}
	if _, _, err := net.SplitHostPort(req.Address); err != nil {
		return refuse(http.StatusBadRequest, "server address %q: %v", req.Address, err)
	}
	return g.checkPlace(wire.Server{ID: req.ID, Name: req.Name, Address: req.Address})
}

// checkPlace refuses a server whose name or address is another member's.
func (g *Gate) checkPlace(s wire.Server) error {
	for _, m := range g.cfg.Cluster.Servers() {
		switch {
		case m.ID == s.ID:
		case ServerName(m.ID) == s.Name && m.Address == s.Address:
			// Whoever has that address has rebuilt it; the leader makes sure.
		case ServerName(m.ID) == s.Name:
			return refuse(http.StatusConflict, "the server name %q is in use by %s at %s: choose another --name, or remove that server first if it is gone for good: sheepctl cluster remove %s", s.Name, m.ID, m.Address, m.ID)
		case m.Address == s.Address:
			return refuse(http.StatusConflict, "the address %s is in use by server %s: choose another --advertise, or remove that server first if it is gone for good: sheepctl cluster remove %s", s.Address, m.ID, m.ID)
		}
	}
	return nil
}

// member is the second step of a server.
func (g *Gate) member(r *http.Request, body []byte) (any, error) {
	id, err := g.caller(r, pki.RoleServer)
	if err != nil {
		return nil, err
	}
	var s wire.Server
	if err := json.Unmarshal(body, &s); err != nil {
		return nil, refuse(http.StatusBadRequest, "malformed member: %v", err)
	}
	if s.ID != id.Name || ServerName(s.ID) != s.Name {
		return nil, refuse(http.StatusForbidden, "the certificate is of server %q, not of %q (%q)", id.Name, s.ID, s.Name)
	}
	if _, _, err := net.SplitHostPort(s.Address); err != nil {
		return nil, refuse(http.StatusBadRequest, "server address %q: %v", s.Address, err)
	}
	if err := g.ask(r.Context(), pathMember, s); err != nil {
		return nil, err
	}
	return wire.ServerList{Servers: g.cfg.Cluster.Servers()}, nil
}

// renew gives an agent a new certificate for the key that it has.
func (g *Gate) renew(r *http.Request, body []byte) (any, error) {
	id, err := g.caller(r, pki.RoleAgent)
	if err != nil {
		return nil, err
	}
	var req wire.RenewRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, refuse(http.StatusBadRequest, "malformed renewal: %v", err)
	}
	csr, err := pki.ParseCSR([]byte(req.CSR))
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	hash, err := pki.KeyHash(csr.PublicKey)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	if hash != pki.CertKeyHash(r.TLS.PeerCertificates[0]) {
		return nil, refuse(http.StatusForbidden, "a renewal keeps the key; another key needs a token")
	}
	if err := g.cfg.Cluster.ReadIndex(r.Context()); err != nil {
		return nil, fmt.Errorf("the cluster cannot answer now: %w", err)
	}
	if err := CheckNodeKey(g.cfg.Store.View(), id.Name, hash); err != nil {
		return nil, refuse(http.StatusForbidden, "%v", err)
	}
	cert, err := g.cfg.CA.IssueCSR([]byte(req.CSR), pki.Request{Role: pki.RoleAgent, Name: id.Name, TTL: g.cfg.CertificateTTL}, g.cfg.Cluster.Now())
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	return wire.RenewResponse{Certificate: string(cert), CA: string(g.cfg.CA.CertPEM()), Servers: g.cfg.Cluster.Servers()}, nil
}

// caller is who the connection's certificate stands for.
func (g *Gate) caller(r *http.Request, role pki.Role) (pki.Identity, error) {
	if r.TLS == nil {
		return pki.Identity{}, refuse(http.StatusUnauthorized, "%v", pki.ErrNoCertificate)
	}
	id, err := g.verifier.Verify(r.TLS.PeerCertificates, role)
	switch {
	case errors.Is(err, pki.ErrWrongRole):
		return id, refuse(http.StatusForbidden, "%v", err)
	case err != nil:
		return id, refuse(http.StatusUnauthorized, "%v", err)
	}
	return id, nil
}
