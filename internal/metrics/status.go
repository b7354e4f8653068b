package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Status is how an agent is at the moment.
type Status struct {
	// Slots is how many provisions run at once at most, Busy how many slots are
	// taken.
	Slots, Busy int
	// LogLag is how long the oldest line has waited that the database does not
	// have; 0 when none waits.
	LogLag time.Duration
	// SpoolBytes is the room that spools take on the disk.
	SpoolBytes int64
}

// Watch has each scrape ask ask, which soon returns, how the agent is.
func (m *Metrics) Watch(ask func() Status) { m.status.ask.Store(&ask) }

// WatchData has each scrape ask ask, which soon returns, how many bytes of the
// data directory each kind of content takes. The kinds are words of ours, few
// and the same each time.
func (m *Metrics) WatchData(ask func() map[string]int64) { m.data.ask.Store(&ask) }

// statusCollector tells how the agent is now.
type statusCollector struct {
	ask                     atomic.Pointer[func() Status]
	slots, busy, lag, spool *prometheus.Desc
}

func newStatusCollector() *statusCollector {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return &statusCollector{
		slots: desc("tendril_slots", "How many runs this agent executes at once."),
		busy:  desc("tendril_slots_busy", "Slots in use, also by runs of an earlier start."),
		lag:   desc("tendril_log_lag_seconds", "Age of the oldest undelivered line or report, or 0."),
		spool: desc("tendril_spool_bytes", "Undelivered bytes on the disk, with the space that is reserved for the end of runs."),
	}
}

// Describe implements prometheus.Collector.
func (c *statusCollector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.slots, c.busy, c.lag, c.spool} {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *statusCollector) Collect(to chan<- prometheus.Metric) {
	ask := c.ask.Load()
	if ask == nil {
		return
	}
	now := (*ask)()
	for _, one := range []struct {
		desc  *prometheus.Desc
		value float64
	}{
		{c.slots, float64(now.Slots)}, {c.busy, float64(now.Busy)}, {c.lag, now.LogLag.Seconds()}, {c.spool, float64(now.SpoolBytes)},
	} {
		to <- prometheus.MustNewConstMetric(one.desc, prometheus.GaugeValue, one.value)
	}
}

// dataCollector tells what the data directory holds.
type dataCollector struct {
	ask   atomic.Pointer[func() map[string]int64]
	bytes *prometheus.Desc
}

func newDataCollector() *dataCollector {
	return &dataCollector{bytes: prometheus.NewDesc("tendril_data_bytes", "Size of the data directory by kind of content.", []string{"kind"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *dataCollector) Describe(to chan<- *prometheus.Desc) { to <- c.bytes }

// Collect implements prometheus.Collector.
func (c *dataCollector) Collect(to chan<- prometheus.Metric) {
	if ask := c.ask.Load(); ask != nil {
		for kind, bytes := range (*ask)() {
			to <- prometheus.MustNewConstMetric(c.bytes, prometheus.GaugeValue, float64(bytes), kind)
		}
	}
}
