package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// Fields of the protobuf messages that a list is made of.
const (
	fieldUnknownTypeMeta = 1
	fieldUnknownRaw      = 2
	fieldListMeta        = 1
	fieldListItem        = 2
	fieldAPIVersion      = 1
	fieldKind            = 2
)

// streamList sends a list item by item from the bytes that are there already,
// so that a long list is never in memory as a whole.
func (s *Server) streamList(w http.ResponseWriter, r *http.Request, info requestInfo, media mediaType, gvk schema.GroupVersionKind, p page) {
	size := 0
	for _, o := range p.items {
		size += len(o.Data)
	}
	if media.form == formYAML || media.form == formJSON && isPretty(info.Query) {
		s.writeWholeList(w, r, media, gvk, p)
		return
	}
	w.Header().Set("Content-Type", media.form.contentType())
	out := io.Writer(w)
	if wantsGzip(r, size) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Add("Vary", "Accept-Encoding")
		zip := newGzip(w)
		defer func() {
			if err := zip.Close(); err != nil {
				s.logger.Debug("client went away", "path", r.URL.Path, "error", err)
			}
		}()
		out = zip
	}
	buffered := bufio.NewWriterSize(out, 64<<10)
	var err error
	if media.form == formProtobuf {
		err = s.listProtobuf(buffered, gvk, p)
	} else {
		err = s.listJSON(buffered, gvk, p)
	}
	if err == nil {
		err = buffered.Flush()
	}
	if err != nil && r.Context().Err() == nil {
		s.logger.Warn("list broken off", "path", r.URL.Path, "error", err)
		panic(http.ErrAbortHandler) // half a list must not look whole
	}
}

// writeWholeList sends a list that has to be transformed as a whole.
func (s *Server) writeWholeList(w http.ResponseWriter, r *http.Request, media mediaType, gvk schema.GroupVersionKind, p page) {
	var buf bytes.Buffer
	err := s.listJSON(&buf, gvk, p)
	body := buf.Bytes()
	if err == nil && media.form == formYAML {
		body, err = yaml.JSONToYAML(body)
	} else if err == nil {
		body = indent(body)
	}
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	s.writeBody(w, r, http.StatusOK, media.form.contentType(), body)
}

// listJSON writes the list as one JSON object.
func (s *Server) listJSON(w io.Writer, gvk schema.GroupVersionKind, p page) error {
	meta, err := json.Marshal(p.meta)
	if err != nil {
		return err
	}
	head, err := json.Marshal(struct {
		Kind       string          `json:"kind"`
		APIVersion string          `json:"apiVersion"`
		Metadata   json.RawMessage `json:"metadata"`
	}{gvk.Kind, gvk.GroupVersion().String(), meta})
	if err != nil {
		return err
	}
	if _, err := w.Write(append(head[:len(head)-1], `,"items":[`...)); err != nil {
		return err
	}
	for i, o := range p.items {
		item, err := s.objectJSON(o)
		if err != nil {
			return err
		}
		if i > 0 {
			if _, err := w.Write([]byte{','}); err != nil {
				return err
			}
		}
		if _, err := w.Write(item); err != nil {
			return err
		}
	}
	_, err = w.Write([]byte("]}\n"))
	return err
}

// listProtobuf writes the list in its envelope, each item as it is stored with
// its resourceVersion behind it.
func (s *Server) listProtobuf(w io.Writer, gvk schema.GroupVersionKind, p page) error {
	meta, err := p.meta.Marshal()
	if err != nil {
		return err
	}
	sizes := make([]int, len(p.items))
	raw := protowire.SizeTag(fieldListMeta) + protowire.SizeBytes(len(meta))
	var scratch []byte
	for i, o := range p.items {
		if scratch, err = resource.AppendItem(scratch[:0], o); err != nil {
			return err
		}
		sizes[i] = len(scratch)
		raw += protowire.SizeTag(fieldListItem) + protowire.SizeBytes(len(scratch))
	}
	head := appendEnvelopeHead(nil, gvk, raw)
	head = protowire.AppendTag(head, fieldListMeta, protowire.BytesType)
	head = protowire.AppendBytes(head, meta)
	if _, err := w.Write(head); err != nil {
		return err
	}
	for i, o := range p.items {
		scratch = protowire.AppendTag(scratch[:0], fieldListItem, protowire.BytesType)
		scratch = protowire.AppendVarint(scratch, uint64(sizes[i]))
		if scratch, err = resource.AppendItem(scratch, o); err != nil {
			return err
		}
		if _, err := w.Write(scratch); err != nil {
			return err
		}
	}
	return nil
}

// appendEnvelopeHead appends the envelope of an object of kind gvk up to its
// message, which is to follow with size bytes.
func appendEnvelopeHead(dst []byte, gvk schema.GroupVersionKind, size int) []byte {
	apiVersion, kind := gvk.ToAPIVersionAndKind()
	typeMeta := protowire.AppendTag(nil, fieldAPIVersion, protowire.BytesType)
	typeMeta = protowire.AppendString(typeMeta, apiVersion)
	typeMeta = protowire.AppendTag(typeMeta, fieldKind, protowire.BytesType)
	typeMeta = protowire.AppendString(typeMeta, kind)
	dst = append(dst, protobufPrefix...)
	dst = protowire.AppendTag(dst, fieldUnknownTypeMeta, protowire.BytesType)
	dst = protowire.AppendBytes(dst, typeMeta)
	dst = protowire.AppendTag(dst, fieldUnknownRaw, protowire.BytesType)
	return protowire.AppendVarint(dst, uint64(size))
}

// storedVersion is prev, the state before an event, as of the revision of that
// event: what a watcher is told of an object that left its selection.
func storedVersion(prev *fsm.Object, rev uint64) *fsm.Object {
	o := *prev
	o.Modified = rev
	return &o
}
