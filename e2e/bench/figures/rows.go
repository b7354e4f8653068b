package main

import "fmt"

// Benchmarks that a chart is drawn of as well.
const (
	cold         = "Deploy/cold"
	warm         = "Deploy/warm"
	fleet        = "Fleet/new"
	afterSilence = "LineToRow/after-silence"
	steady       = "LineToRow/steady=10"
	fast         = "LineToRow/steady=1000"
)

// What peers took, measured before on such a machine.
const (
	otfDeploy      = 307  // ms, the warm deploy
	otfRuns        = 6.3  // of the fleet, in a second
	coderSends     = 250  // ms, how often it sends lines
	buildkiteSends = 1000 // ms
)

// groups are all figures. A benchmark whose figures should be seen needs a row.
var groups = []group{
	{"Deploys", []row{
		{figure: "row inserted → claimed, p50", bench: "ClaimLatency", metric: "p50-ms", bare: "bare-p50-ms", compare: difference,
			targets: []target{atMost(4)}, peer: "OTF 11 ms"},
		{figure: "row inserted → claimed, p99", bench: "ClaimLatency", metric: "p99-ms", bare: "bare-p99-ms", compare: difference,
			targets: []target{atMost(20)}},
		{figure: "row inserted → claimed over HTTPS, p50 (beside it: direct)", bench: "ClaimLatencyHTTPS", metric: "p50-ms", bare: "direct-p50-ms", compare: difference},
		{figure: "row inserted → claimed over HTTPS, p99 (beside it: direct)", bench: "ClaimLatencyHTTPS", metric: "p99-ms", bare: "direct-p99-ms", compare: difference},
		{figure: "inserted → SUCCESS, warm, p50", bench: warm, metric: "p50-ms", bare: "bare-p50-ms", compare: difference, over: "over-ms",
			targets: []target{atMostOver(60), atMost(otfDeploy)}, peer: "OTF 307 ms, +99 ms and 1.46× over its own commands"},
		{figure: "inserted → SUCCESS, warm, p90", bench: warm, metric: "p90-ms", bare: "bare-p90-ms", compare: difference},
		{figure: "inserted → SUCCESS, cold, p50", bench: cold, metric: "p50-ms", bare: "bare-p50-ms", compare: difference, over: "over-ms"},
		{figure: "20 provisions at once, 5 slots, 20 new workspaces", bench: fleet, metric: "runs-/s", bare: "bare-runs-/s", compare: ratio,
			targets: []target{atLeastPart(0.85)}, peer: "OTF 6.3/s"},
		{figure: "20 provisions at once, 5 slots, the same workspaces again", bench: "Fleet/again", metric: "runs-/s", bare: "bare-runs-/s", compare: ratio,
			targets: []target{atLeastPart(0.85)}},
	}},
	{"Lines", []row{
		{figure: "line printed → row committed, after silence, p50", bench: afterSilence, metric: "p50-ms", bare: "bare-p50-ms", compare: difference, targets: []target{atMost(30)},
			peer: "Coder 250 ms, Buildkite 1 s, OTF one POST a line"},
		{figure: "line printed → row committed, after silence, p99", bench: afterSilence, metric: "p99-ms", bare: "bare-p99-ms", compare: difference},
		{figure: "line printed → row committed, 10 lines a second, p50", bench: steady, metric: "p50-ms", bare: "bare-p50-ms", compare: difference, targets: []target{atMost(300)}},
		{figure: "line printed → row committed, 10 lines a second, p99", bench: steady, metric: "p99-ms", bare: "bare-p99-ms", compare: difference, targets: []target{atMost(600)}},
		{figure: "line printed → row committed, 1,000 lines a second, p50", bench: fast, metric: "p50-ms", bare: "bare-p50-ms", compare: difference, targets: []target{atMost(300)}},
		{figure: "line printed → row committed, 1,000 lines a second, p99", bench: fast, metric: "p99-ms", bare: "bare-p99-ms", compare: difference, targets: []target{atMost(600)}},
	}},
	{"Log throughput", concat(throughput(1), throughput(4), throughput(8), throughputHTTPS(1), throughputHTTPS(4), []row{
		{figure: "throughput of engine events (apply), 1 provision", bench: "LogThroughput/events", metric: "MB/s", bare: "bare-MB/s", compare: ratio},
		{figure: "agent's peak memory with engine events", bench: "LogThroughput/events", metric: "agent-MB", targets: []target{atMost(64)}},
		{figure: "delivery of a spool of 1 GB", bench: "SpoolDelivery", metric: "MB/s", bare: "bare-MB/s", compare: ratio},
		{figure: "agent's peak memory delivering that spool", bench: "SpoolDelivery", metric: "agent-MB", targets: []target{atMost(64)}},
	}, inserts(1, 20), inserts(8, 20), inserts(1, 1), inserts(8, 1))},
	{"Queue", concat(claims("1k", 8), claims("100k", 8), claims("1M", 1, 2, 4, 8, 16, 32), idle("empty", "nothing queued"),
		idle("busy", "20,000 queued on busy workspaces"), idle("elsewhere", "8,000 queued for agents that are away"), []row{
			{figure: "1,000 idle agents over HTTPS: trellis and PostgreSQL, of one core", bench: "IdleAgents", metric: "cpu-%", targets: []target{atMost(30)}},
			{figure: "of it trellis", bench: "IdleAgents", metric: "trellis-cpu-%"},
			{figure: "of it PostgreSQL", bench: "IdleAgents", metric: "postgres-cpu-%"},
			{figure: "1,000 idle agents over HTTPS: connections to PostgreSQL", bench: "IdleAgents", metric: "connections", targets: []target{atMost(20)}},
			{figure: "1,000 idle agents over HTTPS: memory of trellis", bench: "IdleAgents", metric: "trellis-MB"},
		})},
	{"Viewers", concat(viewers("HTTP/2", "http2"), viewers("HTTP/1.1", "http1"))},
	{"Old logs", []row{
		{figure: "log rows archived", bench: "Retention", metric: "rows"},
		{figure: "logs archived, rows per second", bench: "Retention", metric: "archived-/s"},
		{figure: "a page of a log meanwhile, p99", bench: "Retention", metric: "archive-p99-ms", targets: []target{atMost(200)}},
		{figure: "a page of a log while room is given back, p99", bench: "Retention", metric: "compact-p99-ms", targets: []target{atMost(200)}},
		{figure: "logs on disk before", bench: "Retention", metric: "before-MB"},
		{figure: "logs on disk after", bench: "Retention", metric: "compact-all-MB"},
		{figure: "memory of `trellis gc`", bench: "Retention", metric: "archive-gc-MB"},
		{figure: "memory of its database session", bench: "Retention", metric: "archive-session-MB"},
		{figure: "memory of trellis meanwhile", bench: "Retention", metric: "trellis-MB"},
	}},
	{"Agent", []row{
		{figure: "idle, memory (RSS)", bench: "AgentIdle", metric: "rss-MB", bare: "bare-rss-MB", compare: difference,
			targets: []target{atMost(20)}, peer: "otf-agent 27 MB, buildkite-agent 35 MB"},
		{figure: "of it the process's own (anonymous)", bench: "AgentIdle", metric: "anon-MB", bare: "bare-anon-MB", compare: difference},
		{figure: "idle, processor, of one core", bench: "AgentIdle", metric: "cpu-%", bare: "bare-cpu-%", compare: difference},
		{figure: "idle, threads", bench: "AgentIdle", metric: "threads", bare: "bare-threads", compare: difference},
		{figure: "idle after a run, memory (RSS)", bench: "AgentIdle", metric: "after-rss-MB"},
		{figure: "idle after a run, processor", bench: "AgentIdle", metric: "after-cpu-%"},
		{figure: "start → registered, p50", bench: "AgentStart", metric: "registered-p50-ms", bare: "bare-p50-ms", compare: difference},
		{figure: "start → first claim, p50", bench: "AgentStart", metric: "claimed-p50-ms", bare: "bare-p50-ms", compare: difference},
		{figure: "`tendril exec`: start → end of a refused job, p50", bench: "ExecStart", metric: "p50-ms", bare: "bare-p50-ms", compare: difference},
		{figure: "`tendril exec`: peak memory of a run", bench: "AgentIdle", metric: "exec-peak-MB"},
		{figure: "binary, tendril", bench: "BinarySize", metric: "tendril-MB", bare: "bare-tendril-MB", compare: difference},
		{figure: "binary, trellis", bench: "BinarySize", metric: "trellis-MB", bare: "bare-hello-MB", compare: difference},
	}},
	{"Checkout", []row{
		{figure: "100 MB repository, first", bench: "CheckoutLarge", metric: "first-ms", bare: "bare-first-ms", compare: ratio},
		{figure: "100 MB repository, the same commit again", bench: "CheckoutLarge", metric: "again-ms", bare: "bare-again-ms", compare: ratio},
		{figure: "100 MB repository, the next tag", bench: "CheckoutLarge", metric: "next-ms", bare: "bare-next-ms", compare: ratio},
		{figure: "what the next tag fetches", bench: "CheckoutLarge", metric: "next-fetched-MB"},
		{figure: "small template, the same commit again, p50", bench: "CheckoutSmall", metric: "p50-ms", bare: "bare-p50-ms", compare: ratio},
	}},
}

