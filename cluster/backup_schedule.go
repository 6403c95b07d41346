package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// minBackupInterval is the shortest time between two backups, as their names
// count in seconds.
const minBackupInterval = time.Second

// BackupSchedule says when and where backups are made by themselves.
type BackupSchedule struct {
	// Dir is this server's own directory, or one that all servers share. It must
	// exist: it may be a mount, and what is made in its place would be lost with
	// the server.
	Dir string
	// Interval is the time between two backups. 0: none are made.
	Interval time.Duration
	// Keep is how many backups of this cluster stay in Dir.
	Keep int
	// PassphraseFile is read for each backup, so that it may be changed.
	PassphraseFile string
	// Plain backups have no passphrase.
	Plain bool
}

// DefaultBackupSchedule makes no backups.
func DefaultBackupSchedule() BackupSchedule { return BackupSchedule{Keep: 7} }

// Validate names every setting that cannot work.
func (s *BackupSchedule) Validate() error {
	if s.Interval == 0 {
		return nil
	}
	var errs []error
	if s.Interval < minBackupInterval {
		errs = append(errs, fmt.Errorf("--backup-interval: %v: must be at least %v; 0 turns scheduled backups off", s.Interval, minBackupInterval))
	}
	if s.Dir == "" {
		errs = append(errs, errors.New("--backup-interval: scheduled backups need --backup-dir, the directory to write them into"))
	}
	switch {
	case s.PassphraseFile == "" && !s.Plain:
		errs = append(errs, errors.New("--backup-interval: a backup holds the cluster's CA key and all Secrets: give --backup-passphrase-file to encrypt it, or --backup-no-encryption to save it plain"))
	case s.PassphraseFile != "" && s.Plain:
		errs = append(errs, errors.New("--backup-no-encryption: it and --backup-passphrase-file exclude one another"))
	}
	if s.Keep < 1 {
		errs = append(errs, fmt.Errorf("--backup-keep: %d: at least 1 backup must be kept", s.Keep))
	}
	return errors.Join(errs...)
}

func (s *BackupSchedule) passphrase() ([]byte, error) {
	if s.Plain {
		return nil, nil
	}
	secret, err := ReadPassphrase(s.PassphraseFile)
	if err != nil {
		return nil, fmt.Errorf("--backup-passphrase-file: %w", err)
	}
	return secret, nil
}

// checkBound is how long a start waits for the directory, which may be remote.
const checkBound = 2 * time.Second

// Check finds what only the machine shows, before it is needed: a passphrase
// file that cannot be read, a directory that is not there or not to be written
// into. A directory that is ill or does not answer is no error here: a server
// must start without it, and the backups themselves will say so.
func (s *BackupSchedule) Check() error {
	if s.Interval == 0 {
		return nil
	}
	if _, err := s.passphrase(); err != nil {
		return err
	}
	tried := make(chan error, 1)
	go func() { tried <- s.tryDir() }()
	select {
	case err := <-tried:
		for _, wrong := range []error{fs.ErrNotExist, fs.ErrPermission, syscall.ENOTDIR, syscall.EROFS} {
			if errors.Is(err, wrong) {
				return fmt.Errorf("--backup-dir: %w; it must be a directory that exists and that this user may write into", err)
			}
		}
	case <-time.After(checkBound):
	}
	return nil
}

func (s *BackupSchedule) tryDir() error {
	f, err := os.CreateTemp(s.Dir, ".shepherd-check-*")
	if err != nil {
		return describe("write a backup into", s.Dir, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
