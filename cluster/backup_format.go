package cluster

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"
)

// The format of a backup, version 1:
//
//	"SHEPBKUP"   magic
//	uint32       version, big endian
//	uint32       length of the header
//	header       BackupHeader in JSON, readable without the passphrase
//	body         plain, or sealed in chunks (see backup_seal.go)
//	sum          SHA-256 of everything before
//	"SHEPEND\n"  so that a file that was cut short is told from a damaged one
//
// The plain body is a uint32 length, backupKeys in JSON, and a snapshot of the
// state machine with a checksum and the state's hash of its own.
const (
	backupMagic   = "SHEPBKUP"
	backupEnd     = "SHEPEND\n"
	backupVersion = 1
	backupTrailer = sha256.Size + len(backupEnd)

	maxBackupHeader = 64 << 10
	maxBackupKeys   = 1 << 20
)

var (
	// ErrBackupDamaged is wrapped for a file that is no backup, was cut short
	// or changed.
	ErrBackupDamaged = errors.New("the backup is damaged")
	// ErrBackupVersion is wrapped for a format that this build does not know.
	ErrBackupVersion = errors.New("the backup has another format")
	// ErrPassphrase is wrapped when a sealed backup does not open.
	ErrPassphrase = errors.New("the passphrase is wrong")
)

// BackupHeader is what everyone may know of a backup.
type BackupHeader struct {
	ClusterID string    `json:"clusterID"`
	Server    string    `json:"server"` // the name of the one that made it
	Created   time.Time `json:"created"`
	Revision  uint64    `json:"revision"`
	Epoch     uint64    `json:"epoch"`
	// Encryption is nil for a plain backup.
	Encryption *BackupEncryption `json:"encryption,omitempty"`
}

// writeBackup writes a whole backup: sealed with the passphrase unless that is
// empty. body writes the plain body.
func writeBackup(w io.Writer, h BackupHeader, passphrase []byte, body func(io.Writer) error) error {
	var key []byte
	h.Encryption = nil
	if len(passphrase) > 0 {
		var err error
		h.Encryption = newBackupEncryption()
		if key, err = h.Encryption.key(passphrase); err != nil {
			return err
		}
	}
	text, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	sum := sha256.New()
	out := io.MultiWriter(w, sum)
	head := append([]byte(backupMagic), 0, 0, 0, 0, 0, 0, 0, 0)
	binary.BigEndian.PutUint32(head[8:], backupVersion)
	binary.BigEndian.PutUint32(head[12:], uint32(len(text)))
	head = append(head, text...)
	if _, err := out.Write(head); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	if err := writeBackupBody(out, key, head, body); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	if _, err := w.Write(append(sum.Sum(nil), backupEnd...)); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	return nil
}

func writeBackupBody(out io.Writer, key, head []byte, body func(io.Writer) error) error {
	if key == nil {
		return body(out)
	}
	sealed, err := newSealer(out, key, head)
	if err != nil {
		return err
	}
	if err := body(sealed); err != nil {
		return err
	}
	return sealed.Close()
}

// readBackup reads a whole backup from a stream. body reads the plain body, to
// whatever end it likes; what it has read counts only if the result is nil. A
// nil body reads the header and checks the sum: no passphrase is needed.
func readBackup(r io.Reader, passphrase []byte, body func(BackupHeader, io.Reader) error) (BackupHeader, error) {
	var h BackupHeader
	t := newTrailed(r)
	head := make([]byte, len(backupMagic)+8)
	if _, err := io.ReadFull(t, head); err != nil || string(head[:8]) != backupMagic {
		return h, errors.Join(fmt.Errorf("%w: it does not begin as a backup does", ErrBackupDamaged), ignoreEnd(err))
	}
	if v := binary.BigEndian.Uint32(head[8:]); v != backupVersion {
		return h, fmt.Errorf("%w: version %d, this program reads version %d; use the release that wrote it", ErrBackupVersion, v, backupVersion)
	}
	size := binary.BigEndian.Uint32(head[12:])
	if size > maxBackupHeader {
		return h, fmt.Errorf("%w: a header of %d bytes", ErrBackupDamaged, size)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(t, text); err != nil {
		return h, fmt.Errorf("%w: it was cut short", ErrBackupDamaged)
	}
	bad := json.Unmarshal(text, &h) // told once the sum is known to be right
	var err error
	if bad == nil && body != nil {
		err = readBackupBody(t, h, passphrase, append(head, text...), body)
	}
	if sum := t.check(); sum != nil {
		return h, sum // whatever was wrong in the body has this reason
	}
	if bad != nil {
		return h, fmt.Errorf("%w: its header: %w", ErrBackupDamaged, bad)
	}
	return h, err
}

func readBackupBody(r io.Reader, h BackupHeader, passphrase, head []byte, body func(BackupHeader, io.Reader) error) error {
	if h.Encryption == nil {
		return body(h, r)
	}
	if len(passphrase) == 0 {
		return fmt.Errorf("%w: the backup is encrypted and no passphrase was given", ErrPassphrase)
	}
	key, err := h.Encryption.key(passphrase)
	if err != nil {
		return err
	}
	opened, err := newOpener(r, key, head)
	if err != nil {
		return err
	}
	return body(h, opened)
}

func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// trailed reads a stream up to its trailer, which it keeps back and checks.
type trailed struct {
	r    io.Reader
	sum  hash.Hash
	hold []byte // read, not handed out; the last bytes of it may be the trailer
	err  error
}

func newTrailed(r io.Reader) *trailed { return &trailed{r: r, sum: sha256.New()} }

func (t *trailed) Read(p []byte) (int, error) {
	for len(t.hold) <= backupTrailer && t.err == nil {
		block := make([]byte, 64<<10)
		var n int
		n, t.err = t.r.Read(block)
		t.hold = append(t.hold, block[:n]...)
	}
	n := copy(p, t.hold[:max(0, len(t.hold)-backupTrailer)])
	t.sum.Write(t.hold[:n])
	t.hold = t.hold[n:]
	if n == 0 && len(p) > 0 {
		return 0, t.err
	}
	return n, nil
}

// check reads to the end and compares the sum.
func (t *trailed) check() error {
	if _, err := io.Copy(io.Discard, t); err != nil {
		return fmt.Errorf("read backup: %w", err)
	}
	if len(t.hold) != backupTrailer || string(t.hold[sha256.Size:]) != backupEnd {
		return fmt.Errorf("%w: it was cut short, or something follows its end", ErrBackupDamaged)
	}
	if !bytes.Equal(t.hold[:sha256.Size], t.sum.Sum(nil)) {
		return fmt.Errorf("%w: its checksum does not match", ErrBackupDamaged)
	}
	return nil
}
