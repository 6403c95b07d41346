package probe

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func target(t *testing.T, addr string) (Target, int) {
	t.Helper()
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(p)
	if err != nil {
		t.Fatal(err)
	}
	return Target{IP: host, Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(n)}}}, n
}

func httpProbe(port intstr.IntOrString, path string) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: port, Path: path}}}
}

func TestCheck(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "a=1" || r.Header.Get("X-Probe") != "yes" || r.Host != "web.test" {
			http.Error(w, "unexpected", http.StatusTeapot)
		}
	})
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
	})
	mux.HandleFunc("/broken", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusInternalServerError) })
	srv := httptest.NewServer(mux)
	defer srv.Close()
	tgt, n := target(t, srv.Listener.Addr().String())
	tgt.Exec = func(_ context.Context, args []string) (int, string, error) {
		code, err := strconv.Atoi(args[0])
		return code, "out", err
	}
	ok := httpProbe(intstr.FromString("web"), "ok?a=1")
	ok.HTTPGet.HTTPHeaders = []corev1.HTTPHeader{{Name: "X-Probe", Value: "yes"}, {Name: "host", Value: "web.test"}}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, closed := target(t, free.Addr().String())
	free.Close()
	tcp := func(p int) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(p)}}}
	}
	exec := func(arg string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{arg}}}}
	}
	for name, c := range map[string]struct {
		probe *corev1.Probe
		good  bool
	}{
		"http by name":          {ok, true},
		"redirect elsewhere":    {httpProbe(intstr.FromInt(n), "/away"), true},
		"http 500":              {httpProbe(intstr.FromInt(n), "/broken"), false},
		"http 404":              {httpProbe(intstr.FromInt(n), "/none"), false},
		"unknown port name":     {httpProbe(intstr.FromString("none"), "/ok"), false},
		"tcp":                   {tcp(n), true},
		"tcp refused":           {tcp(closed), false},
		"exec zero":             {exec("0"), true},
		"exec other":            {exec("1"), false},
		"nothing that is known": {&corev1.Probe{}, false},
	} {
		if err := Check(t.Context(), c.probe, tgt); (err == nil) != c.good {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestThresholds(t *testing.T) {
	p := &corev1.Probe{SuccessThreshold: 2, FailureThreshold: 3}
	var c counter
	want := []struct {
		ok bool
		v  verdict
	}{
		{false, undecided}, {false, undecided}, {false, failed}, {false, failed},
		{true, undecided}, {true, passed}, {false, undecided}, {true, undecided}, {true, passed},
	}
	for i, w := range want {
		if got := c.add(w.ok, p); got != w.v {
			t.Fatalf("step %d: verdict %d, want %d", i, got, w.v)
		}
	}
}

// wait polls the runner's state after each of its notifications.
func wait(t *testing.T, r *Runner, notified <-chan struct{}, what string, cond func(State) bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for !cond(r.State()) {
		select {
		case <-notified:
		case <-deadline:
			t.Fatalf("%s: state is %+v", what, r.State())
		}
	}
}

func TestStartupGatesTheOthers(t *testing.T) {
	var up, live atomic.Bool
	live.Store(true)
	var early atomic.Bool
	tgt := Target{Exec: func(_ context.Context, args []string) (int, string, error) {
		good := &live
		if args[0] == "startup" {
			good = &up
		} else if !up.Load() {
			early.Store(true)
		}
		if good.Load() {
			return 0, "", nil
		}
		return 1, "down", nil
	}}
	exec := func(arg string, failures int32) *corev1.Probe {
		return &corev1.Probe{PeriodSeconds: 1, FailureThreshold: failures,
			ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{arg}}}}
	}
	c := &corev1.Container{StartupProbe: exec("startup", 10), LivenessProbe: exec("live", 1), ReadinessProbe: exec("ready", 1)}
	notified := make(chan struct{}, 1)
	r := Start(t.Context(), c, tgt, time.Now(), false, func() {
		select {
		case notified <- struct{}{}:
		default:
		}
	})
	defer r.Stop()
	wait(t, r, notified, "first failure", func(s State) bool { return s.Kind == Startup && !s.Started && !s.Ready })
	up.Store(true)
	wait(t, r, notified, "ready", func(s State) bool { return s.Started && s.Ready })
	if early.Load() {
		t.Error("another probe ran before the startup probe had passed")
	}
	live.Store(false)
	wait(t, r, notified, "failed", func(s State) bool { return s.Failed && !s.Ready })
}

func TestWithoutProbes(t *testing.T) {
	r := Start(t.Context(), &corev1.Container{}, Target{}, time.Now(), false, func() {})
	defer r.Stop()
	if s := r.State(); !s.Started || !s.Ready || s.Failed {
		t.Errorf("state %+v", s)
	}
	if err := Check(t.Context(), &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}}, Target{}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("error %v, want ErrUnsupported", err)
	}
}
