package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func newCA(t *testing.T) *CA {
	t.Helper()
	ca, err := NewCA(now)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issue(t *testing.T, ca *CA, req Request, at time.Time) *x509.Certificate {
	t.Helper()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	req.Public = key.Public()
	out, err := ca.Issue(req, at)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := parseCert(out)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func at(t time.Time) func() time.Time { return func() time.Time { return t } }

func TestIssueByRole(t *testing.T) {
	ca := newCA(t)
	for _, c := range []struct {
		req   Request
		user  string
		group string
	}{
		{Request{Role: RoleServer, Name: "a-1234abcd", Hosts: []string{"10.0.0.1", "lb.example.com", "127.0.0.1"}}, "shepherd:server:a-1234abcd", "shepherd:servers"},
		{Request{Role: RoleAgent, Name: "w1"}, "system:node:w1", "system:nodes"},
		{Request{Role: RoleAdmin, Name: AdminUser}, "shepherd-admin", "system:masters"},
	} {
		cert := issue(t, ca, c.req, now)
		id, err := NewVerifier(ca, at(now)).Verify([]*x509.Certificate{cert}, c.req.Role)
		if err != nil {
			t.Fatalf("%s: %v", c.req.Role, err)
		}
		if want := (Identity{c.req.Role, c.req.Name, ca.ClusterID()}); id != want {
			t.Errorf("identity %v, want %v", id, want)
		}
		if cert.Subject.CommonName != c.user || !slices.Equal(cert.Subject.Organization, []string{c.group}) {
			t.Errorf("%s: subject %v", c.req.Role, cert.Subject)
		}
		if !cert.NotBefore.Equal(now.Add(-48*time.Hour)) || !cert.NotAfter.Equal(now.Add(DefaultTTL)) {
			t.Errorf("%s: valid from %v to %v", c.req.Role, cert.NotBefore, cert.NotAfter)
		}
		serves := slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		if serves != (c.req.Role == RoleServer) {
			t.Errorf("%s: server usage %v", c.req.Role, serves)
		}
		for _, host := range []string{"localhost", "127.0.0.1", "::1", "10.0.0.1", "lb.example.com"} {
			if got := cert.VerifyHostname(host) == nil; got != (c.req.Role == RoleServer) {
				t.Errorf("%s: good for host %s: %v", c.req.Role, host, got)
			}
		}
	}
}

func TestVerifyRefuses(t *testing.T) {
	ca, foreign := newCA(t), newCA(t)
	agent := issue(t, ca, Request{Role: RoleAgent, Name: "w1"}, now)
	bare := issue(t, ca, Request{Role: RoleAgent, Name: "w1"}, now)
	bare.URIs = nil // as if the CA had signed something else; the signature is over Raw
	sameName, err := ParseCA(foreign.CertPEM(), foreign.KeyPEM())
	if err != nil {
		t.Fatal(err)
	}
	sameName.clusterID = ca.clusterID // claims this cluster without its key
	for name, c := range map[string]struct {
		chain []*x509.Certificate
		at    time.Time
		roles []Role
		want  error
	}{
		"none":           {nil, now, nil, ErrNoCertificate},
		"wrong role":     {[]*x509.Certificate{agent}, now, []Role{RoleServer}, ErrWrongRole},
		"expired":        {[]*x509.Certificate{agent}, now.Add(DefaultTTL + time.Second), nil, ErrExpired},
		"not yet":        {[]*x509.Certificate{agent}, now.Add(-49 * time.Hour), nil, ErrExpired},
		"foreign":        {[]*x509.Certificate{issue(t, foreign, Request{Role: RoleAgent, Name: "w1"}, now)}, now, nil, ErrForeign},
		"foreign claims": {[]*x509.Certificate{issue(t, sameName, Request{Role: RoleServer, Name: "a"}, now)}, now, nil, ErrForeign},
		"no identity":    {[]*x509.Certificate{bare}, now, nil, ErrNoIdentity},
		"foreign leaf, our CA behind it": {[]*x509.Certificate{
			issue(t, foreign, Request{Role: RoleServer, Name: "a"}, now), ca.Certificate()}, now, nil, ErrForeign},
		"the CA itself": {[]*x509.Certificate{ca.Certificate()}, now, nil, ErrNoIdentity},
	} {
		t.Run(name, func(t *testing.T) {
			v := NewVerifier(ca, at(c.at))
			for range 2 { // the second answer may come from memory
				if _, err := v.Verify(c.chain, c.roles...); !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
			}
		})
	}
}

// The CA outlives its certificate: members go by the key, and clients that know
// one of its certificates as their root accept what is issued under another.
func TestCARenewsUnderItsKey(t *testing.T) {
	ca := newCA(t)
	first := ca.Certificate()
	half := now.Add(caTTL / 2)
	if ca.NeedsRenewal(half.Add(-time.Minute)) || !ca.NeedsRenewal(half.Add(time.Minute)) {
		t.Error("renewal is not at half of the life")
	}
	early := issue(t, ca, Request{Role: RoleServer, Name: "a"}, half)
	agent, err := ParseCA(ca.CertPEM(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := agent.Renewed(half); err == nil {
		t.Error("a CA was renewed without its key")
	}
	later := now.Add(caTTL + time.Hour)
	if _, err := ca.Issue(Request{Role: RoleAgent, Name: "w1", Public: mustKey(t).Public()}, later); err == nil || !strings.Contains(err.Error(), "ended on") {
		t.Errorf("issued past the CA's end: %v", err)
	}
	renewed, err := ca.Renewed(half)
	if err != nil {
		t.Fatal(err)
	}
	if err := newCA(t).Adopt(renewed); err == nil {
		t.Error("an authority took another's certificate")
	}
	if err := ca.Adopt(renewed); err != nil {
		t.Fatal(err)
	}
	second := ca.Certificate()
	if ca.NeedsRenewal(half) || !second.NotAfter.Equal(half.Add(caTTL)) || second.SerialNumber.Cmp(first.SerialNumber) == 0 ||
		pinOf(second) != pinOf(first) || !second.NotBefore.Equal(first.NotBefore) {
		t.Error("the renewed certificate is not the same authority's with a longer life")
	}
	late := issue(t, ca, Request{Role: RoleServer, Name: "a"}, half)
	for _, leaf := range []*x509.Certificate{early, late} {
		for _, root := range []*x509.Certificate{first, second} {
			pool := x509.NewCertPool()
			pool.AddCert(root)
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: half.Add(time.Hour)}); err != nil {
				t.Errorf("with the other root: %v", err)
			}
		}
	}
	last := issue(t, ca, Request{Role: RoleServer, Name: "a"}, later)
	if _, err := NewVerifier(agent, at(later)).Verify([]*x509.Certificate{last}, RoleServer); err != nil {
		t.Errorf("by an agent that holds the first certificate, which has ended: %v", err)
	}
}

func TestIssueRefuses(t *testing.T) {
	ca := newCA(t)
	key, _ := NewKey()
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	publicOnly, err := ParseCA(ca.CertPEM(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		ca  *CA
		req Request
	}{
		"no role":        {ca, Request{Name: "a", Public: key.Public()}},
		"the CA's role":  {ca, Request{Role: "ca", Name: "a", Public: key.Public()}},
		"no name":        {ca, Request{Role: RoleAgent, Public: key.Public()}},
		"name as a path": {ca, Request{Role: RoleAgent, Name: "w1/../../server/a", Public: key.Public()}},
		"upper case":     {ca, Request{Role: RoleAgent, Name: "W1", Public: key.Public()}},
		"other curve":    {ca, Request{Role: RoleAgent, Name: "w1", Public: p384.Public()}},
		"no CA key":      {publicOnly, Request{Role: RoleAgent, Name: "w1", Public: key.Public()}},
	} {
		if _, err := c.ca.Issue(c.req, now); err == nil {
			t.Errorf("%s: issued", name)
		}
	}
}

func TestCSRSaysNothingAboutIdentity(t *testing.T) {
	ca := newCA(t)
	key, _ := NewKey()
	csr, err := NewCSR(key, []string{"evil.example.com", "10.9.9.9"})
	if err != nil {
		t.Fatal(err)
	}
	out, err := ca.IssueCSR(csr, Request{Role: RoleAgent, Name: "w1"}, now)
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := parseCert(out)
	if len(cert.DNSNames)+len(cert.IPAddresses) != 0 {
		t.Errorf("an agent got names %v %v", cert.DNSNames, cert.IPAddresses)
	}
	if out, err = ca.IssueCSR(csr, Request{Role: RoleServer, Name: "a"}, now); err != nil {
		t.Fatal(err)
	}
	if cert, _ = parseCert(out); cert.VerifyHostname("10.9.9.9") != nil {
		t.Error("a server did not get its address")
	}
	broken := strings.Replace(string(csr), "\n", "\nAAAA", 1)
	for name, bad := range map[string]string{"garbage": "hello", "damaged": broken, "certificate": string(ca.CertPEM())} {
		if _, err := ParseCSR([]byte(bad)); err == nil {
			t.Errorf("%s was taken for a CSR", name)
		}
	}
}

func TestFilesAreOwnersOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	ca := newCA(t)
	if err := SaveCA(dir, ca); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenSource(dir, "server"); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	again, err := LoadCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again.ClusterID() != ca.ClusterID() || again.Pin() != ca.Pin() || !again.CanIssue() {
		t.Error("the CA changed on its way through files")
	}
	if err := WriteFile(filepath.Join(dir, "ca.key"), encodeKeyOrPanic(mustKey(t))); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadCA(dir); err == nil || !strings.Contains(err.Error(), "does not belong") {
		t.Errorf("a foreign CA key: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), ca.CertPEM()[:100], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadCA(dir); err == nil {
		t.Error("a truncated CA certificate was read")
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) != 0 {
		t.Errorf("temporary files left: %v %v", left, err)
	}
}

func mustKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestSourceRenews(t *testing.T) {
	dir := t.TempDir()
	ca := newCA(t)
	s, err := OpenSource(dir, "agent")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.GetCertificate(nil); err == nil || !s.NeedsRenewal(now) {
		t.Fatalf("an empty source gave a certificate, or needs none: %v", err)
	}
	install := func(at time.Time) {
		t.Helper()
		out, err := ca.Issue(Request{Role: RoleAgent, Name: "w1", Public: s.Key().Public()}, at)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Install(out); err != nil {
			t.Fatal(err)
		}
	}
	install(now)
	half := now.Add(DefaultTTL / 2)
	if s.NeedsRenewal(half.Add(-time.Minute)) || !s.NeedsRenewal(half.Add(time.Minute)) {
		t.Error("renewal is not at half of the life")
	}
	if s.NeedsRenewal(now.Add(-Backdate)) || !s.NeedsRenewal(now.Add(-Backdate-time.Minute)) {
		t.Error("one from the future, and that one alone, is to be renewed at once")
	}
	first, err := s.GetClientCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	install(half)
	second, err := s.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	if first.Leaf.Equal(second.Leaf) || CertKeyHash(first.Leaf) != CertKeyHash(second.Leaf) {
		t.Error("renewal must change the certificate and keep the key")
	}
	again, err := OpenSource(dir, "agent")
	if err != nil {
		t.Fatal(err)
	}
	if !again.Leaf().Equal(second.Leaf) {
		t.Error("the renewed certificate was not on disk")
	}
	other, _ := ca.Issue(Request{Role: RoleAgent, Name: "w1", Public: mustKey(t).Public()}, now)
	if err := s.Install(other); err == nil {
		t.Error("a certificate of another key was installed")
	}
	if hash, err := KeyHash(s.Key().Public()); err != nil || hash != CertKeyHash(second.Leaf) {
		t.Errorf("hashes of one key differ: %v", err)
	}
}
