package api

import (
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shepherd-project/shepherd/api/openapi"
)

// serveOpenAPI answers the OpenAPI documents with the media types that clients
// insist on.
func (s *Server) serveOpenAPI(w http.ResponseWriter, r *http.Request, path string) {
	w.Header().Set("Vary", "Accept")
	switch {
	case path == "/openapi/v2":
		s.serveOpenAPIv2(w, r)
	case path == "/openapi/v3":
		s.writeBody(w, r, http.StatusOK, typeJSON, openapi.V3Index())
	case strings.HasPrefix(path, "/openapi/v3/"):
		s.serveOpenAPIv3(w, r, strings.TrimPrefix(path, "/openapi/v3/"))
	default:
		s.writeError(w, r, errPathNotFound("get", schema.GroupResource{}, ""))
	}
}

// serveOpenAPIv2 answers in protobuf when that is asked for, else in JSON.
func (s *Server) serveOpenAPIv2(w http.ResponseWriter, r *http.Request) {
	for entry := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(entry), ";")
		switch name {
		case openapi.AcceptV2Proto, openapi.ContentTypeV2Proto:
			s.writeDocument(w, r, openapi.ContentTypeV2Proto, `"`+openapi.V2Hash()+`-pb"`, openapi.V2Proto())
			return
		case "", typeJSON, "*/*":
			s.writeDocument(w, r, typeJSON, `"`+openapi.V2Hash()+`"`, openapi.V2JSON())
			return
		}
	}
	s.writeError(w, r, errNotAcceptable(typeJSON+", "+openapi.AcceptV2Proto))
}

// serveOpenAPIv3 answers the document of one group version. Asked for by its
// hash it never changes, so the client may keep it; a hash of other content is
// sent to the present one.
func (s *Server) serveOpenAPIv3(w http.ResponseWriter, r *http.Request, name string) {
	hash := openapi.Hash(name)
	doc, ok := openapi.V3(name)
	if !ok {
		s.writeError(w, r, errPathNotFound("get", schema.GroupResource{}, ""))
		return
	}
	switch asked := r.URL.Query().Get("hash"); asked {
	case "":
	case hash:
		w.Header().Set("Cache-Control", "public, immutable, max-age=31536000")
	default:
		target := url.URL{Path: r.URL.Path, RawQuery: url.Values{"hash": {hash}}.Encode()}
		http.Redirect(w, r, target.String(), http.StatusMovedPermanently)
		return
	}
	s.writeDocument(w, r, typeJSON, `"`+hash+`"`, doc)
}
