package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shepherd-project/shepherd/agent/upstream"
	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
)

// joinPace is how fast agents are switched on, on average.
const joinPace = 10 * time.Millisecond

// fleet is all the agents. Its counters are safe for concurrent use.
type fleet struct {
	every            time.Duration
	reconnect, watch bool
	agents           []*simAgent
	wg               sync.WaitGroup

	beats, failed, others, dials atomic.Int64 // since the start
	worst                        atomic.Int64 // the longest heartbeat since it was asked for, ns
}

// simAgent is one agent. beats and api are connections of their own, as the
// real one's are.
type simAgent struct {
	fleet      *fleet
	node       string
	beats, api *upstream.Transport
	sequence   uint64
	known      atomic.Bool
}

// newFleet issues each agent a certificate, by the first server's CA.
func newFleet(b *bench) (*fleet, error) {
	ca, err := pki.LoadCA(filepath.Join(b.servers[0].dir, "pki"))
	if err != nil {
		return nil, err
	}
	key, err := pki.NewKey() // one for all: only the names must differ
	if err != nil {
		return nil, err
	}
	keyPEM, err := pki.EncodeKey(key)
	if err != nil {
		return nil, err
	}
	var seeds []string
	for _, s := range b.servers {
		seeds = append(seeds, s.address)
	}
	verifier := pki.NewVerifier(ca, time.Now)
	f := &fleet{every: b.every, reconnect: b.reconnect, watch: b.watch}
	for i := range b.agents {
		a := &simAgent{fleet: f, node: fmt.Sprintf("sim-%05d", i)}
		certPEM, err := ca.Issue(pki.Request{Role: pki.RoleAgent, Name: a.node, Public: &key.PublicKey}, time.Now())
		if err != nil {
			return nil, err
		}
		cert, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			return nil, err
		}
		config := verifier.ClientConfig(nil)
		config.Certificates = []tls.Certificate{cert}
		cfg := upstream.DefaultConfig()
		cfg.Seeds, cfg.TLS = seeds, func() (*tls.Config, error) {
			f.dials.Add(1)
			return config, nil
		}
		pool, err := upstream.New(cfg)
		if err != nil {
			return nil, err
		}
		if err := pool.Update(seeds); err != nil { // as learned: in an order of its own
			return nil, err
		}
		a.beats, a.api = pool.NewTransport(), pool.NewTransport()
		f.agents = append(f.agents, a)
	}
	return f, nil
}

// start runs all agents until the context ends; wait waits for that.
func (f *fleet) start(ctx context.Context) {
	for _, a := range f.agents {
		f.wg.Go(func() {
			// They were not all switched on at the same moment.
			if !pause(ctx, rand.N(max(f.every, time.Duration(len(f.agents))*joinPace))) {
				return
			}
			if f.watch {
				f.wg.Go(func() { a.follow(ctx) })
			}
			a.beat(ctx)
		})
	}
}

func (f *fleet) wait() { f.wg.Wait() }

// heard is how many agents have had a heartbeat acknowledged.
func (f *fleet) heard() (n int) {
	for _, a := range f.agents {
		if a.known.Load() {
			n++
		}
	}
	return n
}

// beat is agent.heartbeat's loop.
func (a *simAgent) beat(ctx context.Context) {
	again := retry{base: 500 * time.Millisecond, limit: a.fleet.every}
	for ctx.Err() == nil {
		wait := a.fleet.every
		if err := a.heartbeat(ctx); err != nil {
			a.fleet.failed.Add(1)
			wait = again.next()
		} else {
			again.n = 0
			a.known.Store(true)
		}
		if a.fleet.reconnect {
			a.beats.CloseIdleConnections()
		}
		pause(ctx, wait)
	}
}

func (a *simAgent) heartbeat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(upstream.WithRetry(ctx), 2*a.fleet.every)
	defer cancel()
	a.sequence++
	body, err := json.Marshal(wire.Heartbeat{Sequence: a.sequence, BootID: a.node})
	if err != nil {
		return err
	}
	begun := time.Now()
	a.fleet.beats.Add(1)
	data, err := a.call(ctx, a.beats, http.MethodPost, wire.PathHeartbeat, body)
	if err != nil {
		return err
	}
	took := int64(time.Since(begun))
	for old := a.fleet.worst.Load(); took > old && !a.fleet.worst.CompareAndSwap(old, took); old = a.fleet.worst.Load() {
	}
	var ack wire.HeartbeatAck
	if err := json.Unmarshal(data, &ack); err != nil {
		return err
	}
	if ack.Sequence != a.sequence {
		return fmt.Errorf("heartbeat %d was answered as %d", a.sequence, ack.Sequence)
	}
	return nil
}

// follow is agent.follower's loop, under its persist.
func (a *simAgent) follow(ctx context.Context) {
	const limit = 5 * time.Second
	again := retry{base: 200 * time.Millisecond, limit: limit}
	for ctx.Err() == nil {
		begun := time.Now()
		if err := a.listAndWatch(ctx); err != nil && ctx.Err() == nil {
			a.fleet.failed.Add(1)
			pause(ctx, upstream.Spread(len(a.fleet.agents)))
		}
		if time.Since(begun) > limit {
			again.n = 0
		}
		pause(ctx, again.next())
	}
}

// listAndWatch ends when the watch does, which is an error.
func (a *simAgent) listAndWatch(ctx context.Context) error {
	query := url.Values{"fieldSelector": {"spec.nodeName=" + a.node}}
	bound, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	a.fleet.others.Add(1)
	data, err := a.call(bound, a.api, http.MethodGet, "/api/v1/pods?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	var list struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	query.Set("watch", "true")
	query.Set("allowWatchBookmarks", "true")
	query.Set("resourceVersion", list.Metadata.ResourceVersion)
	query.Set("timeoutSeconds", fmt.Sprint(300+rand.N(300)))
	a.fleet.others.Add(1)
	_, err = a.call(ctx, a.api, http.MethodGet, "/api/v1/pods?"+query.Encode(), nil)
	return err
}

// call reads the answer to its end: a watch's is the end of the watch.
func (a *simAgent) call(ctx context.Context, t http.RoundTripper, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "https://"+upstream.Host+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := t.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, data)
	}
	return data, err
}

// retry is the agents' own back-off.
type retry struct {
	base, limit time.Duration
	n           int
}

func (r *retry) next() time.Duration {
	d := min(r.base<<min(r.n, 20), r.limit)
	r.n++
	return d/2 + rand.N(d/2+1)
}
