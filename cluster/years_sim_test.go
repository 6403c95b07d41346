package cluster

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/fsm"
)

const (
	oneYear = 365 * day
)

// calendar is a cluster of one store whose time is the bubble's.
type calendar struct{ *solo }

func (c calendar) Now() time.Time { return time.Now() }

func (c calendar) Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	c.mu.Lock()
	c.now = time.Now()
	c.mu.Unlock()
	return c.solo.Propose(ctx, cmd)
}

// oldServer is a server but for Raft: its directory, port and gate, which run
// for years. A simulated Node would beat a billion times.
type oldServer struct {
	name, addr, dir string
	home            *Home
	verifier        *pki.Verifier
	gate            *Gate
}

// oldCluster is three of them and an agent, on one simulated network.
type oldCluster struct {
	t       *testing.T
	net     *simNet
	members calendar
	servers []*oldServer
	tick    time.Duration // of the servers' upkeep
	turn    int           // counts the uses of a kubeconfig
}

func (c *oldCluster) dialer(from string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, to string) (net.Conn, error) { return c.net.dial(ctx, "tls", from, to) }
}

func newOldCluster(t *testing.T, tick time.Duration) *oldCluster {
	t.Helper()
	c := &oldCluster{t: t, net: newSimNet(1), tick: tick}
	t.Cleanup(func() { time.Sleep(time.Minute) }) // comes last: what was closed reaches the other ends
	c.members = calendar{&solo{store: fsm.New(fsm.DefaultConfig()), now: time.Now()}}
	for i := range 3 {
		s := &oldServer{name: fmt.Sprintf("s%d", i+1), dir: t.TempDir()}
		s.addr = s.name + ":9876"
		c.start(s)
		c.servers = append(c.servers, s)
	}
	return c
}

func (c *oldCluster) start(s *oldServer) {
	t := c.t
	t.Helper()
	var err error
	if s.home, err = OpenHome(s.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.home.Close() })
	if len(c.servers) == 0 {
		err = s.home.Begin(s.name, s.addr, time.Now())
	} else {
		first := c.servers[0]
		j := &Joiner{Servers: []string{first.addr}, DialContext: c.dialer(s.addr)}
		err = s.home.Join(t.Context(), j, tokenIn(t, first.dir, pki.RoleServer), s.name, s.addr, "v1")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := c.members.AddServer(t.Context(), s.home.ID(), s.addr); err != nil {
		t.Fatal(err)
	}
	if s.gate, err = NewGate(GateConfig{CA: s.home.CA, Keys: s.home.Keys, Store: c.members.store, Cluster: c.members}); err != nil {
		t.Fatal(err)
	}
	if len(c.servers) == 0 {
		c.members.gate = s.gate
	}
	if err := s.upkeep(t.Context(), c.members); err != nil {
		t.Fatal(err)
	}
	c.serve(s)
	go func() {
		for {
			select {
			case <-time.After(c.tick):
			case <-t.Context().Done():
				return
			}
			if err := s.upkeep(t.Context(), c.members); err != nil && t.Context().Err() == nil {
				t.Errorf("%v: upkeep of %s: %v", time.Now(), s.name, err)
			}
		}
	}()
}

// upkeep is what a server does all the time.
func (s *oldServer) upkeep(ctx context.Context, members Membership) error {
	if _, err := s.home.Renew([]string{s.name}, 0, time.Now()); err != nil {
		return err
	}
	if err := s.home.WriteKubeconfig(s.addr, members.Servers()); err != nil {
		return err
	}
	return s.gate.EnsureTokens(ctx, s.dir, s.name)
}

// serve answers on the port: the gate, who somebody is, and an echo on links and
// streams.
func (c *oldCluster) serve(s *oldServer) {
	c.t.Helper()
	s.verifier = pki.NewVerifier(s.home.CA, time.Now)
	cfg := DefaultPortConfig()
	cfg.Listener, cfg.Source, cfg.Verifier = c.net.listen("tls", s.addr), s.home.Server, s.verifier
	port, err := NewPort(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	mux := http.NewServeMux()
	s.gate.Register(mux)
	mux.HandleFunc("GET /who", func(w http.ResponseWriter, r *http.Request) {
		id, err := s.verifier.Verify(r.TLS.PeerCertificates, pki.RoleAgent, pki.RoleAdmin)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, id.Name)
	})
	srv := &http.Server{Handler: mux}
	KeepFresh(srv, time.Now)
	go srv.Serve(port.API()) // ends with the port
	for _, l := range []net.Listener{port.Agents(), port.Link()} {
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					for lines := bufio.NewReader(conn); ; {
						line, err := lines.ReadString('\n')
						if err != nil {
							return
						}
						fmt.Fprint(conn, line)
					}
				}()
			}
		}()
	}
	c.t.Cleanup(func() {
		srv.Close()
		port.Close()
	})
}

