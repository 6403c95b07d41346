package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/cluster/seal"
)

// Files of a server's data directory, beside those of the Node.
const (
	serverFile = "server.json"
	keysFile   = "data.keys"
	lockFile   = "lock"
	pkiDir     = "pki"
	// KubeconfigFile is the administrator's kubeconfig.
	KubeconfigFile = "admin.kubeconfig"
)

// ErrInUse is wrapped when another process has the data directory.
var ErrInUse = errors.New("it is in use by another process; is Shepherd running with this data directory?")

// serverRecord says which server a data directory is. It is written last when
// a directory is set up, so that a directory without it holds nothing yet.
type serverRecord struct {
	Version   int    `json:"version"`
	ClusterID string `json:"clusterID"`
	Name      string `json:"name"`
	ID        string `json:"id"`      // Raft's
	Address   string `json:"address"` // as other servers know it
	// Bootstrap says that this server begins the cluster.
	Bootstrap bool `json:"bootstrap,omitempty"`
	// Opened says that the Raft log has been made: from then on, it must be
	// there, because it holds the server's votes.
	Opened bool `json:"opened,omitempty"`
	// Entered says that the server was made a member at Address.
	Entered bool `json:"entered,omitempty"`
	// LeftBehind are IDs that a recovery here has left behind.
	LeftBehind []string `json:"leftBehind,omitempty"`
	// Aside is an ID whose log is being set aside; Via is where the server
	// enters the cluster anew.
	Aside string   `json:"aside,omitempty"`
	Via   []string `json:"via,omitempty"`
}

// Home is a server's data directory: who the server is, its certificates, and
// the lock that keeps other processes out. Not for concurrent use, except
// through the sources.
type Home struct {
	dir    string
	lock   *os.File
	record serverRecord

	// CA, Server and Admin are nil until there is a server.
	CA            *pki.CA
	Server, Admin *pki.Source
	// Keys are what the log and the snapshots are sealed with.
	Keys *seal.Ring
}

// OpenHome makes the directory if needed, locks it and reads what it holds.
func OpenHome(dir string) (*Home, error) {
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	h := &Home{dir: dir, lock: lock}
	if err := h.read(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, describe("create", dir, err)
	}
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, describe("open", path, err)
	}
	// A predecessor that is just ending gets a moment.
	for deadline := time.Now().Add(openTimeout); ; {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(deadline) {
			break
		}
		<-time.After(50 * time.Millisecond)
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrInUse
	}
	return nil, errors.Join(fmt.Errorf("cannot lock data directory %s: %w", dir, err), f.Close())
}

// Close gives up the lock.
func (h *Home) Close() error { return h.lock.Close() }

// Empty reports whether there is no server in the directory yet.
func (h *Home) Empty() bool { return h.record.ID == "" }

// ID is the server's Raft ID.
func (h *Home) ID() string { return h.record.ID }

// Name is the server's name.
func (h *Home) Name() string { return h.record.Name }

// MustBootstrap reports whether this server is yet to begin its cluster.
func (h *Home) MustBootstrap() bool { return h.record.Bootstrap && !h.record.Opened }

// Member reports whether the server was ever made a member.
func (h *Home) Member() bool { return h.record.Entered }

// MustEnter reports whether the server is yet to be made a member at address.
func (h *Home) MustEnter(address string) bool {
	return !h.record.Entered || h.record.Address != address
}

func (h *Home) pki() string { return filepath.Join(h.dir, pkiDir) }