func concat(parts ...[]row) []row {
	var all []row
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func throughput(provisions int) []row {
	bench := fmt.Sprint("LogThroughput/provisions=", provisions)
	rows := []row{
		{figure: fmt.Sprintf("child's stdout → committed rows, %d at once", provisions), bench: bench, metric: "MB/s", bare: "bare-MB/s", compare: ratio},
		{figure: fmt.Sprintf("agent's peak memory, %d at once", provisions), bench: bench, metric: "agent-MB", targets: []target{atMost(64)}},
		{figure: fmt.Sprintf("a child's peak memory, %d at once", provisions), bench: bench, metric: "child-MB"},
	}
	if provisions == 1 {
		rows[0].targets = []target{atLeastPart(0.6)}
	}
	return rows
}

func throughputHTTPS(provisions int) []row {
	bench := fmt.Sprint("LogThroughputHTTPS/provisions=", provisions)
	return []row{
		{figure: fmt.Sprintf("child's stdout → committed rows over HTTPS, %d at once (beside it: direct)", provisions), bench: bench, metric: "MB/s", bare: "direct-MB/s", compare: ratio},
		{figure: fmt.Sprintf("agent's peak memory over HTTPS, %d at once", provisions), bench: bench, metric: "agent-MB", targets: []target{atMost(64)}},
		{figure: fmt.Sprintf("memory of trellis meanwhile, %d at once", provisions), bench: bench, metric: "gateway-MB"},
	}
}

// claims are those of one number of finished rows, by so many connections. The
// target is for 1 M and eight.
func claims(finished string, numbers ...int) []row {
	var rows []row
	for _, conns := range numbers {
		bench := fmt.Sprintf("Claims/finished=%s/conns=%d", finished, conns)
		rate := row{figure: fmt.Sprintf("claims, %s finished rows, %s", finished, connections(conns)),
			bench: bench, metric: "claims-/s", bare: "bare-claims-/s", compare: ratio}
		tail := row{figure: fmt.Sprintf("a claim's time, %s finished rows, %s, p99", finished, connections(conns)), bench: bench, metric: "p99-ms", bare: "bare-p99-ms", compare: difference}
		if finished == "1M" && conns == 8 {
			rate.targets, rate.peer = []target{atLeast(3000)}, "River, batched no-op jobs: 22,800/s"
			tail.targets = []target{atMost(10)}
		}
		rows = append(rows, rate, tail)
	}
	return rows
}

// inserts are those of log chunks by so many writers, who send some chunks a call.
func inserts(writers, chunks int) []row {
	name := fmt.Sprintf("log inserts, NOTIFY on, %d writers", writers)
	if writers == 1 {
		name = "log inserts, NOTIFY on, 1 writer"
	}
	name += fmt.Sprintf(", %d × 10 KB a call", chunks)
	bench := fmt.Sprintf("LogInsert/writers=%d/chunks=%d", writers, chunks)
	return []row{
		{figure: name, bench: bench, metric: "MB/s", bare: "bare-MB/s", compare: ratio},
		{figure: name + ", p99 of a call", bench: bench, metric: "p99-ms", bare: "bare-p99-ms", compare: difference},
	}
}

// idle is what agents with nothing to do cost. The target is for a queue that
// has nothing.
func idle(queue, text string) []row {
	bench := "Idle/queue=" + queue
	rows := []row{
		{figure: "1,000 empty polls, processor time in PostgreSQL, " + text, bench: bench, metric: "cpu-s/1000polls", bare: "bare-cpu-s/1000polls", compare: difference},
		{figure: "1,000 heartbeats, " + text, bench: bench, metric: "cpu-s/1000beats", bare: "bare-cpu-s/1000beats", compare: difference},
		{figure: "1,000 idle agents, direct: PostgreSQL, of one core, " + text, bench: bench, metric: "core-%", bare: "bare-core-%", compare: difference},
	}
	if queue == "empty" {
		rows[0].targets = []target{atMost(0.15)}
	}
	return rows
}

func connections(n int) string {
	if n == 1 {
		return "1 connection"
	}
	return fmt.Sprint(n, " connections")
}

func viewers(protocol, name string) []row {
	bench := "Viewers/" + name
	return []row{
		{figure: "1,000 viewers on one log over " + protocol + ": line printed → viewer, p50", bench: bench, metric: "p50-ms"},
		{figure: "line printed → viewer over " + protocol + ", p99", bench: bench, metric: "p99-ms", targets: []target{atMost(1000)}},
		{figure: "memory of trellis with them over " + protocol, bench: bench, metric: "trellis-MB", targets: []target{atMost(200)}},
		{figure: "sessions that listen for them over " + protocol, bench: bench, metric: "listeners", targets: []target{atMost(1)}},
		{figure: "trellis with them over " + protocol + ", of one core", bench: bench, metric: "trellis-cpu-%"},
		{figure: "PostgreSQL with them over " + protocol + ", of one core", bench: bench, metric: "postgres-cpu-%"},
	}
}
