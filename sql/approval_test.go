package sql_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// planned is a plan of the template's that destroys something, or nothing.
func planned(destroys bool) string {
	return fmt.Sprintf(`{"stage": "plan", "commit": %q, "plan": {"add": 1, "destroy": %d}}`, strings.Repeat("a", 40), map[bool]int{true: 1}[destroys])
}

// snapshotWith is a snapshot with more members.
func snapshotWith(workspace, members string) string {
	return strings.TrimSuffix(snapshot(workspace), "}") + ", " + members + "}"
}

// mustAs is what a call of a person's answers.
func mustAs[T any](t *testing.T, w *world, user uuid.UUID, query string, args ...any) T {
	t.Helper()
	answer, err := person[T](t, w, user, query, args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return answer
}

func (w *world) policy(t *testing.T, policy string) {
	t.Helper()
	mustAs[json.RawMessage](t, w, w.adminID, "SELECT public.set_cluster_policy($1, $2)", w.cluster, policy)
}

func (w *world) ask(t *testing.T, operation, snapshot string) uuid.UUID {
	t.Helper()
	return mustAs[uuid.UUID](t, w, w.operator, "INSERT INTO public.provisions (cluster_id, config_snapshot, operation) VALUES ($1, $2, $3) RETURNING id", w.cluster, snapshot, operation)
}

// storePlan stores the bundle of a plan, of which the database knows the digest
// alone.
func (a *agent) storePlan(t *testing.T, claim uuid.UUID) {
	t.Helper()
	var void any
	if err := a.call(t, &void, "SELECT public.put_blob($1, $2, 'plan', 0, 1, 1, $3, '{}', 'c2VhbGVk')::text", a.w.tokenHash, claim, aPlan); err != nil {
		t.Fatalf("put_blob: %v", err)
	}
}

// awaits has an agent plan what is next and report that it must be approved.
func (a *agent) awaits(t *testing.T) (provision uuid.UUID) {
	t.Helper()
	claim, provision := a.mustClaim(t)
	a.mustReport(t, claim, "PROCESSING", planned(true))
	a.storePlan(t, claim)
	a.mustReport(t, claim, "AWAITING_APPROVAL", `{"plan_digest": "`+aPlan+`"}`)
	return provision
}

func (w *world) approve(t *testing.T, user, provision uuid.UUID) error {
	t.Helper()
	return w.try(t, "authenticated", user, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.approve_provision($1, $2)", provision, aPlan)
		return err
	})
}

// The strictest of snapshot, template and cluster is what the agent is told, and
// what the database asks for before an apply.
func TestApprovalRules(t *testing.T) {
	t.Parallel()
	rules := []string{"never", "destructive", "always"}
	w := newContract(t)
	agent := w.newAgent(t, "one")
	for i, test := range []struct{ snapshot, template, cluster, operation, want string }{
		{"never", "never", "never", "apply", "never"},
		{"destructive", "never", "never", "apply", "destructive"}, {"never", "destructive", "never", "apply", "destructive"}, {"never", "never", "destructive", "apply", "destructive"},
		{"always", "destructive", "never", "apply", "always"}, {"never", "always", "destructive", "apply", "always"}, {"destructive", "never", "always", "destroy", "always"},
		{"never", "destructive", "never", "destroy", "destructive"}, {"never", "never", "never", "destroy", "never"},
		{"always", "always", "always", "plan", "never"}, {"always", "always", "always", "refresh", "never"},
		{"always", "never", "never", `state rm`, "always"}, {"never", "destructive", "never", `state rm`, "destructive"},
		{"never", "never", "destructive", `state rollback`, "destructive"}, {"never", "always", "never", `state rollback`, "always"}, {"never", "never", "never", `state rollback`, "never"},
		{"always", "always", "always", `state list`, "never"},
	} {
		for _, destroys := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d destroys %t", i, destroys), func(t *testing.T) { //nolint:paralleltest // one after the other: each sets the cluster's and the templates' rules
				w.policy(t, fmt.Sprintf(`{"approval": %q}`, test.cluster))
				// The same repository, written in another way; and others, which do not count.
				for name, source := range map[string][2]string{"ours": {"https://GIT.example/acme/envtempl.git", test.template}, "another": {"https://git.example/acme/other", "always"}} {
					mustAs[uuid.UUID](t, w, w.adminID, "SELECT public.save_template(p_org => $1, p_name => $2, p_repo => $3, p_version => 'v9', p_approval => $4)", w.org, name, source[0], source[1])
				}
				operation, command, _ := strings.Cut(test.operation, " ")
				more := map[string]string{"": "", "rm": `, "state": {"command": "rm", "args": ["a.b"]}`, "rollback": `, "state": {"command": "rollback", "version": 1}`, "list": `, "state": {"command": "list"}`}[command]
				mustExec(t, w.conn, "INSERT INTO public.provisions (cluster_id, operation, config_snapshot) VALUES ($1, $2, $3)",
					w.cluster, operation, snapshotWith(fmt.Sprintf("%d-%t", i, destroys), fmt.Sprintf(`"approval": %q`, test.snapshot)+more))
				claim := uuid.New()
				var got string
				if err := agent.call(t, &got, "SELECT approval FROM public.fetch_next_provision($1, $2, $3, $4)", w.tokenHash, agent.instance, agent.boot, claim); err != nil || got != test.want {
					t.Errorf("approval of the claim = %s, %v, want %s of %v", got, err, test.want, rules)
				}
				if command == "list" {
					return // which changes nothing
				}
				// Nothing told of the plan is no word that it destroys nothing.
				before := agent.report(t, claim, "PROCESSING", applying)
				agent.mustReport(t, claim, "PROCESSING", planned(destroys))
				after := agent.report(t, claim, "PROCESSING", applying)
				switch {
				case operation == "plan" || operation == "refresh":
					wantRefusal(t, before, "PT409", "operation_refused")
					wantRefusal(t, after, "PT409", "operation_refused")
				case test.want == "always", test.want == "destructive" && (destroys || operation == "destroy" || command == "rollback"):
					wantRefusal(t, before, "PT409", "approval_needed")
					wantRefusal(t, after, "PT409", "approval_needed")
				case test.want == "destructive":
					wantRefusal(t, before, "PT409", "approval_needed")
					fallthrough
				default:
					if after != nil {
						t.Errorf("apply = %v, want it begun", after)
					}
				}
			})
		}
	}
}

