package api

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxWarnings bounds the warnings of one answer; a hostile body could have as
// many unknown fields as bytes.
const maxWarnings = 20

// bodyMediaType returns the media type of a Content-Type header. An absent
// header means JSON. Parameters are ignored.
func bodyMediaType(header string) (string, *apierrors.StatusError) {
	if strings.TrimSpace(header) == "" {
		return typeJSON, nil
	}
	media, _, err := mime.ParseMediaType(header)
	if err != nil {
		return "", errUnsupportedMediaType(acceptedTypes)
	}
	return media, nil
}

// decodeBody decodes a request body into obj, an empty object of the kind that
// the route names. A body without apiVersion and kind is taken to be of that
// kind; another kind is a 400. Unknown and duplicate fields are an error, a
// list of warnings or nothing, as validation (one of the metav1.FieldValidation
// constants) says. Protobuf bodies have no field names to be strict about.
func decodeBody(contentType string, data []byte, obj runtime.Object, gvk schema.GroupVersionKind, validation string) ([]string, error) {
	media, refused := bodyMediaType(contentType)
	if refused != nil {
		return nil, refused
	}
	var strict []error
	var err error
	switch media {
	case typeJSON:
		strict, err = decodeJSON(data, obj)
	case typeYAML:
		strict, err = decodeYAML(data, obj)
	case typeProtobuf:
		err = decodeProtobuf(data, obj)
	default:
		return nil, errUnsupportedMediaType(acceptedTypes)
	}
	if err != nil {
		return nil, badBody(gvk, err)
	}
	if err := checkKind(obj, gvk); err != nil {
		return nil, err
	}
	return strictResult(gvk, strict, validation)
}

// strictResult turns the strictness findings of a decoding into an error or
// warnings.
func strictResult(gvk schema.GroupVersionKind, strict []error, validation string) ([]string, error) {
	if len(strict) == 0 {
		return nil, nil
	}
	switch validation {
	case metav1.FieldValidationStrict:
		return nil, badBody(gvk, runtime.NewStrictDecodingError(strict))
	case metav1.FieldValidationIgnore:
		return nil, nil
	}
	if len(strict) > maxWarnings {
		strict = strict[:maxWarnings]
	}
	warnings := make([]string, 0, len(strict))
	for _, e := range strict {
		warnings = append(warnings, e.Error())
	}
	return warnings, nil
}

func badBody(gvk schema.GroupVersionKind, err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", gvk.Kind, gvk.Version, gvk.Kind, err))
}

var errNotAnObject = errors.New("the body is not an object")

// decodeJSON returns strictness findings apart from the error that makes the
// body useless. Names are case-sensitive and integers stay integers.
func decodeJSON(data []byte, into any) ([]error, error) {
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return nil, errNotAnObject
	}
	return kjson.UnmarshalStrict(data, into)
}

func decodeYAML(data []byte, into any) ([]error, error) {
	var strict []error
	converted, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		// Duplicate keys fail only the strict conversion.
		lax, laxErr := yaml.YAMLToJSON(data)
		if laxErr != nil {
			return nil, laxErr
		}
		converted, strict = lax, []error{err}
	}
	more, err := decodeJSON(converted, into)
	return append(strict, more...), err
}

// protobufMessage is what the generated API types implement.
type protobufMessage interface {
	Unmarshal([]byte) error
}

func decodeProtobuf(data []byte, obj runtime.Object) error {
	unknown, err := openEnvelope(data)
	if err != nil {
		return err
	}
	message, ok := obj.(protobufMessage)
	if !ok {
		return fmt.Errorf("the kind has no protobuf form")
	}
	if err := message.Unmarshal(unknown.Raw); err != nil {
		return fmt.Errorf("decode protobuf: %w", err)
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(unknown.APIVersion, unknown.Kind))
	return nil
}

func openEnvelope(data []byte) (*runtime.Unknown, error) {
	if !bytes.HasPrefix(data, protobufPrefix) {
		return nil, errors.New("the body does not begin with the protobuf prefix")
	}
	unknown := new(runtime.Unknown)
	if err := unknown.Unmarshal(data[len(protobufPrefix):]); err != nil {
		return nil, fmt.Errorf("decode protobuf envelope: %w", err)
	}
	if unknown.ContentEncoding != "" {
		return nil, fmt.Errorf("content encoding %q inside the protobuf envelope is not supported", unknown.ContentEncoding)
	}
	if unknown.ContentType != "" && unknown.ContentType != typeProtobuf {
		return nil, fmt.Errorf("content type %q inside the protobuf envelope is not supported", unknown.ContentType)
	}
	return unknown, nil
}

// checkKind fills a missing apiVersion and kind of obj from the route and
// refuses others.
func checkKind(obj runtime.Object, want schema.GroupVersionKind) error {
	got := obj.GetObjectKind().GroupVersionKind()
	if got.Version != "" && got.GroupVersion() != want.GroupVersion() {
		return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", got.GroupVersion(), want.GroupVersion()))
	}
	if got.Kind != "" && got.Kind != want.Kind {
		return apierrors.NewBadRequest(fmt.Sprintf("the kind in the data (%s) does not match the expected kind (%s)", got.Kind, want.Kind))
	}
	obj.GetObjectKind().SetGroupVersionKind(want)
	return nil
}

// decodeDeleteOptions decodes the body of a DELETE into opts, over what the
// query has set. The body may be empty or lack its kind; its apiVersion is
// that of any group, as clients send it.
func decodeDeleteOptions(contentType string, data []byte, opts *metav1.DeleteOptions) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	media, refused := bodyMediaType(contentType)
	if refused != nil {
		return refused
	}
	var err error
	switch media {
	case typeJSON:
		_, err = decodeJSON(data, opts)
	case typeYAML:
		_, err = decodeYAML(data, opts)
	case typeProtobuf:
		err = decodeProtobuf(data, opts)
	default:
		return errUnsupportedMediaType(acceptedTypes)
	}
	if err != nil {
		return badBody(metav1.SchemeGroupVersion.WithKind("DeleteOptions"), err)
	}
	if opts.Kind != "" && opts.Kind != "DeleteOptions" {
		return apierrors.NewBadRequest(fmt.Sprintf("the kind in the data (%s) does not match the expected kind (DeleteOptions)", opts.Kind))
	}
	return nil
}
