package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// stallTimeout is how long a registry may send nothing.
const stallTimeout = time.Minute

// PullPolicy says when a registry is asked.
type PullPolicy string

// The policies of a container's imagePullPolicy.
const (
	PullAlways       PullPolicy = "Always"
	PullIfNotPresent PullPolicy = "IfNotPresent"
	PullNever        PullPolicy = "Never"
)

// registryTransport has no proxy of keep-alives to tune: pulls are rare. Its
// bounds make a dead registry an error instead of a hang.
var registryTransport http.RoundTripper = &http.Transport{
	Proxy:                 http.ProxyFromEnvironment,
	DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
	TLSHandshakeTimeout:   10 * time.Second,
	ResponseHeaderTimeout: 30 * time.Second,
	ForceAttemptHTTP2:     true,
	MaxIdleConns:          16,
	IdleConnTimeout:       30 * time.Second,
}

// Ensure returns the image a reference stands for, pulling it when the policy
// wants so. It tries once; backing off between attempts is the caller's part.
// Two calls for the same reference pull once.
func (s *Store) Ensure(ctx context.Context, ref string, policy PullPolicy) (*Image, error) {
	full, err := Normalize(ref)
	if err != nil {
		return nil, err
	}
	if policy != PullAlways {
		img, err := s.Lookup(full)
		if err == nil || policy == PullNever || !errors.Is(err, ErrNotPresent) {
			return img, err
		}
	}
	unlock, err := s.pulls.lock(ctx, full)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if policy != PullAlways {
		if img, err := s.Lookup(full); err == nil {
			return img, nil
		}
	}
	return s.pull(ctx, full)
}

func (s *Store) pull(ctx context.Context, full string) (*Image, error) {
	ref, err := s.parse(full)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opts := []remote.Option{
		remote.WithContext(ctx),
		remote.WithTransport(registryTransport),
		remote.WithAuth(authn.Anonymous),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
	}
	desc, err := remote.Get(ref, opts...)
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", full, err)
	}
	img, err := desc.Image()
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", full, err)
	}
	src, err := remoteSource(full, img, cancel)
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", full, err)
	}
	if have, err := s.Lookup(full); err == nil && have.Digest == digestBytes(src.manifest) {
		return have, nil
	}
	st, err := s.stage()
	if err != nil {
		return nil, err
	}
	defer st.close()
	if err := s.commit(ctx, st, []source{src}); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		return nil, fmt.Errorf("pull %s: %w", full, err)
	}
	return s.Lookup(full)
}

// parse parses a reference with the registry's scheme. The library itself
// tries plain HTTP for registries on this machine.
func (s *Store) parse(full string) (name.Reference, error) {
	ref, err := name.ParseReference(full)
	if err != nil {
		return nil, fmt.Errorf("%w %q: %w", ErrInvalidReference, full, err)
	}
	if slices.Contains(s.cfg.InsecureRegistries, ref.Context().RegistryStr()) {
		return name.ParseReference(full, name.Insecure)
	}
	return ref, nil
}

func remoteSource(full string, img v1.Image, cancel context.CancelCauseFunc) (source, error) {
	manifest, err := img.RawManifest()
	if err != nil {
		return source{}, err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return source{}, err
	}
	m, err := parseManifest(manifest)
	if err != nil {
		return source{}, err
	}
	if err := checkBlob("configuration", config, m.Config.Digest.String()); err != nil {
		return source{}, err
	}
	src := source{refs: []string{full}, manifest: manifest, config: config}
	for _, d := range m.Layers {
		src.layers = append(src.layers, layerSource{digest: d.Digest.String(), size: d.Size, open: func() (io.ReadCloser, error) {
			l, err := img.LayerByDigest(d.Digest)
			if err != nil {
				return nil, err
			}
			rc, err := l.Compressed()
			if err != nil {
				return nil, err
			}
			return newStallReader(rc, stallTimeout, cancel), nil
		}})
	}
	return src, nil
}

// stallReader cancels the pull when no byte came for a while: a transfer may
// take long, silence may not.
type stallReader struct {
	io.ReadCloser
	timeout time.Duration
	timer   *time.Timer
}

func newStallReader(rc io.ReadCloser, timeout time.Duration, cancel context.CancelCauseFunc) *stallReader {
	return &stallReader{rc, timeout, time.AfterFunc(timeout, func() {
		cancel(fmt.Errorf("registry sent nothing for %v", timeout))
	})}
}

func (r *stallReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if n > 0 {
		r.timer.Reset(r.timeout)
	}
	return n, err
}

func (r *stallReader) Close() error {
	r.timer.Stop()
	return r.ReadCloser.Close()
}
