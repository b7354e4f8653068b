package metrics

import (
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tendril-run/tendril/internal/tracing"
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
		requests: counter("trellis_http_requests_total", "Requests on the public port, by pattern of the route (or other), method and class of the status (2xx).", "route", "method", "code"),
		took:     histogram("trellis_http_request_duration_seconds", "Duration of requests on the public port, without streams.", "route"),
		calls:    counter("trellis_rpc_calls_total", "Calls of agents over HTTPS: ok, refused, limited or failed.", "function", "result"),
		callTook: histogram("trellis_rpc_call_duration_seconds", "Duration of calls of agents over HTTPS.", "function"),

		reaped:       prometheus.NewCounter(prometheus.CounterOpts{Name: "trellis_reaped_total", Help: "Leases of lost agents that this process ended."}),
		dutyItems:    counter("trellis_duty_items_total", "Work on a timer: reap, drift, expire, usage, archive_logs, delete_logs.", "duty"),
		dutyFailures: counter("trellis_duty_failures_total", "Failures of work on a timer.", "duty"),
		deliveries:   counter("trellis_webhook_deliveries_total", "Attempts to deliver a message: delivered, retried or given_up.", "result"),
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "trellis_build_info", Help: "Always 1; the label has the version of the process."}, []string{"version"})
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
		EnableOpenMetrics: true, // for scrapers that ask for it: the other format has no exemplars
	})
}

// scrapes at once are more than one Prometheus and a curious person need.
const scrapes = 8

// Live is how live updates stand in this process.
type Live struct {
	Viewers   int   // streams that are open
	Listening bool  // a session of the database's is heard
	Sessions  int64 // that have begun since the start
}

// Held is how calls stand that wait for news.
type Held struct {
	Calls, Limit int
	Woken        map[string]uint64 // by reason
	Listening    bool
}

// describe makes the description of a metric that is asked for when somebody
// scrapes.
func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	viewers    = describe("trellis_viewers", "Open live streams.")
	listening  = describe("trellis_live_listening", "1 if LISTEN works; 0: the process polls every 2 seconds.")
	reconnects = describe("trellis_live_reconnects_total", "New LISTEN sessions after a loss.")

	held      = describe("trellis_held_calls", "Calls of agents over HTTPS that wait for news.")
	heldMax   = describe("trellis_held_calls_max", "Limit of calls that wait; the agents of further ones poll.")
	heldWoken = describe("trellis_held_calls_woken_total", "Held calls that were woken: notified, unheard (notifications may have been missed) or superseded (by a newer call of the agent).", "reason")
	heldHears = describe("trellis_held_calls_listening", "1 if notifications wake held calls; 0: no call is held, and agents poll.")

	connections = describe("trellis_database_connections", "Connections to the database, used and idle; pools: agents, people, duties, monitor.", "pool", "state")
	connMax     = describe("trellis_database_connections_max", "Limit of a pool of connections.", "pool")
	connWaits   = describe("trellis_database_connection_waits_total", "How often a caller waited for a connection.", "pool")
	connWaited  = describe("trellis_database_connection_wait_seconds_total", "Time that callers waited for a connection.", "pool")
)

// nowCollector asks the parts of this process.
type nowCollector struct {
	live  func() Live
	held  func() Held
	pools map[string]func() *pgxpool.Stat
}

// Watch adds what the parts of this process are asked for at each scrape: how live
// updates and held calls stand, and the pools of connections, by name.
func (m *Metrics) Watch(live func() Live, held func() Held, pools map[string]func() *pgxpool.Stat) {
	m.registry.MustRegister(&nowCollector{live, held, pools})
}

// Describe implements prometheus.Collector.
func (*nowCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{viewers, listening, reconnects, held, heldMax, heldWoken, heldHears, connections, connMax, connWaits, connWaited} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *nowCollector) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	counter := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, value, labels...)
	}
	l := c.live()
	gauge(viewers, float64(l.Viewers))
	gauge(listening, yes(l.Listening))
	counter(reconnects, float64(max(l.Sessions-1, 0)))
	h := c.held()
	gauge(held, float64(h.Calls))
	gauge(heldMax, float64(h.Limit))
	gauge(heldHears, yes(h.Listening))
	for _, reason := range slices.Sorted(maps.Keys(h.Woken)) {
		counter(heldWoken, float64(h.Woken[reason]), reason)
	}
	for _, name := range slices.Sorted(maps.Keys(c.pools)) {
		s := c.pools[name]()
		gauge(connections, float64(s.AcquiredConns()), name, "used")
		gauge(connections, float64(s.IdleConns()), name, "idle")
		gauge(connMax, float64(s.MaxConns()), name)
		counter(connWaits, float64(s.EmptyAcquireCount()), name)
		counter(connWaited, s.EmptyAcquireWaitTime().Seconds(), name)
	}
}

// yes is 1 for true.
func yes(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// other stands for a word that is none of ours: clients send what they please.
const other = "other"

var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions,
}

// Request counts one that was answered. route is the pattern that it matched, ""
// for none; a stream is not measured. trace is the id of the request's trace, which becomes an
// exemplar; "" for none.
func (m *Metrics) Request(route, method string, status int, took time.Duration, stream bool, trace string) {
	if route == "" {
		route = other
	}
	if !slices.Contains(methods, method) {
		method = other
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(status/100)+"xx").Inc()
	if !stream {
		tracing.Observe(m.took.WithLabelValues(route), took, trace)
	}
}

// Call counts a call of an agent; function is "" where it is none that is served.
func (m *Metrics) Call(function string, status int, took time.Duration) {
	if function == "" {
		function = other
	}
	result := "ok"
	switch {
	case status >= http.StatusInternalServerError:
		result = "failed"
	case status == http.StatusTooManyRequests:
		result = "limited"
	case status >= http.StatusBadRequest:
		result = "refused"
	}
	m.calls.WithLabelValues(function, result).Inc()
	m.callTook.WithLabelValues(function).Observe(took.Seconds())
}

// Reap is the duty whose things done are leases that ran out.
const Reap = "reap"

// Duties makes the series of the duties that there are, so that each is 0 and not
// missing.
func (m *Metrics) Duties(names ...string) {
	for _, name := range names {
		m.dutyItems.WithLabelValues(name)
		m.dutyFailures.WithLabelValues(name)
	}
}

// Duty counts what the database did, or that it could not be had to.
func (m *Metrics) Duty(name string, done int, err error) {
	if err != nil {
		m.dutyFailures.WithLabelValues(name).Inc()
		return
	}
	m.dutyItems.WithLabelValues(name).Add(float64(max(done, 0)))
	if name == Reap {
		m.reaped.Add(float64(max(done, 0)))
	}
}

// results are those of attempts to deliver a message.
var results = []string{"delivered", "retried", "given_up"}

// Delivery counts an attempt to deliver a message to a webhook; again: it did not
// arrive, and is sent once more.
func (m *Metrics) Delivery(arrived, again bool) {
	result := results[2]
	switch {
	case arrived:
		result = results[0]
	case again:
		result = results[1]
	}
	m.deliveries.WithLabelValues(result).Inc()
}
