package api

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// form is an encoding of objects on the wire.
type form uint8

const (
	formJSON form = iota
	formYAML
	formProtobuf
)

const (
	typeJSON     = "application/json"
	typeYAML     = "application/yaml"
	typeProtobuf = runtime.ContentTypeProtobuf
	typeText     = "text/plain; charset=utf-8"
)

// contentType is the media type of one object in this form.
func (f form) contentType() string {
	switch f {
	case formYAML:
		return typeYAML
	case formProtobuf:
		return typeProtobuf
	}
	return typeJSON
}

// streamType is the media type of a stream of watch events in this form.
func (f form) streamType() string {
	if f == formProtobuf {
		return typeProtobuf + ";stream=watch"
	}
	return typeJSON
}

// shape says what stands for an object: the object itself, a Table, or its
// metadata alone.
type shape uint8

const (
	shapeObject shape = 1 << iota
	shapeTable
	shapeMeta     // PartialObjectMetadata
	shapeMetaList // PartialObjectMetadataList

	shapesObject = shapeObject | shapeTable | shapeMeta     // an answer of one object, or a watch
	shapesList   = shapeObject | shapeTable | shapeMetaList // an answer of a list
	shapesAny    = shapeObject | shapeTable | shapeMeta | shapeMetaList
)

// mediaType is the outcome of negotiation.
type mediaType struct {
	form  form
	shape shape
}

// acceptedTypes is how an answer of 406 lists what there is.
const acceptedTypes = typeJSON + ", " + typeYAML + ", " + typeProtobuf

// negotiate takes the first entry of an Accept header that can be served with
// one of the allowed shapes. Entries are in order of preference; q-values are
// not looked at, as the clients of this API do not send them. No header means
// JSON.
func negotiate(accept string, allowed shape) (mediaType, bool) {
	if strings.TrimSpace(accept) == "" {
		return mediaType{form: formJSON, shape: shapeObject}, true
	}
	for entry := range strings.SplitSeq(accept, ",") {
		if m, ok := parseAccept(entry); ok && m.shape&allowed != 0 {
			return m, true
		}
	}
	return mediaType{}, false
}

// parseAccept reads one entry of an Accept header; ok is false when this server
// has no such form or shape.
func parseAccept(entry string) (m mediaType, ok bool) {
	name, params, _ := strings.Cut(entry, ";")
	switch strings.ToLower(strings.TrimSpace(name)) {
	case typeJSON, "*/*", "application/*":
		m.form = formJSON
	case typeYAML:
		m.form = formYAML
	case typeProtobuf:
		m.form = formProtobuf
	default:
		return m, false
	}
	var as, group, version string
	for param := range strings.SplitSeq(params, ";") {
		key, value, _ := strings.Cut(strings.TrimSpace(param), "=")
		value = strings.Trim(value, `"`)
		switch strings.ToLower(key) {
		case "as":
			as = value
		case "g":
			group = value
		case "v":
			version = value
		}
	}
	switch as {
	case "":
		m.shape = shapeObject
		return m, true
	case "Table":
		m.shape = shapeTable
	case "PartialObjectMetadata":
		m.shape = shapeMeta
	case "PartialObjectMetadataList":
		m.shape = shapeMetaList
	default:
		return m, false
	}
	if group != "meta.k8s.io" || version != "v1" {
		return m, false
	}
	// A Table has no protobuf form; the client's next entry is taken.
	return m, m.shape != shapeTable || m.form != formProtobuf
}
