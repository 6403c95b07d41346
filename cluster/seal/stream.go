package seal

import (
	"bufio"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// chunkSize is the plain size of every chunk but the last, in bytes.
	chunkSize = 64 << 10
	// plainStream is the length of a snapshot's own header: magic, version, key ID.
	plainStream  = 16
	streamHeader = plainStream + saltSize
)

// Writer seals what is written to it, chunk by chunk. Close seals the last
// chunk: without it the result is refused. Not for concurrent use.
type Writer struct {
	w      io.Writer
	key    Key
	header []byte // streamHeader bytes once the stream has begun
	aead   cipher.AEAD
	plain  []byte // of the chunk being filled
	sealed []byte
	number uint64
	err    error
}

// NewWriter seals with the key.
func NewWriter(w io.Writer, key Key) *Writer {
	return &Writer{w: w, key: key, plain: make([]byte, 0, chunkSize), sealed: make([]byte, 0, chunkSize+tagSize)}
}

// Write takes the next bytes of the plain stream.
func (w *Writer) Write(p []byte) (int, error) {
	taken := 0
	for len(p) > 0 && w.err == nil {
		var n int
		if w.aead == nil {
			n = min(len(p), plainStream-len(w.header))
			w.header = append(w.header, p[:n]...)
			if len(w.header) == plainStream {
				w.err = w.begin()
			}
		} else {
			if len(w.plain) == chunkSize { // there is more, so it is not the last
				if w.err = w.flush(false); w.err != nil {
					break
				}
			}
			n = min(len(p), chunkSize-len(w.plain))
			w.plain = append(w.plain, p[:n]...)
		}
		taken += n
		p = p[n:]
	}
	return taken, w.err
}

func (w *Writer) begin() error {
	if binary.BigEndian.Uint32(w.header[plainStream-4:]) != 0 {
		return errors.New("seal a stream: it is sealed already")
	}
	binary.BigEndian.PutUint32(w.header[plainStream-4:], w.key.ID)
	salt := newSalt()
	w.header = append(w.header, salt[:]...)
	w.aead = derive(w.key, salt[:], "snapshot")
	_, err := w.w.Write(w.header)
	return err
}

func (w *Writer) flush(last bool) error {
	nonce := chunkNonce(w.number, last)
	w.sealed = w.aead.Seal(w.sealed[:0], nonce[:], w.plain, w.header)
	w.number++
	w.plain = w.plain[:0]
	_, err := w.w.Write(w.sealed)
	return err
}

// Close writes the last chunk. It does not close the writer below.
func (w *Writer) Close() error {
	if w.err != nil {
		return w.err
	}
	if w.aead == nil {
		return fmt.Errorf("seal a stream: it has %d bytes, less than its header", len(w.header))
	}
	w.err = w.flush(true)
	if w.err == nil {
		w.err = errors.New("seal a stream: it was closed")
		return nil
	}
	return w.err
}

func chunkNonce(number uint64, last bool) (nonce [nonceSize]byte) {
	binary.BigEndian.PutUint64(nonce[:], number)
	if last {
		nonce[nonceSize-1] = 1
	}
	return nonce
}

// Reader opens a sealed stream. It gives out nothing that was not
// authenticated. A plain stream passes as it is. Not for concurrent use.
type Reader struct {
	r      *bufio.Reader
	header []byte
	aead   cipher.AEAD // nil for a plain stream
	sealed []byte
	plain  []byte // what Read has not handed out yet
	number uint64
	last   bool
	err    error
}

// NewReader reads the header: ErrNoKey is wrapped when its key is not there.
func NewReader(r io.Reader, get func(uint32) (Key, bool)) (*Reader, error) {
	s := &Reader{r: bufio.NewReaderSize(r, chunkSize+tagSize+1)}
	head := make([]byte, plainStream, streamHeader)
	n, err := io.ReadFull(s.r, head)
	id := uint32(0)
	if err == nil {
		id = binary.BigEndian.Uint32(head[plainStream-4:])
	}
	switch {
	case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return nil, err
	case id == 0: // plain, or too short to be anything: its reader says so
		s.plain = head[:n]
		return s, nil
	}
	key, ok := get(id)
	if !ok {
		return nil, fmt.Errorf("%w: key %d", ErrNoKey, id)
	}
	s.header = head[:streamHeader]
	if _, err := io.ReadFull(s.r, s.header[plainStream:]); err != nil {
		return nil, fmt.Errorf("%w: its header is cut short: %w", ErrDamaged, err)
	}
	s.aead = derive(key, s.header[plainStream:], "snapshot")
	s.sealed = make([]byte, chunkSize+tagSize)
	s.plain = append(append([]byte{}, s.header[:plainStream-4]...), 0, 0, 0, 0)
	return s, nil
}

// Read returns plain bytes.
func (s *Reader) Read(p []byte) (int, error) {
	for len(s.plain) == 0 && s.err == nil {
		if s.aead == nil {
			return s.r.Read(p)
		}
		s.plain, s.err = s.next()
	}
	if len(s.plain) == 0 {
		return 0, s.err
	}
	n := copy(p, s.plain)
	s.plain = s.plain[n:]
	return n, nil
}

// next opens a chunk. Whether it is the last one is what the stream's end says,
// and the chunk must agree.
func (s *Reader) next() ([]byte, error) {
	if s.last {
		return nil, io.EOF
	}
	n, err := io.ReadFull(s.r, s.sealed)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	if _, err := s.r.Peek(1); err != nil {
		if !errors.Is(err, io.EOF) {
			return nil, err
		}
		s.last = true
	}
	nonce := chunkNonce(s.number, s.last)
	plain, err := s.aead.Open(s.sealed[:0], nonce[:], s.sealed[:n], s.header)
	if err != nil {
		return nil, fmt.Errorf("%w: chunk %d of a snapshot sealed with key %d does not open, or the end is missing",
			ErrDamaged, s.number, binary.BigEndian.Uint32(s.header[plainStream-4:]))
	}
	s.number++
	return plain, nil
}
