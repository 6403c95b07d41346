package api

import (
	"compress/gzip"
	"net"
	"net/http"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// gzipThreshold is the size in bytes from which an answer may be compressed.
const gzipThreshold = 128 << 10

// writeObject answers with one object in the form that the request accepts.
// obj is only read.
func (s *Server) writeObject(w http.ResponseWriter, r *http.Request, info requestInfo, status int, obj runtime.Object) {
	contentType, body, err := s.render(r.Header.Get("Accept"), info, obj)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	s.writeBody(w, r, status, contentType, body)
}

// writeBody sends an answer that is encoded already, compressed where that
// pays. An error of the connection is the client's going away: nothing is left
// to do about it.
func (s *Server) writeBody(w http.ResponseWriter, r *http.Request, status int, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	if wantsGzip(r, len(body)) {
		h.Set("Content-Encoding", "gzip")
		h.Add("Vary", "Accept-Encoding")
		w.WriteHeader(status)
		zip := newGzip(w)
		if _, err := zip.Write(body); err != nil {
			s.logger.Debug("client went away", "path", r.URL.Path, "error", err)
			return
		}
		if err := zip.Close(); err != nil {
			s.logger.Debug("client went away", "path", r.URL.Path, "error", err)
		}
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil {
		s.logger.Debug("client went away", "path", r.URL.Path, "error", err)
	}
}

// wantsGzip says whether a body of size bytes is to be compressed: the client
// asks for it, the body is large, and it has a network to cross.
func wantsGzip(r *http.Request, size int) bool {
	if size < gzipThreshold {
		return false
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
			return false
		}
	}
	for entry := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, params, _ := strings.Cut(entry, ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			return strings.ReplaceAll(params, " ", "") != "q=0"
		}
	}
	return false
}

// newGzip compresses at the fastest level: bytes are cheaper than the leader's CPU.
func newGzip(w http.ResponseWriter) *gzip.Writer {
	zip, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return gzip.NewWriter(w) // only an invalid level errs
	}
	return zip
}
