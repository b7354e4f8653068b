package metrics

import (
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/tracing"
)

// Metrics are those of one agent. They are told of what happens by its methods,
// which soon return and may be called by several goroutines.
type Metrics struct {
	registry *prometheus.Registry
	status   *statusCollector
	data     *dataCollector

	claims   *prometheus.CounterVec
	waited   prometheus.Histogram
	stages   *prometheus.HistogramVec
	ended    *prometheus.CounterVec
	chunks   prometheus.Counter
	setAside *prometheus.CounterVec
	renewals *prometheus.CounterVec
	swept    prometheus.Counter
	beat     prometheus.Gauge
}

// waitBuckets are seconds in the queue: from being woken at once to a night.
var waitBuckets = []float64{.01, .05, .1, .5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600}

// stageBuckets are seconds of a stage: from a checkout that is cached to an apply
// that makes a database cluster.
var stageBuckets = []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 15, 60, 300, 900, 1800, 3600, 2 * 3600}

// New returns the Metrics of an agent of that version.
func New(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(), status: newStatusCollector(), data: newDataCollector(),
		claims: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tendril_claims_total", Help: "Runs that this agent has claimed."}, []string{"operation"}),
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tendril_queue_wait_seconds", Help: "How long claimed runs had waited in the queue.", Buckets: waitBuckets}),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tendril_stage_duration_seconds", Help: "Duration of the stages of runs.", Buckets: stageBuckets}, []string{"stage"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tendril_provisions_total", Help: "Runs that have ended; code is the error's, or empty."},
			[]string{"operation", "status", "code"}),
		chunks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tendril_log_chunks_total", Help: "Chunks of logs that the database has stored."}),
		setAside: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tendril_set_aside_total", Help: "Chunks (log) and reports (report) whose content the database could not store; rejected/ has them."}, []string{"kind"}),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tendril_lease_renewals_total", Help: "Renewals of leases, one a claim and heartbeat: ok, lost (the claim was ended meanwhile) or error (no answer)."},
			[]string{"result"}),
		swept: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tendril_swept_total", Help: "Runs that an earlier start left without a result."}),
		beat: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tendril_heartbeat_last_success_timestamp_seconds", Help: "Time of the last answered heartbeat; 0 before the first."}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tendril_build_info", Help: "Always 1; the label has the agent's version.", ConstLabels: prometheus.Labels{"version": version}})
	info.Set(1)
	m.registry.MustRegister(info, m.claims, m.waited, m.stages, m.ended, m.chunks, m.setAside, m.renewals, m.swept, m.beat, m.status, m.data,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.begin()
	return m
}

// begin makes the series whose labels are known, so that what has not happened
// yet is 0 and not missing: a rate over a first failure would be none.
func (m *Metrics) begin() {
	for _, operation := range provision.Operations {
		m.claims.WithLabelValues(string(operation))
		m.ended.WithLabelValues(string(operation), string(provision.Success), "")
	}
	for _, stage := range provision.Stages {
		if ofRuns(stage) {
			m.stages.WithLabelValues(string(stage))
		}
	}
	for _, kind := range setAside {
		m.setAside.WithLabelValues(kind)
	}
	for _, result := range []string{"ok", "lost", "error"} {
		m.renewals.WithLabelValues(result)
	}
}

// ofRuns reports whether a run passes through a stage, which takes its time.
func ofRuns(stage provision.Stage) bool {
	return stage != provision.StageQueued && stage != provision.StageApproval && stage != provision.StageInput && stage != provision.StageDone &&
		slices.Contains(provision.Stages, stage)
}

// ends are what a run of ours can end as.
var ends = []provision.Status{provision.Success, provision.Failed, provision.Cancelled, provision.AwaitingApproval, provision.AwaitingInput, provision.SetDown}

// other stands for a word that is none of ours: a child, or the database, may say
// what it pleases.
const other = "other"

func known[T ~string](word T, words []T) string {
	if slices.Contains(words, word) {
		return string(word)
	}
	return other
}

// Claimed counts a claim. A wait that is negative is not known.
func (m *Metrics) Claimed(operation provision.Operation, waited time.Duration) {
	m.claims.WithLabelValues(known(operation, provision.Operations)).Inc()
	if waited >= 0 {
		m.waited.Observe(waited.Seconds())
	}
}

// StageTook measures a stage that a run has left. trace is the id of the run's trace, which becomes
// an exemplar; "" for none.
func (m *Metrics) StageTook(stage provision.Stage, took time.Duration, trace string) {
	if ofRuns(stage) {
		tracing.Observe(m.stages.WithLabelValues(string(stage)), max(took, 0), trace)
	}
}

// RunEnded counts a run whose end the database knows.
func (m *Metrics) RunEnded(operation provision.Operation, status provision.Status, code provision.Code) {
	word := ""
	if code != "" {
		word = known(code, provision.Codes)
	}
	m.ended.WithLabelValues(known(operation, provision.Operations), known(status, ends), word).Inc()
}

// ChunksStored counts chunks of logs.
func (m *Metrics) ChunksStored(chunks int) { m.chunks.Add(float64(chunks)) }

// SetAside counts what the database did not take for its content.
func (m *Metrics) SetAside(kind string) { m.setAside.WithLabelValues(known(kind, setAside)).Inc() }

// setAside are the kinds of what can be set aside.
var setAside = []string{"log", "report"}

// LeasesRenewed counts what became of the leases of one heartbeat.
func (m *Metrics) LeasesRenewed(kept, lost, failed int) {
	m.renewals.WithLabelValues("ok").Add(float64(kept))
	m.renewals.WithLabelValues("lost").Add(float64(lost))
	m.renewals.WithLabelValues("error").Add(float64(failed))
}

// Swept counts provisions that had no result.
func (m *Metrics) Swept(provisions int) { m.swept.Add(float64(provisions)) }

// Beat notes when the database answered a heartbeat.
func (m *Metrics) Beat(at time.Time) { m.beat.Set(float64(at.UnixMilli()) / 1000) }

// The limits of scrapes, each of which costs some time of the agent's.
const (
	scrapes     = 4
	scrapeLimit = 10 * time.Second
)

// Handler answers scrapes. What cannot be measured is left out, and told of in
// the log.
func (m *Metrics) Handler(log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: scrapes, Timeout: scrapeLimit,
		// A compressor takes a megabyte that is kept, for some kilobytes of text.
		DisableCompression: true,
		EnableOpenMetrics:  true, // for scrapers that ask for it: the other format has no exemplars
	})
}