func tokenIn(t *testing.T, dir string, role pki.Role) pki.Token {
	t.Helper()
	text, err := os.ReadFile(TokenPath(dir, role))
	if err != nil {
		t.Fatal(err)
	}
	token, err := pki.ParseToken(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// who asks the server who a client is.
func who(transport *http.Transport, server string) error {
	res, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get("https://" + server + "/who")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return nil
}

// kubectl uses a kubeconfig as any client does, knowing nothing of Shepherd.
// It returns the client's and the CA's certificates.
func (c *oldCluster) kubectl(text []byte) (*x509.Certificate, *x509.Certificate, error) {
	var kc kubeconfig
	if err := yaml.Unmarshal(text, &kc); err != nil {
		return nil, nil, err
	}
	pair, err := tls.X509KeyPair(kc.Users[0].User.Certificate, kc.Users[0].User.Key)
	if err != nil {
		return nil, nil, err
	}
	c.turn++
	x := kc.Clusters[c.turn%len(kc.Clusters)].Cluster // another server each time
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(x.CA)
	transport := &http.Transport{
		DialContext: c.dialer("kubectl"), DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}},
	}
	if err := who(transport, strings.TrimPrefix(x.Server, "https://")); err != nil {
		return pair.Leaf, nil, fmt.Errorf("%s: %w", x.Server, err)
	}
	ca, err := pki.ParseCA(x.CA, nil)
	if err != nil {
		return nil, nil, err
	}
	return pair.Leaf, ca.Certificate(), nil
}

func (s *oldServer) kubeconfig(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, KubeconfigFile))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// worker is an agent whose connections are never idle.
type worker struct {
	home  *AgentHome
	http  *http.Transport
	lines map[string]net.Conn // open since the start
}

func (c *oldCluster) newWorker(name string, servers func() []string) *worker {
	t := c.t
	t.Helper()
	home, err := OpenAgentHome(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { home.Close() })
	j := &Joiner{Servers: servers(), DialContext: c.dialer(name)}
	if err := home.Join(t.Context(), j, tokenIn(t, c.servers[0].dir, pki.RoleAgent), name, "v1"); err != nil {
		t.Fatal(err)
	}
	verifier := pki.NewVerifier(home.CA, time.Now)
	w := &worker{home: home, lines: map[string]net.Conn{}}
	w.http = &http.Transport{DialContext: c.dialer(name), TLSClientConfig: verifier.ClientConfig(home.Source), ForceAttemptHTTP2: true}
	t.Cleanup(w.http.CloseIdleConnections)
	go home.KeepRenewed(t.Context(), Joiner{DialContext: c.dialer(name)}, verifier, servers)
	d := Dialer{Source: home.Source, Verifier: verifier, DialContext: c.dialer(name)}
	w.open(t, "stream", &d, c.servers[1].addr, wire.ProtoAgent)
	s2 := c.servers[1]
	w.open(t, "link", &Dialer{Source: s2.home.Server, Verifier: s2.verifier, DialContext: c.dialer(s2.addr)}, c.servers[2].addr, wire.ProtoLink)
	return w
}

func (w *worker) open(t *testing.T, name string, d *Dialer, address, protocol string) {
	t.Helper()
	conn, err := d.Dial(t.Context(), address, protocol)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	w.lines[name] = conn
}

