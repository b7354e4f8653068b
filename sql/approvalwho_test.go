package sql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

func TestWhoMayApprove(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	mustExec(t, w.conn, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'operator')", w.org, w.stranger)
	colleague := w.stranger // elsewhere an admin, here an operator now
	for _, test := range []struct {
		policy string
		who    uuid.UUID
		want   string
	}{
		{`{}`, w.viewer, "PT404"}, {`{}`, w.operator, ""},
		{`{"approvers": "admin"}`, w.operator, "not_an_approver"}, {`{"approvers": "admin"}`, colleague, "not_an_approver"}, {`{"approvers": "admin"}`, w.adminID, ""},
		{`{"approvers": "operator", "four_eyes": true}`, w.operator, "four_eyes"}, {`{}`, colleague, ""},
		{`{"approvers": "admin", "four_eyes": true}`, w.operator, "not_an_approver"}, {`{}`, w.adminID, ""},
	} {
		w.policy(t, test.policy)
		w.deploy(t, w.operator, snapshot("a"))
		id := agent.awaits(t)
		switch err := w.approve(t, test.who, id); test.want {
		case "":
			if err != nil {
				t.Errorf("approve with %s = %v, want it approved", test.policy, err)
			}
		case "PT404":
			wantRefusal(t, err, "PT404", "provision_not_found")
		default:
			wantRefusal(t, err, "PT403", test.want)
		}
		mustAs[string](t, w, w.operator, "SELECT public.cancel_provision($1)", id)
	}
	// Who has no name is not somebody else either.
	w.policy(t, `{"approvers": "operator"}`)
	w.deploy(t, w.operator, snapshot("a"))
	_, err := w.conn.Exec(t.Context(), "SELECT public.approve_provision($1, $2)", agent.awaits(t), aPlan)
	wantRefusal(t, err, "PT403", "four_eyes")
}

func TestApprovalExpires(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.policy(t, `{"approval_expiry": "2 hours"}`)
	w.deploy(t, w.operator, snapshot("a"))
	id := agent.awaits(t)
	next := w.deploy(t, w.operator, snapshot("a"))
	if !one[bool](t, w.conn, "SELECT due_at BETWEEN now() + interval '119 minutes' AND now() + interval '2 hours' FROM public.workspaces WHERE reserved_by = $1", id) {
		t.Error("due_at is not two hours ahead")
	}
	w.reap(t)
	if got := w.status(t, id); got != "AWAITING_APPROVAL" {
		t.Fatalf("provision = %s before its time", got)
	}
	mustExec(t, w.conn, "UPDATE public.workspaces SET due_at = now() - interval '1 second'")
	wantRefusal(t, w.approve(t, w.operator, id), "PT409", "approval_expired")
	w.reap(t)
	if got := w.statusAndCode(t, id); got != "CANCELLED/approval_expired" {
		t.Errorf("provision = %s, want CANCELLED/approval_expired", got)
	}
	if _, got := agent.mustClaim(t); got != next {
		t.Errorf("claim = %s, want %s: the workspace is free", got, next)
	}
	// What was approved does not expire.
	w.deploy(t, w.operator, snapshot("b"))
	approved := agent.awaits(t)
	if err := w.approve(t, w.operator, approved); err != nil {
		t.Fatal(err)
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.workspaces WHERE due_at IS NOT NULL"); got != 0 {
		t.Errorf("workspaces with something due = %d, want 0", got)
	}
}

// What was approved cannot become something else, by the owner's hand either.
func TestApprovedPlanIsImmutable(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	id := agent.awaits(t)
	refused := func(statuses ...string) {
		t.Helper()
		for _, set := range append(statuses, "plan_digest = repeat('e', 64)", "attempt = 2", "retry_of = id", "operation = 'destroy'", "config_snapshot = config_snapshot || '{\"approval\": \"never\"}'", "approved_by = gen_random_uuid()") {
			_, err := w.conn.Exec(t.Context(), "UPDATE public.provisions SET "+set+" WHERE id = $1", id)
			wantRefusal(t, err, "PT409", "immutable")
			for _, role := range []string{"service_role", "authenticated"} {
				err := w.try(t, role, w.adminID, func(tx pgx.Tx) error {
					_, err := tx.Exec(t.Context(), "UPDATE public.provisions SET "+set+" WHERE id = $1", id)
					return err
				})
				wantRefusal(t, err, "42501", "")
			}
		}
	}
	refused("approved_plan = plan_digest", "status = 'QUEUED', plan_digest = repeat('e', 64), approved_plan = repeat('e', 64)")
	if err := w.approve(t, w.operator, id); err != nil {
		t.Fatal(err)
	}
	refused("approved_plan = NULL", "approved_plan = repeat('e', 64)")
}

func TestClusterPolicy(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	set := func(policy string) (got string, err error) {
		err = w.try(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), "SELECT public.set_cluster_policy($1, $2)::text", w.cluster, policy).Scan(&got)
		})
		return got, err
	}
	for _, test := range []struct{ policy, want string }{
		{`{}`, policyText("never", "operator", false, "7 days")},
		{`{"approval": "always", "four_eyes": true}`, policyText("always", "operator", true, "7 days")},
		{`{"approval": null, "approvers": "admin", "approval_expiry": "36 hours"}`, policyText("always", "admin", true, "36:00:00")},
		{`{"four_eyes": false}`, policyText("always", "admin", false, "36:00:00")},
	} {
		if got, err := set(test.policy); err != nil || got != test.want {
			t.Errorf("set_cluster_policy(%s) = %s, %v, want %s", test.policy, got, err, test.want)
		}
	}
	for policy, want := range map[string]string{
		`[]`: "p_policy: must be an object", `{"approver": "admin"}`: "p_policy.approver: unknown; known are approval", `{"approval": "sometimes"}`: "p_policy.approval",
		`{"approval": true}`: "p_policy.approval", `{"approvers": "viewer"}`: "p_policy.approvers", `{"four_eyes": "true"}`: "p_policy.four_eyes",
		`{"approval_expiry": "0"}`: "p_policy.approval_expiry", `{"approval_expiry": "91 days"}`: "p_policy.approval_expiry", `{"approval_expiry": "soon"}`: "p_policy.approval_expiry",
	} {
		_, err := set(policy)
		if got := wantRefusal(t, err, "PT422", "bad_policy"); !strings.Contains(got, want) {
			t.Errorf("set_cluster_policy(%s) = %q, want it to name %q", policy, got, want)
		}
	}
	if got := w.audited(t, w.cluster); !strings.Contains(got, "admin set_cluster_policy") || !strings.Contains(got, `"approvers": "admin"`) {
		t.Errorf("audited = %s, want the last change", got)
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.audit_events WHERE action = 'set_cluster_policy'"); got != 3 {
		t.Errorf("changes audited = %d, want 3: where nothing changed there is none", got)
	}
}

// policyText is a policy as jsonb writes it.
func policyText(approval, approvers string, fourEyes bool, expiry string) string {
	return fmt.Sprintf(`{"approval": %q, "approvers": %q, "four_eyes": %t, "approval_expiry": %q}`, approval, approvers, fourEyes, expiry)
}
