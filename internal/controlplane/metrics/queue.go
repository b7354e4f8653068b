package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
)

var (
	databaseUp   = describe("trellis_database_up", "1 if the database answers this process.")
	statisticsUp = describe("trellis_statistics_up", "1 if the metrics of the database are known; 0 while trellis_database_up is 1: run \"trellis migrate\".")
	contract     = describe("trellis_contract_version", "Version of the SQL contract.")
	migration    = describe("trellis_migration_version", "Newest migration of the database.")

	queueDepth     = describe("trellis_queue_depth", "Queued runs, also those that wait for an approval, a lock or an earlier run.", "cluster_id")
	queueRunnable  = describe("trellis_queue_runnable", "Workspaces with a queued run that only lacks an agent.", "cluster_id")
	oldestWaiting  = describe("trellis_oldest_waiting_seconds", "Age of the oldest queued run, or 0.", "cluster_id")
	oldestRunnable = describe("trellis_oldest_runnable_seconds", "Age of the oldest run that only lacks an agent, or 0.", "cluster_id")
	running        = describe("trellis_running_claims", "Runs that agents execute.", "cluster_id")
	slots          = describe("trellis_slots", "Slots of the online agents.", "cluster_id")
	agents         = describe("trellis_agents", "Agents: online, stale (silent for half a minute) or offline (for 5 minutes, up to a day).", "cluster_id", "state")
	paused         = describe("trellis_cluster_paused", "1 if the cluster is paused.", "cluster_id")
	usage          = describe("trellis_usage_ratio", "Used share of a bound: agents, blobs, org_blobs, pins, inspections, logs, org_logs; counted every five minutes. At 1 the database refuses more, or leaves it out of logs.", "cluster_id", "bound")
	omitted        = describe("trellis_clusters_omitted", "Clusters beyond the 200 that are reported.")
	provisions     = describe("trellis_provisions", "Runs that have not ended, by status.", "status")
	overdue        = describe("trellis_leases_overdue", "Leases that expired more than a minute ago and were not ended.")

	webhookWaiting = describe("trellis_webhook_deliveries_waiting", "Undelivered messages to webhooks.")
	webhookOverdue = describe("trellis_webhook_overdue_seconds", "How long the oldest due message has been due, or 0.")
	databaseBytes  = describe("trellis_database_size_bytes", "Size of the database.")
	logBytes       = describe("trellis_log_size_bytes", "Size of the table of log lines, without archives.")
)

// queueCollector tells what stands in the database.
type queueCollector struct{ answers *answers }

// WatchDatabase adds what the database is asked for.
func (m *Metrics) WatchDatabase(ask Ask) {
	m.registry.MustRegister(&queueCollector{&answers{ask: ask, every: askedEvery}})
}

// Describe implements prometheus.Collector.
func (*queueCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		databaseUp, statisticsUp, contract, migration, queueDepth, queueRunnable, oldestWaiting, oldestRunnable, running, slots, agents, paused, usage,
		omitted, provisions, overdue, webhookWaiting, webhookOverdue, databaseBytes, logBytes,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector. What is not known is left out: an old
// number would look as if all were well.
func (c *queueCollector) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	now, up := c.answers.get()
	gauge(databaseUp, yes(up))
	gauge(statisticsUp, yes(now != nil))
	if now == nil {
		return
	}
	gauge(contract, float64(now.Contract))
	gauge(migration, float64(now.Migration))
	for _, one := range now.Clusters {
		gauge(queueDepth, float64(one.Queued), one.ID)
		gauge(queueRunnable, float64(one.Runnable), one.ID)
		gauge(oldestWaiting, seconds(one.Oldest), one.ID)
		gauge(oldestRunnable, seconds(one.OldestRunnable), one.ID)
		gauge(running, float64(one.Running), one.ID)
		gauge(slots, float64(one.Slots), one.ID)
		gauge(agents, float64(one.Online), one.ID, "online")
		gauge(agents, float64(one.Stale), one.ID, "stale")
		gauge(agents, float64(one.Offline), one.ID, "offline")
		gauge(paused, yes(one.Paused), one.ID)
		for _, bound := range slices.Sorted(maps.Keys(one.Usage)) {
			gauge(usage, one.Usage[bound], one.ID, bound)
		}
	}
	gauge(omitted, float64(now.Omitted))
	for _, status := range slices.Sorted(maps.Keys(now.Statuses)) {
		gauge(provisions, float64(now.Statuses[status]), status)
	}
	gauge(overdue, float64(now.OverdueLeases))
	gauge(webhookWaiting, float64(now.Webhooks.Waiting))
	gauge(webhookOverdue, now.Webhooks.Overdue)
	gauge(databaseBytes, now.DatabaseBytes)
	gauge(logBytes, now.LogBytes)
}

