package sample

import (
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// The sample has something of everything, once, and stays as it looks while it
// is kept alive.
func TestSample(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	owner := uuid.New()
	w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", w.Org, owner)
	pool, err := pgxpool.New(t.Context(), w.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for n, want := range []bool{true, false} {
		if filled, err := Fill(t.Context(), pool, w.Org, owner); err != nil || filled != want {
			t.Fatalf("Fill(), call %d = %v, %v, want %v", n+1, filled, err, want)
		}
	}
	w.Exec(t, "UPDATE public.agents SET last_heartbeat_at = now() - interval '1 hour' WHERE version = 'sample'")
	w.Exec(t, "UPDATE tendril.claims SET lease_until = now() - interval '1 hour' WHERE state = 'running'") // it was not running for a while
	beat(t.Context(), pool, w.Org)
	w.Exec(t, "SELECT tendril.reap()")

	database, err := store.Connect(t.Context(), w.URL, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer database.Close()
	s := database.As(owner)
	clusters, _, err := s.ListClusters(t.Context(), w.Org, "", 100)
	looks := map[string]string{}
	for _, c := range clusters {
		looks[c.Name] = c.Connectivity
	}
	if err != nil || looks[online] != "ONLINE" || looks[stale] != "STALE" || looks[offline] != "OFFLINE" {
		t.Errorf("clusters = %v, %v, want one online, one stale, one offline", looks, err)
	}
	runs, _, err := s.ListProvisions(t.Context(), w.Org, store.ProvisionFilter{}, 0, 200)
	if err != nil || len(runs) < 20 {
		t.Fatalf("%d provisions, %v, want some weeks of them", len(runs), err)
	}
	seen := map[string]int{}
	for i, p := range runs {
		seen[string(p.Status)]++
		if p.Status == "QUEUED" && p.Waiting == "" {
			t.Errorf("provision %d waits for nothing: no agent will ever take it, and the page would not say why", p.Number)
		}
		if i > 0 && p.CreatedAt.After(runs[i-1].CreatedAt) && p.Status != "FAILED" && runs[i-1].Status != "FAILED" {
			t.Logf("provision %d was asked for after its successor", p.Number)
		}
	}
	for _, status := range []string{"QUEUED", "PROCESSING", "AWAITING_APPROVAL", "SUCCESS", "FAILED", "CANCELLED"} {
		if seen[status] == 0 {
			t.Errorf("no provision is %s: %v", status, seen)
		}
	}
	for what, query := range map[string]string{
		"locked workspaces": "SELECT count(*) FROM public.workspaces WHERE locked_at IS NOT NULL", "held workspaces": "SELECT count(*) FROM public.workspaces WHERE held_by_claim IS NOT NULL",
		"workspaces with drift": "SELECT count(*) FROM public.workspaces WHERE drift_count > 0", "members": "SELECT count(*) FROM public.people WHERE name <> ''", "lines of logs": "SELECT count(*) FROM public.provision_logs",
		"templates that are known": "SELECT count(*) FROM public.template_inspections WHERE status = 'done'", "those that are not": "SELECT count(*) FROM public.template_inspections WHERE status = 'failed'",
		"pools": "SELECT count(*) FROM public.pools WHERE problem IS NULL", "machines where they were placed": "SELECT count(*) FROM public.machines m JOIN public.reservations r USING (workspace_id, name, node)", "quotas": "SELECT count(*) FROM public.pool_quotas",
		"resources": "SELECT count(*) FROM public.resources", "machines": "SELECT count(*) FROM public.machines WHERE status = 'stopped'", "audit events": "SELECT count(*) FROM public.audit_events",
	} {
		if w.Text(t, query) == "0" {
			t.Errorf("there are no %s", what)
		}
	}
	if got := w.Text(t, "SELECT count(*) FROM public.template_inspections WHERE status IN ('wanted', 'handed', 'queued')"); got != "0" {
		t.Errorf("%s sample templates are to be looked at: they are nowhere", got)
	}
}

// Where somebody works already nothing is made up.
func TestSampleIsNotForWhatIsUsed(t *testing.T) {
	t.Parallel()
	for what, use := range map[string]func(w *queuetest.World){
		"a run": func(w *queuetest.World) { w.Deploy(t, "mine") },
		"a webhook": func(w *queuetest.World) {
			w.Exec(t, "INSERT INTO public.webhooks (id, org_id, name, kind, host, events) VALUES (gen_random_uuid(), $1, 'mine', 'slack', 'https://h', '{success}')", w.Org)
		},
	} {
		w := queuetest.NewWorld(t)
		pool, err := pgxpool.New(t.Context(), w.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		use(w)
		if filled, err := Fill(t.Context(), pool, w.Org, uuid.New()); filled || !errors.Is(err, ErrUsed) {
			t.Errorf("Fill(where there is %s) = %v, %v, want ErrUsed", what, filled, err)
		}
		if got := w.Text(t, "SELECT count(*) FROM public.clusters WHERE name LIKE 'sample-%'"); got != "0" {
			t.Errorf("%s sample clusters beside %s, want none", got, what)
		}
	}
}
