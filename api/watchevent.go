package api

import (
	"encoding/binary"
	"net/url"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// Fields of the protobuf messages of a watch event.
const (
	fieldEventType    = 1
	fieldEventObject  = 2
	fieldExtensionRaw = 1
)

// eventEncoder encodes the events of one watch.
//
// JSON: one {"type":T,"object":O} a line. Protobuf: the length of a frame in
// four bytes, high byte first, then a WatchEvent whose object is an envelope.
type eventEncoder struct {
	server *Server
	kind   *resource.Kind
	media  mediaType
	query  url.Values
	tables int // Tables sent: only the first carries the columns
}

// object appends the event of a stored object. uncached says that o is not the
// version of its revision that the caches know.
func (e *eventEncoder) object(dst []byte, event watch.EventType, o *fsm.Object, uncached bool) ([]byte, error) {
	if e.media.shape == shapeObject {
		switch {
		case e.media.form == formProtobuf:
			body, err := resource.AppendEnvelope(nil, o)
			if err != nil {
				return dst, err
			}
			return e.frame(dst, event, body), nil
		case !uncached:
			body, err := e.server.objectJSON(o)
			if err != nil {
				return dst, err
			}
			return e.frame(dst, event, body), nil
		}
	}
	decode := e.server.decoder.Decode
	if uncached {
		decode = resource.Decode
	}
	obj, err := decode(o)
	if err != nil {
		return dst, err
	}
	return e.typed(dst, event, e.kind.GVK, obj)
}

// bookmark appends a bookmark: an object of the kind that has a revision and
// nothing else; initial marks the end of the initial state.
func (e *eventEncoder) bookmark(dst []byte, revision uint64, initial bool) ([]byte, error) {
	obj := e.kind.New()
	m := obj.(metav1.Object)
	m.SetResourceVersion(resource.FormatRevision(revision))
	if initial {
		m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return e.typed(dst, watch.Bookmark, e.kind.GVK, obj)
}

// failure appends an ERROR event.
func (e *eventEncoder) failure(dst []byte, status *metav1.Status) ([]byte, error) {
	body, err := e.encode(statusGVK, status)
	if err != nil {
		return dst, err
	}
	return e.frame(dst, watch.Error, body), nil
}

// typed appends the event of a typed object in the negotiated shape.
func (e *eventEncoder) typed(dst []byte, event watch.EventType, gvk schema.GroupVersionKind, obj runtime.Object) ([]byte, error) {
	switch e.media.shape {
	case shapeTable:
		table, err := e.server.tableOf(e.kind, e.query, []runtime.Object{obj})
		if err != nil {
			return dst, err
		}
		if e.tables++; e.tables > 1 {
			table.ColumnDefinitions = nil
		}
		obj, gvk = table, tableGVK
	case shapeMeta:
		partial, err := partialMetadata(obj)
		if err != nil {
			return dst, err
		}
		obj, gvk = partial, partialGVK
	}
	body, err := e.encode(gvk, obj)
	if err != nil {
		return dst, err
	}
	return e.frame(dst, event, body), nil
}

func (e *eventEncoder) encode(gvk schema.GroupVersionKind, obj runtime.Object) ([]byte, error) {
	if e.media.form == formProtobuf {
		return encodeProtobuf(gvk, obj)
	}
	return encodeJSON(gvk, obj)
}

// frame appends one event around an encoded object.
func (e *eventEncoder) frame(dst []byte, event watch.EventType, body []byte) []byte {
	if e.media.form != formProtobuf {
		dst = append(dst, `{"type":"`...)
		dst = append(dst, event...)
		dst = append(dst, `","object":`...)
		dst = append(dst, body...)
		return append(dst, '}', '\n')
	}
	extension := protowire.SizeTag(fieldExtensionRaw) + protowire.SizeBytes(len(body))
	size := protowire.SizeTag(fieldEventType) + protowire.SizeBytes(len(event)) +
		protowire.SizeTag(fieldEventObject) + protowire.SizeBytes(extension)
	dst = binary.BigEndian.AppendUint32(dst, uint32(size))
	dst = protowire.AppendTag(dst, fieldEventType, protowire.BytesType)
	dst = protowire.AppendString(dst, string(event))
	dst = protowire.AppendTag(dst, fieldEventObject, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(extension))
	dst = protowire.AppendTag(dst, fieldExtensionRaw, protowire.BytesType)
	return protowire.AppendBytes(dst, body)
}
