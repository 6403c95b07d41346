package cluster

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/scrypt"
)

// sealChunk is how many plain bytes a sealed chunk holds; only the last one
// may hold less.
const sealChunk = 64 << 10

// Costs of scrypt: 64 MiB and a fraction of a second. The bound keeps a forged
// header from asking for more.
const (
	scryptLogN    = 16
	scryptMaxLogN = 20
	scryptR       = 8
)

// BackupEncryption says how the key of a sealed backup follows from its
// passphrase: by scrypt. Each backup has a salt, so a key of its own.
type BackupEncryption struct {
	KDF  string `json:"kdf"`
	LogN int    `json:"logN"`
	R    int    `json:"r"`
	P    int    `json:"p"`
	Salt []byte `json:"salt"`
}

func newBackupEncryption() *BackupEncryption {
	e := &BackupEncryption{KDF: "scrypt", LogN: scryptLogN, R: scryptR, P: 1, Salt: make([]byte, 32)}
	_, _ = rand.Read(e.Salt) // never fails: crypto/rand ends the process instead
	return e
}

func (e *BackupEncryption) key(passphrase []byte) ([]byte, error) {
	if e.KDF != "scrypt" || e.LogN < 1 || e.LogN > scryptMaxLogN || e.R != scryptR || e.P != 1 || len(e.Salt) != 32 {
		return nil, fmt.Errorf("%w: its key is derived in a way that this program does not know", ErrBackupVersion)
	}
	key, err := scrypt.Key(passphrase, e.Salt, 1<<e.LogN, e.R, e.P, 32)
	if err != nil {
		return nil, fmt.Errorf("derive the backup's key: %w", err)
	}
	return key, nil
}

// chunks is what sealing and opening share: AES-256-GCM over chunks that are
// counted, the last one marked (the STREAM construction), each bound to the
// backup's header. So none can be changed, swapped, repeated or left out.
type chunks struct {
	aead  cipher.AEAD
	bound []byte // hash of the header
	count uint64
}

func newChunks(key, head []byte) (chunks, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return chunks{}, err
	}
	aead, err := cipher.NewGCM(block)
	sum := sha256.Sum256(head)
	return chunks{aead: aead, bound: sum[:]}, err
}

func (c *chunks) nonce(last bool) []byte {
	n := make([]byte, 12)
	binary.BigEndian.PutUint64(n[3:], c.count)
	if last {
		n[11] = 1
	}
	c.count++
	return n
}

// sealer writes what it is given in sealed chunks. Close writes the last one.
type sealer struct {
	chunks
	w    io.Writer
	hold []byte
}

func newSealer(w io.Writer, key, head []byte) (*sealer, error) {
	c, err := newChunks(key, head)
	return &sealer{chunks: c, w: w}, err
}

func (s *sealer) Write(p []byte) (int, error) {
	s.hold = append(s.hold, p...)
	for len(s.hold) > sealChunk { // one byte more: the last chunk is not written here
		if err := s.flush(s.hold[:sealChunk], false); err != nil {
			return 0, err
		}
		s.hold = append(s.hold[:0], s.hold[sealChunk:]...)
	}
	return len(p), nil
}

func (s *sealer) flush(plain []byte, last bool) error {
	_, err := s.w.Write(s.aead.Seal(nil, s.nonce(last), plain, s.bound))
	return err
}

func (s *sealer) Close() error { return s.flush(s.hold, true) }

// opener is the reverse.
type opener struct {
	chunks
	r     io.Reader
	next  []byte // sealed, read already
	plain []byte // opened, not handed out
	last  bool
}

func newOpener(r io.Reader, key, head []byte) (*opener, error) {
	c, err := newChunks(key, head)
	return &opener{chunks: c, r: r}, err
}

func (o *opener) Read(p []byte) (int, error) {
	for len(o.plain) == 0 {
		if o.last {
			return 0, io.EOF
		}
		if err := o.open(); err != nil {
			return 0, err
		}
	}
	n := copy(p, o.plain)
	o.plain = o.plain[n:]
	return n, nil
}

// open reads one chunk and a byte more, which tells whether it is the last.
func (o *opener) open() error {
	size := sealChunk + o.aead.Overhead()
	buf := make([]byte, size+1)
	have := copy(buf, o.next)
	n, err := io.ReadFull(o.r, buf[have:])
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		o.last, buf = true, buf[:have+n]
	case err != nil:
		return err
	default:
		o.next = append([]byte(nil), buf[size:]...)
		buf = buf[:size]
	}
	first := o.count == 0
	o.plain, err = o.aead.Open(nil, o.nonce(o.last), buf, o.bound)
	if err != nil && first {
		return fmt.Errorf("%w, or the backup was altered on purpose", ErrPassphrase)
	}
	if err != nil {
		return fmt.Errorf("%w: a sealed part of it does not open", ErrBackupDamaged)
	}
	return nil
}
