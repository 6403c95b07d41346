package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

// Leader is the leader's side of consensus, which the decision of a write needs.
type Leader interface {
	// Leadership gives the current term, and whether this replica leads in it
	// and has applied all that was committed before.
	Leadership() (term uint64, leading bool)
	// Propose replicates one command and gives its outcome.
	Propose(context.Context, fsm.Command) (fsm.Result, error)
	// Now is the cluster's time.
	Now() time.Time
}

// Consensus is what the API needs of the replicated machine. *cluster.Node is one.
type Consensus interface {
	Leader
	// ReadIndex returns once the local store holds everything that was
	// acknowledged, by any replica, before the call.
	ReadIndex(context.Context) error
	// Forward has the leader, wherever it is, handle a write exactly once.
	Forward(context.Context, *wire.Request) (*wire.Response, error)
}

// Config is what a Server is made of. The first three fields must be set; the
// rest have defaults, see DefaultConfig.
type Config struct {
	Store     *fsm.Store
	Consensus Consensus
	// Authenticate gives the caller's identity from its verified certificate or
	// token; false means that it brought no valid credential.
	Authenticate func(*http.Request) (Identity, bool)
	// Ready is nil while this replica may serve; its error is shown by /readyz.
	// A nil function means always ready.
	Ready func() error
	// Streams holds the agents' sessions, over which logs travel. Made when nil.
	Streams *Streams
	// Decoder is the cache of typed objects. Made when nil.
	Decoder *resource.Decoder
	// Registry takes this server's metrics and is what /metrics shows. Made when nil.
	Registry *prometheus.Registry
	Logger   hclog.Logger

	MaxRequestBytes   int64         // a body beyond it is answered with 413
	DecoderBytes      int           // bound of the typed object cache
	EncoderBytes      int           // bound of the cache of encoded JSON
	RequestTimeout    time.Duration // of anything but watches and logs
	RevisionWait      time.Duration // how long a read waits for a revision from the future
	WatchMin          time.Duration // a watch without timeoutSeconds lasts between
	WatchMax          time.Duration // WatchMin and WatchMax, at random
	BookmarkInterval  time.Duration // between bookmarks of a watch that asked for them
	WatchWriteTimeout time.Duration // a watcher that takes longer to read a batch is closed
	StreamDialTimeout time.Duration // how long a log request waits for the node's session

	Write WriteConfig // of the write side
}

// DefaultConfig has every setting but the ones that must be given.
func DefaultConfig() Config {
	return Config{
		MaxRequestBytes:   3 << 20,
		DecoderBytes:      32 << 20,
		EncoderBytes:      16 << 20,
		RequestTimeout:    60 * time.Second,
		RevisionWait:      3 * time.Second,
		WatchMin:          30 * time.Minute,
		WatchMax:          60 * time.Minute,
		BookmarkInterval:  time.Minute,
		WatchWriteTimeout: 20 * time.Second,
		StreamDialTimeout: 5 * time.Second,
		Write:             DefaultWriteConfig(),
	}
}

// Validate names the first setting that is missing or out of range.
func (c *Config) Validate() error {
	switch {
	case c.Store == nil:
		return errors.New("api: Store is missing")
	case c.Consensus == nil:
		return errors.New("api: Consensus is missing")
	case c.Authenticate == nil:
		return errors.New("api: Authenticate is missing")
	case c.MaxRequestBytes <= 0:
		return errors.New("api: MaxRequestBytes must be positive")
	case c.DecoderBytes < 0 || c.EncoderBytes < 0:
		return errors.New("api: cache sizes must not be negative")
	case c.RequestTimeout <= 0 || c.RevisionWait <= 0 || c.BookmarkInterval <= 0 ||
		c.WatchWriteTimeout <= 0 || c.StreamDialTimeout <= 0:
		return errors.New("api: timeouts must be positive")
	case c.WatchMin <= 0 || c.WatchMax < c.WatchMin:
		return errors.New("api: WatchMin must be positive and at most WatchMax")
	}
	return c.Write.Validate()
}

