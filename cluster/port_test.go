package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
)

// credentials are a CA, and what it issues, for tests of the port and joins.
type credentials struct {
	t   testing.TB
	ca  *pki.CA
	now func() time.Time
}

func newCredentials(t testing.TB) *credentials {
	t.Helper()
	ca, err := pki.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &credentials{t: t, ca: ca, now: time.Now}
}

func (c *credentials) source(role pki.Role, name string, ttl time.Duration, issued time.Time) *pki.Source {
	c.t.Helper()
	s, err := pki.OpenSource(c.t.TempDir(), "test")
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := c.ca.Issue(pki.Request{Role: role, Name: name, Public: s.Key().Public(), TTL: ttl}, issued)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := s.Install(out); err != nil {
		c.t.Fatal(err)
	}
	return s
}

func (c *credentials) server(name string) *pki.Source {
	return c.source(pki.RoleServer, name, 0, c.now())
}

func (c *credentials) port(change func(*PortConfig)) *Port {
	c.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	cfg := DefaultPortConfig()
	cfg.Listener, cfg.Source, cfg.Verifier = l, c.server("a-00000001"), pki.NewVerifier(c.ca, c.now)
	if change != nil {
		change(&cfg)
	}
	p, err := NewPort(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if err := p.Close(); err != nil {
			c.t.Errorf("close the port: %v", err)
		}
	})
	return p
}

// echo serves one greeting, naming the peer, to each connection of l.
func echo(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			fmt.Fprintf(c, "hello %s", c.(*Conn).Peer.Name)
			c.Close()
		}()
	}
}

// talk dials and reads the greeting. The certificate's refusal shows at the
// first read.
func (c *credentials) talk(source *pki.Source, address, protocol string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	d := Dialer{Source: source, Verifier: pki.NewVerifier(c.ca, c.now)}
	conn, err := d.Dial(ctx, address, protocol)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	out, err := io.ReadAll(conn)
	return string(out), err
}

func TestPortChecksRoles(t *testing.T) {
	c := newCredentials(t)
	foreign := newCredentials(t)
	port := c.port(func(cfg *PortConfig) { cfg.Approved = func(id string) bool { return id != "removed-01" } })
	for _, l := range []net.Listener{port.Raft(), port.Link(), port.Agents()} {
		go echo(l)
	}
	address := port.Addr().String()
	server, agent := c.server("b-00000002"), c.source(pki.RoleAgent, "w1", 0, c.now())
	admin := c.source(pki.RoleAdmin, pki.AdminUser, 0, c.now())
	expired := c.source(pki.RoleServer, "b-00000002", time.Hour, c.now().Add(-2*time.Hour))
	const bad = "bad certificate"
	for _, tc := range []struct {
		name     string
		source   *pki.Source
		protocol string
		want     string // greeting
		fails    string
	}{
		{"server on raft", server, wire.ProtoRaft, "hello b-00000002", ""},
		{"server on link", server, wire.ProtoLink, "hello b-00000002", ""},
		{"agent on streams", agent, wire.ProtoAgent, "hello w1", ""},
		{"agent on raft", agent, wire.ProtoRaft, "", bad},
		{"agent on link", agent, wire.ProtoLink, "", bad},
		{"admin on raft", admin, wire.ProtoRaft, "", bad},
		{"admin on link", admin, wire.ProtoLink, "", bad},
		{"admin on streams", admin, wire.ProtoAgent, "", bad},
		{"server on streams", server, wire.ProtoAgent, "", bad},
		{"removed server on raft", c.server("removed-01"), wire.ProtoRaft, "", bad},
		{"removed server on link", c.server("removed-01"), wire.ProtoLink, "", bad},
		{"expired on raft", expired, wire.ProtoRaft, "", bad},
		{"foreign CA on raft", foreign.server("b-00000002"), wire.ProtoRaft, "", bad},
		{"foreign CA on streams", foreign.source(pki.RoleAgent, "w1", 0, c.now()), wire.ProtoAgent, "", bad},
		{"unknown protocol", server, "shepherd-raft/9", "", "no application protocol"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := c.talk(tc.source, address, tc.protocol)
			if tc.fails == "" && (err != nil || got != tc.want) {
				t.Fatalf("got %q, %v", got, err)
			}
			if tc.fails != "" && (err == nil || !strings.Contains(err.Error(), tc.fails)) {
				t.Fatalf("got %q, %v; want an error with %q", got, err, tc.fails)
			}
		})
	}
	for _, protocol := range []string{wire.ProtoRaft, wire.ProtoLink, wire.ProtoAgent} {
		cfg := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}
		if conn, err := tls.Dial("tcp", address, cfg); err == nil {
			if out, err := io.ReadAll(conn); err == nil {
				t.Errorf("no certificate on %s: got %q", protocol, out)
			}
			conn.Close()
		}
	}
}

