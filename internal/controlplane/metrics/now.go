package metrics

import (
	"maps"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// Live is how live updates stand in this process.
type Live struct {
	Viewers   int   // streams that are open
	Listening bool  // a session of the database's is heard
	Sessions  int64 // that have begun since the start
}

// describe makes the description of a metric that is asked for when somebody
// scrapes.
func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	viewers    = describe("trellis_viewers", "Live streams that are open in this process.")
	listening  = describe("trellis_live_listening", "1 while this process hears of changes at once; 0: it polls, every 2 seconds.")
	reconnects = describe("trellis_live_reconnects_total", "How often this process had to listen anew.")

	connections = describe("trellis_database_connections", "Connections of this process to the database, by pool, used or idle.", "pool", "state")
	connMax     = describe("trellis_database_connections_max", "How many connections a pool may have.", "pool")
	connWaits   = describe("trellis_database_connection_waits_total", "How often all connections of a pool were in use when one was wanted.", "pool")
	connWaited  = describe("trellis_database_connection_wait_seconds_total", "How long those who wanted a connection waited for it, all together.", "pool")
)

// nowCollector asks the parts of this process.
type nowCollector struct {
	live  func() Live
	pools map[string]func() *pgxpool.Stat
}

// Watch adds what the parts of this process are asked for at each scrape: how live
// updates stand, and the pools of connections, by name.
func (m *Metrics) Watch(live func() Live, pools map[string]func() *pgxpool.Stat) {
	m.registry.MustRegister(&nowCollector{live, pools})
}

// Describe implements prometheus.Collector.
func (*nowCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{viewers, listening, reconnects, connections, connMax, connWaits, connWaited} {
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
