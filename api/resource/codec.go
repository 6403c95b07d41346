package resource

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shepherd-project/shepherd/fsm"
)

// ErrUnknownKind is returned for an object of a kind that is not in the table.
var ErrUnknownKind = errors.New("unknown kind")

// ErrEnvelope is returned for bytes that are no storage envelope.
var ErrEnvelope = errors.New("malformed storage envelope")

// envelopePrefix starts every stored object; Kubernetes' protobuf has the same.
var envelopePrefix = []byte("k8s\x00")

// Field numbers of runtime.Unknown and its TypeMeta.
const (
	unknownTypeMeta        = 1
	unknownRaw             = 2
	unknownContentEncoding = 3
	unknownContentType     = 4
	typeMetaAPIVersion     = 1
	typeMetaKind           = 2
)

// Field numbers that every Kubernetes object shares.
const (
	objectMetadata          = 1
	metadataResourceVersion = 6
	metadataOwnerReferences = 13
)

// marshaler is what every generated protobuf type of Kubernetes has.
type marshaler interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

type unmarshaler interface{ Unmarshal([]byte) error }

// Encode returns the storage bytes of an object: the protobuf envelope of
// Kubernetes, without resourceVersion and selfLink. Equal objects give equal
// bytes. The object is not changed.
func Encode(obj runtime.Object) ([]byte, error) {
	k := ForObject(obj)
	if k == nil {
		return nil, fmt.Errorf("encode %T: %w", obj, ErrUnknownKind)
	}
	m, err := withoutRevision(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", k.GVK.Kind, err)
	}
	apiVersion, kind := k.GVK.ToAPIVersionAndKind()
	typeMeta := protowire.AppendTag(nil, typeMetaAPIVersion, protowire.BytesType)
	typeMeta = protowire.AppendString(typeMeta, apiVersion)
	typeMeta = protowire.AppendTag(typeMeta, typeMetaKind, protowire.BytesType)
	typeMeta = protowire.AppendString(typeMeta, kind)

	size := m.Size()
	data := make([]byte, 0, len(envelopePrefix)+len(typeMeta)+size+16)
	data = append(data, envelopePrefix...)
	data = protowire.AppendTag(data, unknownTypeMeta, protowire.BytesType)
	data = protowire.AppendBytes(data, typeMeta)
	data = protowire.AppendTag(data, unknownRaw, protowire.BytesType)
	data = protowire.AppendVarint(data, uint64(size))
	start := len(data)
	data = data[:start+size]
	n, err := m.MarshalToSizedBuffer(data[start:])
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", k.GVK.Kind, err)
	}
	if n != size {
		return nil, fmt.Errorf("encode %s: wrote %d of %d bytes", k.GVK.Kind, n, size)
	}
	return data, nil
}

// withoutRevision returns a shallow copy of obj, which may be shared and must
// not be written to, with the fields cleared that are not stored.
func withoutRevision(obj runtime.Object) (marshaler, error) {
	value := reflect.ValueOf(obj)
	if value.Kind() != reflect.Pointer || value.IsNil() {
		return nil, fmt.Errorf("%T is not a pointer to an object", obj)
	}
	copied := reflect.New(value.Type().Elem())
	copied.Elem().Set(value.Elem())
	meta, ok := copied.Interface().(metav1.Object)
	if !ok {
		return nil, fmt.Errorf("%T has no metadata", obj)
	}
	meta.SetResourceVersion("")
	meta.SetSelfLink("")
	m, ok := copied.Interface().(marshaler)
	if !ok {
		return nil, fmt.Errorf("%T has no protobuf form", obj)
	}
	return m, nil
}

// Decode returns the typed object of a stored one, with resourceVersion,
// apiVersion and kind set. The caller owns it.
func Decode(o *fsm.Object) (runtime.Object, error) {
	gvk, raw, err := Open(o.Data)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", o.Key, err)
	}
	k := ByKind(gvk)
	if k == nil {
		return nil, fmt.Errorf("decode %s: %w: %s", o.Key, ErrUnknownKind, gvk)
	}
	obj := k.New()
	u, ok := obj.(unmarshaler)
	if !ok {
		return nil, fmt.Errorf("decode %s: %T has no protobuf form", o.Key, obj)
	}
	if err := u.Unmarshal(raw); err != nil {
		return nil, fmt.Errorf("decode %s: %w", o.Key, err)
	}
	obj.(metav1.Object).SetResourceVersion(FormatRevision(o.Modified))
	return obj, nil
}

// FormatRevision returns a revision as a resourceVersion; 0 is none.
func FormatRevision(revision uint64) string {
	if revision == 0 {
		return ""
	}
	return strconv.FormatUint(revision, 10)
}

