package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shepherd-project/shepherd/agent/upstream"
	"github.com/shepherd-project/shepherd/api/wire"
)

// callTimeout bounds one call to the API other than a watch.
const callTimeout = 15 * time.Second

// objects reads what pods refer to, always the newest.
type objects struct{ client *client }

// ConfigMap implements volume.Objects.
func (o objects) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return o.client.ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Secret implements volume.Objects.
func (o objects) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return o.client.Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
}

// maxAnswer is the largest answer on Shepherd's own paths, in bytes.
const maxAnswer = 1 << 20

// call sends a request on one of Shepherd's own paths. in may be nil.
func call(ctx context.Context, transport http.RoundTripper, method, path string, in, out any) error {
	req, err := newCall(ctx, method, path, in)
	if err != nil {
		return err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		var e wire.Error
		if json.Unmarshal(data, &e) != nil || e.Message == "" {
			e.Message = resp.Status
		}
		return fmt.Errorf("%s: %w", path, errors.New(e.Message))
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func newCall(ctx context.Context, method, path string, in any) (*http.Request, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "https://"+upstream.Host+path, body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	req.Header.Set("Content-Type", "application/json")
	return req, nil
}
