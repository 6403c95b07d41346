package api

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

// single is a consensus of one replica over a real store: a proposal is an
// entry that is applied at once. Tests can make it lose leadership or answers.
type single struct {
	store *fsm.Store

	mu      sync.Mutex
	handler func(context.Context, *wire.Request) *wire.Response
	index   uint64
	term    uint64
	leading bool
	now     time.Time
	// before, if set, sees each command before it is applied; an error keeps
	// it out of the log. after, if set, can replace the answer.
	before func(fsm.Command) error
	after  func(fsm.Command, fsm.Result) error
	// proposals counts the commands that were applied.
	proposals int
}

func newSingle(store *fsm.Store) *single {
	return &single{store: store, term: 1, leading: true, now: time.Date(2026, 3, 1, 12, 0, 0, 5e8, time.UTC)}
}

func (c *single) Leadership() (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.term, c.leading
}

func (c *single) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *single) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// hooks returns the hooks for one command.
func (c *single) hooks() (func(fsm.Command) error, func(fsm.Command, fsm.Result) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.before, c.after
}

func (c *single) setHooks(before func(fsm.Command) error, after func(fsm.Command, fsm.Result) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before, c.after = before, after
}

func (c *single) Propose(_ context.Context, cmd fsm.Command) (fsm.Result, error) {
	before, after := c.hooks()
	if before != nil {
		if err := before(cmd); err != nil {
			return fsm.Result{}, err
		}
	}
	result := c.apply(cmd)
	if after != nil {
		if err := after(cmd, result); err != nil {
			return fsm.Result{}, err
		}
	}
	return result, nil
}

func (c *single) apply(cmd fsm.Command) fsm.Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index++
	c.proposals++
	cmd.Time = c.now.UnixNano()
	results := c.store.Apply(&raft.Log{Index: c.index, Term: c.term, Type: raft.LogCommand, Data: fsm.EncodeEntry([]fsm.Command{cmd})})
	return results.([]fsm.Result)[0]
}

func (c *single) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proposals
}

func (c *single) ReadIndex(ctx context.Context) error { return ctx.Err() }

// Forward sends the request through its wire form, and again while there is
// no leader's answer.
func (c *single) Forward(ctx context.Context, req *wire.Request) (*wire.Response, error) {
	for attempt := range 5 {
		one := *req
		one.Term, one.Attempt = c.term, uint64(attempt+1)
		sent, err := wire.DecodeRequest(wire.EncodeRequest(&one))
		if err != nil {
			return nil, err
		}
		resp := c.handler(ctx, sent)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if resp, err = wire.DecodeResponse(wire.EncodeResponse(resp)); err != nil {
			return nil, err
		}
		if !resp.NotLeader {
			return resp, nil
		}
	}
	return nil, errors.New("no leader")
}

// fixture is a real Server behind TLS, over one store.
type fixture struct {
	t         *testing.T
	store     *fsm.Store
	consensus *single
	server    *Server
	http      *httptest.Server
}

// newFixture serves the API with the system's namespaces in place. change may
// adjust the configuration.
func newFixture(t *testing.T, change ...func(*Config)) *fixture {
	t.Helper()
	store := fsm.New(fsm.DefaultConfig())
	consensus := newSingle(store)
	cfg := DefaultConfig()
	cfg.Store, cfg.Consensus, cfg.Authenticate = store, consensus, fixtureAuthenticate
	cfg.Logger = hclog.NewNullLogger()
	cfg.Write.Rand = rand.New(rand.NewPCG(1, 2))
	for _, f := range change {
		f(&cfg)
	}
	server, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	consensus.handler = server.HandleForwarded
	f := &fixture{t: t, store: store, consensus: consensus, server: server}
	f.http = httptest.NewUnstartedServer(server)
	f.http.EnableHTTP2 = true
	f.http.StartTLS()
	t.Cleanup(func() {
		server.Close()
		f.http.Close()
	})
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		f.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return f
}

