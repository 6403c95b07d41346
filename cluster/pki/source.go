package pki

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Source is a certificate and its key, kept in two files and renewed while in
// use: a handshake takes whatever is current. Safe for concurrent use.
//
// The key is drawn once and kept over renewals, because a node's name is
// reserved for it.
type Source struct {
	dir, name string
	key       *ecdsa.PrivateKey

	mu   sync.RWMutex
	cert *tls.Certificate // nil until there is one
}

// OpenSource reads DIR/NAME.key and DIR/NAME.crt. A missing key is drawn and
// written; a missing certificate leaves the source empty until Install.
func OpenSource(dir, name string) (*Source, error) {
	s := &Source{dir: dir, name: name}
	keyPEM, err := os.ReadFile(s.keyPath())
	switch {
	case errors.Is(err, os.ErrNotExist):
		if err := s.drawKey(); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, fmt.Errorf("read the key of %s: %w", name, err)
	default:
		if s.key, err = ParseKey(keyPEM); err != nil {
			return nil, fmt.Errorf("read the key %s: %w", s.keyPath(), err)
		}
	}
	certPEM, err := os.ReadFile(s.certPath())
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the certificate of %s: %w", name, err)
	}
	if s.cert, err = s.parse(certPEM); err != nil {
		return nil, fmt.Errorf("read the certificate %s: %w", s.certPath(), err)
	}
	return s, nil
}

func (s *Source) keyPath() string  { return filepath.Join(s.dir, s.name+".key") }
func (s *Source) certPath() string { return filepath.Join(s.dir, s.name+".crt") }

func (s *Source) drawKey() error {
	key, err := NewKey()
	if err != nil {
		return err
	}
	keyPEM, err := EncodeKey(key)
	if err != nil {
		return err
	}
	if err := WriteFile(s.keyPath(), keyPEM); err != nil {
		return err
	}
	s.key = key
	return nil
}

func (s *Source) parse(certPEM []byte) (*tls.Certificate, error) {
	cert, err := tls.X509KeyPair(certPEM, encodeKeyOrPanic(s.key))
	if err != nil {
		return nil, err
	}
	return &cert, nil
}

// Key is the private key. The caller must not let it out of the process.
func (s *Source) Key() *ecdsa.PrivateKey { return s.key }

// Install makes a new certificate for the source's key current and writes it.
// certPEM is the leaf followed by the CA.
func (s *Source) Install(certPEM []byte) error {
	cert, err := s.parse(certPEM)
	if err != nil {
		return fmt.Errorf("install the certificate of %s: %w", s.name, err)
	}
	if err := WriteFile(s.certPath(), certPEM); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cert = cert
	return nil
}

// Leaf is the current certificate, nil while there is none.
func (s *Source) Leaf() *x509.Certificate {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.cert == nil {
		return nil
	}
	return s.cert.Leaf
}

// errEmpty says that a handshake came before the first certificate.
var errEmpty = errors.New("there is no certificate yet")

func (s *Source) current() (*tls.Certificate, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.cert == nil {
		return nil, errEmpty
	}
	return s.cert, nil
}

// GetCertificate is for tls.Config of a server.
func (s *Source) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.current() }

// GetClientCertificate is for tls.Config of a client.
func (s *Source) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return s.current()
}

// NeedsRenewal reports whether half of the certificate's life after its issue
// has passed, or it was issued by a clock that was ahead and is not good yet.
// Without a certificate it is true.
func (s *Source) NeedsRenewal(now time.Time) bool {
	leaf := s.Leaf()
	return leaf == nil || NeedsRenewal(leaf, now)
}

// NeedsRenewal is Source.NeedsRenewal for any certificate.
func NeedsRenewal(cert *x509.Certificate, now time.Time) bool {
	issued := cert.NotBefore.Add(Backdate)
	if !issued.Before(cert.NotAfter) { // shorter than the backdating: only the end counts
		issued = cert.NotBefore
	}
	return now.Before(cert.NotBefore) || now.After(issued.Add(cert.NotAfter.Sub(issued)/2))
}

// PEM is the current certificate, without the CA's, and the key.
func (s *Source) PEM() (cert, key []byte, err error) {
	leaf := s.Leaf()
	if leaf == nil {
		return nil, nil, errEmpty
	}
	return encodeCert(leaf.Raw), encodeKeyOrPanic(s.key), nil
}
