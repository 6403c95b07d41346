package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"sync/atomic"
	"time"
)

const (
	// Backdate is how long before its issue a certificate begins, so that
	// machines whose clock is behind accept it.
	Backdate = 48 * time.Hour
	// DefaultTTL is how long certificates of servers, agents and
	// administrators live after their issue.
	DefaultTTL = 365 * 24 * time.Hour
	// caTTL is how long the CA's certificate lives. It is renewed, for the same
	// key, when less than half of that is left.
	caTTL = 10 * 365 * 24 * time.Hour
)

// CA is a cluster's certificate authority. It is its key, which never changes;
// its certificate is renewed. Safe for concurrent use.
type CA struct {
	clusterID string
	key       *ecdsa.PrivateKey // nil where only the certificate is known
	current   atomic.Pointer[x509.Certificate]
}

// NewCA makes the authority of a new cluster, with a random cluster ID.
func NewCA(now time.Time) (*CA, error) {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails: crypto/rand ends the process instead
	clusterID := hex.EncodeToString(raw[:])
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "shepherd-ca-" + clusterID, Organization: []string{"shepherd"}},
		URIs:                  []*url.URL{{Scheme: "shepherd", Host: clusterID, Path: "/" + roleCA}},
		NotBefore:             now.Add(-Backdate).UTC(),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	cert, err := signCA(tmpl, key, now)
	if err != nil {
		return nil, err
	}
	ca := &CA{clusterID: clusterID, key: key}
	ca.current.Store(cert)
	return ca, nil
}

// signCA makes the CA's certificate, good for caTTL from now.
func signCA(tmpl *x509.Certificate, key *ecdsa.PrivateKey, now time.Time) (*x509.Certificate, error) {
	tmpl.SerialNumber, tmpl.NotAfter = newSerial(), now.Add(caTTL).UTC()
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the CA certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

// NeedsRenewal reports whether less than half of the life of the CA's
// certificate is left.
func (ca *CA) NeedsRenewal(now time.Time) bool {
	return now.After(ca.Certificate().NotAfter.Add(-caTTL / 2))
}

// Renewed is the same authority with a certificate that lives longer. Name,
// key and beginning stay, and with them the pin of every token: what the one
// has issued is good with the other's certificate as the root, so that servers
// renew it each on its own, and nobody needs to be told.
func (ca *CA) Renewed(now time.Time) (*CA, error) {
	if ca.key == nil {
		return nil, errors.New("renew the CA certificate: the CA's key is not on this machine")
	}
	tmpl := *ca.Certificate()
	cert, err := signCA(&tmpl, ca.key, now)
	if err != nil {
		return nil, err
	}
	out := &CA{clusterID: ca.clusterID, key: ca.key}
	out.current.Store(cert)
	return out, nil
}

// Adopt makes the certificate of a renewed authority that of this one.
func (ca *CA) Adopt(renewed *CA) error {
	if renewed.Pin() != ca.Pin() || renewed.clusterID != ca.clusterID {
		return errors.New("renew the CA certificate: the new one is of another authority")
	}
	ca.current.Store(renewed.Certificate())
	return nil
}

// ParseCA reads an authority from PEM. Without keyPEM the result can verify
// but not issue.
func ParseCA(certPEM, keyPEM []byte) (*CA, error) {
	cert, err := parseCert(certPEM)
	if err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	if !cert.IsCA {
		return nil, errors.New("CA certificate: it is not of an authority")
	}
	ca := &CA{}
	ca.current.Store(cert)
	for _, u := range cert.URIs {
		if u.Scheme == "shepherd" && u.Path == "/"+roleCA {
			ca.clusterID = u.Host
		}
	}
	if err := CheckName(ca.clusterID); err != nil {
		return nil, fmt.Errorf("CA certificate: cluster ID %q: %w", ca.clusterID, err)
	}
	if len(keyPEM) == 0 {
		return ca, nil
	}
	if ca.key, err = ParseKey(keyPEM); err != nil {
		return nil, fmt.Errorf("CA key: %w", err)
	}
	if !ca.key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("CA key: it does not belong to the CA certificate")
	}
	return ca, nil
}

// ClusterID names the cluster.
func (ca *CA) ClusterID() string { return ca.clusterID }

// CertPEM is the CA's certificate as it is now.
func (ca *CA) CertPEM() []byte { return encodeCert(ca.Certificate().Raw) }

// Certificate is the CA's certificate as it is now. The caller must not change
// it.
func (ca *CA) Certificate() *x509.Certificate { return ca.current.Load() }

// CanIssue reports whether the CA's key is known here.
func (ca *CA) CanIssue() bool { return ca.key != nil }

// KeyPEM is the CA's private key, nil where it is not known. It goes to
// servers alone and is written with mode 0600 alone.
func (ca *CA) KeyPEM() []byte {
	if ca.key == nil {
		return nil
	}
	return encodeKeyOrPanic(ca.key)
}

