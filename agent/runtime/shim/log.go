package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// maxLine is where a line without an end is cut into partial ones.
	maxLine = 16 << 10
	// criTime has a fixed width, so that lines sort.
	criTime = "2006-01-02T15:04:05.000000000Z07:00"
)

// logFile writes the output of one attempt in the CRI format
//
//	TIME stdout|stderr F|P TEXT
//
// and rotates it: NAME.log is renamed to NAME.log.N, N counting up, and the
// oldest are removed. Safe for use by several goroutines.
type logFile struct {
	path     string
	maxBytes int64
	maxFiles int // the current one included

	mu      sync.Mutex
	f       *os.File
	size    int64
	next    int   // number of the next rotated file
	dropped int64 // bytes of output that could not be written
	failed  error // of the last write
}

func openLog(path string, maxBytes int64, maxFiles int) (*logFile, error) {
	l := &logFile{path: path, maxBytes: maxBytes, maxFiles: maxFiles, next: 1}
	rotated, err := RotatedLogs(path)
	if err != nil {
		return nil, err
	}
	if n := len(rotated); n > 0 {
		l.next = rotated[n-1] + 1
	}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

// RotatedLogs lists the numbers of path's rotated files, oldest first.
func RotatedLogs(path string) ([]int, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("list logs: %w", err)
	}
	var out []int
	for _, e := range entries {
		if tail, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+"."); ok {
			if n, err := strconv.Atoi(tail); err == nil && n > 0 {
				out = append(out, n)
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// RotatedLog names a rotated file of path.
func RotatedLog(path string, n int) string { return path + "." + strconv.Itoa(n) }

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open log: %w", err)
	}
	l.f, l.size = f, st.Size()
	return nil
}

// write appends whole formatted lines. Output that cannot be written is
// counted and dropped: a full disk must not stop the container.
func (l *logFile) write(lines []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(lines) > 0 {
		if l.size >= l.maxBytes {
			l.rotateLocked()
		}
		if l.f == nil {
			if l.failed = l.open(); l.failed != nil {
				l.dropped += int64(len(lines))
				return
			}
		}
		// As many lines as fit below the cap, at least one.
		n := len(lines)
		if room := l.maxBytes - l.size; int64(n) > room {
			if n = bytes.LastIndexByte(lines[:room], '\n') + 1; n == 0 {
				if n = bytes.IndexByte(lines, '\n') + 1; n == 0 {
					n = len(lines)
				}
				if l.size > 0 {
					l.size = l.maxBytes
					continue
				}
			}
		}
		written, err := l.f.Write(lines[:n])
		l.size += int64(written)
		if err != nil {
			l.failed = err
			l.dropped += int64(n - written)
		}
		lines = lines[n:]
	}
}

func (l *logFile) rotateLocked() {
	if l.f != nil {
		l.failed = l.f.Close()
		l.f = nil
	}
	if err := os.Rename(l.path, RotatedLog(l.path, l.next)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		// Without a rename the size cap is kept by starting over.
		l.failed = err
		if err := os.Truncate(l.path, 0); err != nil {
			l.failed = err
		}
	}
	l.next++
	rotated, err := RotatedLogs(l.path)
	if err != nil {
		l.failed = err
		return
	}
	for i := 0; i < len(rotated)-(l.maxFiles-1); i++ {
		if err := os.Remove(RotatedLog(l.path, rotated[i])); err != nil {
			l.failed = err
		}
	}
	l.failed = l.open()
	l.size = max(l.size, 0)
}

// close ends the log and tells how many bytes were dropped.
func (l *logFile) close() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f != nil {
		l.failed = l.f.Close()
		l.f = nil
	}
	return l.dropped
}

// copyLines formats what r delivers until it ends, as lines of the stream.
func copyLines(l *logFile, stream string, r io.Reader) {
	in := make([]byte, 32<<10)
	var rest, out []byte
	for {
		n, err := r.Read(in)
		now := time.Now().UTC().AppendFormat(nil, criTime)
		emit := func(tag byte, text []byte) {
			out = append(out, now...)
			out = append(out, ' ')
			out = append(out, stream...)
			out = append(out, ' ', tag, ' ')
			out = append(out, text...)
			out = append(out, '\n')
		}
		data := in[:n]
		if len(rest) > 0 {
			data = append(rest, data...)
		}
		for {
			i := bytes.IndexByte(data, '\n')
			switch {
			case i >= 0 && i <= maxLine:
				emit('F', data[:i])
				data = data[i+1:]
				continue
			case len(data) > maxLine:
				emit('P', data[:maxLine])
				data = data[maxLine:]
				continue
			}
			break
		}
		rest = append(rest[:0:0], data...)
		if err != nil && len(rest) > 0 {
			emit('P', rest) // it ended without a newline
		}
		if len(out) > 0 {
			l.write(out)
			out = out[:0]
		}
		if err != nil {
			return
		}
	}
}
