package controllers

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts what the loops do, by the name of the controller.
type metrics struct {
	reconciles *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	changes    *prometheus.CounterVec
	conflicts  *prometheus.CounterVec
	panics     *prometheus.CounterVec
	first      prometheus.Gauge
}

// newMetrics registers the metrics unless registerer is nil.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "shepherd", Subsystem: "controller", Name: name, Help: help,
		}, append([]string{"controller"}, labels...))
	}
	m := &metrics{
		reconciles: counter("reconciles_total", "Reconciles, by result: ok, error or panic.", "result"),
		changes:    counter("changes_total", "Commands that were applied."),
		conflicts:  counter("conflicts_total", "Commands that were refused because the state had moved on."),
		panics:     counter("panics_total", "Panics caught in reconciles."),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "shepherd", Subsystem: "controller", Name: "reconcile_seconds",
			Help: "Duration of reconciles.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9),
		}, []string{"controller"}),
		first: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "shepherd", Subsystem: "controller", Name: "first_reconcile_seconds",
			Help: "From the last start of the controllers here until each had reconciled once.",
		}),
	}
	if registerer == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.reconciles, m.duration, m.changes, m.conflicts, m.panics} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register controller metrics: %w", err)
		}
	}
	return m, nil
}
