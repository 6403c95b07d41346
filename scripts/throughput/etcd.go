package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// etcd is three members with mutual TLS among themselves and towards clients.
// The load comes from a program of its own: the client library is not one of
// this module's.
type etcd struct {
	processes
	program, loader, certs string
	endpoints              []string
}

func (e *etcd) begin(ctx context.Context, dir string) error {
	e.certs, e.endpoints = dir, nil
	if err := writeCerts(dir); err != nil {
		return err
	}
	names := []string{"a", "b", "c"}
	var peers, cluster []string
	for _, name := range names {
		client, err := freeAddress()
		if err != nil {
			return err
		}
		peer, err := freeAddress()
		if err != nil {
			return err
		}
		e.endpoints = append(e.endpoints, "https://"+client)
		peers = append(peers, "https://"+peer)
		cluster = append(cluster, name+"=https://"+peer)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	for i, name := range names {
		err := e.start(file(name+".log"), exec.Command(e.program, "--name", name, "--data-dir", file(name),
			"--listen-client-urls", e.endpoints[i], "--advertise-client-urls", e.endpoints[i],
			"--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i],
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new",
			"--trusted-ca-file", file("ca.crt"), "--cert-file", file("server.crt"), "--key-file", file("server.key"), "--client-cert-auth",
			"--peer-trusted-ca-file", file("ca.crt"), "--peer-cert-file", file("server.crt"), "--peer-key-file", file("server.key"), "--peer-client-cert-auth"))
		if err != nil {
			return err
		}
	}
	return e.load(ctx, load{Writers: 1, Conns: 1, Size: 1, For: time.Millisecond, Prefix: "begin"}).err() // waits for a leader
}

func (e *etcd) load(ctx context.Context, l load) (r result) {
	out, err := exec.CommandContext(ctx, e.loader, "-endpoints", strings.Join(e.endpoints, ","), "-certs", e.certs,
		"-writers", strconv.Itoa(l.Writers), "-conns", strconv.Itoa(l.Conns), "-size", strconv.Itoa(l.Size),
		"-for", l.For.String(), "-prefix", l.Prefix).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil {
		return result{Errors: 1, First: err.Error()}
	}
	return r
}

// writeCerts makes a CA, a certificate for the members and one for clients, of
// the kind that Shepherd uses: ECDSA P-256.
func writeCerts(dir string) error {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	for i, name := range []string{"ca", "server", "client"} {
		cert, key := ca, caKey
		if name != "ca" {
			cert = &x509.Certificate{
				SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: name}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
				ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			}
			if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
				return err
			}
		}
		der, err := x509.CreateCertificate(rand.Reader, cert, ca, key.Public(), caKey)
		if err != nil {
			return err
		}
		keyDER, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return err
		}
		for ext, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
			if err := os.WriteFile(filepath.Join(dir, name+ext), pem.EncodeToMemory(block), 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}