func TestDialerKnowsServers(t *testing.T) {
	c, foreign := newCredentials(t), newCredentials(t)
	port := foreign.port(nil)
	if _, err := c.talk(c.server("b-00000002"), port.Addr().String(), wire.ProtoRaft); !errors.Is(err, pki.ErrForeign) {
		t.Errorf("a server of another cluster: %v", err)
	}
	impostor := c.port(func(cfg *PortConfig) { cfg.Source = c.source(pki.RoleAgent, "w1", 0, c.now()) })
	if _, err := c.talk(c.server("b-00000002"), impostor.Addr().String(), wire.ProtoRaft); !errors.Is(err, pki.ErrWrongRole) {
		t.Errorf("an agent posing as a server: %v", err)
	}
	d := Dialer{Source: c.server("b-00000002"), Verifier: pki.NewVerifier(c.ca, c.now), Approved: func(string) bool { return false }}
	if conn, err := d.Raft(raft.ServerAddress(c.port(nil).Addr().String()), time.Second*5); !errors.Is(err, ErrNotMember) || conn != nil {
		t.Errorf("a removed server answering: %v %v", conn, err)
	}
}

func TestPortServesHTTP2AndAnyClient(t *testing.T) {
	c, foreign := newCredentials(t), newCredentials(t)
	port := c.port(nil)
	verifier := pki.NewVerifier(c.ca, c.now)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := verifier.Verify(r.TLS.PeerCertificates)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, "%s %s", r.Proto, id.User())
	})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(port.API()) }()
	roots := verifier.Pool()
	get := func(source *pki.Source, http2 bool) (int, string) {
		t.Helper()
		cfg := &tls.Config{RootCAs: roots}
		if source != nil {
			cfg.GetClientCertificate = source.GetClientCertificate
		}
		tr := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: http2}
		defer tr.CloseIdleConnections()
		res, err := (&http.Client{Transport: tr}).Get("https://" + port.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	admin := c.source(pki.RoleAdmin, pki.AdminUser, 0, c.now())
	if code, body := get(admin, true); code != 200 || body != "HTTP/2.0 shepherd-admin" {
		t.Errorf("h2: %d %q", code, body)
	}
	if code, body := get(admin, false); code != 200 || body != "HTTP/1.1 shepherd-admin" {
		t.Errorf("http/1.1: %d %q", code, body)
	}
	if code, body := get(nil, true); code != 401 || !strings.Contains(body, "no certificate") {
		t.Errorf("no certificate: %d %q", code, body)
	}
	if code, body := get(foreign.source(pki.RoleAdmin, pki.AdminUser, 0, c.now()), true); code != 401 || !strings.Contains(body, "another cluster") {
		t.Errorf("foreign certificate: %d %q", code, body)
	}
	if code, body := get(c.source(pki.RoleAdmin, pki.AdminUser, time.Hour, c.now().Add(-2*time.Hour)), true); code != 401 || !strings.Contains(body, "expired") {
		t.Errorf("expired certificate: %d %q", code, body)
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("serve ended with %v", err)
	}
}

// TestPortKeepsSlotsForPeers holds every client slot with handshakes that
// never end; a peer gets through all the same.
func TestPortKeepsSlotsForPeers(t *testing.T) {
	c := newCredentials(t)
	port := c.port(func(cfg *PortConfig) { cfg.MaxHandshakes, cfg.HandshakeTimeout = 2, time.Hour })
	go echo(port.Raft())
	stallHandshakes(t, port, 2)
	if got, err := c.talk(c.server("b-00000002"), port.Addr().String(), wire.ProtoRaft); err != nil || got != "hello b-00000002" {
		t.Fatalf("a peer behind stalled clients: %q %v", got, err)
	}
}

// TestPortFreesSlotsInTime: clients get through once the timeout has freed the
// slots that stalled handshakes hold. The timeout is also the agent's own: it
// leaves a busy machine time for one handshake.
func TestPortFreesSlotsInTime(t *testing.T) {
	c := newCredentials(t)
	port := c.port(func(cfg *PortConfig) { cfg.MaxHandshakes, cfg.HandshakeTimeout = 2, 2*time.Second })
	go echo(port.Agents())
	agent := c.source(pki.RoleAgent, "w1", 0, c.now())
	stallHandshakes(t, port, 2)
	poll(t, "an agent gets through after the timeout", func() error {
		got, err := c.talk(agent, port.Addr().String(), wire.ProtoAgent)
		if err == nil && got != "hello w1" {
			err = fmt.Errorf("greeting %q", got)
		}
		return err
	})
}

// stallHandshakes opens client connections whose handshakes stop in the middle
// until the test ends. All of them hold their slots when it returns.
func stallHandshakes(t *testing.T, port *Port, count int) {
	t.Helper()
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	for range count {
		stalled := make(chan struct{})
		raw, err := net.Dial("tcp", port.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { raw.Close() })
		go func() {
			// Stop in the middle: the server's flight arrives, ours never goes out.
			cfg := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{wire.ProtoAgent}, VerifyPeerCertificate: func([][]byte, [][]*x509.Certificate) error {
				close(stalled)
				<-over
				return errors.New("the test is over")
			}}
			_ = tls.Client(raw, cfg).Handshake() // fails in the end, as it is told to
		}()
		<-stalled
	}
}

func TestPortCloseEndsAccepts(t *testing.T) {
	c := newCredentials(t)
	port := c.port(nil)
	half, err := net.Dial("tcp", port.Addr().String()) // a handshake that runs
	if err != nil {
		t.Fatal(err)
	}
	defer half.Close()
	ended := make(chan error, 4)
	for _, l := range []net.Listener{port.API(), port.Raft(), port.Link(), port.Agents()} {
		go func() {
			_, err := l.Accept()
			ended <- err
		}()
	}
	if err := port.Close(); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("accept ended with %v", err)
		}
	}
}
