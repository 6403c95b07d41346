package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// startAgent connects an agent of the node that serves handler on its session.
func startAgent(t *testing.T, streams *Streams, node string, handler http.Handler) *yamux.Session {
	t.Helper()
	near, far := net.Pipe()
	config := yamux.DefaultConfig()
	config.LogOutput = io.Discard
	session, err := yamux.Server(far, config)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	served, held := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(session); err != nil && !errors.Is(err, http.ErrServerClosed) && !session.IsClosed() {
			t.Error(err)
		}
	}()
	go func() {
		defer close(held)
		if err := streams.Serve(near, node); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Log(err)
		}
	}()
	t.Cleanup(func() {
		session.Close()
		server.Close()
		<-served
		<-held
	})
	return session
}

func TestLogs(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.StreamDialTimeout = 100 * time.Millisecond })
	pod := testPod("default", "web", "n1")
	f.put(pod)
	two := testPod("default", "two", "n1")
	two.Spec.Containers = append(two.Spec.Containers, corev1.Container{Name: "side", Image: "x"})
	two.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "x"}}
	f.put(two)
	f.put(testPod("default", "unbound", ""))
	f.put(testPod("default", "lost", "n9"))
	startAgent(t, f.server.Streams(), "n1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/side") {
			http.Error(w, `container "side" in pod "two" is waiting to start`, http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "%s %s\n", r.URL.Path, r.URL.RawQuery)
	}))

	tests := []struct {
		pod, query string
		code       int
		want       string
	}{
		{"web", "", 200, "/containerLogs/default/web/main podUID=" + string(pod.UID) + "\n"},
		{"web", "?container=main&tailLines=5&timestamps=true&previous=false&sinceSeconds=9&limitBytes=100", 200,
			"/containerLogs/default/web/main limitBytes=100&podUID=" + string(pod.UID) + "&sinceSeconds=9&tailLines=5&timestamps=true\n"},
		{"web", "?container=nope", 400, "container nope is not valid for pod web"},
		{"two", "", 400, "a container name must be specified for pod two, choose one of: [main side] or one of the init containers: [init]"},
		{"two", "?container=init", 200, "/containerLogs/default/two/init"},
		{"two", "?container=side", 400, `is waiting to start`},
		{"web", "?tailLines=-1", 422, "must be greater than or equal to 0"},
		{"web", "?tailLines=x", 400, "is not a number"},
		{"web", "?sinceTime=yesterday", 400, "RFC 3339"},
		{"web", "?sinceTime=2026-01-01T00:00:00Z&sinceSeconds=5", 422, "at most one of"},
		{"unbound", "", 400, "does not have a host assigned"},
		{"none", "", 404, "not found"},
		{"lost", "", 503, "node n9 cannot be reached"},
	}
	for _, tt := range tests {
		resp, body := f.get("admin", "/api/v1/namespaces/default/pods/"+tt.pod+"/log"+tt.query, "")
		text := strings.ReplaceAll(string(body), `\"`, `"`)
		if resp.StatusCode != tt.code || !strings.Contains(text, tt.want) {
			t.Errorf("%s%s: %d %s", tt.pod, tt.query, resp.StatusCode, body)
		}
	}
	_, err := f.typed().CoreV1().Pods("default").GetLogs("lost", &corev1.PodLogOptions{}).DoRaw(testContext(t))
	if !apierrors.IsServiceUnavailable(err) {
		t.Errorf("got %v", err)
	}
}

func TestLogsFollow(t *testing.T) {
	f := newFixture(t)
	f.put(testPod("default", "web", "n1"))
	lines, gone := make(chan string), make(chan struct{})
	startAgent(t, f.server.Streams(), "n1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		w.(http.Flusher).Flush() // as the agent does: the header says that the log exists
		for {
			select {
			case line := <-lines:
				fmt.Fprintln(w, line)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	stream, err := f.typed().CoreV1().Pods("default").GetLogs("web", &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	reader := bufio.NewReader(stream)
	for i := range 3 {
		want := fmt.Sprintf("line %d", i)
		lines <- want // each must arrive before the next is written
		if got, err := reader.ReadString('\n'); err != nil || got != want+"\n" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	cancel()
	select {
	case <-gone:
	case <-testContext(t).Done():
		t.Fatal("the agent was not told that the client has gone")
	}
}

func TestStreamsReplaceAndClose(t *testing.T) {
	streams := NewStreams(nil)
	answer := func(text string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) })
	}
	client := &http.Client{Transport: newLogTransport(streams, testTimeout)}
	ask := func() (string, error) {
		resp, err := client.Get("http://n1/")
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	first := startAgent(t, streams, "n1", answer("first"))
	if got, err := ask(); err != nil || got != "first" {
		t.Fatalf("got %q, %v", got, err)
	}
	startAgent(t, streams, "n1", answer("second"))
	select {
	case <-first.CloseChan():
	case <-testContext(t).Done():
		t.Fatal("the old session was not closed")
	}
	if got, err := ask(); err != nil || got != "second" {
		t.Fatalf("got %q, %v", got, err)
	}
	if nodes := streams.Nodes(); len(nodes) != 1 || nodes[0] != "n1" {
		t.Fatalf("nodes %v", nodes)
	}
	// A dial waits for an agent that comes late.
	late := make(chan error, 1)
	ctx := testContext(t)
	go func() {
		conn, err := streams.Dial(ctx, "n2")
		if err == nil {
			err = conn.Close()
		}
		late <- err
	}()
	startAgent(t, streams, "n2", answer("late"))
	if err := <-late; err != nil {
		t.Fatal(err)
	}
	expired, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := streams.Dial(expired, "n3"); !errors.Is(err, ErrNoStream) {
		t.Fatalf("got %v", err)
	}
	if err := streams.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := streams.Dial(ctx, "n1"); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("got %v", err)
	}
}
