package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
	"slices"
	"syscall"
	"time"

	bolterrors "go.etcd.io/bbolt/errors"
)

// A bbolt file is looked over before bbolt opens it: bbolt maps it and believes
// it. Where a page is torn it panics on a goroutine of its own, and where the
// file ends too early the kernel ends the process. So this reads every page that
// is in use, as bbolt itself does to find the free ones, but by reading.
//
// It is also stricter. When one of the two meta pages is damaged, bbolt goes
// back to the other, perhaps a transaction ago. A vote may have been given in
// that transaction, and would be given a second time. Disks write a sector whole
// or not at all, so a crash does not damage a meta page; something else does.

// ErrDamaged is returned for a log that cannot be trusted any more.
var ErrDamaged = errors.New("the file is damaged or not a log")

// The format of bbolt, version 2, in the byte order of the machine.
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	pageHeader     = 16 // id uint64, flags, count uint16, overflow uint32
	pageElement    = 16 // of a branch: pos, ksize uint32, id uint64; of a leaf: flags, pos, ksize, vsize uint32
	bucketHeader   = 16 // root, sequence uint64
	metaSize       = 64
	branchPage     = 0x01
	leafPage       = 0x02
	metaPage       = 0x04
	freelistPage   = 0x10
	bucketElement  = 0x01
	noFreelist     = math.MaxUint64
	largestPage    = 64 << 10
	deepest        = 64      // levels of pages and buckets
	largestItem    = 1 << 30 // bytes of one page with all that belongs to it
	freelistInside = math.MaxUint16
)

var order = binary.NativeEndian

// logBuckets are what raft-boltdb makes at the top of its file. It would make an
// empty one beside one whose name is spoilt.
var logBuckets = []string{"logs", "conf"}

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrDamaged}, args...)...)
}

// boltFile is a file that is being looked over.
type boltFile struct {
	r        io.ReaderAt
	pageSize int
	end      uint64              // the first page that is not in use
	seen     map[uint64]struct{} // pages that something refers to
}

// boltMeta is what a meta page says.
type boltMeta struct {
	pageSize                  uint32
	root, freelist, end, txid uint64
}

// openChecked opens a file for bbolt, in place of os.OpenFile. It waits for the
// lock that bbolt would wait for, and checks the file under it.
func openChecked(path string, flag int, mode os.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flag, mode)
	if err != nil {
		return nil, err
	}
	if err = lockBolt(f); err == nil {
		err = checkBolt(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lockBolt takes bbolt's lock, or returns its ErrTimeout after openTimeout.
// bbolt can take it again: the lock belongs to the open file.
func lockBolt(f *os.File) error {
	for deadline := time.Now().Add(openTimeout); ; time.Sleep(openTimeout / 40) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return fmt.Errorf("lock: %w", err)
		case !time.Now().Before(deadline):
			return bolterrors.ErrTimeout
		}
	}
}

// checkBolt returns an error, ErrDamaged unless it could not be read, if the
// file is not one that bbolt can open and that has lost nothing. An empty file
// is none, and is left to bbolt.
func checkBolt(f *os.File) error {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	b := &boltFile{r: f, seen: make(map[uint64]struct{})}
	m, err := b.metas()
	if err != nil {
		return err
	}
	b.pageSize, b.end = int(m.pageSize), m.end
	if size := uint64(info.Size()); b.end > size/uint64(b.pageSize) {
		return damaged("it is cut off: %d bytes of %d are left", size, b.end*uint64(b.pageSize))
	}
	if err := b.walk(m.root, nil, nil, 0); err != nil {
		return err
	}
	if m.freelist == noFreelist {
		return nil
	}
	return b.free(m.freelist)
}

// metas reads both meta pages and returns the later one.
func (b *boltFile) metas() (m boltMeta, err error) {
	first, err := b.meta(0, 0)
	if err != nil {
		return m, err
	}
	second, err := b.meta(1, int64(first.pageSize))
	if err != nil {
		return m, err
	}
	if first.pageSize != second.pageSize {
		return m, damaged("its two meta pages differ in the page size")
	}
	if first.txid > second.txid {
		return first, nil
	}
	return second, nil
}

func (b *boltFile) meta(id int, at int64) (m boltMeta, err error) {
	p := make([]byte, pageHeader+metaSize)
	if _, err := b.r.ReadAt(p, at); errors.Is(err, io.EOF) {
		return m, damaged("it is cut off within its meta pages")
	} else if err != nil {
		return m, err
	}
	d := p[pageHeader:]
	sum := fnv.New64a()
	sum.Write(d[:metaSize-8]) // never fails
	m = boltMeta{pageSize: order.Uint32(d[8:]), root: order.Uint64(d[16:]), freelist: order.Uint64(d[32:]), end: order.Uint64(d[40:]), txid: order.Uint64(d[48:])}
	switch {
	case order.Uint32(d) != boltMagic:
		err = bolterrors.ErrInvalid
	case order.Uint32(d[4:]) != boltVersion:
		err = bolterrors.ErrVersionMismatch
	case order.Uint64(d[metaSize-8:]) != sum.Sum64(), order.Uint16(p[8:]) != metaPage:
		err = bolterrors.ErrChecksum
	case m.pageSize < 512 || m.pageSize > largestPage || m.pageSize&(m.pageSize-1) != 0:
		err = fmt.Errorf("page size %d", m.pageSize)
	default:
		return m, nil
	}
	return m, damaged("meta page %d: %w", id, err)
}