// check fails if anything has ended, or is about to.
func (c *oldCluster) check(w *worker) {
	t, now := c.t, time.Now()
	t.Helper()
	fresh := func(what string, cert *x509.Certificate, life time.Duration) {
		if now.Before(cert.NotBefore) || cert.NotAfter.Sub(now) < 2*life/5 {
			t.Errorf("%v: %s is good from %v to %v", now, what, cert.NotBefore, cert.NotAfter)
		}
	}
	for _, s := range c.servers {
		fresh("the certificate of "+s.name, s.home.Server.Leaf(), oneYear)
		admin, ca, err := c.kubectl(s.kubeconfig(t))
		if err != nil {
			t.Fatalf("%v: the kubeconfig of %s: %v", now, s.name, err)
		}
		fresh("the kubeconfig's certificate", admin, oneYear)
		fresh("the kubeconfig's CA", ca, 10*oneYear)
		for _, role := range []pki.Role{pki.RoleServer, pki.RoleAgent} {
			if err := CheckToken(c.members.store.View(), tokenIn(t, s.dir, role), now.Add(2*oneYear/5)); err != nil {
				t.Errorf("%v: the %s token of %s: %v", now, role, s.name, err)
			}
		}
	}
	fresh("the agent's certificate", w.home.Source.Leaf(), oneYear)
	if err := who(w.http, c.servers[1].addr); err != nil {
		t.Fatalf("%v: the agent's request: %v", now, err)
	}
	for name, conn := range w.lines {
		if err := conn.SetReadDeadline(now.Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintln(conn, "ping"); err != nil {
			t.Fatalf("%v: %s: %v", now, name, err)
		}
		if line, err := bufio.NewReader(conn).ReadString('\n'); line != "ping\n" {
			t.Fatalf("%v: %s: %q %v", now, name, line, err)
		}
	}
}

// TestTwoYearsWithoutARestart lives through two years in steps of two days. Handshakes are
// real ones, files are on disk, and nothing may end at any moment but what
// somebody has copied away.
func TestTwoYearsWithoutARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newOldCluster(t, 12*time.Hour)
		known := []string{c.servers[0].addr}
		w := c.newWorker("w1", func() []string { return slices.Clone(known) })
		first := c.servers[0]
		copied, token := first.kubeconfig(t), tokenIn(t, first.dir, pki.RoleAgent)
		for d := 0; d < 732; d += 2 {
			if d == 100 { // the only server that the agent joined by is replaced
				c.net.isolate("w1", []string{first.addr}, true)
				known = []string{c.servers[2].addr}
			}
			c.check(w)
			_, _, err := c.kubectl(copied)
			expired := CheckToken(c.members.store.View(), token, time.Now())
			switch {
			case d < 365 && (err != nil || expired != nil):
				t.Fatalf("day %d: what was copied on the first day: %v, %v", d, err, expired)
			case d > 365 && (err == nil || !strings.Contains(err.Error(), "401")):
				t.Fatalf("day %d: a kubeconfig of the first day: %v", d, err)
			case d == 380 && !errors.Is(expired, pki.ErrTokenExpired), d > 380 && expired == nil:
				t.Fatalf("day %d: a token of the first day: %v", d, expired)
			}
			time.Sleep(2 * day)
		}
		c.newWorker("w2", func() []string { return []string{first.addr} }) // with a token of today
	})
}

// TestTheCAOutlivesItsCertificate lives through the end of the first certificate
// of the CA, and the agent keeps what it was given when it joined.
func TestTheCAOutlivesItsCertificate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newOldCluster(t, 5*day)
		pin := c.servers[0].home.CA.Pin()
		w := c.newWorker("w1", func() []string { return []string{c.servers[0].addr} })
		end := c.servers[0].home.CA.Certificate().NotAfter
		for time.Now().Before(end.Add(2 * oneYear)) {
			c.check(w)
			time.Sleep(60 * day)
		}
		for _, s := range c.servers {
			onDisk, err := pki.LoadCA(filepath.Join(s.dir, "pki"))
			if err != nil {
				t.Fatal(err)
			}
			if onDisk.Pin() != pin || !onDisk.CanIssue() || !onDisk.Certificate().Equal(s.home.CA.Certificate()) {
				t.Errorf("%s: the renewed CA is not on disk, or is another", s.name)
			}
		}
		if !w.home.CA.Certificate().NotAfter.Equal(end) {
			t.Error("the agent holds another certificate of the CA: this test shows nothing")
		}
		c.newWorker("w2", func() []string { return []string{c.servers[2].addr} })
	})
}
