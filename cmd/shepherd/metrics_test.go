package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// TestMetrics reads what a server shows to Prometheus: every part counts, and
// names, units and help are as Prometheus wants them.
func TestMetrics(t *testing.T) {
	s := bootstrap(t, "a")
	s.awaitReady()
	if err := created(s.post("one")); err != nil {
		t.Fatal(err)
	}
	if code, body, err := s.get("/api/v1/namespaces/default/configmaps/one"); err != nil || code != http.StatusOK {
		t.Fatalf("get: %d %s %v", code, body, err)
	}
	code, text, err := s.get("/metrics")
	if err != nil || code != http.StatusOK {
		t.Fatalf("metrics: %d %v", code, err)
	}
	for _, want := range []string{
		`shepherd_propose_seconds_count{outcome="ok"}`, "shepherd_batch_commands_count", "shepherd_batch_bytes_count",
		"shepherd_waiting_proposals", "shepherd_handled_requests", "shepherd_apply_lag_entries", "shepherd_last_index", "shepherd_applied_index",
		"shepherd_raft_log_bytes", "shepherd_raft_snapshot_last_index", "shepherd_raft_snapshot_size_bytes",
		"shepherd_raft_snapshot_installs_total", "shepherd_raft_snapshot_late_total",
		"shepherd_leader_changes_total", "shepherd_detector_stalls_total", "shepherd_port_clients", "shepherd_port_max_clients",
		"shepherd_is_leader 1", `shepherd_forward_seconds_count{outcome="ok"}`, "shepherd_forward_resends_total",
		`shepherd_read_index_rounds_total{outcome="ok",role="leader"}`, `shepherd_read_index_rounds_total{outcome="ok",role="replica"}`,
		`shepherd_api_requests_total{code="201",resource="configmaps",verb="create"} 1`,
		`shepherd_api_request_duration_seconds_count{resource="configmaps",verb="get"} 1`,
		`shepherd_api_requests_in_flight{resource="none",verb="get"} 1`,
		"shepherd_api_watch_events_total", "shepherd_api_slow_watchers_total", "shepherd_api_expired_watches_total", "shepherd_api_panics_total",
		"shepherd_controller_reconcile_seconds_count", "shepherd_controller_reconciles_total",
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "shepherd_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}
