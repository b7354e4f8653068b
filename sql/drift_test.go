package sql_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

func (w *world) queueDrift(t *testing.T) int {
	t.Helper()
	return one[int](t, w.conn, "SELECT tendril.queue_drift()")
}

// due has the workspaces looked at for drift now.
func (w *world) due(t *testing.T) {
	t.Helper()
	mustExec(t, w.conn, "UPDATE public.workspaces SET drift_every = '1 day', drift_due_at = clock_timestamp() WHERE cluster_id = $1", w.cluster)
}

func TestDriftSchedule(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	workspace := one[uuid.UUID](t, w.conn, "SELECT workspace_id FROM public.provisions WHERE id = $1", id)
	set := func(user uuid.UUID, every any) error {
		return w.try(t, "authenticated", user, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "SELECT public.set_drift_schedule($1, $2::text::interval)", workspace, every)
			return err
		})
	}
	for _, bad := range []string{"0", "-1 day", "4 minutes 59 seconds", "367 days", "1 year 1 month"} {
		wantRefusal(t, set(w.operator, bad), "PT422", "bad_interval")
	}
	wantRefusal(t, set(w.viewer, "1 day"), "PT404", "workspace_not_found")
	if err := errors.Join(set(w.operator, "1 day"), set(w.operator, "1 day"), set(w.operator, "24:00:00")); err != nil {
		t.Fatal(err)
	}
	if got := one[string](t, w.conn, "SELECT string_agg(action || ' ' || coalesce(detail ->> 'every', 'never') || ' ' || actor, ', ') FROM public.audit_events WHERE action = 'set_drift_schedule'"); got != "set_drift_schedule 1 day "+w.operator.String() {
		t.Errorf("audited = %s, want it once", got)
	}

	agent.run(t, "SUCCESS", "{}")
	if got := w.queueDrift(t); got != 1 {
		t.Fatalf("queued at first = %d, want 1: it has not been looked at for a day", got)
	}
	agent.run(t, "SUCCESS", `{"drift": []}`)
	if got := w.queueDrift(t); got != 0 {
		t.Errorf("queued at once again = %d, want 0", got)
	}
	// What was looked at just now is not due because the schedule is another.
	if err := set(w.operator, "2 hours"); err != nil {
		t.Fatal(err)
	}
	if got := w.queueDrift(t); got != 0 {
		t.Errorf("queued after another schedule = %d, want 0", got)
	}
	if got := one[bool](t, w.conn, "SELECT drift_due_at = drift_at + interval '2 hours' FROM public.workspaces"); !got {
		t.Error("the next look is not two hours after the last")
	}
	w.due(t)
	if err := set(w.operator, nil); err != nil {
		t.Fatal(err)
	}
	if got := w.queueDrift(t); got != 0 {
		t.Errorf("queued without a schedule = %d, want 0", got)
	}
}

func TestDriftIsLookedForAsItWasApplied(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.request(t, "apply", strings.Replace(snapshot("a"), "v1.2.0", "v1", 1))
	agent.run(t, "SUCCESS", "{}")
	newest := strings.Replace(snapshot("a"), `"workspace"`, `"targets": ["a.b"], "replace": ["a.b"], "approval": "always", "requester_key": "age1`+strings.Repeat("q", 58)+`", "meta": {"reason": "r"}, "workspace"`, 1)
	newest = strings.Replace(newest, "v1.2.0", "v2", 1)
	w.request(t, "apply", newest)
	agent.run(t, "SUCCESS", "{}")
	w.request(t, "apply", strings.Replace(snapshot("a"), "v1.2.0", "v3", 1))
	agent.run(t, "FAILED", `{"error_code": "apply_failed"}`)
	w.request(t, "plan", strings.Replace(snapshot("a"), "v1.2.0", "v4", 1))
	agent.run(t, "SUCCESS", "{}")
	w.due(t)
	if got := w.queueDrift(t); got != 1 {
		t.Fatalf("queued = %d, want 1", got)
	}
	want := `{"meta": {"reason": "r", "triggered_by": "drift schedule"}, "workspace": "a", "terraform_vars": {"project_name": "acme"}, "template_source": {"repo": "https://git.example/acme/envtempl", "version": "v2"}}`
	if got := one[string](t, w.conn, "SELECT operation || ' ' || priority || ' ' || coalesce(requested_by::text, 'nobody') || ' ' || config_snapshot FROM public.provisions WHERE status = 'QUEUED'"); got != "refresh -100 nobody "+want {
		t.Errorf("queued = %s\nwant refresh -100 nobody %s", got, want)
	}
	agent.run(t, "SUCCESS", `{"drift": []}`)

	w.request(t, "destroy", snapshot("a"))
	agent.run(t, "SUCCESS", "{}")
	w.due(t)
	if got := w.queueDrift(t); got != 0 {
		t.Errorf("queued after a destroy = %d, want 0: nothing is there", got)
	}
}

