package pki

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// WriteFile replaces a file atomically and durably: after it returns, a crash
// leaves the new content, and before, the old. Only its owner can read it. The
// directory is made with mode 0700 if it is missing.
func WriteFile(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", path, err), ignoreClosed(f.Close()), os.Remove(f.Name()))
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	if err := syncDir(dir); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Names of the files of a PKI directory.
const (
	caCertFile = "ca.crt"
	caKeyFile  = "ca.key"
)

// SaveCA writes the authority into a directory, the key only if it is known.
func SaveCA(dir string, ca *CA) error {
	if key := ca.KeyPEM(); key != nil {
		if err := WriteFile(filepath.Join(dir, caKeyFile), key); err != nil {
			return err
		}
	}
	return WriteFile(filepath.Join(dir, caCertFile), ca.CertPEM())
}

// LoadCA reads what SaveCA wrote. A missing certificate is fs.ErrNotExist; a
// missing key gives a CA that cannot issue.
func LoadCA(dir string) (*CA, error) {
	cert, err := os.ReadFile(filepath.Join(dir, caCertFile))
	if err != nil {
		return nil, fmt.Errorf("read the CA: %w", err)
	}
	key, err := os.ReadFile(filepath.Join(dir, caKeyFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the CA's key: %w", err)
	}
	ca, err := ParseCA(cert, key)
	if err != nil {
		return nil, fmt.Errorf("read the CA in %s: %w", dir, err)
	}
	return ca, nil
}
