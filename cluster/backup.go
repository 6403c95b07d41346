package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/fsm"
)

// PathBackup gives a plain backup of the cluster to an administrator.
const PathBackup = wire.PathPrefix + "backup"

// backupKeys is what a blank machine needs beside the state.
type backupKeys struct {
	CA      string        `json:"ca"`
	CAKey   string        `json:"caKey"`
	Servers []wire.Server `json:"servers"` // of that time; none may come back
}

// Backup is a backup that was read and found whole.
type Backup struct {
	Header  BackupHeader
	CA      *pki.CA
	Servers []wire.Server
	// Store holds the state, under nobody's Raft.
	Store *fsm.Store
}

// Counts says how many objects there are of each kind, internal ones included.
func (b *Backup) Counts() map[string]int {
	counts := map[string]int{}
	for o := range b.Store.View().All() {
		counts[o.Key.Resource]++
	}
	return counts
}

// BackupSource makes backups of a running server. Safe for concurrent use.
type BackupSource struct {
	CA      *pki.CA
	Store   *fsm.Store
	Cluster Membership
	Name    string
	// Admin tells whether a request comes from an administrator: a backup holds
	// the CA's key.
	Admin  func(*http.Request) bool
	Logger hclog.Logger
}

// Take reads the state, as new as everything acknowledged before, and returns
// what writes it down as a backup, sealed unless the passphrase is empty.
func (s *BackupSource) Take(ctx context.Context) (BackupHeader, func(w io.Writer, passphrase []byte) error, error) {
	if err := s.Cluster.ReadIndex(ctx); err != nil {
		return BackupHeader{}, nil, fmt.Errorf("take a backup: the cluster cannot answer now: %w", err)
	}
	view := s.Store.View()
	h := BackupHeader{ClusterID: s.CA.ClusterID(), Server: s.Name, Created: s.Cluster.Now().UTC(), Revision: view.Revision(), Epoch: view.Epoch()}
	keys, err := json.Marshal(backupKeys{CA: string(s.CA.CertPEM()), CAKey: string(s.CA.KeyPEM()), Servers: s.Cluster.Servers()})
	if err != nil {
		return h, nil, fmt.Errorf("take a backup: %w", err)
	}
	return h, func(w io.Writer, passphrase []byte) error {
		return writeBackup(w, h, passphrase, func(w io.Writer) error {
			if _, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(keys))), keys...)); err != nil {
				return err
			}
			return view.Export(w)
		})
	}, nil
}

// ServeHTTP sends a plain backup over the administrator's TLS connection: who
// asked seals it, so that the passphrase stays with them.
func (s *BackupSource) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fail := func(code int, message string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		if err := json.NewEncoder(w).Encode(wire.Error{Message: message}); err != nil {
			s.Logger.Debug("answer", "error", err)
		}
	}
	if !s.Admin(r) {
		fail(http.StatusUnauthorized, "an administrator's certificate is needed")
		return
	}
	h, write, err := s.Take(r.Context())
	if err != nil {
		fail(http.StatusServiceUnavailable, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := write(w, nil); err != nil {
		s.Logger.Warn("a backup was not sent whole", "remote", r.RemoteAddr, "error", err)
		panic(http.ErrAbortHandler) // the receiver must see a broken answer
	}
	s.Logger.Info("a backup was given out", "remote", r.RemoteAddr, "revision", h.Revision)
}

// CopyBackup copies a plain backup from a stream and seals it with the
// passphrase, unless that is empty.
func CopyBackup(w io.Writer, r io.Reader, passphrase []byte) error {
	_, err := readBackup(r, nil, func(h BackupHeader, body io.Reader) error {
		return writeBackup(w, h, passphrase, func(w io.Writer) error {
			_, err := io.Copy(w, body)
			return err
		})
	})
	return err
}

// SaveBackup writes a backup to a file, readable by its owner alone, reads it
// back and only then gives it its name: the file is whole, or as it was.
func SaveBackup(path string, passphrase []byte, write func(io.Writer) error) (b *Backup, err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return nil, describe("write a backup into", dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreClosed(f.Close()), os.Remove(f.Name()))
		}
	}()
	if err := write(f); err != nil {
		return nil, err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return nil, describe("write", f.Name(), err)
	}
	if b, err = OpenBackup(f.Name(), passphrase); err != nil {
		return nil, fmt.Errorf("read the backup back: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return nil, describe("write", path, err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return b, describe("open", dir, err)
	}
	return b, errors.Join(d.Sync(), d.Close())
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// ReadBackupHeader checks a file's checksum and returns its header, which
// needs no passphrase.
func ReadBackupHeader(path string) (BackupHeader, error) {
	f, err := os.Open(path)
	if err != nil {
		return BackupHeader{}, fmt.Errorf("read backup: %w", err)
	}
	defer f.Close()
	h, err := readBackup(f, nil, nil)
	if err != nil {
		return h, fmt.Errorf("read backup %s: %w", path, err)
	}
	return h, nil
}

// OpenBackup reads and checks a whole backup: its checksum first, then every
// sealed part, the keys, and the state with its own checksum and hash.
func OpenBackup(path string, passphrase []byte) (*Backup, error) {
	if _, err := ReadBackupHeader(path); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read backup: %w", err)
	}
	defer f.Close()
	b := &Backup{Store: fsm.New(fsm.DefaultConfig())}
	b.Header, err = readBackup(f, passphrase, b.read)
	if err != nil {
		return nil, fmt.Errorf("read backup %s: %w", path, err)
	}
	return b, nil
}

func (b *Backup) read(h BackupHeader, r io.Reader) error {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return inBackup(err)
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxBackupKeys {
		return fmt.Errorf("%w: keys of %d bytes", ErrBackupDamaged, n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return inBackup(err)
	}
	var keys backupKeys
	err := json.Unmarshal(text, &keys)
	if err == nil {
		b.CA, err = pki.ParseCA([]byte(keys.CA), []byte(keys.CAKey))
	}
	if err != nil {
		return fmt.Errorf("%w: its keys: %w", ErrBackupDamaged, err)
	}
	if !b.CA.CanIssue() || b.CA.ClusterID() != h.ClusterID {
		return fmt.Errorf("%w: its keys are not those of cluster %s", ErrBackupDamaged, h.ClusterID)
	}
	b.Servers = keys.Servers
	if err := b.Store.Restore(io.NopCloser(r)); err != nil {
		return inBackup(err)
	}
	if v := b.Store.View(); v.Revision() != h.Revision || v.Epoch() != h.Epoch {
		return fmt.Errorf("%w: its header says revision %d, its state is at %d", ErrBackupDamaged, h.Revision, v.Revision())
	}
	return nil
}

// inBackup keeps the errors that say what to do, and calls others damage.
func inBackup(err error) error {
	if errors.Is(err, ErrPassphrase) || errors.Is(err, ErrBackupDamaged) || errors.Is(err, fsm.ErrUnknownVersion) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrBackupDamaged, err)
}

// maxPassphrase bounds a passphrase file, in bytes.
const maxPassphrase = 4096

// ReadPassphrase returns the first line of a file. The error never holds it.
func ReadPassphrase(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the passphrase: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxPassphrase+1))
	if err != nil {
		return nil, fmt.Errorf("read the passphrase: %w", err)
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	if len(line) == 0 || len(text) > maxPassphrase {
		return nil, fmt.Errorf("read the passphrase: %s is empty, or longer than %d bytes", path, maxPassphrase)
	}
	return line, nil
}
