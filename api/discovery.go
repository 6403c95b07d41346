package api

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shepherd-project/shepherd/api/resource"
)

// typeAggregated is the media type of the aggregated form. Clients choose their
// parser by it, so it is sent exactly so.
const typeAggregated = typeJSON + ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// discoveryDocs are the answers of discovery, made once: what is served is
// known at build time.
type discoveryDocs struct {
	plain      map[string]document // path -> document in the form of one per group version
	aggregated map[string]document // "/api" and "/apis"
}

// document is one answer with its JSON and the ETag of that.
type document struct {
	gvk  schema.GroupVersionKind
	obj  runtime.Object
	json []byte
	etag string
}

// newDiscoveryDocs builds all documents for the kinds and the virtual resources.
func newDiscoveryDocs(kinds []*resource.Kind) (*discoveryDocs, error) {
	d := &discoveryDocs{plain: map[string]document{}, aggregated: map[string]document{}}
	core, groups := groupVersions(kinds)
	docs := map[string]runtime.Object{
		"/api":  &metav1.APIVersions{Versions: []string{"v1"}, ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{}},
		"/apis": apiGroupList(groups),
	}
	for _, gv := range append(groups, core) {
		base := "/apis/" + gv.GroupVersion.String()
		if gv.Group == "" {
			base = "/api/" + gv.Version
		} else {
			group := apiGroup(gv)
			docs["/apis/"+gv.Group] = &group
		}
		docs[base] = &metav1.APIResourceList{GroupVersion: gv.GroupVersion.String(), APIResources: gv.plain}
	}
	for path, obj := range docs {
		doc, err := newDocument(obj)
		if err != nil {
			return nil, err
		}
		d.plain[path] = doc
	}
	for path, list := range map[string][]groupVersion{"/api": {core}, "/apis": groups} {
		doc, err := newDocument(aggregate(list))
		if err != nil {
			return nil, err
		}
		d.aggregated[path] = doc
	}
	return d, nil
}

func newDocument(obj runtime.Object) (document, error) {
	kinds, _, err := discoveryScheme.ObjectKinds(obj)
	if err != nil {
		return document{}, fmt.Errorf("discovery: %w", err)
	}
	doc := document{gvk: kinds[0], obj: obj}
	if doc.json, err = encodeObject(formJSON, doc.gvk, obj); err != nil {
		return document{}, fmt.Errorf("discovery: %w", err)
	}
	sum := sha256.Sum256(doc.json)
	doc.etag = `"` + hex.EncodeToString(sum[:16]) + `"`
	return doc, nil
}

var discoveryScheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	s.AddKnownTypes(apidiscoveryv2.SchemeGroupVersion, &apidiscoveryv2.APIGroupDiscoveryList{})
	return s
}()

// serveDiscovery answers one discovery path in the form that is asked for;
// false when the path is none.
func (s *Server) serveDiscovery(w http.ResponseWriter, r *http.Request, path string) bool {
	plain, ok := s.discovery.plain[path]
	if !ok {
		return false
	}
	accept := r.Header.Get("Accept")
	w.Header().Set("Vary", "Accept")
	if doc, ok := s.discovery.aggregated[path]; ok && prefersAggregated(accept) {
		s.writeDocument(w, r, typeAggregated, doc.etag, doc.json)
		return true
	}
	media, ok := negotiate(accept, shapeObject)
	switch {
	case !ok:
		s.writeError(w, r, errNotAcceptable(acceptedTypes))
	case media.form == formJSON:
		s.writeDocument(w, r, typeJSON, plain.etag, plain.json)
	default:
		body, err := encodeObject(media.form, plain.gvk, plain.obj)
		if err != nil {
			s.writeError(w, r, err)
			break
		}
		s.writeBody(w, r, http.StatusOK, media.form.contentType(), body)
	}
	return true
}

// prefersAggregated says whether an aggregated form comes before any plain one.
func prefersAggregated(accept string) bool {
	for entry := range strings.SplitSeq(accept, ",") {
		params := map[string]string{}
		name, rest, _ := strings.Cut(strings.TrimSpace(entry), ";")
		for param := range strings.SplitSeq(rest, ";") {
			key, value, _ := strings.Cut(strings.TrimSpace(param), "=")
			params[strings.ToLower(key)] = value
		}
		if name == typeJSON && params["as"] == "APIGroupDiscoveryList" && params["g"] == "apidiscovery.k8s.io" && params["v"] == "v2" {
			return true
		}
		if _, ok := parseAccept(entry); ok {
			return false
		}
	}
	return false
}

// writeDocument sends a document that a client may keep and ask for again by
// its ETag.
func (s *Server) writeDocument(w http.ResponseWriter, r *http.Request, contentType, etag string, body []byte) {
	w.Header().Set("ETag", etag)
	for tag := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
		if tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/"); tag == etag || tag == "*" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	s.writeBody(w, r, http.StatusOK, contentType, body)
}
