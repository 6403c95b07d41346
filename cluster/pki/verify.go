package pki

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Verifier checks certificates against one cluster's CA. It goes by the CA's
// key: when the CA's own certificate ends does not matter, so that a machine
// which holds an old one need not be told of its renewal. Safe for concurrent
// use.
type Verifier struct {
	ca   *CA
	pool *x509.CertPool
	now  func() time.Time

	mu    sync.Mutex
	known map[[sha256.Size]byte]verified
}

// verified is a chain that was checked; its signature stays good, so that
// only the clock needs another look.
type verified struct {
	id                  Identity
	notBefore, notAfter time.Time
}

// maxKnown bounds the memory of checked certificates.
const maxKnown = 4096

// NewVerifier returns a verifier that reads the time from now.
func NewVerifier(ca *CA, now func() time.Time) *Verifier {
	pool := x509.NewCertPool()
	pool.AddCert(ca.Certificate())
	return &Verifier{ca: ca, pool: pool, now: now, known: map[[sha256.Size]byte]verified{}}
}

// Verify returns who the peer's certificate stands for. It fails with an
// error that wraps ErrNoCertificate, ErrForeign, ErrExpired, ErrNoIdentity or,
// where roles are given and none is the certificate's, ErrWrongRole.
func (v *Verifier) Verify(chain []*x509.Certificate, roles ...Role) (Identity, error) {
	if len(chain) == 0 {
		return Identity{}, ErrNoCertificate
	}
	found, err := v.lookup(chain[0])
	if err != nil {
		return Identity{}, err
	}
	now := v.now()
	if now.After(found.notAfter) {
		return Identity{}, fmt.Errorf("%w: that of %s expired on %s", ErrExpired, found.id, found.notAfter.Format(time.RFC3339))
	}
	if now.Before(found.notBefore) {
		return Identity{}, fmt.Errorf("%w: that of %s begins on %s", ErrExpired, found.id, found.notBefore.Format(time.RFC3339))
	}
	if len(roles) > 0 && !slices.Contains(roles, found.id.Role) {
		return Identity{}, fmt.Errorf("%w: it is of %s, and only %v may do this", ErrWrongRole, found.id, roles)
	}
	return found.id, nil
}

// Pool holds the CA alone, to hint at it by name: whoever judges, asks Verify.
// The caller must not change it.
func (v *Verifier) Pool() *x509.CertPool { return v.pool }

// lookup checks the signature and the identity, not the clock.
func (v *Verifier) lookup(leaf *x509.Certificate) (verified, error) {
	sum := sha256.Sum256(leaf.Raw)
	v.mu.Lock()
	found, ok := v.known[sum]
	v.mu.Unlock()
	if ok {
		return found, nil
	}
	if err := leaf.CheckSignatureFrom(v.ca.Certificate()); err != nil {
		return verified{}, fmt.Errorf("%w: it was not issued by the CA of cluster %s: %w", ErrForeign, v.ca.clusterID, err)
	}
	id, err := FromCertificate(leaf)
	if err != nil {
		return verified{}, err
	}
	if id.ClusterID != v.ca.clusterID {
		return verified{}, fmt.Errorf("%w: it is of cluster %s, this is %s", ErrForeign, id.ClusterID, v.ca.clusterID)
	}
	found = verified{id: id, notBefore: leaf.NotBefore, notAfter: leaf.NotAfter}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.known) >= maxKnown {
		clear(v.known) // rare, and costs one signature check per certificate
	}
	v.known[sum] = found
	return found, nil
}

// ClientConfig is for connections to servers of the cluster. The server is
// known by its certificate's role and cluster, not by the host name that was
// dialled: addresses change, and agents reach servers through pass-throughs.
// source may be nil where no client certificate is needed.
func (v *Verifier) ClientConfig(source *Source) *tls.Config {
	cfg := &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // VerifyConnection is stricter: it asks for the role
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := v.Verify(cs.PeerCertificates, RoleServer)
			return err
		},
	}
	if source != nil {
		cfg.GetClientCertificate = source.GetClientCertificate
	}
	return cfg
}

// PinnedConfig is for the first connection of a joiner, which has only the
// pin from its token. The handshake fails, before anything is sent, unless
// the server shows a CA with that pin and a server certificate of that CA.
func PinnedConfig(pin string, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // VerifyConnection checks the pin instead
		VerifyConnection: func(cs tls.ConnectionState) error {
			ca, err := pinnedCA(cs.PeerCertificates, pin)
			if err != nil {
				return err
			}
			_, err = NewVerifier(ca, now).Verify(cs.PeerCertificates, RoleServer)
			return err
		},
	}
}

// ErrPin is wrapped when the server's CA is not the one that the token names.
var ErrPin = errors.New("the server's CA is not the one that the token pins")

func pinnedCA(chain []*x509.Certificate, pin string) (*CA, error) {
	for _, cert := range chain {
		if pinOf(cert) != pin {
			continue
		}
		return ParseCA(encodeCert(cert.Raw), nil)
	}
	return nil, fmt.Errorf("%w: it is another cluster, or somebody in between", ErrPin)
}
