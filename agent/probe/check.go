// Package probe asks containers whether they have started, live and are ready.
package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// ErrUnsupported is returned for a kind of probe that this node cannot run.
var ErrUnsupported = errors.New("unsupported probe")

// maxBody is how much of an answer is read, in bytes.
const maxBody = 10 << 10

// Target is the container to be probed.
type Target struct {
	// IP is the pod's address.
	IP string
	// Ports are the container's ports, for probes that name one.
	Ports []corev1.ContainerPort
	// Exec runs a command in the container and returns its exit code and
	// output.
	Exec func(ctx context.Context, args []string) (int, string, error)
}

// transport makes a connection for each probe: it asks whether the container
// takes connections, not whether an old one is still open.
var transport = &http.Transport{
	DisableKeepAlives:  true,
	DisableCompression: true,
	TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, // a pod's certificate names its service
	Proxy:              nil,
}

// Check runs the probe once. The error says why it failed; nil is success.
func Check(ctx context.Context, p *corev1.Probe, t Target) error {
	ctx, cancel := context.WithTimeout(ctx, seconds(p.TimeoutSeconds, 1))
	defer cancel()
	switch {
	case p.HTTPGet != nil:
		return checkHTTP(ctx, p.HTTPGet, t)
	case p.TCPSocket != nil:
		return checkTCP(ctx, p.TCPSocket, t)
	case p.Exec != nil:
		return checkExec(ctx, p.Exec, t)
	}
	return ErrUnsupported
}

func seconds(n, least int32) time.Duration {
	return time.Duration(max(n, least)) * time.Second
}

// port resolves a number or a name.
func port(p intstr.IntOrString, t Target) (string, error) {
	n := p.IntValue()
	if p.Type == intstr.String {
		for _, cp := range t.Ports {
			if cp.Name == p.StrVal {
				n = int(cp.ContainerPort)
			}
		}
	}
	if n < 1 || n > 65535 {
		return "", fmt.Errorf("port %s is neither a number nor a port's name", p.String())
	}
	return strconv.Itoa(n), nil
}

func checkHTTP(ctx context.Context, a *corev1.HTTPGetAction, t Target) error {
	number, err := port(a.Port, t)
	if err != nil {
		return err
	}
	host := a.Host
	if host == "" {
		host = t.IP
	}
	path, query, _ := strings.Cut(a.Path, "?")
	u := url.URL{Scheme: "http", Host: net.JoinHostPort(host, number), Path: "/" + strings.TrimPrefix(path, "/"), RawQuery: query}
	if a.Scheme == corev1.URISchemeHTTPS {
		u.Scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "shepherd-probe/1")
	req.Header.Set("Accept", "*/*")
	for _, h := range a.HTTPHeaders {
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			req.Host = h.Value
			continue
		}
		req.Header.Add(h.Name, h.Value)
	}
	client := http.Client{Transport: transport, CheckRedirect: sameHost}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return err
	}
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("HTTP probe failed with statuscode: %d: %.200s", resp.StatusCode, body)
	}
	return nil
}

// sameHost follows redirects within the container only; one that leads
// elsewhere counts as the answer.
func sameHost(req *http.Request, via []*http.Request) error {
	if len(via) >= 10 || req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	return nil
}

func checkTCP(ctx context.Context, a *corev1.TCPSocketAction, t Target) error {
	number, err := port(a.Port, t)
	if err != nil {
		return err
	}
	host := a.Host
	if host == "" {
		host = t.IP
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, number))
	if err != nil {
		return err
	}
	return conn.Close()
}

func checkExec(ctx context.Context, a *corev1.ExecAction, t Target) error {
	if t.Exec == nil {
		return ErrUnsupported
	}
	code, out, err := t.Exec(ctx, a.Command)
	if err != nil {
		return err
	}
	if code != 0 {
		return fmt.Errorf("command exited with %d: %.200s", code, out)
	}
	return nil
}
