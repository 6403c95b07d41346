package cluster

import (
	"context"
	"net"
	"net/http"
	"time"
)

type openedKey struct{}

// KeepFresh makes the clients of an HTTP server connect anew before the
// certificate ends that they showed when they connected. A client that is never
// idle would otherwise use one connection for years, and be refused on it from
// one request to the next although it holds a renewed certificate by then.
//
// A connection older than three quarters of its certificate's life is told to
// close after the next answer (in HTTP/2, by GOAWAY: what runs on it goes on).
// A client that has nothing newer to show is told once for each connection
// which it opened before that point, and never after. A request to leave HTTP on
// the connection is not touched.
func KeepFresh(srv *http.Server, now func() time.Time) {
	srv.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, openedKey{}, now())
	}
	next := srv.Handler
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if outdated(r, now()) {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

func outdated(r *http.Request, now time.Time) bool {
	opened, ok := r.Context().Value(openedKey{}).(time.Time)
	if !ok || r.Header.Get("Upgrade") != "" || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	cert := r.TLS.PeerCertificates[0]
	due := cert.NotAfter.Add(-cert.NotAfter.Sub(cert.NotBefore) / 4)
	return now.After(due) && opened.Before(due)
}
