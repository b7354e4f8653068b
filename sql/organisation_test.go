package sql_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

func TestMembers(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	const set, remove = "SELECT public.set_member($1, $2, $3)", "SELECT public.remove_member($1, $2)"
	roles := func() string {
		return one[string](t, w.conn, "SELECT coalesce(string_agg(role, ' '), '') FROM public.org_members WHERE org_id = $1 AND user_id = $2", w.org, w.stranger)
	}
	mustExec(t, w.conn, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'viewer')", w.org, w.stranger)
	for _, role := range []string{"viewer", "operator", "operator", "viewer"} {
		if err := w.does(t, w.adminID, set, w.org, w.stranger, role); err != nil || roles() != role {
			t.Errorf("set_member(%s) = %v, role %q, want it set", role, err, roles())
		}
	}
	if got := w.audited(t, w.stranger); got != `admin set_member {"was": "operator", "role": "viewer"}` {
		t.Errorf("audited = %s, want who changed which role", got)
	}
	for _, args := range [][]any{{w.org, w.stranger, "owner"}, {w.org, w.stranger, nil}, {w.org, nil, "viewer"}} {
		wantRefusal(t, w.does(t, w.adminID, set, args...), "PT422", "bad_member")
	}
	for i, want := range []bool{true, false} {
		if got, err := person[bool](t, w, w.adminID, remove, w.org, w.stranger); err != nil || got != want {
			t.Errorf("remove_member, time %d = %t, %v, want %t", i+1, got, err, want)
		}
	}
	// Joining is the person's own decision.
	wantRefusal(t, w.does(t, w.adminID, set, w.org, w.stranger, "viewer"), "PT404", "member_not_found")
	// An operator makes nobody a member, and an admin of another organisation none here.
	for _, user := range []uuid.UUID{w.operator, w.stranger} {
		wantRefusal(t, w.does(t, user, set, w.org, user, "admin"), "PT404", "org_not_found")
	}
}

func TestTheLastAdminStays(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	wantRefusal(t, w.does(t, w.adminID, "SELECT public.remove_member($1, $2)", w.org, w.adminID), "PT409", "last_admin")
	wantRefusal(t, w.does(t, w.adminID, "SELECT public.set_member($1, $2, 'operator')", w.org, w.adminID), "PT409", "last_admin")
	if err := w.does(t, w.adminID, "SELECT public.set_member($1, $2, 'admin')", w.org, w.operator); err != nil {
		t.Fatal(err)
	}
	if err := w.does(t, w.adminID, "SELECT public.remove_member($1, $2)", w.org, w.adminID); err != nil {
		t.Errorf("remove_member of one admin of two: %v", err)
	}
}

// Two admins who remove each other at the same time take turns.
func TestTwoAdminsRemoveEachOther(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrated)
	w := newWorld(t, db.Conn(t))
	admins := []uuid.UUID{w.adminID, w.operator}
	for range 10 {
		mustExec(t, w.conn, "INSERT INTO public.org_members VALUES ($1, $2, 'admin'), ($1, $3, 'admin') ON CONFLICT (org_id, user_id) DO UPDATE SET role = 'admin'", w.org, admins[0], admins[1])
		var wg sync.WaitGroup
		errs := make([]error, 2)
		for i := range admins {
			own := *w
			own.conn = db.Conn(t)
			wg.Go(func() {
				errs[i] = pgx.BeginFunc(t.Context(), own.conn, func(tx pgx.Tx) error {
					_, err := tx.Exec(t.Context(), "SELECT set_config('request.jwt.claims', json_build_object('sub', $1::text)::text, true), set_config('role', 'authenticated', true)", admins[i])
					if err == nil {
						_, err = tx.Exec(t.Context(), "SELECT public.remove_member($1, $2)", w.org, admins[1-i])
					}
					return err
				})
			})
		}
		wg.Wait()
		if got := one[int](t, w.conn, "SELECT count(*) FROM public.org_members WHERE org_id = $1 AND role = 'admin'", w.org); got != 1 {
			t.Fatalf("admins left = %d (%v), want 1", got, errors.Join(errs...))
		}
	}
}

func TestTemplates(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	save := func(name, repo, version, path, description string) (uuid.UUID, error) {
		return person[uuid.UUID](t, w, w.adminID, "SELECT public.save_template($1, $2, $3, $4, $5, $6)", w.org, name, repo, version, path, description)
	}
	const repo = "https://git.example/a/b"
	first, err := save("web", repo, "v1", "", "")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := save("web", repo, "v2", "prod", "the web"); err != nil || again != first {
		t.Errorf("save_template of the same name = %s, %v, want %s changed", again, err, first)
	}
	if got := one[string](t, w.conn, "SELECT concat_ws(' ', name, version, path, description) FROM public.templates"); got != "web v2 prod the web" {
		t.Errorf("templates = %s, want the one, as it was saved last", got)
	}
	if got := w.audited(t, first); !strings.Contains(got, "admin save_template") || !strings.Contains(got, `"version": "v2"`) {
		t.Errorf("audited = %s, want who saved what", got)
	}
	for _, bad := range [][]string{
		{"", repo, "v1", "", ""}, {strings.Repeat("x", 201), repo, "v1", "", ""}, {"x", "ext::sh -c id", "v1", "", ""}, {"x", "https://u:p@git.example/a", "v1", "", ""},
		{"x", repo, "refs/heads/main", "", ""}, {"x", repo, "", "", ""}, {"x", repo, "v1", "../x", ""}, {"x", repo, "v1", "", strings.Repeat("x", 4001)},
	} {
		_, err := save(bad[0], bad[1], bad[2], bad[3], bad[4])
		wantRefusal(t, err, "PT422", "bad_template")
	}
	for i, want := range []bool{true, false} {
		if got, err := person[bool](t, w, w.adminID, "SELECT public.remove_template($1, 'web')", w.org); err != nil || got != want {
			t.Errorf("remove_template, time %d = %t, %v, want %t", i+1, got, err, want)
		}
	}
}

