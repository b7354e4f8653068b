package sql_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// secondCluster is another cluster of the organisation, with an agent.
func (w *world) secondCluster(t *testing.T, name string) *agent {
	t.Helper()
	other := *w
	w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT cluster_id, token FROM public.create_cluster($1, $2)", name, w.org).Scan(&other.cluster, &other.token)
	})
	other.tokenHash = hashOf(other.token)
	return other.newAgent(t, name)
}

// pinned is the commit that a claimed provision is to be checked out at; "" where
// nothing is pinned.
func (a *agent) pinned(t *testing.T) (claim uuid.UUID, commit string) {
	t.Helper()
	claim = uuid.New()
	var got *string
	if err := a.call(t, &got, "SELECT pinned_commit FROM public.fetch_next_provision($1, $2, $3, $4)", a.w.tokenHash, a.instance, a.boot, claim); err != nil {
		t.Fatal(err)
	}
	if got != nil {
		commit = *got
	}
	return claim, commit
}

const templateRepo = "https://git.example/acme/envtempl"

// inspect is what trellis does when a person asks for an inspection and the tag is
// that commit; it answers the inspection's status.
func (w *world) inspect(t *testing.T, commit string) string {
	t.Helper()
	if err := w.does(t, w.operator, "SELECT public.inspect_template($1, $2, 'v1.2.0')", w.org, templateRepo); err != nil {
		t.Fatal(err)
	}
	lease := uuid.New()
	repo := one[string](t, w.conn, "SELECT repo FROM tendril.claim_inspection($1, '1 minute')", lease)
	return one[string](t, w.conn, "SELECT tendril.settle_inspection($1, $2, 'v1.2.0', '', $3, $4, '[]', NULL, NULL, false)", w.org, repo, lease, commit)
}

// The holder of one cluster's token says which commit a tag is, and it holds for
// that cluster alone: another one checks the tag out for itself.
func TestATokenPinsNothingForOtherClusters(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	evil, good := strings.Repeat("e", 40), strings.Repeat("a", 40)
	leaked := w.newAgent(t, "leaked")
	other := w.secondCluster(t, "other")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := leaked.mustClaim(t)
	leaked.mustReport(t, claim, "PROCESSING", `{"stage": "plan", "commit": "`+evil+`"}`)
	leaked.mustReport(t, claim, "SUCCESS", `{}`)

	other.w.deploy(t, w.operator, snapshot("b"))
	claim, pinned := other.pinned(t)
	if pinned != "" {
		t.Errorf("the other cluster is to run %s, which only a token of another cluster has named; want its own choice", pinned)
	}
	if err := other.report(t, claim, "PROCESSING", `{"stage": "plan", "commit": "`+good+`"}`); err != nil {
		t.Fatalf("the other cluster may not run the tag's own commit: %v", err)
	}
	other.mustReport(t, claim, "SUCCESS", `{}`)

	// On each cluster a tag that moves is refused, as ever.
	for _, c := range []struct {
		agent        *agent
		first, moved string
	}{{leaked, evil, good}, {other, good, evil}} {
		c.agent.w.deploy(t, w.operator, snapshot("c"))
		claim, pinned := c.agent.pinned(t)
		if pinned != c.first {
			t.Errorf("%s: pinned = %q, want %s", c.agent.name, pinned, c.first)
		}
		wantRefusal(t, c.agent.report(t, claim, "PROCESSING", `{"stage": "plan", "commit": "`+c.moved+`"}`), "PT409", "tag_moved")
		c.agent.mustReport(t, claim, "FAILED", `{"error_code": "tag_moved"}`)
	}

	// What the clusters do not agree on an inspection does not settle; an admin does.
	if got := w.inspect(t, good); got != "failed" {
		t.Errorf("inspection of a tag that a cluster knows as another commit = %s, want failed", got)
	}
	if problem := one[string](t, w.conn, "SELECT problem FROM public.template_inspections"); !strings.Contains(problem, evil) || !strings.Contains(problem, `cluster "prod"`) {
		t.Errorf("problem = %q, want the cluster and its commit", problem)
	}
	const pin = "SELECT public.pin_template($1, $2, 'v1.2.0', $3, $4)"
	wantRefusal(t, w.does(t, w.operator, pin, w.org, templateRepo, good, "inspected"), "PT404", "org_not_found")
	wantRefusal(t, w.does(t, w.adminID, pin, w.org, templateRepo, "main", "inspected"), "PT422", "bad_template")
	wantRefusal(t, w.does(t, w.adminID, pin, w.org, templateRepo, good, " "), "PT422", "bad_reason")
	if err := w.does(t, w.adminID, pin, w.org, templateRepo, good, "inspected by hand"); err != nil {
		t.Fatal(err)
	}
	if got := one[string](t, w.conn, "SELECT detail::text FROM public.audit_events WHERE action = 'pin_template'"); !strings.Contains(got, evil) || !strings.Contains(got, "inspected by hand") {
		t.Errorf("audited = %s, want what was pinned before, and why", got)
	}
	leaked.w.deploy(t, w.operator, snapshot("d"))
	claim, pinned = leaked.pinned(t)
	if pinned != good {
		t.Errorf("pinned for the first cluster = %q, want what the admin has said", pinned)
	}
	wantRefusal(t, leaked.report(t, claim, "PROCESSING", `{"stage": "plan", "commit": "`+evil+`"}`), "PT409", "tag_moved")
}

// What trellis reads when a person asks pins the tag for all clusters, whatever
// their tokens say afterwards.
func TestAnInspectionPinsForAllClusters(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	good, evil := strings.Repeat("a", 40), strings.Repeat("e", 40)
	one, other := w.newAgent(t, "one"), w.secondCluster(t, "other")
	if got := w.inspect(t, good); got != "done" {
		t.Fatalf("inspection = %s, want done", got)
	}
	for _, a := range []*agent{one, other} {
		a.w.deploy(t, w.operator, snapshot("a"))
		claim, pinned := a.pinned(t)
		if pinned != good {
			t.Errorf("%s: pinned = %q, want %s", a.name, pinned, good)
		}
		wantRefusal(t, a.report(t, claim, "PROCESSING", `{"stage": "plan", "commit": "`+evil+`"}`), "PT409", "tag_moved")
	}
	if got := w.inspect(t, evil); got != "failed" {
		t.Errorf("inspection after the tag was moved = %s, want failed", got)
	}
}

// A version that is a commit means that commit.
func TestACommitMeansItself(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	commit, evil := strings.Repeat("a", 40), strings.Repeat("e", 40)
	w.deploy(t, w.operator, strings.Replace(snapshot("a"), "v1.2.0", commit, 1))
	claim, _ := a.mustClaim(t)
	wantRefusal(t, a.report(t, claim, "PROCESSING", `{"stage": "plan", "commit": "`+evil+`"}`), "PT409", "commit_differs")
	a.mustReport(t, claim, "PROCESSING", `{"stage": "plan", "commit": "`+commit+`"}`)
}
