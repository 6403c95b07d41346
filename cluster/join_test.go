package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"sigs.k8s.io/yaml"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/fsm"
)

// solo is a cluster of one that always leads: it applies to a real store.
type solo struct {
	store *fsm.Store
	gate  *Gate

	mu      sync.Mutex
	index   uint64
	servers []wire.Server
	now     time.Time
}

func (s *solo) Leadership() (uint64, bool)      { return 1, true }
func (s *solo) ReadIndex(context.Context) error { return nil }

func (s *solo) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *solo) advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

func (s *solo) Servers() []wire.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]wire.Server{}, s.servers...)
}

func (s *solo) AddServer(_ context.Context, id, address string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.servers {
		if s.servers[i].ID == id {
			s.servers[i].Address = address
			return nil
		}
	}
	s.servers = append(s.servers, wire.Server{ID: id, Name: ServerName(id), Address: address})
	return nil
}

func (s *solo) RemoveServer(context.Context, string) (bool, error)  { return false, ErrLosesQuorum }
func (s *solo) PromoteServer(context.Context, string) (bool, error) { return false, ErrNotCaughtUp }

func (s *solo) Propose(_ context.Context, c fsm.Command) (fsm.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index++
	c.Time = s.now.UnixNano()
	switch out := s.store.Apply(&raft.Log{Index: s.index, Term: 1, Data: fsm.EncodeEntry([]fsm.Command{c})}).(type) {
	case []fsm.Result:
		return out[0], nil
	default:
		return fsm.Result{}, fmt.Errorf("apply gave %v", out)
	}
}

func (s *solo) Forward(ctx context.Context, req *wire.Request) (*wire.Response, error) {
	if !s.gate.Handles(req) {
		return nil, errors.New("not for the gate")
	}
	return s.gate.HandleForwarded(ctx, req), nil
}

// door is one server's gate behind its port.
type door struct {
	*credentials
	solo    *solo
	address string
	dataDir string
}