// Whatever goes on in a workspace comes first, and it stays due.
func TestDriftWaitsForItsWorkspace(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	agent.run(t, "SUCCESS", "{}")
	w.due(t)
	person := func(query string) func(t *testing.T) {
		return func(t *testing.T) {
			t.Helper()
			w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), query)
				return err
			})
		}
	}
	var claim, id uuid.UUID
	var digest string
	for _, step := range []struct {
		when string
		do   func(t *testing.T)
	}{
		{"something is queued", func(t *testing.T) { id = w.deploy(t, w.operator, snapshot("a")) }},
		{"it runs", func(t *testing.T) { claim, _ = agent.mustClaim(t) }},
		{"its plan awaits approval", func(t *testing.T) { digest = agent.awaitApproval(t, claim) }},
		{"it is approved", func(t *testing.T) { person(fmt.Sprintf("SELECT public.approve_provision('%s', '%s')", id, digest))(t) }},
		{"it applies", func(t *testing.T) {
			claim, _ = agent.mustClaim(t)
			agent.mustReport(t, claim, "PROCESSING", strings.Replace(applying, "}", `, "plan_digest": "`+digest+`"}`, 1))
		}},
		{"it holds the workspace", func(t *testing.T) {
			w.expire(t, claim)
			w.reap(t)
		}},
		{"it is locked", func(t *testing.T) {
			person("SELECT public.release_workspace(id), public.lock_workspace(id, 'r') FROM public.workspaces")(t)
		}},
		{"the cluster is paused", person("SELECT public.unlock_workspace(w.id), public.pause_cluster(w.cluster_id) FROM public.workspaces w")},
	} {
		step.do(t)
		if got := w.queueDrift(t); got != 0 {
			t.Errorf("queued while %s = %d, want 0", step.when, got)
		}
	}
	person("SELECT public.pause_cluster(id, false) FROM public.clusters")(t)
	if got := w.queueDrift(t); got != 1 {
		t.Errorf("queued when all that is over = %d, want 1", got)
	}
}

// Many at once queue one refresh for each workspace, and what cannot be queued
// does not keep the others from it.
func TestDriftIsQueuedOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrated)
	w := newWorld(t, db.Conn(t))
	agent := w.newAgent(t, "one")
	const workspaces = 12
	for i := range workspaces {
		w.deploy(t, w.operator, snapshot(fmt.Sprintf("w%d", i)))
		agent.run(t, "SUCCESS", "{}")
	}
	mustExec(t, w.conn, "UPDATE public.workspaces SET repo = 'https://git.example/another' WHERE name = 'w3'") // so it belongs to another template
	for range 3 {
		w.due(t)
		var all sync.WaitGroup
		var mu sync.Mutex
		total := 0
		for range 6 {
			conn := db.Conn(t)
			all.Go(func() {
				var n int
				if err := conn.QueryRow(t.Context(), "SELECT tendril.queue_drift()").Scan(&n); err != nil {
					t.Errorf("queue_drift() = %v, want nil", err)
				}
				mu.Lock()
				defer mu.Unlock()
				total += n
			})
		}
		all.Wait()
		if queued := one[int](t, w.conn, "SELECT count(*) FROM public.provisions WHERE status = 'QUEUED' AND operation = 'refresh'"); total != workspaces-1 || queued != workspaces-1 {
			t.Errorf("queued by six at once = %d, and they say %d, want %d", queued, total, workspaces-1)
		}
		if got := one[time.Duration](t, w.conn, "SELECT min(drift_due_at) - clock_timestamp() FROM public.workspaces"); got < 23*time.Hour {
			t.Errorf("due again in %s, want a day, also where it could not be queued", got)
		}
		for range workspaces - 1 {
			agent.run(t, "SUCCESS", `{"drift": []}`)
		}
	}
}

// A refresh of targets replaces what is known of these alone, and does not say that the
// workspace was checked.
func TestDriftOfTargets(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	drift := func() string {
		t.Helper()
		return one[string](t, w.conn, `SELECT coalesce((SELECT string_agg(d ->> 'address', ' ') FROM jsonb_array_elements(drift) d), '') || coalesce(' ' || drift_count, ' unknown') FROM public.workspaces WHERE name = 'a'`)
	}
	refresh := func(targets, want string, found ...string) {
		t.Helper()
		asked := snapshot("a")
		if targets != "" {
			asked = snapshotWith("a", `"targets": `+targets)
		}
		mustAs[uuid.UUID](t, w, w.operator, "INSERT INTO public.provisions (cluster_id, config_snapshot, operation) VALUES ($1, $2, 'refresh') RETURNING id", w.cluster, asked)
		items := []string{}
		for _, address := range found {
			items = append(items, `{"address": "`+strings.ReplaceAll(address, `"`, `\"`)+`", "action": "update"}`)
		}
		agent.run(t, "SUCCESS", `{"drift": [`+strings.Join(items, ", ")+`]}`)
		if got := drift(); got != want {
			t.Errorf("after a refresh of %s that found %v: drift = %q, want %q", targets, found, got, want)
		}
	}
	w.deploy(t, w.operator, snapshot("a"))
	agent.run(t, "SUCCESS", `{}`)
	refresh(`["a.b"]`, " unknown")
	refresh(`["a.b"]`, "a.b 1", "a.b")
	refresh("", `a.b a.bc m.x["k"] 3`, "a.b", "a.bc", `m.x["k"]`)
	checked := one[string](t, w.conn, "SELECT drift_at::text FROM public.workspaces WHERE name = 'a'")
	refresh(`["a.b"]`, `a.bc m.x["k"] 2`)
	refresh(`["m.x"]`, "a.bc m.x.y 2", "m.x.y")
	refresh(`["m"]`, "a.bc 1")
	if got := one[string](t, w.conn, "SELECT drift_at::text FROM public.workspaces WHERE name = 'a'"); got != checked {
		t.Errorf("the workspace was checked at %s, want %s as before", got, checked)
	}
	refresh("", " 0")
	mustExec(t, w.conn, "UPDATE public.workspaces SET drift_count = 250, drift = '[{\"address\": \"a.b\"}]' WHERE name = 'a'")
	refresh(`["a.b"]`, " 249")
}