func (h *Home) read() error {
	path := filepath.Join(h.dir, serverFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		has, err := HasState(h.dir)
		if err != nil {
			return err
		}
		if has {
			return fmt.Errorf("data directory %s is damaged: it has a Raft log, but %s, which says whose it is, is missing; restore that file, or move the directory away and join as a new server", h.dir, serverFile)
		}
		return nil
	}
	if err != nil {
		return describe("read", path, err)
	}
	if err := json.Unmarshal(text, &h.record); err != nil {
		return fmt.Errorf("data directory %s is damaged: %s cannot be read (%w)", h.dir, serverFile, err)
	}
	if h.record.Version != 1 {
		return fmt.Errorf("data directory %s was written by a newer version (format %d); this one knows format 1", h.dir, h.record.Version)
	}
	if !serverID.MatchString(h.record.ID) || ServerName(h.record.ID) != h.record.Name {
		return fmt.Errorf("data directory %s is damaged: %s names server %q with ID %q", h.dir, serverFile, h.record.Name, h.record.ID)
	}
	if h.CA, err = pki.LoadCA(h.pki()); err != nil {
		return fmt.Errorf("data directory %s is damaged: %w", h.dir, err)
	}
	if !h.CA.CanIssue() {
		return fmt.Errorf("data directory %s is damaged: the CA's key is missing", h.dir)
	}
	if h.CA.ClusterID() != h.record.ClusterID {
		return fmt.Errorf("data directory %s is damaged: its server is of cluster %s, its CA of cluster %s", h.dir, h.record.ClusterID, h.CA.ClusterID())
	}
	if err := h.finishAside(); err != nil {
		return err
	}
	has, err := HasState(h.dir)
	if err != nil {
		return err
	}
	if h.record.Opened && !has {
		return fmt.Errorf("data directory %s is damaged: the Raft log of server %s is missing, and with it its votes; move the directory away and join as a new server", h.dir, h.record.ID)
	}
	return h.openSources()
}

func (h *Home) openSources() (err error) {
	if h.Server, err = pki.OpenSource(h.pki(), "server"); err != nil {
		return err
	}
	if h.Admin, err = pki.OpenSource(h.pki(), "admin"); err != nil {
		return err
	}
	h.Keys, err = seal.OpenRing(filepath.Join(h.dir, keysFile), pki.WriteFile)
	return err
}

func (h *Home) save() error {
	text, err := json.MarshalIndent(h.record, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", serverFile, err)
	}
	return pki.WriteFile(filepath.Join(h.dir, serverFile), append(text, '\n'))
}

// CheckName refuses to run the directory's server under another name.
func (h *Home) CheckName(name string) error {
	if name != "" && name != h.record.Name {
		return fmt.Errorf("data directory %s belongs to server %q, not to %q: give the name it has, or another directory", h.dir, h.record.Name, name)
	}
	return nil
}

// CheckToken refuses a token of another cluster than the directory's.
func (h *Home) CheckToken(token pki.Token) error { return checkPin(h.dir, h.CA, token) }

func checkPin(dir string, ca *pki.CA, token pki.Token) error {
	if token.CAPin != ca.Pin() {
		return fmt.Errorf("data directory %s belongs to cluster %s, and the token to another one: use an empty directory to join that", dir, ca.ClusterID())
	}
	return nil
}

// Begin makes the directory that of the first server of a new cluster.
func (h *Home) Begin(name, address string, now time.Time) error {
	ca, err := pki.NewCA(now)
	if err != nil {
		return err
	}
	return h.settle(ca, serverRecord{Name: name, ID: NewServerID(name), Address: address, Bootstrap: true, Entered: true}, seal.Begin(now), nil)
}

// Join makes the directory that of a new server of an existing cluster. It
// becomes a member by Enter, once its port is up.
func (h *Home) Join(ctx context.Context, j *Joiner, token pki.Token, name, address, version string) error {
	if token.Role != pki.RoleServer {
		return fmt.Errorf("%w: a server joins with a server token, this one is for the role %q", pki.ErrTokenRole, token.Role)
	}
	server, err := pki.OpenSource(h.pki(), "server")
	if err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("advertised address: %w", err)
	}
	csr, err := pki.NewCSR(server.Key(), []string{host})
	if err != nil {
		return err
	}
	id := NewServerID(name)
	res, ca, err := j.Join(ctx, token, wire.JoinRequest{Role: string(pki.RoleServer), Name: name, ID: id, Address: address, CSR: string(csr), Version: version})
	if err != nil {
		return err
	}
	var keys seal.Keys // a server of an earlier version gives none
	if res.DataKeys != "" {
		if keys, err = seal.Decode([]byte(res.DataKeys)); err != nil {
			return fmt.Errorf("join as server %q: the answer: %w", name, err)
		}
	}
	return h.settle(ca, serverRecord{Name: name, ID: id, Address: address}, keys, []byte(res.Certificate))
}

