package api

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/hashicorp/go-hclog"
)

func TestClientThatIsGoneIsToldNothing(t *testing.T) {
	s := &Server{logger: hclog.NewNullLogger()}
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequestWithContext(ctx, "POST", "/api/v1/namespaces/default/configmaps", nil)
	w := httptest.NewRecorder()
	s.writeError(w, r, context.DeadlineExceeded)
	if w.Code != 504 || w.Body.Len() == 0 {
		t.Errorf("one that waits got %d %s", w.Code, w.Body)
	}
	cancel()
	w = httptest.NewRecorder()
	s.writeError(w, r, context.Canceled)
	if w.Code != statusClientGone || w.Body.Len() != 0 {
		t.Errorf("one that is gone got %d %s", w.Code, w.Body)
	}
}