func newDoor(t *testing.T) *door {
	t.Helper()
	d := &door{credentials: newCredentials(t), dataDir: t.TempDir()}
	d.solo = &solo{store: fsm.New(fsm.DefaultConfig()), now: time.Now()}
	d.credentials.now = d.solo.Now
	port := d.port(nil)
	d.address = port.Addr().String()
	d.solo.servers = []wire.Server{{ID: "a-00000001", Name: "a", Address: d.address}}
	gate, err := NewGate(GateConfig{CA: d.ca, Store: d.solo.store, Cluster: d.solo, TokenTTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	d.solo.gate = gate
	mux := http.NewServeMux()
	gate.Register(mux)
	srv := &http.Server{Handler: mux}
	go srv.Serve(port.API()) // ends with the port
	t.Cleanup(func() { srv.Close() })
	if err := gate.EnsureTokens(t.Context(), d.dataDir, "a"); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *door) token(role pki.Role) pki.Token {
	d.t.Helper()
	text, err := os.ReadFile(TokenPath(d.dataDir, role))
	if err != nil {
		d.t.Fatal(err)
	}
	token, err := pki.ParseToken(string(text))
	if err != nil {
		d.t.Fatal(err)
	}
	return token
}

func (d *door) newSource(name string) *pki.Source {
	d.t.Helper()
	s, err := pki.OpenSource(d.t.TempDir(), name)
	if err != nil {
		d.t.Fatal(err)
	}
	return s
}

func (d *door) join(token pki.Token, s *pki.Source, req wire.JoinRequest) (*wire.JoinResponse, *pki.CA, error) {
	d.t.Helper()
	csr, err := pki.NewCSR(s.Key(), nil)
	if err != nil {
		d.t.Fatal(err)
	}
	if req.CSR == "" {
		req.CSR = string(csr)
	}
	ctx, cancel := context.WithTimeout(d.t.Context(), 5*time.Second)
	defer cancel()
	j := Joiner{Servers: []string{d.address}, Retry: 10 * time.Millisecond}
	return j.Join(ctx, token, req)
}

func agentRequest(name string) wire.JoinRequest { return wire.JoinRequest{Role: "agent", Name: name} }

func serverRequest(name, id, address string) wire.JoinRequest {
	return wire.JoinRequest{Role: "server", Name: name, ID: id, Address: address}
}

func TestAgentJoins(t *testing.T) {
	d := newDoor(t)
	s := d.newSource("agent")
	res, ca, err := d.join(d.token(pki.RoleAgent), s, agentRequest("w1"))
	if err != nil {
		t.Fatal(err)
	}
	if res.CAKey != "" || ca.CanIssue() {
		t.Error("an agent got the CA's key")
	}
	if err := s.Install([]byte(res.Certificate)); err != nil {
		t.Fatal(err)
	}
	id, err := pki.NewVerifier(ca, time.Now).Verify(nil, pki.RoleAgent)
	if !errors.Is(err, pki.ErrNoCertificate) {
		t.Fatalf("%v %v", id, err)
	}
	if id, err = pki.FromCertificate(s.Leaf()); err != nil || id.Name != "w1" || id.Role != pki.RoleAgent {
		t.Fatalf("%v %v", id, err)
	}
	if len(res.Servers) != 1 || res.Servers[0].Address != d.address {
		t.Errorf("servers %v", res.Servers)
	}

	// The same machine may come again; another one may not, until the Node is gone.
	if _, _, err := d.join(d.token(pki.RoleAgent), s, agentRequest("w1")); err != nil {
		t.Errorf("the same machine again: %v", err)
	}
	d.createNode("w1")
	d.solo.advance(claimGrace + time.Second)
	other := d.newSource("agent")
	if _, _, err := d.join(d.token(pki.RoleAgent), other, agentRequest("w1")); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "in use by another machine") {
		t.Fatalf("another machine with a used name: %v", err)
	}
	d.deleteNode("w1")
	if _, _, err := d.join(d.token(pki.RoleAgent), other, agentRequest("w1")); err != nil {
		t.Fatalf("another machine after the Node was deleted: %v", err)
	}
	if err := CheckNodeKey(d.solo.store.View(), "w1", pki.CertKeyHash(s.Leaf())); !errors.Is(err, ErrNodeName) {
		t.Errorf("the first machine's certificate is still good: %v", err)
	}
	if err := d.renew(s); !errors.Is(err, ErrRefused) {
		t.Errorf("the first machine's certificate was renewed: %v", err)
	}
}

var nodeW1 = "uid-of-node"

func (d *door) createNode(name string) { d.change(fsm.Create, name) }
func (d *door) deleteNode(name string) { d.change(fsm.Delete, name) }

func (d *door) change(verb fsm.Verb, name string) {
	d.t.Helper()
	op := fsm.Op{Verb: verb, Key: fsm.Key{Resource: "nodes", Name: name}, UID: nodeW1}
	if verb == fsm.Create {
		op.Data = []byte("node")
	}
	res, err := d.solo.Propose(d.t.Context(), fsm.Command{Term: 1, Ops: []fsm.Op{op}})
	if err != nil || res.Code != fsm.OK {
		d.t.Fatalf("%v node: %v %v", verb, res, err)
	}
}

func (d *door) renew(s *pki.Source) error {
	j := Joiner{Servers: []string{d.address}}
	return j.Renew(d.t.Context(), pki.NewVerifier(d.ca, d.now), s)
}

func TestNodeNameIsHeldBeforeTheNodeExists(t *testing.T) {
	d := newDoor(t)
	if _, _, err := d.join(d.token(pki.RoleAgent), d.newSource("one"), agentRequest("w1")); err != nil {
		t.Fatal(err)
	}
	two := d.newSource("two")
	if _, _, err := d.join(d.token(pki.RoleAgent), two, agentRequest("w1")); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "a moment ago") {
		t.Fatalf("a race for one name: %v", err)
	}
	d.solo.advance(claimGrace + time.Second)
	if _, _, err := d.join(d.token(pki.RoleAgent), two, agentRequest("w1")); err != nil {
		t.Fatalf("after the grace: %v", err)
	}
}

