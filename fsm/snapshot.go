package fsm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/encoding/protowire"
)

// The snapshot format, version 1:
//
//	"SHEPSNAP"   magic
//	uint32       version, big endian
//	uint32       ID of the key that the records are sealed with; 0 means plain
//	records      type (1 byte), length (uvarint), payload (protobuf wire format)
//	uint32       CRC-32C of everything before, big endian
//
// Records: one meta, the objects in key order, the outcomes oldest first, one
// end with the counts and the state hash. A snapshot without its end is refused
// whole.
//
//	meta     1 revision, 2 index, 3 term, 4 epoch, 5 horizon, 6 time (zigzag)
//	object   1 key, 2 uid, 3 created, 4 modified, 5 deleting, 6 data
//	outcome  1 id, 2 revision, 3 objects repeated
//	end      1 objects, 2 outcomes, 3 hash (16 bytes)
const (
	snapshotMagic   = "SHEPSNAP"
	snapshotVersion = 1

	recordMeta    = 'M'
	recordObject  = 'O'
	recordOutcome = 'R'
	recordEnd     = 'E'

	// maxRecord bounds what a corrupt length can make a reader allocate.
	maxRecord = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrCorruptSnapshot is returned for a snapshot that is cut short or damaged.
var ErrCorruptSnapshot = errors.New("corrupt snapshot")

type snapshot struct {
	view  *View
	queue []*outcomeEntry
}

var _ raft.FSMSnapshot = (*snapshot)(nil)

// live returns the remembered outcomes, oldest first.
func (t *outcomes) live() []*outcomeEntry {
	return append([]*outcomeEntry(nil), t.queue[t.head:]...)
}

// Persist streams the snapshot into the sink. Apply goes on meanwhile.
func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	if err := writeSnapshot(sink, s.view, s.queue); err != nil {
		return errors.Join(fmt.Errorf("write snapshot: %w", err), sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return fmt.Errorf("close snapshot: %w", err)
	}
	return nil
}

// Release drops the view.
func (s *snapshot) Release() { s.view, s.queue = nil, nil }

func writeSnapshot(w io.Writer, v *View, queue []*outcomeEntry) error {
	sw := &snapshotWriter{w: bufio.NewWriterSize(w, 1<<16), sum: crc32.New(castagnoli)}
	sw.write([]byte(snapshotMagic))
	sw.write(binary.BigEndian.AppendUint32(nil, snapshotVersion))
	sw.write(binary.BigEndian.AppendUint32(nil, 0))

	b := appendUint(nil, 1, v.revision)
	b = appendUint(b, 2, v.index)
	b = appendUint(b, 3, v.term)
	b = appendUint(b, 4, v.epoch)
	b = appendUint(b, 5, v.horizon)
	b = appendUint(b, 6, protowire.EncodeZigZag(v.time))
	sw.record(recordMeta, b)

	v.objects.Scan(func(o *Object) bool {
		b = appendObject(b[:0], o)
		sw.record(recordObject, b)
		return sw.err == nil
	})
	for _, e := range queue {
		b = appendMessage(b[:0], 1, func(b []byte) []byte { return appendRequestID(b, e.id) })
		b = appendUint(b, 2, e.outcome.Revision)
		for _, o := range e.outcome.Objects {
			b = appendMessage(b, 3, func(b []byte) []byte { return appendObject(b, o) })
		}
		sw.record(recordOutcome, b)
	}
	sum := v.hash.Bytes()
	b = appendUint(b[:0], 1, uint64(v.objects.Len()))
	b = appendUint(b, 2, uint64(len(queue)))
	b = appendBytes(b, 3, sum[:])
	sw.record(recordEnd, b)
	if sw.err != nil {
		return sw.err
	}
	if _, err := sw.w.Write(binary.BigEndian.AppendUint32(nil, sw.sum.Sum32())); err != nil {
		return err
	}
	return sw.w.Flush()
}

func appendObject(b []byte, o *Object) []byte {
	b = appendKey(b, 1, o.Key)
	b = appendString(b, 2, o.UID)
	b = appendUint(b, 3, o.Created)
	b = appendUint(b, 4, o.Modified)
	b = appendBool(b, 5, o.Deleting)
	return appendBytes(b, 6, o.Data)
}

// snapshotWriter keeps the first error; later writes do nothing.
type snapshotWriter struct {
	w   *bufio.Writer
	sum hash.Hash32
	err error
}

func (w *snapshotWriter) write(b []byte) {
	if w.err != nil {
		return
	}
	w.sum.Write(b)
	_, w.err = w.w.Write(b)
}

func (w *snapshotWriter) record(kind byte, payload []byte) {
	head := protowire.AppendVarint([]byte{kind}, uint64(len(payload)))
	w.write(head)
	w.write(payload)
}

// readSnapshot reads and checks a whole snapshot.
func readSnapshot(r io.Reader) (*objectTree, outcomes, View, error) {
	d := &snapshotReader{
		r: bufio.NewReaderSize(r, 1<<16), sum: crc32.New(castagnoli),
		objects: newObjectTree(), outcomes: outcomes{tree: newOutcomeTree()}, decoder: make(decoder),
	}
	if err := d.read(); err != nil {
		return nil, outcomes{}, View{}, err
	}
	return d.objects, d.outcomes, d.meta, nil
}

type snapshotReader struct {
	r        *bufio.Reader
	sum      hash.Hash32
	objects  *objectTree
	outcomes outcomes
	meta     View
	decoder  decoder
}

func (d *snapshotReader) read() error {
	head := make([]byte, len(snapshotMagic)+8)
	if err := d.fill(head); err != nil {
		return err
	}
	if string(head[:len(snapshotMagic)]) != snapshotMagic {
		return fmt.Errorf("%w: it does not begin with %q", ErrCorruptSnapshot, snapshotMagic)
	}
	if v := binary.BigEndian.Uint32(head[8:]); v != snapshotVersion {
		return fmt.Errorf("%w: snapshot version %d, this build knows %d", ErrUnknownVersion, v, snapshotVersion)
	}
	if id := binary.BigEndian.Uint32(head[12:]); id != 0 {
		return fmt.Errorf("%w: snapshot is sealed with key %d, which this server does not have", ErrUnknownVersion, id)
	}
	for {
		kind, payload, err := d.record()
		if err != nil {
			return err
		}
		switch kind {
		case recordMeta:
			err = d.readMeta(payload)
		case recordObject:
			var o *Object
			if o, err = d.decoder.object(payload); err == nil {
				d.objects.Set(o)
				d.meta.hash = d.meta.hash.plus(o.hash())
			}
		case recordOutcome:
			err = d.readOutcome(payload)
		case recordEnd:
			if err = d.readEnd(payload); err == nil {
				return d.checkSum()
			}
		default:
			err = fmt.Errorf("record type %q", kind)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCorruptSnapshot, err)
		}
	}
}

