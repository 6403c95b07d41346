package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
)

// ErrRefused is wrapped when a server answered and said no: asking again does
// not help.
var ErrRefused = errors.New("the cluster refused")

// Joiner asks servers to let this machine in. It goes round the servers until
// one answers, so that machines may start in any order.
type Joiner struct {
	// Servers are HOST:PORT addresses.
	Servers []string
	// Retry is the pause between two rounds; zero means one second.
	Retry time.Duration
	// Timeout bounds one attempt at one server; zero means ten seconds.
	Timeout time.Duration
	// DialContext opens the TCP connection; nil means net.Dialer's.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	Logger      hclog.Logger
}

// Join presents the token. The server's CA is checked against the token's pin
// before anything is sent. It returns when a server has let the machine in or
// has refused (ErrRefused, pki.ErrPin), or with ctx's error and the last one.
func (j *Joiner) Join(ctx context.Context, token pki.Token, req wire.JoinRequest) (*wire.JoinResponse, *pki.CA, error) {
	var res wire.JoinResponse
	err := j.ask(ctx, pki.PinnedConfig(token.CAPin, time.Now), wire.PathJoin, token.Reveal(), req, &res)
	if err != nil {
		return nil, nil, fmt.Errorf("join as %s %q: %w", req.Role, req.Name, err)
	}
	ca, err := pki.ParseCA([]byte(res.CA), []byte(res.CAKey))
	if err != nil {
		return nil, nil, fmt.Errorf("join as %s %q: the answer is damaged: %w", req.Role, req.Name, err)
	}
	if ca.Pin() != token.CAPin || ca.ClusterID() != res.ClusterID {
		return nil, nil, fmt.Errorf("join as %s %q: the answer: %w", req.Role, req.Name, pki.ErrPin)
	}
	if token.Role == pki.RoleServer && !ca.CanIssue() {
		return nil, nil, fmt.Errorf("join as server %q: the answer has no CA key", req.Name)
	}
	return &res, ca, nil
}

// Enter is a server's second step: its port is up, make it a member.
func (j *Joiner) Enter(ctx context.Context, verifier *pki.Verifier, source *pki.Source, self wire.Server) error {
	var res wire.ServerList
	if err := j.ask(ctx, verifier.ClientConfig(source), PathMembers, "", self, &res); err != nil {
		return fmt.Errorf("become a member of the cluster: %w", err)
	}
	return nil
}

// Renew gets an agent's source a new certificate.
func (j *Joiner) Renew(ctx context.Context, verifier *pki.Verifier, source *pki.Source) error {
	csr, err := pki.NewCSR(source.Key(), nil)
	if err != nil {
		return err
	}
	var res wire.RenewResponse
	if err := j.ask(ctx, verifier.ClientConfig(source), wire.PathRenew, "", wire.RenewRequest{CSR: string(csr)}, &res); err != nil {
		return fmt.Errorf("renew the certificate: %w", err)
	}
	return source.Install([]byte(res.Certificate))
}

// ask goes round the servers until one answers with success or refuses.
func (j *Joiner) ask(ctx context.Context, cfg *tls.Config, path, token string, question, answer any) error {
	if len(j.Servers) == 0 {
		return errors.New("there is no server to ask")
	}
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	retry, timeout := j.Retry, j.Timeout
	if retry <= 0 {
		retry = time.Second
	}
	if timeout <= 0 {
		timeout = 10 * time.Second
	}
	cfg.NextProtos = []string{"http/1.1"}
	transport := &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true, DialContext: j.DialContext}
	defer transport.CloseIdleConnections()
	logged := ""
	for {
		var failures []error
		for _, server := range j.Servers {
			err := j.askOne(ctx, transport, timeout, server, path, token, body, answer)
			if err == nil || permanent(err) {
				return err
			}
			failures = append(failures, err)
		}
		all := errors.Join(failures...)
		if j.Logger != nil && all.Error() != logged {
			logged = all.Error()
			j.Logger.Warn("no server has answered yet; still trying", "error", strings.ReplaceAll(logged, "\n", "; "))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), all)
		case <-time.After(retry):
		}
	}
}

// permanent reports whether asking again, or another server, cannot help.
func permanent(err error) bool { return errors.Is(err, ErrRefused) || errors.Is(err, pki.ErrPin) }

func (j *Joiner) askOne(ctx context.Context, transport *http.Transport, timeout time.Duration, server, path, token string, body []byte, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+server+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("server %q: %w", server, err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("server %s: %w", server, err)
	}
	defer res.Body.Close() // read-only
	out, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("server %s: %w", server, err)
	}
	if res.StatusCode == http.StatusOK {
		if err := json.Unmarshal(out, answer); err != nil {
			return fmt.Errorf("server %s: its answer is damaged: %w", server, err)
		}
		return nil
	}
	var e wire.Error
	if err := json.Unmarshal(out, &e); err != nil || e.Message == "" {
		e.Message = res.Status
	}
	if res.StatusCode == http.StatusGone {
		return fmt.Errorf("server %s: %w: %w: %s", server, ErrRefused, ErrRemoved, e.Message)
	}
	if res.StatusCode >= 400 && res.StatusCode < 500 && res.StatusCode != http.StatusTooManyRequests {
		return fmt.Errorf("server %s: %w: %s", server, ErrRefused, e.Message)
	}
	return fmt.Errorf("server %s: %s", server, e.Message)
}
