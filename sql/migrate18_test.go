package sql_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/testkit/olddb"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

var contract17 = pgtest.WithSetup("migration 17", olddb.At("17"))

// Whatever a provision of before was at goes on in the new contract, with an
// agent of before, and its stages end.
func TestMigrateFrom17WithRows(t *testing.T) {
	t.Parallel()
	for name, migrate := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, contract17)
			w := newWorld(t, db.Conn(t))
			agent := w.newAgent(t, "one")
			ids, claims := map[string]uuid.UUID{}, map[string]uuid.UUID{}
			for _, name := range []string{"claimed", "planning", "applying", "lost", "awaiting", "rejected", "queued"} {
				ids[name] = w.deploy(t, w.operator, snapshot(name))
				if name != "queued" {
					claims[name], _ = agent.mustClaim(t)
				}
			}
			agent.mustReport(t, claims["planning"], "PROCESSING", `{"stage": "plan", "percent": 5}`)
			agent.mustReport(t, claims["applying"], "PROCESSING", applying)
			agent.mustReport(t, claims["lost"], "PROCESSING", applying)
			w.expire(t, claims["lost"])
			w.reap(t)
			for _, name := range []string{"awaiting", "rejected"} {
				mustExec(t, w.conn, "SELECT tendril.await_approval($1, $2)", claims[name], aPlan)
			}
			if err := migrate(t, db.URL, db.Conn(t)); err != nil {
				t.Fatal(err)
			}

			if p, err := agent.heartbeat(t, claims["claimed"], claims["planning"], claims["applying"], claims["lost"]); err != nil || len(p.Lost) != 1 {
				t.Errorf("heartbeat = %+v, %v, want what was lost, and no more", p, err)
			}
			agent.mustReport(t, claims["claimed"], "PROCESSING", `{"stage": "init"}`)
			agent.mustReport(t, claims["planning"], "PROCESSING", applying)
			for _, name := range []string{"claimed", "planning", "applying", "lost"} {
				agent.mustReport(t, claims[name], "SUCCESS", `{}`)
			}
			for _, name := range []string{"awaiting", "rejected"} {
				w.wantWhy(t, "with a plan from before", ids[name], "awaits_approval: its plan needs approval")
			}
			mustAs[string](t, w, w.operator, "SELECT public.reject_provision($1)", ids["rejected"])
			if err := w.approve(t, w.operator, ids["awaiting"]); err != nil {
				t.Fatal(err)
			}
			agent.contract, agent.boot = 3, uuid.New()
			if err := agent.register(t); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				claim, provision := agent.mustClaim(t)
				if provision == ids["awaiting"] { // its bundle was never here
					wantRefusal(t, agent.report(t, claim, "PROCESSING", applyingApproved), "PT409", "plan_missing")
				}
				agent.mustReport(t, claim, "FAILED", `{"error_code": "plan_missing"}`)
			}

			for name, want := range map[string]string{"claimed": "SUCCESS", "planning": "SUCCESS", "applying": "SUCCESS", "lost": "SUCCESS", "rejected": "CANCELLED/rejected", "awaiting": "FAILED/plan_missing", "queued": "FAILED/plan_missing"} {
				if got := w.statusAndCode(t, ids[name]); got != want {
					t.Errorf("%s is %s, want %s", name, got, want)
				}
				if got := w.stages(t, ids[name]); strings.Contains(got, "…") {
					t.Errorf("stages of %s = %s, want none open", name, got)
				}
			}
			if got := one[int](t, w.conn, "SELECT count(*) FROM public.provision_stages WHERE ended_at IS NULL"); got != 0 {
				t.Errorf("open stages = %d, want none", got)
			}
			if got := one[int](t, w.conn, "SELECT count(*) FROM public.workspaces WHERE coalesce(running_claim, held_by_claim, reserved_by, head_id) IS NOT NULL"); got != 0 {
				t.Errorf("workspaces that are kept = %d, want none", got)
			}
		})
	}
}
