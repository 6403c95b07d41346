package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

// WriteConfig is what the write side can be told.
type WriteConfig struct {
	// MaxBufferedBytes bounds the bodies of all writes that are under way on
	// this replica; beyond it a write is answered with 429.
	MaxBufferedBytes int64
	// DecisionTimeout bounds the leader's work on one request, the proposal
	// included. It does not depend on the client's patience.
	DecisionTimeout time.Duration
	// MaxPlans is how often the leader plans a request anew because what it
	// depended on has changed meanwhile.
	MaxPlans int
	// ServiceCIDR is the IPv4 range of cluster IPs.
	ServiceCIDR netip.Prefix
	// NodePortFirst and NodePortLast bound the node ports, both included.
	NodePortFirst, NodePortLast int32
	// Rand draws UIDs, name suffixes and addresses. Nil means the system's
	// randomness. The Server is its only user once it is given.
	Rand *rand.Rand
}

// DefaultWriteConfig has every setting.
func DefaultWriteConfig() WriteConfig {
	return WriteConfig{
		MaxBufferedBytes: 64 << 20,
		DecisionTimeout:  30 * time.Second,
		MaxPlans:         32,
		ServiceCIDR:      netip.MustParsePrefix("10.43.0.0/16"),
		NodePortFirst:    30000,
		NodePortLast:     32767,
	}
}

// Validate names the first setting that is out of range.
func (c *WriteConfig) Validate() error {
	switch {
	case c.MaxBufferedBytes <= 0:
		return errors.New("api: MaxBufferedBytes must be positive")
	case c.DecisionTimeout <= 0:
		return errors.New("api: DecisionTimeout must be positive")
	case c.MaxPlans <= 0:
		return errors.New("api: MaxPlans must be positive")
	case !c.ServiceCIDR.IsValid() || !c.ServiceCIDR.Addr().Is4() || c.ServiceCIDR.Bits() > 28 || c.ServiceCIDR.Bits() < 8:
		return fmt.Errorf("api: ServiceCIDR %s must be an IPv4 range between /8 and /28", c.ServiceCIDR)
	case c.NodePortFirst <= 0 || c.NodePortLast > 65535 || c.NodePortLast < c.NodePortFirst:
		return fmt.Errorf("api: node ports %d-%d are no range of ports", c.NodePortFirst, c.NodePortLast)
	}
	return nil
}

// writer is the state of a Server's write side.
type writer struct {
	budget byteBudget
	random lockedSource
}

func (w *writer) init(s *Server) {
	w.budget.max = s.cfg.Write.MaxBufferedBytes
	w.random.r = s.cfg.Write.Rand
}

// byteBudget bounds bytes in memory. It is safe for concurrent use.
type byteBudget struct {
	max int64

	mu   sync.Mutex
	used int64 // guarded by mu
}

// take takes n bytes and reports whether they were to be had.
func (b *byteBudget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > b.max {
		return false
	}
	b.used += n
	return true
}

func (b *byteBudget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
}

// forwardedHeaders are what the leader needs of a request's header. Nothing
// that could pass for an identity is among them.
var forwardedHeaders = []string{"Accept", "Content-Type", "User-Agent"}

// serveWrite is the receiving half of a write, on any replica: it buffers the
// body, gives the request an ID and has the leader handle it, wherever that
// is. The same request with the same ID is sent again when a leader dies, so a
// client sees one effect and one answer.
func (s *Server) serveWrite(w http.ResponseWriter, r *http.Request, info requestInfo) {
	body, release, err := s.bufferBody(r)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	defer release()

	caller := identityFrom(r.Context())
	id := fsm.NewRequestID(s.cfg.Store.View().Revision())
	req := &wire.Request{
		Nonce: id.Nonce, Birth: id.Birth,
		Method: r.Method, Path: r.URL.Path, RawQuery: r.URL.RawQuery,
		Header: make(map[string][]string, len(forwardedHeaders)),
		Body:   body,
		User:   caller.User, Groups: caller.Groups, Node: caller.Node,
	}
	for _, name := range forwardedHeaders {
		if values := r.Header.Values(name); len(values) > 0 {
			req.Header[name] = values
		}
	}
	resp, err := s.cfg.Consensus.Forward(r.Context(), req)
	switch {
	case err != nil && errors.Is(r.Context().Err(), context.Canceled):
		err = r.Context().Err() // the client has gone; there is nobody to tell
	case err != nil && (errors.Is(err, wire.ErrAmbiguous) || r.Context().Err() != nil):
		// No Retry-After: client-go would send it again, as a new request.
		err = apierrors.NewTimeoutError(fmt.Sprintf("%s %s: no leader has answered in time, the change may or may not have been made", info.Verb, r.URL.Path), 0)
	case err != nil:
		err = unavailable(fmt.Sprintf("%s %s: %v", info.Verb, r.URL.Path, err))
	case resp.NotLeader:
		err = unavailable("there is no leader at the moment")
	}
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	header := w.Header()
	contentType := typeJSON
	for name, values := range resp.Header {
		if name == "Content-Type" && len(values) > 0 {
			contentType = values[0]
			continue
		}
		header[http.CanonicalHeaderKey(name)] = values
	}
	s.writeBody(w, r, resp.Status, contentType, resp.Body)
}

// bufferBody reads the whole body within the bounds on one body and on all of
// them. The bytes belong to the caller until it calls release.
func (s *Server) bufferBody(r *http.Request) (body []byte, release func(), err error) {
	size := r.ContentLength
	if size < 0 || size > s.cfg.MaxRequestBytes {
		size = s.cfg.MaxRequestBytes // its length is not known before the end
	}
	if r.ContentLength > s.cfg.MaxRequestBytes {
		return nil, nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", s.cfg.MaxRequestBytes))
	}
	if !s.writes.budget.take(size) {
		return nil, nil, apierrors.NewTooManyRequests("this server holds too many writes at once, try again", 1)
	}
	release = func() { s.writes.budget.give(size) }
	if r.ContentLength >= 0 {
		body = make([]byte, r.ContentLength) // HTTP gives no more bytes than it has told
		_, err = io.ReadFull(r.Body, body)
	} else {
		body, err = io.ReadAll(r.Body) // ServeHTTP has put a bound on it
	}
	if err != nil {
		release()
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", tooLarge.Limit))
		}
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("read the request's body: %v", err))
	}
	return body, release, nil
}

// unavailable is a 503 that clients may retry: nothing is known to have changed.
func unavailable(message string) error {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = apierrors.NewTimeoutError("", 1).ErrStatus.Details
	return err
}
