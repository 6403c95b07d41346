package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shepherd-project/shepherd/api/wire"
)

const (
	typeJSON     = "application/json"
	typeProtobuf = "application/vnd.kubernetes.protobuf"
)

// server is three of Shepherd's servers as they are shipped. The writers come
// by HTTPS, over HTTP/2.
type server struct {
	processes
	program, mediaType string
	extra              []string // of the daemons' command line
	urls               []string // the leader's first
	tls                *tls.Config
}

func (s *server) begin(ctx context.Context, dir string) error {
	s.urls = nil
	var first string
	for i, name := range []string{"a", "b", "c"} {
		address, err := freeAddress()
		if err != nil {
			return err
		}
		data := filepath.Join(dir, name)
		args := []string{"--mode", "server", "--name", name, "--addr", address, "--data-dir", data, "--log-level", "warn"}
		if name == "a" {
			first, args = address, append(args, "--bootstrap")
		} else {
			args = append(args, "--join", first, "--token-file", filepath.Join(dir, "a", "token", "server"))
		}
		if err := s.start(filepath.Join(dir, name+".log"), exec.Command(s.program, append(args, s.extra...)...)); err != nil {
			return err
		}
		s.urls = append(s.urls, "https://"+address)
		if err := poll(ctx, func() error { return s.ready(ctx, dir, i+1) }); err != nil {
			return fmt.Errorf("server %s, see %s: %w", name, filepath.Join(dir, name+".log"), err)
		}
	}
	for _, url := range s.urls {
		if err := poll(ctx, func() error { _, err := s.get(ctx, url+"/readyz"); return err }); err != nil {
			return err
		}
	}
	return nil
}

// ready asks the first server, which leads the cluster that it began.
func (s *server) ready(ctx context.Context, dir string, members int) error {
	if _, err := os.Stat(filepath.Join(dir, "a", "token", "server")); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "a", "admin.kubeconfig"))
	if err != nil {
		return err
	}
	if s.tls, err = rest.TLSConfigFor(config); err != nil {
		return err
	}
	body, err := s.get(ctx, s.urls[0]+wire.PathStatus)
	if err != nil {
		return err
	}
	var st wire.ClusterStatus
	if err := json.Unmarshal(body, &st); err != nil {
		return err
	}
	if st.Leader != "a" {
		return fmt.Errorf("%q leads", st.Leader)
	}
	return healthy(st, members)
}

func (s *server) get(ctx context.Context, url string) ([]byte, error) {
	c := s.client()
	defer c.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return body, err
}

// healthy fails unless that many voters are well.
func healthy(st wire.ClusterStatus, members int) error {
	well := 0
	for _, m := range st.Members {
		if m.Healthy && m.Role != wire.RoleNonvoter {
			well++
		}
	}
	if well != members {
		return fmt.Errorf("%d of %d voters are well", well, members)
	}
	return nil
}

// client has one connection.
func (s *server) client() *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: s.tls.Clone(), Protocols: &protocols, DisableCompression: true}}
}

func (s *server) load(ctx context.Context, l load) result {
	encode := encodeJSON
	if s.mediaType == typeProtobuf {
		encode = encodeProtobuf
	}
	return l.run(func(conn int) (write, error) {
		c, url := s.client(), s.urls[conn%len(s.urls)]
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
		if err != nil {
			return nil, err
		}
		if _, err := do(c, req, http.StatusOK); err != nil { // connects
			return nil, err
		}
		return func(ctx context.Context, name string, value []byte) error {
			body, err := encode(name, value)
			if err != nil {
				return err
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/api/v1/namespaces/default/configmaps", bytes.NewReader(body))
			if err != nil {
				return err
			}
			req.Header.Set("Content-Type", s.mediaType)
			req.Header.Set("Accept", s.mediaType)
			_, err = do(c, req, http.StatusCreated)
			return err
		}, nil
	})
}

func do(c *http.Client, req *http.Request, want int) ([]byte, error) {
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != want {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return body, err
}

func encodeJSON(name string, value []byte) ([]byte, error) {
	return fmt.Appendf(nil, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q,"namespace":"default"},"data":{"v":%q}}`, name, value), nil
}

func encodeProtobuf(name string, value []byte) ([]byte, error) {
	raw, err := (&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Data: map[string]string{"v": string(value)},
	}).Marshal()
	if err != nil {
		return nil, err
	}
	envelope, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Raw: raw}).Marshal()
	return append([]byte("k8s\x00"), envelope...), err
}