func TestRebindWorkspace(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	other := strings.Replace(snapshot("a"), "envtempl", "another", 1)
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "PROCESSING", applying)
	workspace := one[uuid.UUID](t, w.conn, "SELECT id FROM public.workspaces")
	const rebind = "SELECT public.rebind_workspace($1, $2, $3)"
	wantRefusal(t, w.does(t, w.adminID, rebind, workspace, "https://git.example/acme/another", "it moved"), "PT409", "workspace_running")
	agent.mustReport(t, claim, "SUCCESS", `{}`)
	_, err := w.tryDeploy(t, w.operator, other)
	wantRefusal(t, err, "PT409", "workspace_bound")
	wantRefusal(t, w.does(t, w.adminID, rebind, workspace, "https://git.example/acme/another", ""), "PT422", "bad_reason")
	wantRefusal(t, w.does(t, w.adminID, rebind, workspace, "http://git.example/acme/another", "it moved"), "PT422", "bad_template")
	if err := w.does(t, w.adminID, rebind, workspace, "https://GIT.example/acme/another.git", "it moved"); err != nil {
		t.Fatal(err)
	}
	if got := w.audited(t, workspace); !strings.Contains(got, "admin rebind_workspace") || !strings.Contains(got, "it moved") || !strings.Contains(got, "envtempl") {
		t.Errorf("audited = %s, want who bound it to what, why, and what it was", got)
	}
	w.deploy(t, w.operator, other)
	_, err = w.tryDeploy(t, w.operator, snapshot("a"))
	wantRefusal(t, err, "PT409", "workspace_bound")
}

// A plan that was made by one template is not applied in a workspace of another's.
func TestRebindIsRefusedWhileAPlanAwaitsApproval(t *testing.T) {
	t.Parallel()
	w, agent, id, _ := newAwaiting(t)
	const rebind = "SELECT public.rebind_workspace(id, 'https://git.example/acme/another', 'it moved') FROM public.workspaces"
	wantRefusal(t, w.does(t, w.adminID, rebind), "PT409", "workspace_reserved")
	if _, err := person[string](t, w, w.operator, "SELECT public.approve_provision($1, $2)", id, aPlan); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, w.does(t, w.adminID, rebind), "PT409", "workspace_reserved")
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "SUCCESS", `{}`)
	if err := w.does(t, w.adminID, rebind); err != nil {
		t.Errorf("rebind_workspace once it is applied: %v", err)
	}
}

// The platform founds organisations, deploys for whom it says, and is audited.
func TestThePlatformActs(t *testing.T) {
	t.Parallel()
	s := newScene(t, pgtest.New(t, migrated).Conn(t))
	for _, a := range s.everybody(t) {
		if !a.platform {
			continue
		}
		var org, asked uuid.UUID
		var audited string
		founder := uuid.New()
		err := s.attempt(t, a, func(tx pgx.Tx) error {
			return errors.Join(
				tx.QueryRow(t.Context(), "SELECT public.create_org('new', $1)", founder).Scan(&org),
				tx.QueryRow(t.Context(), "SELECT action || (actor IS NULL)::text FROM public.audit_events WHERE org_id = $1", org).Scan(&audited),
				tx.QueryRow(t.Context(), "SELECT user_id FROM public.org_members WHERE org_id = $1 AND role = 'admin'", org).Scan(&asked))
		})
		if err != nil || asked != founder || audited != "create_orgtrue" {
			t.Errorf("create_org: admin %s, audited %q, %v, want admin %s", asked, audited, err, founder)
		}
		err = s.attempt(t, a, func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot, requested_by) VALUES ($1, $2, $3) RETURNING requested_by",
				s.cluster, snapshot("new"), s.viewer).Scan(&asked)
		})
		if err != nil || asked != s.viewer {
			t.Errorf("a deploy for the viewer: requested_by %s, %v, want %s", asked, err, s.viewer)
		}
		for _, args := range [][]any{{"", founder}, {strings.Repeat("x", 201), founder}, {nil, founder}, {"x", nil}} {
			err := s.attempt(t, a, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), "SELECT public.create_org($1, $2)", args...)
				return err
			})
			wantRefusal(t, err, "PT422", "")
		}
	}
}
