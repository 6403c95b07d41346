package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"

	"github.com/shepherd-project/shepherd/agent/runtime"
)

// logRuntime is what serving logs needs of the runtime.
type logRuntime interface {
	Logs(ctx context.Context, podUID, container string, o runtime.LogOptions) (io.ReadCloser, error)
}

// logServer answers the servers' requests for logs:
// GET /containerLogs/NAMESPACE/POD/CONTAINER?podUID=UID&...
type logServer struct {
	runtime logRuntime
	find    func(uid string) *corev1.Pod
	logger  hclog.Logger
}

func (l *logServer) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", l.serve)
	return mux
}

func (l *logServer) serve(w http.ResponseWriter, r *http.Request) {
	uid, container := r.URL.Query().Get("podUID"), r.PathValue("container")
	options, err := logOptions(r.URL.Query(), time.Now())
	if err != nil || uid == "" {
		http.Error(w, fmt.Sprintf("bad log request: %v", errors.Join(err)), http.StatusBadRequest)
		return
	}
	pod := l.find(uid)
	if pod != nil && (pod.Namespace != r.PathValue("namespace") || pod.Name != r.PathValue("pod")) {
		http.Error(w, "the pod has another name", http.StatusNotFound)
		return
	}
	logs, err := l.runtime.Logs(r.Context(), uid, container, options)
	switch {
	case errors.Is(err, runtime.ErrNotFound):
		code, text := logMissing(pod, r.PathValue("pod"), container, options.Previous)
		http.Error(w, text, code)
		return
	case err != nil:
		l.logger.Warn("logs", "pod", r.PathValue("pod"), "container", container, "error", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer logs.Close()
	// Reading waits for new lines without looking at the request.
	stop := context.AfterFunc(r.Context(), func() { logs.Close() })
	defer stop()
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	if err := copyLogs(w, logs); err != nil && r.Context().Err() == nil {
		l.logger.Debug("log stream broke", "pod", r.PathValue("pod"), "error", err)
		panic(http.ErrAbortHandler) // the reader must see that it broke
	}
}

// copyLogs sends on at once what has been read.
func copyLogs(w http.ResponseWriter, logs io.Reader) error {
	control := http.NewResponseController(w)
	if err := control.Flush(); err != nil {
		return err
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := logs.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			if err := control.Flush(); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// logMissing says why there is no log, in the words that clients know.
func logMissing(pod *corev1.Pod, name, container string, previous bool) (int, string) {
	if previous {
		return http.StatusBadRequest, fmt.Sprintf("previous terminated container %q in pod %q not found", container, name)
	}
	if pod == nil {
		return http.StatusNotFound, fmt.Sprintf("pod %q is not on this node", name)
	}
	reason := "ContainerCreating"
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range list {
			if s.Name == container && s.State.Waiting != nil && s.State.Waiting.Reason != "" {
				reason = s.State.Waiting.Reason
			}
		}
	}
	return http.StatusBadRequest, fmt.Sprintf("container %q in pod %q is waiting to start: %s", container, name, reason)
}

func logOptions(q url.Values, now time.Time) (runtime.LogOptions, error) {
	var o runtime.LogOptions
	var errs []error
	flag := func(name string) bool {
		if !q.Has(name) {
			return false
		}
		v, err := strconv.ParseBool(q.Get(name))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %q is neither true nor false", name, q.Get(name)))
		}
		return v
	}
	number := func(name string) (int64, bool) {
		if !q.Has(name) {
			return 0, false
		}
		v, err := strconv.ParseInt(q.Get(name), 10, 64)
		if err != nil || v < 0 {
			errs = append(errs, fmt.Errorf("%s: %q is not a number of zero or more", name, q.Get(name)))
		}
		return v, true
	}
	o.Follow, o.Previous, o.Timestamps = flag("follow"), flag("previous"), flag("timestamps")
	if n, ok := number("tailLines"); ok {
		o.TailLines = &n
	}
	o.LimitBytes, _ = number("limitBytes")
	if n, ok := number("sinceSeconds"); ok {
		o.SinceTime = now.Add(-time.Duration(n) * time.Second)
	}
	if text := q.Get("sinceTime"); text != "" {
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			errs = append(errs, fmt.Errorf("sinceTime: %w", err))
		}
		o.SinceTime = t
	}
	return o, errors.Join(errs...)
}
