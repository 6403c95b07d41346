package image

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"bufio"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

const (
	whiteoutPrefix = ".wh."
	opaqueMarker   = ".wh..wh..opq"
	metaPrefix     = ".wh..wh."
	opaqueXattr    = "trusted.overlay.opaque"
	xattrRecord    = "SCHILY.xattr."
	maxEntries     = 4 << 20
)

// unpackLayer unpacks a layer's stream, plain, gzip or zstd, into the empty
// directory dir in the form an overlay reads, and returns the digest of the
// plain tar. Every path goes through an os.Root, so nothing lands outside.
func unpackLayer(r io.Reader, dir string, maxBytes int64) (diffID string, err error) {
	plain, closePlain, err := decompress(r)
	if err != nil {
		return "", err
	}
	defer closePlain()
	sum := sha256.New()
	limited := &limitReader{r: io.TeeReader(plain, sum), left: maxBytes}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", fmt.Errorf("open layer directory: %w", err)
	}
	defer root.Close()
	u := &unpacker{root: root, seen: map[string]bool{}, buf: make([]byte, 256<<10)}
	if err := u.run(tar.NewReader(limited)); err != nil {
		return "", err
	}
	// The digest covers the padding behind the last entry as well.
	if _, err := io.CopyBuffer(io.Discard, limited, u.buf); err != nil {
		return "", fmt.Errorf("%w: %w", ErrArchive, err)
	}
	return digestOf(sum), nil
}

func digestOf(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }

// decompress recognises the compression by its first bytes.
func decompress(r io.Reader) (io.Reader, func(), error) {
	br := bufio.NewReaderSize(r, 64<<10)
	magic, err := br.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("read layer: %w", err)
	}
	switch {
	case len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b:
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: gzip: %w", ErrArchive, err)
		}
		return z, func() { z.Close() }, nil
	case len(magic) == 4 && magic[0] == 0x28 && magic[1] == 0xb5 && magic[2] == 0x2f && magic[3] == 0xfd:
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, nil, fmt.Errorf("%w: zstd: %w", ErrArchive, err)
		}
		return z, z.Close, nil
	}
	return br, func() {}, nil
}

// limitReader fails, rather than ends, when more than left bytes come.
type limitReader struct {
	r    io.Reader
	left int64
}

func (l *limitReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return n, fmt.Errorf("%w: unpacks to more than is allowed", ErrArchive)
	}
	return n, err
}

// unpacker unpacks one layer. Not safe for concurrent use.
type unpacker struct {
	root  *os.Root
	seen  map[string]bool // paths this layer itself contains
	dirs  []dirTime
	buf   []byte
	count int
}

type dirTime struct {
	name  string
	mtime time.Time
}

func (u *unpacker) run(tr *tar.Reader) error {
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrArchive, err)
		}
		if u.count++; u.count > maxEntries {
			return fmt.Errorf("%w: more than %d entries", ErrArchive, maxEntries)
		}
		if err := u.entry(h, tr); err != nil {
			return fmt.Errorf("%w: entry %q: %w", ErrArchive, h.Name, err)
		}
	}
	// Creating entries changes the times of directories: set them last.
	for _, d := range u.dirs {
		if err := u.root.Chtimes(d.name, d.mtime, d.mtime); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set time of %q: %w", d.name, err)
		}
	}
	return nil
}

// entryName returns the name relative to the image's root. A leading slash
// means that root; a ".." anywhere is refused, whether it escapes or not.
func entryName(s string) (string, error) {
	for part := range strings.SplitSeq(s, "/") {
		if part == ".." {
			return "", errors.New(`name contains ".."`)
		}
	}
	if strings.ContainsRune(s, 0) {
		return "", errors.New("name contains a zero byte")
	}
	return strings.TrimPrefix(path.Clean("/"+s), "/"), nil
}

func (u *unpacker) entry(h *tar.Header, body io.Reader) error {
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	if name == "" {
		if h.Typeflag != tar.TypeDir {
			return errors.New("the root must be a directory")
		}
		return u.dirMeta(".", h)
	}
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeChar, tar.TypeBlock:
		return errors.New("device nodes are not allowed in an image")
	}
	parent, base := path.Split(name)
	parent = strings.TrimSuffix(parent, "/")
	if parent != "" {
		if err := u.root.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	if strings.HasPrefix(base, whiteoutPrefix) {
		return u.whiteout(parent, base)
	}
	opaque, err := u.clear(name, h.Typeflag == tar.TypeDir)
	if err != nil {
		return err
	}
	u.seen[name] = true
	switch h.Typeflag {
	case tar.TypeDir:
		if err := u.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if opaque {
			if err := u.setOpaque(name); err != nil {
				return err
			}
		}
		return u.dirMeta(name, h)
	case tar.TypeReg, '\x00': // the second is how old archives say it
		return u.file(name, h, body)
	case tar.TypeSymlink:
		if err := u.root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		if err := u.root.Lchown(name, h.Uid, h.Gid); err != nil {
			return err
		}
		return u.symlinkTime(name, h.ModTime)
	case tar.TypeLink:
		target, err := entryName(h.Linkname)
		if err != nil {
			return fmt.Errorf("hard link: %w", err)
		}
		return u.root.Link(target, name)
	case tar.TypeFifo:
		return u.fifo(name, h)
	}
	return fmt.Errorf("entry type %q is not supported", h.Typeflag)
}

