package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
)

// compactTx is how much one transaction of a rewrite copies, in bytes.
const compactTx = 8 << 20

// CompactLog rewrites the Raft log of a stopped server into a new file, as
// bbolt files never shrink by themselves, and puts it in the old one's place.
// It returns the sizes of the file before and after, in bytes. It refuses a
// directory without a log, and with ErrInUse one whose server runs. On an
// error the old file is as it was.
func CompactLog(dataDir string) (before, after int64, err error) {
	path := filepath.Join(dataDir, logFile)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, 0, fmt.Errorf("there is no Raft log to compact: %s does not exist; is --data-dir that of a server?", path)
	case err != nil:
		return 0, 0, describe("look at", path, err)
	case !info.Mode().IsRegular() || info.Size() == 0:
		return 0, 0, fmt.Errorf("cannot compact %s: it is empty, or no regular file", path)
	}
	lock, err := lockDir(dataDir)
	if err != nil {
		return 0, 0, fmt.Errorf("stop the server first: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if after, err = rewrite(path, path+".compact"); err != nil {
		return 0, 0, err
	}
	return info.Size(), after, nil
}

// rewrite copies a bbolt file to another name and renames that over it.
func rewrite(path, fresh string) (size int64, err error) {
	src, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: openTimeout, ReadOnly: true, OpenFile: openChecked})
	if err != nil {
		return 0, describe("open", path, err)
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a rewrite that was cut off
		return 0, describe("remove", fresh, err)
	}
	dst, err := bbolt.Open(fresh, 0o600, &bbolt.Options{Timeout: time.Second, NoSync: true})
	if err != nil {
		return 0, describe("create", fresh, err)
	}
	err = bbolt.Compact(dst, src, compactTx)
	if err == nil {
		err = dst.Sync()
	}
	if err = errors.Join(err, dst.Close()); err != nil {
		return 0, errors.Join(describe("write", fresh, err), os.Remove(fresh))
	}
	info, err := os.Stat(fresh)
	if err != nil {
		return 0, describe("look at", fresh, err)
	}
	if err := os.Rename(fresh, path); err != nil {
		return 0, errors.Join(describe("replace", path, err), os.Remove(fresh))
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return 0, describe("open", filepath.Dir(path), err)
	}
	return info.Size(), errors.Join(dir.Sync(), dir.Close())
}
