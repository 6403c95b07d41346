package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/shepherd-project/shepherd/api/resource"
)

// protobufPrefix starts every object in protobuf form.
var protobufPrefix = []byte("k8s\x00")

// render encodes one object as the Accept header asks: as itself, as a Table or
// as its metadata. obj is only read, so a shared object may be given. It needs
// no http.Request, so the leader can encode the answer to a forwarded write.
// The error is errNotAcceptable, or an object that cannot be encoded.
func (s *Server) render(accept string, info requestInfo, obj runtime.Object) (contentType string, body []byte, err error) {
	gvk, err := objectKind(obj)
	if err != nil {
		return "", nil, err
	}
	media, ok := negotiate(accept, shapesObject)
	if !ok {
		return "", nil, errNotAcceptable(acceptedTypes)
	}
	// A Status or a Scale has no Table: it is sent as it is.
	if media.shape != shapeObject && info.isResource() && gvk == info.Kind.GVK {
		switch media.shape {
		case shapeTable:
			table, err := s.tableOf(info.Kind, info.Query, []runtime.Object{obj})
			if err != nil {
				return "", nil, err
			}
			obj, gvk = table, tableGVK
		case shapeMeta:
			partial, err := partialMetadata(obj)
			if err != nil {
				return "", nil, err
			}
			obj, gvk = partial, partialGVK
		}
	}
	body, err = encodeObject(media.form, gvk, obj)
	if err != nil {
		return "", nil, err
	}
	if media.form == formJSON && isPretty(info.Query) {
		body = indent(body)
	}
	return media.form.contentType(), body, nil
}

// objectKind is the kind of obj: what it says itself, else what its Go type is.
func objectKind(obj runtime.Object) (schema.GroupVersionKind, error) {
	if gvk := obj.GetObjectKind().GroupVersionKind(); gvk.Kind != "" && gvk.Version != "" {
		return gvk, nil
	}
	kinds, _, err := resource.Scheme.ObjectKinds(obj)
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("kind of answer: %w", err)
	}
	return kinds[0], nil
}

// encodeObject encodes obj, which is of kind gvk, without changing it. JSON
// ends with a newline, as upstream's does.
func encodeObject(f form, gvk schema.GroupVersionKind, obj runtime.Object) ([]byte, error) {
	switch f {
	case formProtobuf:
		return encodeProtobuf(gvk, obj)
	case formYAML:
		body, err := encodeJSON(gvk, obj)
		if err != nil {
			return nil, err
		}
		out, err := yaml.JSONToYAML(body)
		if err != nil {
			return nil, fmt.Errorf("encode %s as YAML: %w", gvk.Kind, err)
		}
		return out, nil
	}
	body, err := encodeJSON(gvk, obj)
	if err != nil {
		return nil, err
	}
	return append(body, '\n'), nil
}

// encodeJSON is obj as one JSON value that names its kind. Shared objects carry
// no kind of their own and may not be given one, so it is put in front of the
// other fields afterwards.
func encodeJSON(gvk schema.GroupVersionKind, obj runtime.Object) ([]byte, error) {
	body, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", gvk.Kind, err)
	}
	if bytes.HasPrefix(body, []byte(`{"kind":`)) || len(body) < 2 || body[0] != '{' {
		return body, nil
	}
	head := fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q`, gvk.Kind, gvk.GroupVersion().String())
	if body[1] != '}' {
		head = append(head, ',')
	}
	return append(head, body[1:]...), nil
}

// encodeProtobuf is obj in the protobuf envelope that names its kind.
func encodeProtobuf(gvk schema.GroupVersionKind, obj runtime.Object) ([]byte, error) {
	marshaler, ok := obj.(runtime.ProtobufMarshaller)
	if !ok {
		return nil, errNotAcceptable(typeJSON + ", " + typeYAML)
	}
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{
		APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind}}
	size := marshaler.Size()
	body := make([]byte, len(protobufPrefix)+unknown.Size()+size+16)
	copy(body, protobufPrefix)
	n, err := unknown.NestedMarshalTo(body[len(protobufPrefix):], marshaler, uint64(size))
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", gvk.Kind, err)
	}
	return body[:len(protobufPrefix)+n], nil
}

var (
	partialGVK     = metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")
	partialListGVK = metav1.SchemeGroupVersion.WithKind("PartialObjectMetadataList")
	tableGVK       = metav1.SchemeGroupVersion.WithKind("Table")
)

// partialMetadata is the metadata of obj as an object of its own. It shares
// obj's maps and slices.
func partialMetadata(obj runtime.Object) (*metav1.PartialObjectMetadata, error) {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("metadata of answer: %w", err)
	}
	partial := &metav1.PartialObjectMetadata{}
	partial.SetGroupVersionKind(partialGVK)
	if m, ok := accessor.(*metav1.ObjectMeta); ok {
		partial.ObjectMeta = *m
	} else if holder, ok := obj.(metav1.ObjectMetaAccessor); ok {
		if m, ok := holder.GetObjectMeta().(*metav1.ObjectMeta); ok {
			partial.ObjectMeta = *m
		}
	}
	return partial, nil
}

func isPretty(query url.Values) bool {
	return query.Has("pretty") && queryBool(query, "pretty")
}

// indent is body, which is valid JSON, with the indentation of a person's eyes.
func indent(body []byte) []byte {
	var out bytes.Buffer
	if err := json.Indent(&out, body, "", "  "); err != nil {
		return body
	}
	return out.Bytes()
}