func TestAgentRenews(t *testing.T) {
	d := newDoor(t)
	s := d.newSource("agent")
	res, _, err := d.join(d.token(pki.RoleAgent), s, agentRequest("w1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Install([]byte(res.Certificate)); err != nil {
		t.Fatal(err)
	}
	before := s.Leaf()
	d.solo.advance(pki.DefaultTTL/2 + time.Hour)
	if err := d.renew(s); err != nil {
		t.Fatal(err)
	}
	if !s.Leaf().NotAfter.After(before.NotAfter) {
		t.Error("the certificate does not live longer")
	}
}

func TestServerJoins(t *testing.T) {
	d := newDoor(t)
	s := d.newSource("server")
	res, ca, err := d.join(d.token(pki.RoleServer), s, serverRequest("b", "b-0000000b", "127.0.0.1:7"))
	if err != nil {
		t.Fatal(err)
	}
	if !ca.CanIssue() || ca.ClusterID() != d.ca.ClusterID() {
		t.Fatal("a server must be able to issue")
	}
	if err := s.Install([]byte(res.Certificate)); err != nil {
		t.Fatal(err)
	}
	if len(d.solo.Servers()) != 1 {
		t.Fatal("a server became a member before its port was up")
	}
	enter := func(s *pki.Source, self wire.Server) error {
		j := Joiner{Servers: []string{d.address}}
		return j.Enter(t.Context(), pki.NewVerifier(d.ca, d.now), s, self)
	}
	b := wire.Server{ID: "b-0000000b", Name: "b", Address: "127.0.0.1:7"}
	for range 2 { // a lost answer is asked for again
		if err := enter(s, b); err != nil {
			t.Fatal(err)
		}
	}
	if got := d.solo.Servers(); len(got) != 2 || got[1] != b {
		t.Fatalf("members %v", got)
	}
	moved := b
	moved.Address = "127.0.0.1:8"
	if err := enter(s, moved); err != nil {
		t.Fatal(err)
	}
	if got := d.solo.Servers(); len(got) != 2 || got[1] != moved {
		t.Fatalf("members after a move %v", got)
	}
	if err := enter(s, wire.Server{ID: "a-00000001", Name: "a", Address: "127.0.0.1:9"}); !errors.Is(err, ErrRefused) {
		t.Errorf("a server entered under another's ID: %v", err)
	}
	agent := d.source(pki.RoleAgent, "w1", 0, d.now())
	if err := enter(agent, b); !errors.Is(err, ErrRefused) {
		t.Errorf("an agent entered as a server: %v", err)
	}
}

func TestJoinRefuses(t *testing.T) {
	d, foreign := newDoor(t), newDoor(t)
	server, agent := d.token(pki.RoleServer), d.token(pki.RoleAgent)
	wrong, err := pki.ParseToken(strings.Join(append(strings.Split(agent.Reveal(), ".")[:4], strings.Split(server.Reveal(), ".")[4]), "."))
	if err != nil {
		t.Fatal(err)
	}
	unknown := pki.NewToken(pki.RoleAgent, d.ca)
	for _, tc := range []struct {
		name  string
		token pki.Token
		req   wire.JoinRequest
		want  string
	}{
		{"wrong secret", wrong, agentRequest("w1"), "not valid"},
		{"unknown token", unknown, agentRequest("w1"), "not valid"},
		{"agent token for a server", agent, serverRequest("b", "b-0000000b", "127.0.0.1:7"), "does not let"},
		{"server token for an agent", server, agentRequest("w1"), "does not let"},
		{"used server name", server, serverRequest("a", "a-0000000b", "127.0.0.1:7"), `"a" is in use`},
		{"used address", server, serverRequest("b", "b-0000000b", d.address), "address"},
		{"ID of another name", server, serverRequest("b", "a-0000000b", "127.0.0.1:7"), "server ID"},
		{"no port", server, serverRequest("b", "b-0000000b", "127.0.0.1"), "server address"},
		{"hostile node name", agent, agentRequest("w1/../../server/a"), "node name"},
		{"empty node name", agent, agentRequest(""), "node name"},
		{"no CSR", agent, wire.JoinRequest{Role: "agent", Name: "w1", CSR: "x"}, "signing request"},
		{"oversized", agent, wire.JoinRequest{Role: "agent", Name: "w1", CSR: strings.Repeat("x", maxJoinBody)}, "larger"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := d.solo.store.View().Revision()
			_, _, err := d.join(tc.token, d.newSource("x"), tc.req)
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), tc.token.Reveal()) {
				t.Error("the error shows the token")
			}
			if after := d.solo.store.View().Revision(); after != before {
				t.Errorf("something changed: revision %d, then %d", before, after)
			}
		})
	}
	t.Run("foreign token", func(t *testing.T) {
		if _, _, err := d.join(foreign.token(pki.RoleAgent), d.newSource("x"), agentRequest("w1")); !errors.Is(err, pki.ErrPin) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("expired token", func(t *testing.T) {
		d.solo.advance(2 * time.Hour)
		if _, _, err := d.join(agent, d.newSource("x"), agentRequest("w1")); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "expired") {
			t.Errorf("got %v", err)
		}
	})
}