// Server answers the API of one replica. It is safe for concurrent use.
type Server struct {
	cfg       Config
	logger    hclog.Logger
	decoder   *resource.Decoder
	encoded   *encodedCache
	streams   *Streams
	metrics   *metrics
	discovery *discoveryDocs
	// logTransport speaks to the agents.
	logTransport *http.Transport

	writes writer // state of the write side

	closeOnce sync.Once
	closed    chan struct{} // ends watches and followed logs
}

// New makes a Server. It starts no goroutine of its own.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.Decoder == nil {
		cfg.Decoder = resource.NewDecoder(cfg.DecoderBytes)
	}
	if cfg.Streams == nil {
		cfg.Streams = NewStreams(cfg.Logger)
	}
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	m, err := newMetrics(cfg.Registry)
	if err != nil {
		return nil, err
	}
	docs, err := newDiscoveryDocs(resource.All())
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, logger: cfg.Logger, decoder: cfg.Decoder, streams: cfg.Streams, metrics: m, discovery: docs,
		encoded: newEncodedCache(cfg.EncoderBytes), closed: make(chan struct{}),
	}
	s.logTransport = newLogTransport(s.streams, cfg.StreamDialTimeout)
	s.writes.init(s)
	return s, nil
}

// Close ends all watches and followed logs, so that the HTTP server can shut
// down without waiting for them. Requests that come later are still answered.
func (s *Server) Close() { s.closeOnce.Do(func() { close(s.closed) }) }

// Streams are the agents' sessions that this replica holds.
func (s *Server) Streams() *Streams { return s.streams }

// now is the cluster's time, by which ages are shown.
func (s *Server) now() time.Time { return s.cfg.Consensus.Now() }

// ServeHTTP answers one request: panics are caught and counted, bodies bounded,
// the caller identified and authorised.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	rec := &recorder{ResponseWriter: w}
	var info requestInfo
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			s.metrics.panics.Inc()
			s.logger.Error("panic in a request", "method", r.Method, "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			if rec.status != 0 {
				panic(http.ErrAbortHandler) // half an answer was sent: break the stream
			}
			s.writeError(rec, r, apierrors.NewInternalError(fmt.Errorf("panic: %v", p)))
		}
		s.metrics.observe(&info, rec.status, time.Since(start))
	}()
	r.Body = http.MaxBytesReader(w, r.Body, s.cfg.MaxRequestBytes)
	w = rec
	w.Header().Set("Cache-Control", "no-cache, private")

	id, known := s.cfg.Authenticate(r)
	if known {
		r = r.WithContext(withIdentity(r.Context(), id))
	}
	if s.servePublic(w, r) {
		return
	}
	if !known {
		s.writeError(w, r, apierrors.NewUnauthorized("Unauthorized"))
		return
	}
	var refused *apierrors.StatusError
	if info, refused = parseRequest(r); refused != nil {
		s.writeError(w, r, refused)
		return
	}
	s.dispatch(w, r, info)
}

// dispatch hands an identified request to what serves it. Stored resources are
// authorised by their handlers: writes at the leader, reads after the read index.
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request, info requestInfo) {
	defer s.metrics.begin(&info)()
	if info.isResource() && info.Verb == "watch" {
		s.serveWatch(w, r, info)
		return
	}
	if info.isResource() && info.Kind.Resource == "pods" && info.Subresource == "log" {
		s.serveLogs(w, r, info)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.RequestTimeout)
	defer cancel()
	r = r.WithContext(ctx)
	switch {
	case isVirtual(info.GVR):
		s.serveVirtual(w, r, info)
	case !info.isResource():
		s.serveNonResource(w, r, info)
	case info.Verb == "get":
		s.serveGet(w, r, info)
	case info.Verb == "list":
		s.serveList(w, r, info)
	default:
		s.serveWrite(w, r, info)
	}
}

// recorder remembers the status that was sent.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(p)
}

// Unwrap gives http.ResponseController the connection's own writer, for
// flushes, deadlines and hijacking.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
