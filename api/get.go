package api

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// serveGet answers a get of an object or of its status or scale.
func (s *Server) serveGet(w http.ResponseWriter, r *http.Request, info requestInfo) {
	rev, err := parseRevision(info.Query.Get("resourceVersion"))
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	view, err := s.readView(r.Context(), rev)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	if err := s.authorize(view, identityFrom(r.Context()), info); err != nil {
		s.writeError(w, r, err)
		return
	}
	o := view.Get(info.Kind.Key(info.Namespace, info.Name))
	if o == nil {
		s.writeError(w, r, apierrors.NewNotFound(info.groupResource(), info.Name))
		return
	}
	if info.Subresource == "scale" && info.Kind.Scale != nil {
		s.writeScale(w, r, info, o)
		return
	}
	s.writeStored(w, r, info, o)
}

// writeStored answers with a stored object; in protobuf and in JSON without
// encoding it anew where that is possible.
func (s *Server) writeStored(w http.ResponseWriter, r *http.Request, info requestInfo, o *fsm.Object) {
	media, ok := negotiate(r.Header.Get("Accept"), shapesObject)
	if !ok {
		s.writeError(w, r, errNotAcceptable(acceptedTypes))
		return
	}
	switch {
	case media == mediaType{formProtobuf, shapeObject}:
		body, err := resource.AppendEnvelope(nil, o)
		if err != nil {
			s.writeError(w, r, err)
			return
		}
		s.writeBody(w, r, http.StatusOK, typeProtobuf, body)
	case media == mediaType{formJSON, shapeObject} && !isPretty(info.Query):
		body, err := s.objectJSON(o)
		if err != nil {
			s.writeError(w, r, err)
			return
		}
		s.writeBody(w, r, http.StatusOK, typeJSON, append(body[:len(body):len(body)], '\n'))
	default:
		obj, err := s.decoder.Decode(o)
		if err != nil {
			s.writeError(w, r, err)
			return
		}
		s.writeObject(w, r, info, http.StatusOK, obj)
	}
}

// writeScale answers with the scale of a stored object.
func (s *Server) writeScale(w http.ResponseWriter, r *http.Request, info requestInfo, o *fsm.Object) {
	obj, err := s.decoder.Decode(o)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	scale, err := info.Kind.Scale.Get(obj)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	s.writeObject(w, r, info, http.StatusOK, scale)
}