// A template's rule holds whichever way its address is written.
func TestApprovalRuleOfATemplateIsNotDodged(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	mustAs[uuid.UUID](t, w, w.adminID, "SELECT public.save_template(p_org => $1, p_name => 'ours', p_repo => 'https://git.example/acme/envtempl', p_version => 'v9', p_path => 'envs/prod', p_approval => 'always')", w.org)
	for source, want := range map[[2]string]string{
		{"https://git.example/acme/envtempl", "envs/prod"}:             "always",
		{"https://git.example/acme/envtempl", "envs//prod"}:            "always",
		{"https://git.example/acme/envtempl", "envs/./prod/."}:         "always",
		{"https://git.example/acme/envtempl.git/", "./envs/prod/"}:     "always",
		{"https://GIT.example:443/acme//EnvTempl/.", "envs/prod"}:      "always",
		{"https://git.example./acme/envtempl", "envs/prod"}:            "always",
		{"ssh://git@git.example:22/acme/envtempl.git", "envs/prod"}:    "always",
		{"git@git.example:acme/envtempl.git", "envs/prod"}:             "always",
		{"git@git.example:/acme/envtempl", "envs/prod"}:                "always",
		{"https://git.example/acme/%65nvtempl", "envs/prod"}:           "always",
		{"https://git.example/x/../acme/envtempl", "envs/prod"}:        "always",
		{"https://git.example/acme/envtempl", "envs/production"}:       "never",
		{"https://git.example/acme/envtempl", "prod"}:                  "never",
		{"https://git.example/acme/envtempl", ""}:                      "never",
		{"https://git.example/acme/envtempl2", "envs/prod"}:            "never",
		{"https://git.example.org/acme/envtempl", "envs/prod"}:         "never",
		{"git@git.example:other/envtempl.git", "envs/prod"}:            "never",
		{"https://[2001:db8::1]:8443/acme/envtempl", "envs/prod"}:      "never",
		{"https://git.example:8443/acme/envtempl/deeper", "envs/prod"}: "never",
	} {
		snapshot := fmt.Sprintf(`{"template_source": {"repo": %q, "path": %q, "version": "v1"}, "workspace": "w"}`, source[0], source[1])
		if got := one[string](t, w.conn, `SELECT tendril.approval_for(jsonb_populate_record(NULL::public.provisions, jsonb_build_object('operation', 'apply', 'org_id', $1::uuid, 'cluster_id', $2::uuid, 'config_snapshot', $3::jsonb)))`,
			w.org, w.cluster, snapshot); got != want {
			t.Errorf("approval of %v = %s, want %s", source, got, want)
		}
	}
}

// An agent that is too old to know what a provision asks for does not get it, and
// finds what it can run behind it.
func TestOldAgentGetsWhatItKnows(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	old := w.newAgent(t, "old")
	mustExec(t, w.conn, "UPDATE public.agents SET contract = 2")
	destroy := w.ask(t, "destroy", snapshot("a"))
	limited := w.ask(t, "apply", snapshotWith("b", `"timeout_seconds": 60`))
	plain := w.ask(t, "apply", snapshot("c"))
	if _, got := old.mustClaim(t); got != plain {
		t.Errorf("the old agent got %s, want %s", got, plain)
	}
	w.policy(t, `{"approval": "destructive"}`)
	guarded := w.ask(t, "apply", snapshot("d"))
	if got, err := old.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Errorf("the old agent got %s, %v, want nothing more", got, err)
	}
	young := w.newAgent(t, "young")
	for _, want := range []uuid.UUID{destroy, limited, guarded} {
		if _, got := young.mustClaim(t); got != want {
			t.Errorf("the young agent got %s, want %s", got, want)
		}
	}
}