// Open returns the parts of a storage envelope. raw aliases data. It returns
// ErrEnvelope for anything else.
func Open(data []byte) (gvk schema.GroupVersionKind, raw []byte, err error) {
	rest, ok := bytes.CutPrefix(data, envelopePrefix)
	if !ok {
		return gvk, nil, fmt.Errorf("%w: no prefix", ErrEnvelope)
	}
	var apiVersion, kind string
	err = eachBytesField(rest, func(number protowire.Number, value []byte) error {
		switch number {
		case unknownTypeMeta:
			return eachBytesField(value, func(number protowire.Number, value []byte) error {
				switch number {
				case typeMetaAPIVersion:
					apiVersion = string(value)
				case typeMetaKind:
					kind = string(value)
				}
				return nil
			})
		case unknownRaw:
			raw = value
		case unknownContentEncoding, unknownContentType:
			if len(value) > 0 {
				return fmt.Errorf("%w: content type %q", ErrEnvelope, value)
			}
		}
		return nil
	})
	if err != nil {
		return gvk, nil, err
	}
	if apiVersion == "" || kind == "" {
		return gvk, nil, fmt.Errorf("%w: no apiVersion and kind", ErrEnvelope)
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return gvk, nil, fmt.Errorf("%w: %w", ErrEnvelope, err)
	}
	return gv.WithKind(kind), raw, nil
}

// eachBytesField calls do for each length-delimited field of a message.
func eachBytesField(message []byte, do func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, wireType, n := protowire.ConsumeTag(message)
		if n < 0 {
			return fmt.Errorf("%w: %w", ErrEnvelope, protowire.ParseError(n))
		}
		message = message[n:]
		if wireType != protowire.BytesType {
			return fmt.Errorf("%w: field %d has wire type %d", ErrEnvelope, number, wireType)
		}
		value, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return fmt.Errorf("%w: %w", ErrEnvelope, protowire.ParseError(n))
		}
		message = message[n:]
		if err := do(number, value); err != nil {
			return err
		}
	}
	return nil
}

// HasOwners reports whether a stored object has owner references. It does not
// decode, so that all objects can be asked.
func HasOwners(o *fsm.Object) (bool, error) {
	_, raw, err := Open(o.Data)
	if err != nil {
		return false, fmt.Errorf("%s: %w", o.Key, err)
	}
	metadata, err := bytesField(raw, objectMetadata)
	if err == nil {
		metadata, err = bytesField(metadata, metadataOwnerReferences)
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", o.Key, err)
	}
	return metadata != nil, nil
}

// bytesField returns the first field of that number, nil if there is none.
func bytesField(message []byte, wanted protowire.Number) ([]byte, error) {
	for len(message) > 0 {
		number, wireType, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, fmt.Errorf("%w: %w", ErrEnvelope, protowire.ParseError(n))
		}
		message = message[n:]
		if number == wanted && wireType == protowire.BytesType {
			value, n := protowire.ConsumeBytes(message)
			if n < 0 {
				return nil, fmt.Errorf("%w: %w", ErrEnvelope, protowire.ParseError(n))
			}
			return value, nil
		}
		if n = protowire.ConsumeFieldValue(number, wireType, message); n < 0 {
			return nil, fmt.Errorf("%w: %w", ErrEnvelope, protowire.ParseError(n))
		}
		message = message[n:]
	}
	return nil, nil
}

// AppendItem appends the protobuf message of a stored object, with its
// resourceVersion, as an item of a protobuf list holds it. It does not decode:
// a protobuf reader merges the two occurrences of metadata.
func AppendItem(dst []byte, o *fsm.Object) ([]byte, error) {
	_, raw, err := Open(o.Data)
	if err != nil {
		return dst, fmt.Errorf("%s: %w", o.Key, err)
	}
	return append(append(dst, raw...), revisionMessage(o.Modified)...), nil
}

// AppendEnvelope appends the whole envelope of a stored object, with its
// resourceVersion: the protobuf answer to a get, or the object of a watch
// event. It does not decode.
func AppendEnvelope(dst []byte, o *fsm.Object) ([]byte, error) {
	gvk, raw, err := Open(o.Data)
	if err != nil {
		return dst, fmt.Errorf("%s: %w", o.Key, err)
	}
	apiVersion, kind := gvk.ToAPIVersionAndKind()
	revision := revisionMessage(o.Modified)
	dst = append(dst, envelopePrefix...)
	dst = protowire.AppendTag(dst, unknownTypeMeta, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(2+protowire.SizeBytes(len(apiVersion))+protowire.SizeBytes(len(kind))))
	dst = protowire.AppendTag(dst, typeMetaAPIVersion, protowire.BytesType)
	dst = protowire.AppendString(dst, apiVersion)
	dst = protowire.AppendTag(dst, typeMetaKind, protowire.BytesType)
	dst = protowire.AppendString(dst, kind)
	dst = protowire.AppendTag(dst, unknownRaw, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(len(raw)+len(revision)))
	dst = append(dst, raw...)
	return append(dst, revision...), nil
}

// revisionMessage is the message {metadata: {resourceVersion: revision}}.
func revisionMessage(revision uint64) []byte {
	text := FormatRevision(revision)
	if text == "" {
		return nil
	}
	message := protowire.AppendTag(make([]byte, 0, 32), objectMetadata, protowire.BytesType)
	message = protowire.AppendVarint(message, uint64(1+protowire.SizeBytes(len(text))))
	message = protowire.AppendTag(message, metadataResourceVersion, protowire.BytesType)
	return protowire.AppendString(message, text)
}
