package api

import "net/http"

// newOpenAPI makes what serves the OpenAPI documents.
func newOpenAPI() (http.Handler, error) { return http.NotFoundHandler(), nil }

func (s *Server) serveOpenAPI(w http.ResponseWriter, r *http.Request) { s.openapi.ServeHTTP(w, r) }