// settle writes everything, the record last.
func (h *Home) settle(ca *pki.CA, record serverRecord, keys seal.Keys, cert []byte) error {
	if err := pki.SaveCA(h.pki(), ca); err != nil {
		return err
	}
	h.CA = ca
	if err := h.openSources(); err != nil {
		return err
	}
	if err := h.Keys.Add(keys); err != nil {
		return err
	}
	if cert != nil {
		if err := h.Server.Install(cert); err != nil {
			return err
		}
	}
	record.Version, record.ClusterID = 1, ca.ClusterID()
	h.record = record
	return h.save()
}

// Opened records that the Raft log exists.
func (h *Home) Opened() error {
	if h.record.Opened {
		return nil
	}
	h.record.Opened = true
	return h.save()
}

// Entered records that the server is a member at address.
func (h *Home) Entered(address string) error {
	h.record.Entered, h.record.Address, h.record.Via = true, address, nil
	return h.save()
}

// Renew issues the certificates of the CA, of this server and of the
// administrator where half of their life has passed, or the server's does not
// name all its hosts. It reports whether one was.
//
// A clock from before the cluster began has lost the time: what is there is
// better than anything that would be issued by it.
func (h *Home) Renew(hosts []string, ttl time.Duration, now time.Time) (renewed bool, err error) {
	if now.Before(h.CA.Certificate().NotBefore) && h.Server.Leaf() != nil && h.Admin.Leaf() != nil {
		return false, nil
	}
	if h.CA.NeedsRenewal(now) {
		if err := h.renewCA(now); err != nil {
			return false, err
		}
		renewed = true
	}
	if h.Server.NeedsRenewal(now) || !covers(h.Server, hosts) {
		if err := h.issue(h.Server, pki.Request{Role: pki.RoleServer, Name: h.record.ID, Hosts: hosts, TTL: ttl}, now); err != nil {
			return false, err
		}
		renewed = true
	}
	if h.Admin.NeedsRenewal(now) {
		if err := h.issue(h.Admin, pki.Request{Role: pki.RoleAdmin, Name: pki.AdminUser, TTL: ttl}, now); err != nil {
			return renewed, err
		}
		renewed = true
	}
	return renewed, nil
}

func (h *Home) renewCA(now time.Time) error {
	next, err := h.CA.Renewed(now)
	if err != nil {
		return err
	}
	if err := pki.SaveCA(h.pki(), next); err != nil {
		return err
	}
	return h.CA.Adopt(next)
}

func (h *Home) issue(s *pki.Source, req pki.Request, now time.Time) error {
	req.Public = s.Key().Public()
	cert, err := h.CA.Issue(req, now)
	if err != nil {
		return err
	}
	return s.Install(cert)
}

func covers(s *pki.Source, hosts []string) bool {
	leaf := s.Leaf()
	for _, h := range hosts {
		if leaf == nil || leaf.VerifyHostname(h) != nil {
			return false
		}
	}
	return true
}

// WriteKubeconfig brings DATA/admin.kubeconfig up to date with the members
// and the administrator's certificate. An unchanged file is not touched.
func (h *Home) WriteKubeconfig(address string, servers []wire.Server) error {
	cert, key, err := h.Admin.PEM()
	if err != nil {
		return err
	}
	self := wire.Server{ID: h.record.ID, Name: h.record.Name, Address: address}
	text, err := Kubeconfig(h.CA, self, servers, cert, key)
	if err != nil {
		return err
	}
	path := filepath.Join(h.dir, KubeconfigFile)
	have, err := os.ReadFile(path)
	if err == nil && string(have) == string(text) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	return pki.WriteFile(path, text)
}