// Pin is the hash of the CA's public key, as tokens carry it.
func (ca *CA) Pin() string { return pinOf(ca.Certificate()) }

func pinOf(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Request is what a certificate shall say.
type Request struct {
	Role Role
	// Name is the server's Raft ID, the node's name or the administrator's.
	Name string
	// Public is the holder's key, ECDSA P-256.
	Public any
	// Hosts are host names and IP addresses that a server is reached at, in
	// addition to localhost and the loopback addresses. Ignored for others.
	Hosts []string
	// TTL is the life after now; zero means DefaultTTL.
	TTL time.Duration
}

// Issue signs a certificate and returns it in PEM, followed by the CA's: a
// joiner finds the pinned CA in the chain that the server presents.
func (ca *CA) Issue(req Request, now time.Time) ([]byte, error) {
	if ca.key == nil {
		return nil, errors.New("issue a certificate: the CA's key is not on this machine")
	}
	id := Identity{Role: req.Role, Name: req.Name, ClusterID: ca.clusterID}
	if err := id.validate(); err != nil {
		return nil, fmt.Errorf("issue a certificate: %w", err)
	}
	public, ok := req.Public.(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() {
		return nil, fmt.Errorf("issue a certificate for %s: the key must be ECDSA P-256", id)
	}
	ttl := req.TTL
	if ttl <= 0 {
		ttl = DefaultTTL
	}
	root := ca.Certificate()
	if !now.Before(root.NotAfter) {
		return nil, fmt.Errorf("issue a certificate for %s: the CA's own certificate ended on %s; a server renews it when it starts", id, root.NotAfter.Format(time.RFC3339))
	}
	tmpl := &x509.Certificate{
		SerialNumber: newSerial(),
		Subject:      pkix.Name{CommonName: id.User(), Organization: id.Groups()},
		URIs:         []*url.URL{id.URI()},
		NotBefore:    now.Add(-Backdate).UTC(),
		NotAfter:     now.Add(ttl).UTC(),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if tmpl.NotBefore.Before(root.NotBefore) {
		tmpl.NotBefore = root.NotBefore
	}
	if tmpl.NotAfter.After(root.NotAfter) {
		tmpl.NotAfter = root.NotAfter
	}
	if id.Role == RoleServer {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		tmpl.DNSNames, tmpl.IPAddresses = subjectAltNames(req.Hosts)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, root, public, ca.key)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate for %s: %w", id, err)
	}
	return append(encodeCert(der), encodeCert(root.Raw)...), nil
}

// IssueCSR is Issue for a signing request in PEM. The identity is the
// caller's decision: of the CSR only its key counts, and for servers its
// host names and addresses.
func (ca *CA) IssueCSR(csrPEM []byte, req Request, now time.Time) ([]byte, error) {
	csr, err := ParseCSR(csrPEM)
	if err != nil {
		return nil, err
	}
	req.Public = csr.PublicKey
	req.Hosts = append(append([]string{}, req.Hosts...), csr.DNSNames...)
	for _, ip := range csr.IPAddresses {
		req.Hosts = append(req.Hosts, ip.String())
	}
	return ca.Issue(req, now)
}

// ParseCSR reads a signing request and checks that its sender holds the key.
func ParseCSR(csrPEM []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(csrPEM)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("signing request: it is not PEM of a CERTIFICATE REQUEST")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("signing request: %w", err)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("signing request: its signature is wrong: %w", err)
	}
	if public, ok := csr.PublicKey.(*ecdsa.PublicKey); !ok || public.Curve != elliptic.P256() {
		return nil, errors.New("signing request: the key must be ECDSA P-256")
	}
	return csr, nil
}

// NewCSR makes a signing request in PEM for the key. Hosts matter to servers.
func NewCSR(key *ecdsa.PrivateKey, hosts []string) ([]byte, error) {
	tmpl := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "shepherd"}}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, tmpl, key)
	if err != nil {
		return nil, fmt.Errorf("make a signing request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// subjectAltNames sorts hosts into names and addresses, adding those that
// every server is reached at from its own machine.
func subjectAltNames(hosts []string) (names []string, ips []net.IP) {
	seen := map[string]bool{"": true}
	for _, h := range append([]string{"localhost", "127.0.0.1", "::1"}, hosts...) {
		ip := net.ParseIP(h)
		if ip != nil {
			h = ip.String()
		}
		if seen[h] {
			continue
		}
		seen[h] = true
		if ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, h)
		}
	}
	return names, ips
}

func newSerial() *big.Int {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails: crypto/rand ends the process instead
	raw[0] &= 0x7f           // serial numbers are positive
	raw[0] |= 0x40           // and not zero
	return new(big.Int).SetBytes(raw[:])
}
