package runtime

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"sync"
	"time"
)

// followEvery is how often a followed log is looked at while it is silent.
const followEvery = 100 * time.Millisecond

// logReader turns the CRI lines of one attempt's files into what the container
// wrote. Read is one goroutine's; Close may come from another.
type logReader struct {
	ctx    context.Context
	cancel context.CancelFunc
	path   string
	o      LogOptions
	ended  func() bool

	mu      sync.Mutex // held while reading
	files   []*os.File // not read to their end, oldest first
	in      *bufio.Reader
	line    []byte // a line whose end has not come yet
	partial bool   // the last line out was cut
	out     []byte
	left    int64 // of LimitBytes
	err     error
}

func newLogReader(ctx context.Context, path string, files []*os.File, o LogOptions, ended func() bool) *logReader {
	l := &logReader{path: path, files: files, o: o, ended: ended, left: o.LimitBytes}
	l.ctx, l.cancel = context.WithCancel(ctx)
	l.in = bufio.NewReaderSize(files[0], 64<<10)
	return l
}

// Read implements io.Reader.
func (l *logReader) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.out) == 0 {
		if l.err == nil {
			l.err = l.advance()
		}
		if l.err != nil && len(l.out) == 0 {
			return 0, l.err
		}
	}
	n := copy(p, l.out)
	l.out = l.out[n:]
	return n, nil
}

// Close ends a Read that waits.
func (l *logReader) Close() error {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	closeFiles(l.files)
	l.files = nil
	if l.err == nil {
		l.err = os.ErrClosed
	}
	return nil
}

// advance reads one line into out, or waits for one.
func (l *logReader) advance() error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	if l.o.LimitBytes > 0 && l.left <= 0 {
		return io.EOF
	}
	// Asked before reading: what was written before the end is then seen.
	ended := l.ended()
	rotated := len(l.files) > 1 || l.isRotated()
	err := l.readLine()
	if err != io.EOF {
		return err
	}
	switch {
	case len(l.files) > 1:
		closeFiles(l.files[:1])
		l.files = l.files[1:]
		l.in.Reset(l.files[0])
		l.line = nil
	case rotated:
		return l.reopen()
	case ended || !l.o.Follow:
		return io.EOF
	default:
		select {
		case <-l.ctx.Done():
			return l.ctx.Err()
		case <-time.After(followEvery):
		}
	}
	return nil
}

// readLine consumes one line; io.EOF when the file has none that is complete.
func (l *logReader) readLine() error {
	chunk, err := l.in.ReadSlice('\n')
	l.line = append(l.line, chunk...)
	if err == bufio.ErrBufferFull {
		return nil
	}
	if err != nil {
		return err
	}
	l.emit(l.line)
	l.line = l.line[:0]
	return nil
}

// emit formats one CRI line: TIME SP STREAM SP TAG SP TEXT NL.
func (l *logReader) emit(line []byte) {
	stamp, rest, ok := bytes.Cut(line, []byte{' '})
	_, rest, ok2 := bytes.Cut(rest, []byte{' '})
	tag, text, ok3 := bytes.Cut(rest, []byte{' '})
	if !ok || !ok2 || !ok3 {
		return // cut short by a full disk or a crash
	}
	if !l.o.SinceTime.IsZero() {
		t, err := time.Parse(time.RFC3339Nano, string(stamp))
		if err != nil || t.Before(l.o.SinceTime) {
			return
		}
	}
	l.out = l.out[:0]
	if l.o.Timestamps && !l.partial {
		l.out = append(append(l.out, stamp...), ' ')
	}
	if l.partial = tag[0] == 'P'; l.partial {
		text = text[:len(text)-1]
	}
	l.out = append(l.out, text...)
	if l.o.LimitBytes > 0 {
		l.out = l.out[:min(int64(len(l.out)), l.left)]
		l.left -= int64(len(l.out))
	}
}

// isRotated tells whether the file that is read last is not the current one.
func (l *logReader) isRotated() bool {
	mine, err := l.files[len(l.files)-1].Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(l.path)
	return err == nil && !os.SameFile(mine, now)
}

// reopen continues with the files that came after the one read to its end. If
// that has been removed, all that are left are newer.
func (l *logReader) reopen() error {
	mine, err := l.files[0].Stat()
	if err != nil {
		return err
	}
	files, err := openLogFiles(l.path)
	if err != nil {
		return err
	}
	for i, f := range files {
		st, err := f.Stat()
		if err != nil {
			closeFiles(files)
			return err
		}
		if os.SameFile(mine, st) {
			closeFiles(files[:i+1])
			files = files[i+1:]
			break
		}
	}
	if len(files) == 0 {
		return nil // between rename and creation: look again
	}
	closeFiles(l.files)
	l.files = files
	l.in.Reset(files[0])
	l.line = nil
	return nil
}

// seekTail moves to the last n lines.
func (l *logReader) seekTail(n int64) error {
	for i := len(l.files) - 1; i >= 0; i-- {
		offset, found, err := tailOffset(l.files[i], n)
		if err != nil {
			return err
		}
		if n -= found; n > 0 && i > 0 {
			continue
		}
		if _, err := l.files[i].Seek(offset, io.SeekStart); err != nil {
			return err
		}
		closeFiles(l.files[:i])
		l.files = l.files[i:]
		l.in.Reset(l.files[0])
		return nil
	}
	return nil
}

// tailOffset finds where the last n lines of f begin, and how many there are.
func tailOffset(f *os.File, n int64) (offset, found int64, err error) {
	st, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	end := st.Size()
	if n == 0 {
		return end, 0, nil
	}
	buf := make([]byte, 64<<10)
	newlines := int64(0) // the one at the end of the last line included
	for pos := end; pos > 0; {
		size := min(int64(len(buf)), pos)
		pos -= size
		if _, err := f.ReadAt(buf[:size], pos); err != nil && err != io.EOF {
			return 0, 0, err
		}
		for i := size - 1; i >= 0; i-- {
			if buf[i] != '\n' {
				continue
			}
			if newlines++; newlines > n {
				return pos + i + 1, n, nil
			}
		}
	}
	return 0, newlines, nil
}