// clear makes place for an entry. It reports whether a whiteout of this very
// layer was there: a directory that takes its place hides the lower one.
func (u *unpacker) clear(name string, isDir bool) (opaque bool, err error) {
	st, err := u.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if st.IsDir() {
		if isDir {
			return false, nil
		}
		return false, u.root.RemoveAll(name)
	}
	return st.Mode()&os.ModeCharDevice != 0, u.root.Remove(name)
}

func (u *unpacker) file(name string, h *tar.Header, body io.Reader) error {
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, body, u.buf)
	if err == nil {
		err = u.meta(f, h)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return u.root.Chtimes(name, h.ModTime, h.ModTime)
}

func (u *unpacker) dirMeta(name string, h *tar.Header) error {
	f, err := u.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := u.meta(f, h); err != nil {
		return err
	}
	u.dirs = append(u.dirs, dirTime{name, h.ModTime})
	return nil
}

// meta sets owner, mode and extended attributes, in the order that keeps
// set-user-ID bits and capabilities.
func (u *unpacker) meta(f *os.File, h *tar.Header) error {
	if err := f.Chown(h.Uid, h.Gid); err != nil {
		return err
	}
	if err := f.Chmod(h.FileInfo().Mode()); err != nil {
		return err
	}
	for key, value := range h.PAXRecords {
		attr, ok := strings.CutPrefix(key, xattrRecord)
		if !ok || !keepXattr(attr) {
			continue
		}
		err := unix.Fsetxattr(int(f.Fd()), attr, []byte(value), 0)
		if err != nil && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("set %s: %w", attr, err)
		}
	}
	return nil
}

// keepXattr says which attributes of an image are taken over. Those of the
// overlay itself would let an image forge whiteouts and redirects.
func keepXattr(attr string) bool {
	return attr == "security.capability" || strings.HasPrefix(attr, "user.") && !strings.HasPrefix(attr, "user.overlay.")
}

// at runs fn with the open parent directory of name and name's last part.
func (u *unpacker) at(name string, fn func(dirfd int, base string) error) error {
	d, err := u.root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer d.Close()
	return fn(int(d.Fd()), path.Base(name))
}

func (u *unpacker) fifo(name string, h *tar.Header) error {
	return u.at(name, func(dirfd int, base string) error {
		if err := unix.Mknodat(dirfd, base, unix.S_IFIFO|uint32(h.Mode&0o777), 0); err != nil {
			return err
		}
		return unix.Fchownat(dirfd, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW)
	})
}

func (u *unpacker) symlinkTime(name string, t time.Time) error {
	return u.at(name, func(dirfd int, base string) error {
		ts := unix.NsecToTimespec(t.UnixNano())
		return unix.UtimesNanoAt(dirfd, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	})
}

func (u *unpacker) setOpaque(dir string) error {
	f, err := u.root.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Fsetxattr(int(f.Fd()), opaqueXattr, []byte("y"), 0)
}

// whiteout turns an archive's marker into the overlay's: a character device
// 0:0 for a removed name, an attribute for a directory that hides the lower
// one. A whiteout speaks of lower layers only, never of this layer's entries.
func (u *unpacker) whiteout(parent, base string) error {
	if base == opaqueMarker {
		if parent == "" {
			parent = "."
		}
		return u.setOpaque(parent)
	}
	if strings.HasPrefix(base, metaPrefix) {
		return nil // bookkeeping of another union file system
	}
	target := strings.TrimPrefix(base, whiteoutPrefix)
	if target == "" || target == "." || target == ".." {
		return errors.New("whiteout of no name")
	}
	name := path.Join(parent, target)
	if u.seen[name] {
		if st, err := u.root.Lstat(name); err == nil && st.IsDir() {
			return u.setOpaque(name)
		}
		return nil
	}
	return u.at(name, func(dirfd int, base string) error {
		err := unix.Mknodat(dirfd, base, unix.S_IFCHR, 0)
		if errors.Is(err, unix.EEXIST) { // a parent made on the way, or the same whiteout twice
			var st unix.Stat_t
			if err := unix.Fstatat(dirfd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return err
			}
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				return u.setOpaque(name)
			}
			return nil
		}
		return err
	})
}
