package sql_test

import (
	"encoding/json"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// BenchmarkHealthChecks is a round of checks of 10,000 machines by two agents that take
// turns, 500 in a call. The share is of one core, by the clock, where each machine is
// checked once a minute.
func BenchmarkHealthChecks(b *testing.B) {
	const machines, perMinute = 10_000, 60
	conn := pgtest.New(b, migrated).Conn(b)
	token := "tnd_bench"
	var org, cluster, workspace uuid.UUID
	exec := func(statement string, args ...any) {
		b.Helper()
		if _, err := conn.Exec(b.Context(), statement, args...); err != nil {
			b.Fatal(err)
		}
	}
	scan := func(into any, query string, args ...any) {
		b.Helper()
		if err := conn.QueryRow(b.Context(), query, args...).Scan(into); err != nil {
			b.Fatal(err)
		}
	}
	scan(&org, "INSERT INTO public.orgs (name) VALUES ('bench') RETURNING id")
	scan(&cluster, "INSERT INTO public.clusters (org_id, name) VALUES ($1, 'bench') RETURNING id", org)
	exec("INSERT INTO tendril.cluster_tokens (cluster_id, digest) SELECT $1, sha256(sha256(convert_to($2, 'UTF8')))", cluster, token)
	scan(&workspace, "INSERT INTO public.workspaces (org_id, cluster_id, name) VALUES ($1, $2, 'w') RETURNING id", org, cluster)
	exec("INSERT INTO public.machines (org_id, workspace_id, name, status, health) SELECT $1, $2, 'm' || n, 'running', 'healthy' FROM generate_series(1, $3::int) n", org, workspace, machines)
	exec(`INSERT INTO tendril.machine_checks (machine_id, workspace_id, cluster_id, spec) SELECT id, workspace_id, $1, '{"kind": "tcp", "target": "10.0.0.1", "port": 22, "interval": 60, "timeout": 10, "healthy_after": 1, "unhealthy_after": 3, "mac": "bG9uZyBlbm91Z2gsIGxvbmcgZW5vdWdoLCBsb25n"}' FROM public.machines`, cluster)
	exec("ANALYZE")
	type caller struct{ instance, boot uuid.UUID }
	agents := []caller{{uuid.New(), uuid.New()}, {uuid.New(), uuid.New()}}
	for i, a := range agents {
		about, err := json.Marshal(map[string]any{"instance_id": a.instance, "boot_id": a.boot, "name": string(rune('a' + i)), "host": "h", "version": "1", "contract": queue.Contract, "slots": 1})
		if err != nil {
			b.Fatal(err)
		}
		exec("SELECT public.register_agent($1, $2)", hashOf(token), string(about))
	}
	done := 0
	for b.Loop() {
		b.StopTimer()
		exec("UPDATE tendril.machine_checks SET due_at = now()")
		exec("VACUUM tendril.machine_checks")
		b.StartTimer()
		for turn := 0; ; turn++ {
			a := agents[turn%2]
			var leased json.RawMessage
			scan(&leased, "SELECT public.lease_checks($1, $2, $3, 500)", hashOf(token), a.instance, a.boot)
			var checks []queue.MachineCheck
			if err := json.Unmarshal(leased, &checks); err != nil {
				b.Fatal(err)
			}
			if len(checks) == 0 {
				break
			}
			results := make([]queue.CheckResult, len(checks))
			for i, c := range checks {
				results[i] = queue.CheckResult{Machine: c.Machine, Result: "healthy"}
			}
			text, err := json.Marshal(results)
			if err != nil {
				b.Fatal(err)
			}
			exec("SELECT public.report_checks($1, $2, $3, $4)", hashOf(token), a.instance, a.boot, string(text))
			done += len(checks)
		}
	}
	if done != b.N*machines {
		b.Fatalf("%d checks done, want %d a round", done, machines)
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/perMinute*100, "%core")
}