// TestSecretStaysWithTheJoiner puts a server of another cluster where the
// joiner expects its own: the request must not arrive there.
func TestSecretStaysWithTheJoiner(t *testing.T) {
	c, mine := newCredentials(t), newCredentials(t)
	port := c.port(nil)
	heard := make(chan string, 1)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heard <- r.Header.Get("Authorization")
	})}
	go srv.Serve(port.API()) // ends with the port
	defer srv.Close()
	token := pki.NewToken(pki.RoleServer, mine.ca)
	j := Joiner{Servers: []string{port.Addr().String()}}
	if _, _, err := j.Join(t.Context(), token, agentRequest("w1")); !errors.Is(err, pki.ErrPin) {
		t.Errorf("got %v", err)
	}
	select {
	case got := <-heard:
		t.Errorf("a stranger heard %q", got)
	default:
	}
}

func TestTokensRotate(t *testing.T) {
	d := newDoor(t)
	first := d.token(pki.RoleAgent)
	ensure := func() {
		t.Helper()
		if err := d.solo.gate.EnsureTokens(t.Context(), d.dataDir, "a"); err != nil {
			t.Fatal(err)
		}
	}
	ensure()
	if d.token(pki.RoleAgent) != first {
		t.Error("a good token was replaced")
	}
	d.solo.advance(31 * time.Minute)
	ensure()
	second := d.token(pki.RoleAgent)
	if second == first {
		t.Error("a token past half of its life was kept")
	}
	for _, token := range []pki.Token{first, second} {
		if err := CheckToken(d.solo.store.View(), token, d.now()); err != nil {
			t.Errorf("%s in the overlap: %v", token, err)
		}
	}
	d.solo.advance(tokenGrace + 2*time.Hour)
	ensure()
	if err := CheckToken(d.solo.store.View(), first, d.now()); !errors.Is(err, pki.ErrTokenUnknown) {
		t.Errorf("an old record was kept: %v", err)
	}
	if err := os.WriteFile(TokenPath(d.dataDir, pki.RoleAgent), []byte("shp1.agent"), 0o600); err != nil {
		t.Fatal(err)
	}
	ensure()
	if err := CheckToken(d.solo.store.View(), d.token(pki.RoleAgent), d.now()); err != nil {
		t.Errorf("after a damaged file: %v", err)
	}
}

func TestGatePathsAreNotServed(t *testing.T) {
	d := newDoor(t)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: pki.NewVerifier(d.ca, d.now).ClientConfig(d.server("b-0000000b"))}}
	defer client.CloseIdleConnections()
	for _, path := range []string{pathClaim, pathMember, pathTokens} {
		res, err := client.Post("https://"+d.address+path, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusNotFound {
			t.Errorf("%s answers clients: %s", path, res.Status)
		}
	}
}

func TestKubeconfig(t *testing.T) {
	c := newCredentials(t)
	a, b := wire.Server{ID: "a-00000001", Name: "a", Address: "10.0.0.1:9876"}, wire.Server{ID: "b-00000002", Name: "b", Address: "10.0.0.2:9876"}
	text, err := Kubeconfig(c.ca, b, []wire.Server{a, b}, []byte("CERT"), []byte("KEY"))
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	var k kubeconfig
	if err := json.Unmarshal(asJSON, &k); err != nil {
		t.Fatal(err)
	}
	if k.CurrentContext != "b" || len(k.Contexts) != 2 || len(k.Clusters) != 2 || k.Clusters[1].Cluster.Server != "https://10.0.0.1:9876" {
		t.Errorf("%s", text)
	}
	if string(k.Users[0].User.Key) != "KEY" || string(k.Clusters[0].Cluster.CA) != string(c.ca.CertPEM()) {
		t.Errorf("credentials are not inline: %s", text)
	}
}
