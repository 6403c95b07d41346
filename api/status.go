package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shepherd-project/shepherd/fsm"
)

// statusClientGone counts requests whose client did not wait for the answer.
const statusClientGone = 499

// toStatus gives the metav1.Status that stands for err on the wire: an API
// error as it is, an expired deadline as 504, a store that has stopped as 503,
// anything else as 500.
func toStatus(err error) *metav1.Status {
	var api apierrors.APIStatus
	var status metav1.Status
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &api):
		status = api.Status()
	case errors.As(err, &tooLarge):
		status = apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", tooLarge.Limit)).Status()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		status = apierrors.NewTimeoutError("the request did not finish in time: "+err.Error(), 1).Status()
	default:
		status = apierrors.NewInternalError(err).Status()
	}
	status.Kind, status.APIVersion = "Status", "v1"
	if status.Status == "" {
		status.Status = metav1.StatusFailure
	}
	if status.Code == 0 {
		status.Code = http.StatusInternalServerError
	}
	return &status
}

// writeError answers with err as a metav1.Status in the form that the request
// accepts. It must be called before anything was written. A client that has
// gone away is told nothing: only the metrics show it, as code 499.
func (s *Server) writeError(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(r.Context().Err(), context.Canceled) {
		s.logger.Debug("client went away", "method", r.Method, "path", r.URL.Path, "error", err)
		w.WriteHeader(statusClientGone)
		return
	}
	status := toStatus(err)
	if status.Code >= 500 {
		s.logger.Warn("request failed", "method", r.Method, "path", r.URL.Path, "code", status.Code, "error", err)
	}
	setErrorHeaders(w.Header(), status)
	contentType, body := encodeStatus(r.Header.Get("Accept"), status)
	s.writeBody(w, r, int(status.Code), contentType, body)
}

// setErrorHeaders adds the headers that go with a failed status.
func setErrorHeaders(h http.Header, status *metav1.Status) {
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		h.Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
}

// encodeStatus encodes a Status in the first form of accept that can hold it,
// and as JSON when none can: an error must always reach the client.
func encodeStatus(accept string, status *metav1.Status) (contentType string, body []byte) {
	media, ok := negotiate(accept, shapesAny)
	if !ok {
		media = mediaType{form: formJSON}
	}
	body, err := encodeObject(media.form, statusGVK, status)
	if err != nil { // protobuf of a Status cannot fail; JSON is the form of last resort
		media.form = formJSON
		body = []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":500}`)
	}
	return media.form.contentType(), body
}

var statusGVK = schema.GroupVersionKind{Version: "v1", Kind: "Status"}

// errPathNotFound is the answer to a path that the server does not know.
func errPathNotFound(verb string, gr schema.GroupResource, name string) *apierrors.StatusError {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, verb, gr, name, "", 0, true)
}

// errMethodNotAllowed is the answer to a method that the path does not have.
func errMethodNotAllowed(gr schema.GroupResource, verb string) *apierrors.StatusError {
	return apierrors.NewMethodNotSupported(gr, verb)
}

// errNotAcceptable is the answer when no entry of Accept can be served.
func errNotAcceptable(accepted string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotAcceptable,
		Reason:  metav1.StatusReasonNotAcceptable,
		Message: "only the following media types are accepted: " + accepted,
	}}
}

// errUnsupportedMediaType is the answer to a body of a type that cannot be read.
func errUnsupportedMediaType(accepted string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusUnsupportedMediaType,
		Reason:  metav1.StatusReasonUnsupportedMediaType,
		Message: "the body of the request was in an unknown format - accepted media types include: " + accepted,
	}}
}

// errTooLargeResourceVersion is the answer to a resourceVersion that this
// replica has not reached within the time that it waits: 504 with a cause that
// clients know, and a retry after a second.
func errTooLargeResourceVersion(asked, current uint64) *apierrors.StatusError {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", asked, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type:    metav1.CauseTypeResourceVersionTooLarge,
		Message: "Too large resource version",
	}}
	return err
}

// errExpired is the 410 for a resourceVersion that the store no longer holds.
func errExpired(rev uint64) *apierrors.StatusError {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d", rev))
}

// storeError turns an error of the store about revision rev into its answer.
func (s *Server) storeError(err error, rev uint64) error {
	switch {
	case errors.Is(err, fsm.ErrCompacted):
		return errExpired(rev)
	case errors.Is(err, fsm.ErrFuture):
		return errTooLargeResourceVersion(rev, s.cfg.Store.View().Revision())
	}
	return err
}