func seconds(s *float64) float64 {
	if s == nil {
		return 0
	}
	return *s
}

const (
	// Clusters is how many clusters have series of their own.
	Clusters = 200
	// askedEvery is how long an answer of the database, or a failure, is reused for all
	// scrapes. A slow one is reused for costs times as long as it took, so that monitoring
	// does not keep the database busy.
	askedEvery = 5 * time.Second
	costs      = 50
	// askLimit bounds the question: who scrapes is answered within it, whether the
	// database answers or not.
	askLimit = 2 * time.Second
)

// Ask asks the database for tendril.statistics(clusters), as JSON.
type Ask func(ctx context.Context, clusters int) ([]byte, error)

// statistics is what tendril.statistics() answers.
type statistics struct {
	Contract  int       `json:"contract"`
	Migration int       `json:"migration"`
	Clusters  []cluster `json:"clusters"`
	Omitted   int       `json:"omitted"`
	// Statuses has how many provisions are of each status that is no end.
	Statuses      map[string]int `json:"statuses"`
	OverdueLeases int            `json:"overdue_leases"`
	Webhooks      struct {
		Waiting int     `json:"waiting"`
		Overdue float64 `json:"overdue"`
	} `json:"webhooks"`
	DatabaseBytes float64 `json:"database_bytes"`
	LogBytes      float64 `json:"log_bytes"`
}

type cluster struct {
	ID       string `json:"id"`
	Paused   bool   `json:"paused"`
	Queued   int    `json:"queued"`
	Runnable int    `json:"runnable"`
	Running  int    `json:"running"`
	// Seconds; null where nothing waits.
	Oldest         *float64 `json:"oldest"`
	OldestRunnable *float64 `json:"oldest_runnable"`
	Online         int      `json:"online"`
	Stale          int      `json:"stale"`
	Offline        int      `json:"offline"`
	Slots          int      `json:"slots"`
	// Usage is how much of each bound is used, by its name; 1 is all of it.
	Usage map[string]float64 `json:"usage"`
}

// answers keeps the newest answer of a database.
type answers struct {
	ask   Ask
	every time.Duration

	mu    sync.Mutex // held while the database is asked: all others want that answer
	until time.Time
	now   *statistics // nil: there is none
	up    bool        // the database answers
}

// get returns the newest answer, nil where there is none that is true now.
func (a *answers) get() (now *statistics, up bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Now().Before(a.until) {
		return a.now, a.up
	}
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	began := time.Now()
	now, err := a.fetch(ctx)
	a.now, a.up = now, err == nil || refused(err)
	a.until = time.Now().Add(max(a.every, costs*time.Since(began)))
	if err != nil {
		a.until = time.Now().Add(a.every)
	}
	return a.now, a.up
}

func (a *answers) fetch(ctx context.Context) (*statistics, error) {
	text, err := a.ask(ctx, Clusters)
	if err != nil {
		return nil, err
	}
	now := &statistics{}
	if err := json.Unmarshal(text, now); err != nil {
		return nil, fmt.Errorf("read the database's statistics: %w", err)
	}
	return now, nil
}

// refused reports whether it is the database itself that answers an error: it is
// there, though it may not have the function yet. One that starts or ends says so in
// class 57.
func refused(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && len(pg.Code) == 5 && pg.Code[:2] != "57"
}
