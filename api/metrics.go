package api

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what the server counts.
type metrics struct {
	requests  *prometheus.CounterVec
	durations *prometheus.HistogramVec
	panics    prometheus.Counter
	watches   *prometheus.GaugeVec
	events    prometheus.Counter
	slow      prometheus.Counter
}

func newMetrics(registry *prometheus.Registry) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "shepherd_api_requests_total", Help: "Requests answered, by verb, resource and status code.",
		}, []string{"verb", "resource", "code"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "shepherd_api_request_duration_seconds", Help: "Time to answer, without watches and logs.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"verb"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "shepherd_api_panics_total", Help: "Panics caught in requests.",
		}),
		watches: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "shepherd_api_watches", Help: "Watches that are open now, by resource.",
		}, []string{"resource"}),
		events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "shepherd_api_watch_events_total", Help: "Watch events sent, without bookmarks.",
		}),
		slow: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "shepherd_api_slow_watchers_total", Help: "Watches closed because the client did not read.",
		}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.durations, m.panics, m.watches, m.events, m.slow} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("api: register metrics: %w", err)
		}
	}
	return m, nil
}

// observe counts one answered request.
func (m *metrics) observe(info requestInfo, r *http.Request, status int, took time.Duration) {
	verb, name := info.Verb, "none"
	if verb == "" || !knownVerbs[verb] {
		verb = "other" // the method is the client's text: it may not make a series each
	}
	if info.isResource() {
		if name = info.Kind.GroupResource(); info.Subresource != "" {
			name += "/" + info.Subresource
		}
	}
	m.requests.WithLabelValues(verb, name, strconv.Itoa(status)).Inc()
	if verb != "watch" && info.Subresource != "log" {
		m.durations.WithLabelValues(verb).Observe(took.Seconds())
	}
}

var knownVerbs = map[string]bool{
	"get": true, "list": true, "watch": true, "create": true, "update": true,
	"patch": true, "delete": true, "deletecollection": true, "post": true,
}