// page reads a page with its overflow and notes that it is in use.
func (b *boltFile) page(id uint64) ([]byte, error) {
	if id < 2 || id >= b.end {
		return nil, damaged("page %d of %d is referred to", id, b.end)
	}
	p := make([]byte, b.pageSize)
	if _, err := b.r.ReadAt(p, int64(id)*int64(b.pageSize)); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	more := uint64(order.Uint32(p[12:]))
	if order.Uint64(p) != id || id+more >= b.end || (more+1)*uint64(b.pageSize) > largestItem {
		return nil, damaged("page %d is torn", id)
	}
	for i := id; i <= id+more; i++ {
		if _, twice := b.seen[i]; twice {
			return nil, damaged("page %d is used twice", i)
		}
		b.seen[i] = struct{}{}
	}
	if more == 0 {
		return p, nil
	}
	p = append(p, make([]byte, more*uint64(b.pageSize))...)
	if _, err := b.r.ReadAt(p[b.pageSize:], int64(id+1)*int64(b.pageSize)); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	return p, nil
}

// walk looks over a tree of pages whose keys are from low to below high; nil is
// no bound.
func (b *boltFile) walk(id uint64, low, high []byte, depth int) error {
	if depth > deepest {
		return damaged("page %d is too deep", id)
	}
	p, err := b.page(id)
	if err != nil {
		return err
	}
	if err := b.elements(p, low, high, depth); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// elements looks over what a page, or a bucket within a page, holds.
func (b *boltFile) elements(p []byte, low, high []byte, depth int) error {
	flags, count := order.Uint16(p[8:]), int(order.Uint16(p[10:]))
	if pageHeader+count*pageElement > len(p) || flags != leafPage && (flags != branchPage || count == 0) {
		return damaged("its header is torn")
	}
	keys := make([][]byte, count+1)
	keys[count] = high
	for i := range count {
		e := p[pageHeader+i*pageElement:]
		pos, size := order.Uint32(e), order.Uint32(e[4:])
		if flags == leafPage {
			pos, size = order.Uint32(e[4:]), order.Uint32(e[8:])
		}
		if size == 0 || uint64(pos)+uint64(size) > uint64(len(e)) {
			return damaged("element %d is torn", i)
		}
		keys[i] = e[pos : pos+size]
		if depth == 0 && flags == leafPage && !slices.Contains(logBuckets, string(keys[i])) {
			return damaged("element %d is no bucket of a log", i)
		}
		if i > 0 && bytes.Compare(keys[i-1], keys[i]) >= 0 || i == 0 && bytes.Compare(low, keys[0]) > 0 || high != nil && bytes.Compare(keys[i], high) >= 0 {
			return damaged("element %d is out of order", i)
		}
	}
	for i := range count {
		e := p[pageHeader+i*pageElement:]
		var err error
		if flags == branchPage {
			err = b.walk(order.Uint64(e[8:]), keys[i], keys[i+1], depth+1)
		} else {
			err = b.leaf(e, depth)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leaf looks over a value, which may be a bucket: a tree of its own, or what
// would be the only page of one.
func (b *boltFile) leaf(e []byte, depth int) error {
	flags, from, size := order.Uint32(e), uint64(order.Uint32(e[4:]))+uint64(order.Uint32(e[8:])), uint64(order.Uint32(e[12:]))
	if flags&^bucketElement != 0 || from+size > uint64(len(e)) {
		return damaged("a value is torn")
	}
	if flags != bucketElement {
		return nil
	}
	value := e[from : from+size]
	if len(value) < bucketHeader {
		return damaged("a bucket is torn")
	}
	if root := order.Uint64(value); root != 0 {
		return b.walk(root, nil, nil, depth+1)
	}
	inside := value[bucketHeader:]
	if len(inside) < pageHeader || order.Uint64(inside) != 0 || order.Uint16(inside[8:]) != leafPage || depth > deepest {
		return damaged("a bucket is torn")
	}
	return b.elements(inside, nil, nil, depth+1)
}

// free looks over the list of free pages. What is in use must not be in it.
func (b *boltFile) free(id uint64) error {
	p, err := b.page(id)
	if err != nil {
		return err
	}
	if order.Uint16(p[8:]) != freelistPage {
		return damaged("page %d is no list of free pages", id)
	}
	count, ids := uint64(order.Uint16(p[10:])), p[pageHeader:]
	if count == freelistInside {
		count, ids = order.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids))/8 {
		return damaged("page %d: the list of free pages is torn", id)
	}
	last := uint64(1)
	for i := range count {
		page := order.Uint64(ids[8*i:])
		_, used := b.seen[page]
		if used || page <= last || page >= b.end {
			return damaged("page %d: the list of free pages is torn", id)
		}
		last = page
	}
	return nil
}
