package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shepherd-project/shepherd/api/resource"
)

// maxAgentError is how much of an agent's error text is passed on, in bytes.
const maxAgentError = 4 << 10

// newLogTransport speaks HTTP to the agents over their sessions; the host of a
// URL is the name of the node.
func newLogTransport(streams *Streams, wait time.Duration) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			node, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			ctx, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			return streams.Dial(ctx, node)
		},
		DisableKeepAlives:  true, // a stream is cheaper than the question whether an old one lives
		DisableCompression: true,
	}
}

// serveLogs answers with the log of one container, from the agent of the pod's
// node; with follow until the container ends or the client goes away.
func (s *Server) serveLogs(w http.ResponseWriter, r *http.Request, info requestInfo) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		select {
		case <-s.closed:
			cancel()
		case <-ctx.Done():
		}
	}()

	pod, err := s.podForLogs(ctx, r, info)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	target, err := logTarget(pod, info.Query)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	resp, err := s.askAgent(ctx, pod.Spec.NodeName, target)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	defer resp.Body.Close()
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	if err := copyFlushing(w, resp.Body); err != nil && ctx.Err() == nil {
		s.logger.Debug("log stream broke", "path", r.URL.Path, "error", err)
		panic(http.ErrAbortHandler) // the client must see that it broke
	}
}

// podForLogs finds the pod, once the caller may read its logs.
func (s *Server) podForLogs(ctx context.Context, r *http.Request, info requestInfo) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	view, err := s.readView(ctx, 0)
	if err != nil {
		return nil, err
	}
	if err := s.authorize(view, identityFrom(r.Context()), info); err != nil {
		return nil, err
	}
	pod, found, err := resource.Get[*corev1.Pod](s.decoder, view, "pods", info.Namespace, info.Name)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, apierrors.NewNotFound(info.groupResource(), info.Name)
	}
	return pod, nil
}

// logTarget is the agent's URL for the log that the query asks for.
func logTarget(pod *corev1.Pod, query url.Values) (*url.URL, error) {
	container, err := logContainer(pod, query.Get("container"))
	if err != nil {
		return nil, err
	}
	if pod.Spec.NodeName == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", pod.Name))
	}
	out := url.Values{"podUID": {string(pod.UID)}}
	for _, name := range []string{"follow", "previous", "timestamps"} {
		if queryBool(query, name) {
			out.Set(name, "true")
		}
	}
	var errs field.ErrorList
	for name, least := range map[string]int64{"tailLines": 0, "limitBytes": 1, "sinceSeconds": 1} {
		text := query.Get(name)
		if text == "" {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("%s: %q is not a number", name, text))
		}
		if n < least {
			errs = append(errs, field.Invalid(field.NewPath(name), n, fmt.Sprintf("must be greater than or equal to %d", least)))
		}
		out.Set(name, text)
	}
	if text := query.Get("sinceTime"); text != "" {
		if _, err := time.Parse(time.RFC3339, text); err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("sinceTime: %q is not a time in RFC 3339 format", text))
		}
		if out.Has("sinceSeconds") {
			errs = append(errs, field.Forbidden(field.NewPath("sinceTime"), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
		}
		out.Set("sinceTime", text)
	}
	if len(errs) > 0 {
		slices.SortFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "PodLogOptions"}, pod.Name, errs)
	}
	path := "/containerLogs/" + pod.Namespace + "/" + pod.Name + "/" + container
	return &url.URL{Scheme: "http", Path: path, RawQuery: out.Encode()}, nil
}

// logContainer is the container that is meant: the only one when none is named.
func logContainer(pod *corev1.Pod, name string) (string, error) {
	var containers, inits, ephemeral []string
	for _, c := range pod.Spec.Containers {
		containers = append(containers, c.Name)
	}
	for _, c := range pod.Spec.InitContainers {
		inits = append(inits, c.Name)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		ephemeral = append(ephemeral, c.Name)
	}
	if name == "" {
		if len(containers) == 1 {
			return containers[0], nil
		}
		message := fmt.Sprintf("a container name must be specified for pod %s, choose one of: %v", pod.Name, containers)
		if len(inits) > 0 {
			message += fmt.Sprintf(" or one of the init containers: %v", inits)
		}
		return "", apierrors.NewBadRequest(message)
	}
	if !slices.Contains(slices.Concat(containers, inits, ephemeral), name) {
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, pod.Name))
	}
	return name, nil
}

// askAgent asks the node's agent; an answer other than 200 is an error.
func (s *Server) askAgent(ctx context.Context, node string, target *url.URL) (*http.Response, error) {
	target.Host = node
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("request to node %s: %w", node, err)
	}
	resp, err := s.logTransport.RoundTrip(req)
	switch {
	case errors.Is(err, ErrNoStream):
		return nil, unreachable(node, ErrNoStream)
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, unreachable(node, err)
	case resp.StatusCode == http.StatusOK:
		return resp, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAgentError))
	if err != nil {
		return nil, unreachable(node, err)
	}
	return nil, agentError(resp.StatusCode, strings.TrimSpace(string(text)))
}

// unreachable is the 503 for a node that does not answer. It asks for no retry:
// clients would hide it from their user for a minute.
func unreachable(node string, err error) error {
	return apierrors.NewServiceUnavailable(fmt.Sprintf("node %s cannot be reached: %v", node, err))
}

// agentError is an agent's refusal as an answer of this API.
func agentError(code int, text string) error {
	switch {
	case code == http.StatusBadRequest:
		return apierrors.NewBadRequest(text)
	case code == http.StatusNotFound:
		err := apierrors.NewNotFound(schema.GroupResource{Resource: "pods/log"}, "")
		err.ErrStatus.Message = text
		return err
	case code == http.StatusServiceUnavailable:
		return apierrors.NewServiceUnavailable(text)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError,
		Message: fmt.Sprintf("the node answered with %d: %s", code, text),
	}}
}

// copyFlushing copies a stream and sends on at once what has arrived.
func copyFlushing(w http.ResponseWriter, from io.Reader) error {
	control := http.NewResponseController(w)
	if err := control.Flush(); err != nil {
		return err
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			if err := control.Flush(); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
