package metrics

import (
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are those of one process. Its methods may be called by any number of
// goroutines.
type Metrics struct {
	registry *prometheus.Registry

	requests *prometheus.CounterVec
	took     *prometheus.HistogramVec
	calls    *prometheus.CounterVec
	callTook *prometheus.HistogramVec

	reaped       prometheus.Counter
	dutyItems    *prometheus.CounterVec
	dutyFailures *prometheus.CounterVec
	deliveries   *prometheus.CounterVec
}

// requestBuckets are seconds of an answer: from a page out of memory to the time-out.
var requestBuckets = []float64{.005, .025, .1, .25, 1, 2.5, 10}

// New returns the metrics of a process of this version.
func New(version string) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: requestBuckets}, labels)
	}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: counter("trellis_http_requests_total", "Requests that were answered, by the pattern of their route, their method, and the class of the status.", "route", "method", "code"),
		took:     histogram("trellis_http_request_duration_seconds", "How long requests took to be answered; streams, which go on for minutes, are left out.", "route"),
		calls:    counter("trellis_rpc_calls_total", "Calls of agents, by function and result: ok, refused, limited (too many), or failed.", "function", "result"),
		callTook: histogram("trellis_rpc_call_duration_seconds", "How long calls of agents took to be answered.", "function"),

		reaped:       prometheus.NewCounter(prometheus.CounterOpts{Name: "trellis_reaped_total", Help: "Leases that this process ended because their agents were not heard of."}),
		dutyItems:    counter("trellis_duty_items_total", "What this process has had the database do on a timer, in things done.", "duty"),
		dutyFailures: counter("trellis_duty_failures_total", "How often the database could not be had to do that.", "duty"),
		deliveries:   counter("trellis_webhook_deliveries_total", "Attempts of this process to deliver a message: delivered, retried (it did not arrive and is sent again), or given_up.", "result"),
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "trellis_build_info", Help: "Always 1; the label says which version of the control plane this is."}, []string{"version"})
	build.WithLabelValues(version).Set(1)
	m.registry.MustRegister(build, m.requests, m.took, m.calls, m.callTook, m.reaped, m.dutyItems, m.dutyFailures, m.deliveries,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, result := range results {
		m.deliveries.WithLabelValues(result) // 0, not missing: a rate over the first would be none
	}
	return m
}

// Handler answers a scrape. A collector that fails is left out, and told of in the
// log: what is known is worth more than an error page.
func (m *Metrics) Handler(log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: scrapes,
	})
}

// scrapes at once are more than one Prometheus and a curious person need.
const scrapes = 8