// applyingApproved asks for the apply of the approved plan.
var applyingApproved = strings.Replace(applying, "}", `, "plan_digest": "`+aPlan+`"}`, 1)

// A plan that awaits approval ends its run, keeps the workspace from all else,
// more urgent or not, and is what any agent of the cluster gets once approved.
func TestApprovedPlanGoesFirst(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	one, two := w.newAgent(t, "one"), w.newAgent(t, "two")
	w.policy(t, `{"approval": "always"}`)
	id := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := one.mustClaim(t)
	one.mustReport(t, claim, "PROCESSING", planned(false))
	wantRefusal(t, one.report(t, claim, "AWAITING_APPROVAL", `{}`), "PT422", "bad_detail")
	const awaiting = `{"plan_digest": "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd", "n": 7}`
	one.storePlan(t, claim)
	one.mustReport(t, claim, "AWAITING_APPROVAL", awaiting)
	one.mustReport(t, claim, "AWAITING_APPROVAL", awaiting) // the reply was lost
	urgent := mustAs[uuid.UUID](t, w, w.operator, "INSERT INTO public.provisions (cluster_id, config_snapshot, priority) VALUES ($1, $2, 100) RETURNING id", w.cluster, snapshot("a"))
	if got, err := two.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Errorf("claim while a plan awaits approval = %s, %v, want nothing", got, err)
	}
	if err := w.approve(t, w.operator, id); err != nil {
		t.Fatal(err)
	}
	one.mustReport(t, claim, "AWAITING_APPROVAL", awaiting) // and found only now
	claim = uuid.New()
	for range 2 { // the second time after a lost reply
		var got string
		if err := two.call(t, &got, "SELECT concat_ws(' ', provision_id, approved_plan, approval) FROM public.fetch_next_provision($1, $2, $3, $4)", w.tokenHash, two.instance, two.boot, claim); err != nil || got != id.String()+" "+aPlan+" always" {
			t.Errorf("claim = %s, %v, want %s with the approved plan", got, err, id)
		}
	}
	wantRefusal(t, two.report(t, claim, "AWAITING_APPROVAL", awaiting), "PT409", "already_approved")
	// An agent that has made another plan, or that does not know of approved ones.
	wantRefusal(t, two.report(t, claim, "PROCESSING", `{"stage": "apply", "plan_digest": "`+strings.Repeat("e", 64)+`"}`), "PT409", "plan_invalid")
	wantRefusal(t, two.report(t, claim, "PROCESSING", applying), "PT409", "plan_invalid")
	two.mustReport(t, claim, "PROCESSING", applyingApproved)
	two.mustReport(t, claim, "SUCCESS", `{}`)
	if _, got := one.mustClaim(t); got != urgent {
		t.Errorf("claim = %s, want %s at last", got, urgent)
	}
}

// No plan awaits approval, and none is applied, that is not stored.
func TestPlanMustBeStored(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	const gone = "DELETE FROM tendril.blobs WHERE kind = 'plan'"
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	agent.mustReport(t, claim, "PROCESSING", planned(false))
	wantRefusal(t, agent.report(t, claim, "AWAITING_APPROVAL", `{"plan_digest": "`+aPlan+`"}`), "PT409", "plan_missing")
	agent.storePlan(t, claim)
	wantRefusal(t, agent.report(t, claim, "AWAITING_APPROVAL", `{"plan_digest": "`+strings.Repeat("e", 64)+`"}`), "PT409", "plan_missing")
	agent.mustReport(t, claim, "AWAITING_APPROVAL", `{"plan_digest": "`+aPlan+`"}`)
	if err := w.approve(t, w.operator, id); err != nil {
		t.Fatal(err)
	}
	claim, _ = agent.mustClaim(t)
	err := pgx.BeginFunc(t.Context(), w.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), gone); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), "SELECT public.update_provision_status($1, $2, 'PROCESSING', $3)", w.tokenHash, claim, applying)
		return err
	})
	wantRefusal(t, err, "PT409", "plan_missing")
	agent.mustReport(t, claim, "PROCESSING", applyingApproved)
	mustExec(t, w.conn, gone)                                  // for it is used
	agent.mustReport(t, claim, "PROCESSING", applyingApproved) // the first answer was lost
}

// A cancel that comes before the plan is told of is one.
func TestCancelledPlanAwaitsNothing(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	mustAs[string](t, w, w.operator, "SELECT public.cancel_provision($1)", id)
	agent.mustReport(t, claim, "AWAITING_APPROVAL", `{"plan_digest": "`+aPlan+`"}`)
	if got := w.statusAndCode(t, id); got != "CANCELLED/cancelled" {
		t.Errorf("provision = %s, want CANCELLED/cancelled", got)
	}
	next := w.deploy(t, w.operator, snapshot("a"))
	if _, got := agent.mustClaim(t); got != next {
		t.Errorf("claim = %s, want %s: the workspace is free", got, next)
	}
}
