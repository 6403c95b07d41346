package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	goruntime "runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// Version is what /version answers. Clients check the skew of its minor
// version, helm checks gitVersion against a chart's kubeVersion.
var Version = version.Info{
	Major:        "1",
	Minor:        "37",
	GitVersion:   "v1.37.2+shepherd",
	GitTreeState: "clean",
	GoVersion:    goruntime.Version(),
	Compiler:     goruntime.Compiler,
	Platform:     goruntime.GOOS + "/" + goruntime.GOARCH,
}

// servePublic answers the paths that need no credential: health and version.
// It returns false for any other path.
func (s *Server) servePublic(w http.ResponseWriter, r *http.Request) bool {
	var serve func(http.ResponseWriter, *http.Request)
	switch r.URL.Path {
	case "/livez", "/healthz", "/livez/ping", "/healthz/ping":
		serve = s.serveLive
	case "/readyz", "/readyz/ping":
		serve = s.serveReady
	case "/version", "/version/":
		serve = s.serveVersion
	default:
		return false
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		s.writeError(w, r, errMethodNotAllowed(schema.GroupResource{}, strings.ToLower(r.Method)))
		return true
	}
	serve(w, r)
	return true
}

// serveLive says that the process serves and that its state machine has not halted.
func (s *Server) serveLive(w http.ResponseWriter, r *http.Request) {
	s.writeHealth(w, r, "livez", "state", s.cfg.Store.Err())
}

// serveReady says whether this replica's state has caught up.
func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	err := s.cfg.Store.Err()
	if err == nil && s.cfg.Ready != nil {
		err = s.cfg.Ready()
	}
	s.writeHealth(w, r, "readyz", "caught-up", err)
}

func (s *Server) writeHealth(w http.ResponseWriter, r *http.Request, name, check string, err error) {
	switch {
	case err != nil:
		s.writeBody(w, r, http.StatusInternalServerError, typeText, fmt.Appendf(nil, "[-]%s failed: %v\n%s check failed\n", check, err, name))
	case r.URL.Query().Has("verbose"):
		s.writeBody(w, r, http.StatusOK, typeText, fmt.Appendf(nil, "[+]ping ok\n[+]%s ok\n%s check passed\n", check, name))
	default:
		s.writeBody(w, r, http.StatusOK, typeText, []byte("ok"))
	}
}

func (s *Server) serveVersion(w http.ResponseWriter, r *http.Request) {
	body, err := json.MarshalIndent(Version, "", "  ")
	if err != nil {
		s.writeError(w, r, apierrors.NewInternalError(err))
		return
	}
	s.writeBody(w, r, http.StatusOK, typeJSON, body)
}

// serveNonResource answers discovery, OpenAPI and metrics, and 404 for the rest.
func (s *Server) serveNonResource(w http.ResponseWriter, r *http.Request, info requestInfo) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		s.writeError(w, r, errMethodNotAllowed(schema.GroupResource{}, strings.ToLower(r.Method)))
		return
	}
	path := strings.TrimSuffix(info.Path, "/")
	switch {
	case path == "/metrics":
		if !identityFrom(r.Context()).isAdmin() {
			s.writeError(w, r, forbidNonResource(identityFrom(r.Context()), info))
			return
		}
		promhttp.HandlerFor(s.cfg.Registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	case strings.HasPrefix(path, "/openapi/"):
		s.serveOpenAPI(w, r, path)
	default:
		if !s.serveDiscovery(w, r, path) {
			s.writeError(w, r, errPathNotFound(info.Verb, info.groupResource(), info.Name))
		}
	}
}
