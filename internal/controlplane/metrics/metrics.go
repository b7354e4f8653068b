package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are those of one process.
type Metrics struct {
	registry *prometheus.Registry
}

// New returns the metrics of a process of this version.
func New(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "trellis_build_info", Help: "1; which version this process is of."}, []string{"version"})
	build.WithLabelValues(version).Set(1)
	m.registry.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Registry has them all.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Handler answers a scrape. A collector that fails is left out: what is known is
// worth more than an error page.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes})
}

// maxScrapes is more than one Prometheus and a curious person need.
const maxScrapes = 8