func (d *snapshotReader) fill(b []byte) error {
	if _, err := io.ReadFull(d.r, b); err != nil {
		return fmt.Errorf("%w: cut short: %w", ErrCorruptSnapshot, err)
	}
	d.sum.Write(b)
	return nil
}

// ReadByte serves binary.ReadUvarint.
func (d *snapshotReader) ReadByte() (byte, error) {
	var b [1]byte
	err := d.fill(b[:])
	return b[0], err
}

func (d *snapshotReader) record() (kind byte, payload []byte, err error) {
	if kind, err = d.ReadByte(); err != nil {
		return 0, nil, err
	}
	size, err := binary.ReadUvarint(d)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: record length: %w", ErrCorruptSnapshot, err)
	}
	if size > maxRecord {
		return 0, nil, fmt.Errorf("%w: record of %d bytes", ErrCorruptSnapshot, size)
	}
	payload = make([]byte, size)
	return kind, payload, d.fill(payload)
}

func (d *snapshotReader) readMeta(b []byte) error {
	return eachField(b, func(num protowire.Number, f field) error {
		switch num {
		case 1:
			d.meta.revision = f.num
		case 2:
			d.meta.index = f.num
		case 3:
			d.meta.term = f.num
		case 4:
			d.meta.epoch = f.num
		case 5:
			d.meta.horizon = f.num
		case 6:
			d.meta.time = protowire.DecodeZigZag(f.num)
		default:
			return unknownField("meta", num)
		}
		return nil
	})
}

func (d *snapshotReader) readOutcome(b []byte) error {
	e := &outcomeEntry{}
	err := eachField(b, func(num protowire.Number, f field) (err error) {
		switch num {
		case 1:
			e.id, err = decodeRequestID(f.bytes)
		case 2:
			e.outcome.Revision = f.num
		case 3:
			var o *Object
			if o, err = d.decoder.object(f.bytes); err == nil {
				e.outcome.Objects = append(e.outcome.Objects, d.shared(o))
			}
		default:
			err = unknownField("outcome", num)
		}
		return err
	})
	if err != nil {
		return err
	}
	d.outcomes.tree.Set(e)
	d.outcomes.queue = append(d.outcomes.queue, e)
	d.outcomes.bytes += e.cost()
	return nil
}

// shared returns the state's own copy of a version where it is still current.
func (d *snapshotReader) shared(o *Object) *Object {
	if cur, ok := d.objects.Get(o); ok && cur.Modified == o.Modified {
		return cur
	}
	return o
}

func (d *snapshotReader) readEnd(b []byte) error {
	var objects, outcomes uint64
	var sum []byte
	err := eachField(b, func(num protowire.Number, f field) error {
		switch num {
		case 1:
			objects = f.num
		case 2:
			outcomes = f.num
		case 3:
			sum = f.bytes
		default:
			return unknownField("end", num)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if objects != uint64(d.objects.Len()) || outcomes != uint64(len(d.outcomes.queue)) {
		return fmt.Errorf("it holds %d objects and %d outcomes, its end says %d and %d",
			d.objects.Len(), len(d.outcomes.queue), objects, outcomes)
	}
	if want := d.meta.hash.Bytes(); string(sum) != string(want[:]) {
		return fmt.Errorf("the state's hash is %x, its end says %x", want, sum)
	}
	return nil
}

func (d *snapshotReader) checkSum() error {
	want := d.sum.Sum32()
	var b [4]byte
	if _, err := io.ReadFull(d.r, b[:]); err != nil {
		return fmt.Errorf("%w: cut short: %w", ErrCorruptSnapshot, err)
	}
	if got := binary.BigEndian.Uint32(b[:]); got != want {
		return fmt.Errorf("%w: checksum %08x, want %08x", ErrCorruptSnapshot, got, want)
	}
	return nil
}

func (d decoder) object(b []byte) (*Object, error) {
	o := &Object{}
	err := eachField(b, func(num protowire.Number, f field) (err error) {
		switch num {
		case 1:
			o.Key, err = d.key(f.bytes)
		case 2:
			o.UID = string(f.bytes)
		case 3:
			o.Created = f.num
		case 4:
			o.Modified = f.num
		case 5:
			o.Deleting = f.num != 0
		case 6:
			o.Data = append([]byte(nil), f.bytes...)
		default:
			err = unknownField("object", num)
		}
		return err
	})
	return o, err
}
