package api

import (
	"fmt"
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
	expired   prometheus.Counter
	inFlight  *prometheus.GaugeVec
}

func newMetrics(registry *prometheus.Registry) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "shepherd_api_requests_total", Help: "Requests answered, by verb, resource and status code.",
		}, []string{"verb", "resource", "code"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "shepherd_api_request_duration_seconds", Help: "Time to answer, by verb and resource, without watches and logs.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"verb", "resource"}),
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
		expired: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "shepherd_api_expired_watches_total", Help: "Watches ended with 410 because the events that they had not read are no longer kept.",
		}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "shepherd_api_requests_in_flight", Help: "Requests under way, watches and logs included, by verb and resource.",
		}, []string{"verb", "resource"}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.durations, m.panics, m.watches, m.events, m.slow, m.expired, m.inFlight} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("api: register metrics: %w", err)
		}
	}
	return m, nil
}

// labels are the verb and the resource by which a request is counted. Both come
// from small sets: a client's text may not make a series each.
func (i *requestInfo) labels() (verb, name string) {
	verb, name = i.Verb, "none"
	if !knownVerbs[verb] {
		verb = "other"
	}
	if i.isResource() {
		if name = i.Kind.GroupResource(); i.Subresource != "" {
			name += "/" + i.Subresource
		}
	}
	return verb, name
}

// begin counts a request that is under way; the result ends that.
func (m *metrics) begin(info *requestInfo) (end func()) {
	verb, name := info.labels()
	g := m.inFlight.WithLabelValues(verb, name)
	g.Inc()
	return g.Dec
}

// observe counts one answered request.
func (m *metrics) observe(info *requestInfo, status int, took time.Duration) {
	verb, name := info.labels()
	m.requests.WithLabelValues(verb, name, strconv.Itoa(status)).Inc()
	if verb != "watch" && info.Subresource != "log" {
		m.durations.WithLabelValues(verb, name).Observe(took.Seconds())
	}
}

var knownVerbs = map[string]bool{
	"get": true, "list": true, "watch": true, "create": true, "update": true,
	"patch": true, "delete": true, "deletecollection": true, "post": true,
}