// fixtureAuthenticate takes "Bearer admin" for the administrator and
// "Bearer node:NAME" for the agent of that node.
func fixtureAuthenticate(r *http.Request) (Identity, bool) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return Identity{}, false
	}
	if node, ok := strings.CutPrefix(token, "node:"); ok {
		return Identity{User: "system:node:" + node, Groups: []string{"system:nodes"}, Node: node}, true
	}
	return Identity{User: token, Groups: []string{groupMasters}}, token == "admin"
}

// put stores a new object past the API, as a controller does.
func (f *fixture) put(obj runtime.Object) {
	f.t.Helper()
	kind := resource.ForObject(obj)
	kind.Default(obj)
	resource.SetCreated(obj.(metav1.Object), resource.NewUID(&f.server.writes.random), f.consensus.Now())
	kind.PrepareForCreate(obj)
	op, err := resource.CreateOp(obj)
	if err != nil {
		f.t.Fatal(err)
	}
	term, _ := f.consensus.Leadership()
	if result := f.consensus.apply(fsm.Command{Term: term, Ops: []fsm.Op{op}}); result.Code != fsm.OK {
		f.t.Fatalf("put %s: %v", op.Key, result)
	}
}

func (f *fixture) config(token string) *rest.Config {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.http.Certificate().Raw})
	return &rest.Config{
		Host: f.http.URL, BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: ca},
		UserAgent:       "test/1.0",
	}
}

// typed is a client as client-go makes it: it talks protobuf.
func (f *fixture) typed() kubernetes.Interface {
	f.t.Helper()
	client, err := kubernetes.NewForConfig(f.config("admin"))
	if err != nil {
		f.t.Fatal(err)
	}
	return client
}

// dynamic is a client that talks JSON.
func (f *fixture) dynamic() dynamic.Interface {
	f.t.Helper()
	client, err := dynamic.NewForConfig(f.config("admin"))
	if err != nil {
		f.t.Fatal(err)
	}
	return client
}

// reply is an answer on the wire.
type reply struct {
	code   int
	header http.Header
	body   []byte
	json   map[string]any // nil if the body is no JSON object
}

// do sends a request as the administrator.
func (f *fixture) do(method, path, contentType, body string) reply {
	f.t.Helper()
	return f.as("admin", method, path, contentType, body)
}

func (f *fixture) as(token, method, path, contentType, body string) reply {
	f.t.Helper()
	req, err := http.NewRequest(method, f.http.URL+path, bytes.NewReader([]byte(body)))
	if err != nil {
		f.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set("User-Agent", "kubectl/v1 (test)")
	resp, err := f.http.Client().Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	r := reply{code: resp.StatusCode, header: resp.Header, body: data}
	if json.Unmarshal(data, &r.json) != nil {
		r.json = nil
	}
	return r
}

// at digs a value out of the reply: at("metadata.name").
func (r reply) at(path string) any {
	var value any = r.json
	for part := range strings.SplitSeq(path, ".") {
		m, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = m[part]
	}
	return value
}

func (r reply) text(path string) string {
	if v := r.at(path); v != nil {
		return fmt.Sprint(v)
	}
	return ""
}

// want fails the test unless the reply has the code and its body the text.
func (f *fixture) want(r reply, code int, text string) reply {
	f.t.Helper()
	if r.code != code || !strings.Contains(string(r.body), text) {
		f.t.Fatalf("got %d %s, want %d with %q", r.code, r.body, code, text)
	}
	return r
}

// unchanged fails the test if what do does changes the state.
func (f *fixture) unchanged(do func()) {
	f.t.Helper()
	before := f.store.View()
	do()
	after := f.store.View()
	if before.Revision() != after.Revision() || before.Hash() != after.Hash() {
		f.t.Fatalf("the state changed: revision %d to %d", before.Revision(), after.Revision())
	}
}
