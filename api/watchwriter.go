package api

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"
)

// errSlowWatcher is returned when the client of a watch has not read a batch in
// time.
var errSlowWatcher = errors.New("the client does not read its watch")

// watchChunk is how many bytes of frames are gathered before they are written.
const watchChunk = 64 << 10

// watchWriter gathers frames and writes them in chunks, each within a time
// limit: a client that does not read is not waited for.
type watchWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	buf     []byte
	dirty   bool // something was written that is not flushed
}

func newWatchWriter(w http.ResponseWriter, timeout time.Duration) *watchWriter {
	return &watchWriter{w: w, control: http.NewResponseController(w), timeout: timeout, dirty: true}
}

// next is the buffer to which the next frame is to be appended; add takes it back.
func (w *watchWriter) next() []byte { return w.buf }

// add takes the buffer with a frame appended, and writes it once it is large.
func (w *watchWriter) add(buf []byte) error {
	w.buf = buf
	if len(w.buf) < watchChunk {
		return nil
	}
	return w.within(w.write)
}

// flush sends everything out.
func (w *watchWriter) flush() error {
	if len(w.buf) == 0 && !w.dirty {
		return nil
	}
	return w.within(func() error {
		if err := w.write(); err != nil {
			return err
		}
		w.dirty = false
		return w.control.Flush()
	})
}

func (w *watchWriter) write() error {
	if len(w.buf) == 0 {
		return nil
	}
	w.dirty = true
	_, err := w.w.Write(w.buf)
	if cap(w.buf) > 4*watchChunk {
		w.buf = nil // one large object must not stay for the life of the watch
	}
	w.buf = w.buf[:0]
	return err
}

// within runs do with a deadline on the connection's writes.
func (w *watchWriter) within(do func() error) error {
	start := time.Now()
	if err := w.control.SetWriteDeadline(start.Add(w.timeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("limit the time of a write: %w", err)
	}
	err := do()
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) >= w.timeout {
			return errSlowWatcher
		}
		return err
	}
	if err := w.control.SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("lift the limit of a write: %w", err)
	}
	return nil
}
