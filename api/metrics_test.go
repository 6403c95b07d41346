package api

import (
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

func metricValue(t *testing.T, c prometheus.Metric) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

func mustParse(t *testing.T, target string) requestInfo {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	info, refused := parsePath("GET", u.Path, u.Query())
	if refused != nil {
		t.Fatal(refused)
	}
	return info
}

func TestMetricsAreCountedAndServed(t *testing.T) {
	f := newFixture(t)
	f.get("admin", "/api/v1/namespaces", "")
	f.get("admin", "/api/v1/namespaces/none", "")
	resp, body := f.get("admin", "/metrics", "")
	for _, want := range []string{
		`shepherd_api_requests_total{code="200",resource="namespaces",verb="list"} 1`,
		`shepherd_api_requests_total{code="404",resource="namespaces",verb="get"} 1`,
	} {
		if resp.StatusCode != 200 || !strings.Contains(string(body), want) {
			t.Errorf("%d, no %s in:\n%s", resp.StatusCode, want, body)
		}
	}
	if resp, body := f.get("node:n1", "/metrics", ""); resp.StatusCode != 403 {
		t.Errorf("an agent got %d %s", resp.StatusCode, body)
	}
}

func mustParseMethod(t *testing.T, method, path, rawQuery string) requestInfo {
	t.Helper()
	values, err := url.ParseQuery(rawQuery)
	if err != nil {
		t.Fatal(err)
	}
	info, refused := parsePath(method, path, values)
	if refused != nil {
		t.Fatalf("%s %s: %v", method, path, refused)
	}
	return info
}
