package metrics

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	databaseUp   = describe("trellis_database_up", "1 if the database answers. Where it does not, nothing that stands in it is told.")
	statisticsUp = describe("trellis_statistics_up", "1 if the database has told its numbers; 0 where it answers and could not: it may have to be migrated.")
	contract     = describe("trellis_contract_version", "Version of the SQL contract that the database has.")
	migration    = describe("trellis_migration_version", "Newest migration that the database has.")

	queueDepth     = describe("trellis_queue_depth", "Provisions that are queued, by cluster.", "cluster_id")
	queueRunnable  = describe("trellis_queue_runnable", "Workspaces in which a queued provision could be claimed at once, by cluster: nothing stands before it but that no agent takes it.", "cluster_id")
	oldestWaiting  = describe("trellis_oldest_waiting_seconds", "Age of the oldest queued provision, by cluster; 0 where none is. It may wait for an approval, a lock or a run before it.", "cluster_id")
	oldestRunnable = describe("trellis_oldest_runnable_seconds", "Age of the oldest queued provision that could be claimed at once, by cluster; 0 where none is.", "cluster_id")
	running        = describe("trellis_running_claims", "Provisions that agents have in hand, by cluster.", "cluster_id")
	slots          = describe("trellis_slots", "Slots of the agents that are online, by cluster.", "cluster_id")
	agents         = describe("trellis_agents", "Agents by cluster and state: online, stale (not heard of for half a minute), or offline (for 5 minutes; after a day it counts no more).", "cluster_id", "state")
	paused         = describe("trellis_cluster_paused", "1 for a cluster that somebody has paused.", "cluster_id")
	usage          = describe("trellis_usage_ratio", "How much of a bound a cluster uses, counted every five minutes; at 1 more is refused, or left out of logs. org_blobs, org_logs and inspections are those of its whole organisation.", "cluster_id", "bound")
	omitted        = describe("trellis_clusters_omitted", "Clusters that are left out of the metrics by cluster, for there are too many.")
	provisions     = describe("trellis_provisions", "Provisions that are not over, by status.", "status")
	overdue        = describe("trellis_leases_overdue", "Leases that ran out more than a minute ago and that nobody has ended.")

	webhookWaiting = describe("trellis_webhook_deliveries_waiting", "Messages to webhooks that have not arrived yet, those that are tried again later included.")
	webhookOverdue = describe("trellis_webhook_overdue_seconds", "How long the message that has been due for longest has been; 0 where none is due.")
	databaseBytes  = describe("trellis_database_size_bytes", "Size of the database.")
	logBytes       = describe("trellis_log_size_bytes", "Size of the table of log lines, without what is archived.")
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
