package sql_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// aPlan is a digest of a plan.
var aPlan = strings.Repeat("d", 64)

// aResult is a blob in base64, and aResultDigest its digest.
const (
	aResult       = "c2VhbGVk"
	aResultDigest = "c9d0036bed6744bcdf692fc980d8717d7e5f5a4f4e8266b4a84982602fb1cd09"
)

// scene is a world in which something of everything is there, for two
// organisations.
type scene struct {
	*world
	agent                           *agent
	running, held                   uuid.UUID // claims
	queued, awaiting, ended, taking uuid.UUID // provisions
	asking                          uuid.UUID // one that a person is to carry out
	planned                         uuid.UUID // a machine
	workspaces                      map[string]uuid.UUID
	other                           uuid.UUID // the stranger's organisation
	invitation, own                 uuid.UUID // to acme; the admin's, to elsewhere
	session                         uuid.UUID // the admin's
	webhook                         uuid.UUID
	pool, quota                     uuid.UUID
	agentKey                        string // of an agent of the cluster, in hexadecimal
}

func newScene(t *testing.T, conn *pgx.Conn) *scene {
	t.Helper()
	s := &scene{world: newWorld(t, conn), workspaces: map[string]uuid.UUID{}}
	s.agent = s.newAgent(t, "one")
	s.ended = s.deploy(t, s.operator, snapshot("ended"))
	claim, _ := s.agent.mustClaim(t)
	if err := s.agent.put(t, claim, "result", 0, []byte("sealed"), 1); err != nil {
		t.Fatal(err)
	}
	s.agent.mustReport(t, claim, "FAILED", `{"error_code": "plan_failed"}`)
	s.awaiting = s.deploy(t, s.operator, snapshot("awaiting"))
	claim, _ = s.agent.mustClaim(t)
	mustExec(t, conn, "SELECT tendril.await_approval($1, $2)", claim, aPlan)
	s.asking = s.deploy(t, s.operator, snapshot("asking"))
	claim, _ = s.agent.mustClaim(t)
	mustExec(t, conn, "SELECT tendril.ask_person(p, $2, $3) FROM public.provisions p WHERE id = $1", s.asking, claim, awaitsInput(theWork))
	s.deploy(t, s.operator, snapshot("held"))
	s.held, _ = s.agent.mustClaim(t)
	s.agent.mustReport(t, s.held, "PROCESSING", applying)
	s.expire(t, s.held)
	s.reap(t)
	s.taking = s.deploy(t, s.operator, snapshot("running"))
	s.running, _ = s.agent.mustClaim(t)
	s.queued = s.deploy(t, s.operator, snapshot("queued"))

	s.other = one[uuid.UUID](t, conn, "SELECT org_id FROM public.org_members WHERE user_id = $1", s.stranger)
	theirs := s.foreignAgent(t)
	mustExec(t, conn, "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2)", theirs.w.cluster, snapshot("theirs"))
	claim, _ = theirs.mustClaim(t)
	for _, id := range []uuid.UUID{s.ended, one[uuid.UUID](t, conn, "SELECT provision_id FROM tendril.claims WHERE id = $1", claim)} {
		mustExec(t, conn, "SELECT tendril.system_line($1, 'put together')", id)
		mustExec(t, conn, "SELECT tendril.archive_part(id, org_id) FROM public.provisions WHERE id = $1", id)
	}
	for agent, claim := range map[*agent]uuid.UUID{s.agent: s.running, theirs: claim} {
		if err := agent.reportPools(t, lab(2)); err != nil {
			t.Fatal(err)
		}
		if _, err := agent.reserve(t, claim, wanted("p")); err != nil {
			t.Fatal(err)
		}
		if _, err := agent.lines(t, claim, 1, "a line\n"); err != nil {
			t.Fatal(err)
		}
		agent.mustReport(t, claim, "PROCESSING", `{"stage": "plan", "commit": "`+strings.Repeat("a", 40)+`"}`)
	}
	s.pool = one[uuid.UUID](t, conn, "SELECT id FROM public.pools WHERE org_id = $1", s.org)
	mustExec(t, conn, "INSERT INTO public.reservations (org_id, pool_id, workspace_id, name, node, cores, memory_mib, why) SELECT org_id, $1, id, 'leftover', 'pve1', 1, 1024, '' FROM public.workspaces WHERE name = 'queued'", s.pool)
	mustExec(t, conn, `SELECT public.set_pool_quota(id, '{"workspaces": "r*", "machines": 9}') FROM public.orgs`)
	s.quota = one[uuid.UUID](t, conn, "SELECT id FROM public.pool_quotas WHERE org_id = $1", s.org)
	mustExec(t, conn, "SELECT public.set_pool_image(id, 'old', 'debian') FROM public.pools")
	mustExec(t, conn, "INSERT INTO public.provision_inputs (provision_id, org_id, request, expires_at) SELECT provision_id, $2, '{}', now() FROM tendril.claims WHERE id = $1", claim, s.other)
	mustExec(t, conn, "INSERT INTO public.templates (org_id, name, repo, version) SELECT id, 'template', 'https://git.example/a/b', 'v1' FROM public.orgs")
	mustExec(t, conn, "SELECT tendril.pin_inspected(id, 'https://git.example/a/b', 'v1', repeat('a', 40)) FROM public.orgs")
	mustExec(t, conn, "SELECT tendril.record_tags(id, 'https://git.example/a/b', '[]') FROM public.orgs")
	s.planned = mustAs[[]uuid.UUID](t, s.world, s.operator, "SELECT public.plan_machines($1, $2, $3)", s.cluster, snapshot("queued"), `[{"name": "p"}]`)[0]
	mustExec(t, conn, "INSERT INTO public.machines (workspace_id, name, org_id, status) SELECT id, 'm', org_id, 'running' FROM public.workspaces")
	mustExec(t, conn, "INSERT INTO public.resources (workspace_id, address, org_id, type) SELECT id, 'a.b', org_id, 'a' FROM public.workspaces")

	mustExec(t, conn, "SELECT tendril.name_person(user_id, role, role || '@example.com', true) FROM public.org_members")
	mustExec(t, conn, "SELECT public.invite_member(id, 'invited@example.com', 'viewer') FROM public.orgs")
	s.own = one[uuid.UUID](t, conn, "INSERT INTO public.invitations (org_id, user_id, role, expires_at) VALUES ($1, $2, 'viewer', now() + interval '1 day') RETURNING id", s.other, s.adminID)
	s.invitation = one[uuid.UUID](t, conn, "SELECT id FROM public.invitations WHERE org_id = $1", s.org)
	mustExec(t, conn, `SELECT public.create_webhook(id, gen_random_uuid(), '{"name": "a webhook", "kind": "generic", "host": "https://h", "url": "c2VhbGVk", "events": ["success"]}') FROM public.orgs`)
	mustExec(t, conn, "SELECT public.send_webhook(id) FROM public.webhooks")
	s.webhook = one[uuid.UUID](t, conn, "SELECT id FROM public.webhooks WHERE org_id = $1", s.org)
	s.agentKey = one[string](t, conn, "INSERT INTO tendril.agent_keys (cluster_id, public_key, name) VALUES ($1, sha256('key'), 'by key') RETURNING encode(public_key, 'hex')", s.cluster)
	s.session = one[uuid.UUID](t, conn, "SELECT tendril.add_credential('session', $1, sha256('session'), NULL, 'a browser')", s.adminID)

	rows, err := conn.Query(t.Context(), "SELECT name, id FROM public.workspaces")
	if err != nil {
		t.Fatal(err)
	}
	var name string
	var id uuid.UUID
	if _, err := pgx.ForEachRow(rows, []any{&name, &id}, func() error {
		s.workspaces[name] = id
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

// actor is somebody who connects.
type actor struct {
	name   string
	role   string // what they are in the database …
	dbRole string // … and the role of the contract that it is one of
	claims string
	org    uuid.UUID
	member string // the role there

	reads    bool // may read tables, whatever is found there
	deploys  bool // may insert provisions
	platform bool // bypasses RLS

	malformed bool // the claims are
}

// everybody there is. Supabase's service_role bypasses RLS; that of another
// PostgreSQL does not.
func (s *scene) everybody(t *testing.T) []actor {
	t.Helper()
	platform := "platform_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	mustExec(t, s.conn, "CREATE ROLE "+platform+" BYPASSRLS IN ROLE service_role")
	t.Cleanup(func() {
		if _, err := s.conn.Exec(context.Background(), "DROP ROLE "+platform); err != nil {
			t.Error(err)
		}
	})
	person := func(name string, user, org uuid.UUID, member string) actor {
		return actor{name: name, role: "authenticated", dbRole: "authenticated", claims: fmt.Sprintf(`{"sub": %q}`, user), org: org, member: member, reads: true, deploys: true}
	}
	all := []actor{
		{name: "anon", role: "anon", dbRole: "anon"},
		{name: "anon with an admin's name", role: "anon", dbRole: "anon", claims: fmt.Sprintf(`{"sub": %q}`, s.adminID)},
		{name: "tendril_agent", role: "tendril_agent", dbRole: "tendril_agent"},
		{name: "service_role", role: "service_role", dbRole: "service_role", claims: `{"role": "service_role"}`, reads: true, deploys: true},
		{name: "service_role on Supabase", role: platform, dbRole: "service_role", claims: `{"role": "service_role"}`, reads: true, deploys: true, platform: true},
		person("viewer", s.viewer, s.org, "viewer"), person("operator", s.operator, s.org, "operator"),
		person("admin", s.adminID, s.org, "admin"), person("stranger", s.stranger, s.other, "admin"),
		person("nobody", uuid.New(), uuid.Nil, ""),
	}
	for _, claims := range malformedClaims {
		all = append(all, actor{name: fmt.Sprintf("claims %.40q", claims), role: "authenticated", dbRole: "authenticated", claims: claims, reads: true, deploys: true, malformed: true})
	}
	return all
}

// malformedClaims name nobody.
var malformedClaims = []string{
	"", "not json", "{", "[]", `"x"`, "7", "null", "{}", `{"sub": null}`, `{"sub": ""}`, `{"sub": 7}`, `{"sub": {}}`, `{"sub": "admin"}`,
	`{"sub": "00000000-0000-0000-0000-00000000000"}`, `{"sub": "\u0000"}`, `{"SUB": "x"}`, strings.Repeat("[", 100_000),
}

func atLeast(member, least string) bool {
	order := []string{"viewer", "operator", "admin"}
	return slices.Index(order, member) >= slices.Index(order, least)
}

// errUndo ends an attempt that went well.
var errUndo = errors.New("undo")

// attempt does something as an actor and undoes it.
func (s *scene) attempt(t *testing.T, a actor, do func(pgx.Tx) error) error {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), s.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SELECT set_config('request.jwt.claims', $1, true), set_config('role', $2, true)", a.claims, a.role); err != nil {
			t.Fatal(err)
		}
		if err := do(tx); err != nil {
			return err
		}
		return errUndo
	})
	if errors.Is(err, errUndo) {
		return nil
	}
	return err
}

// answerOf is "ok", or what was refused, such as "PT409 claim_lost".
func answerOf(err error) string {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && strings.HasPrefix(pg.Code, "PT"):
		return pg.Code + " " + pg.Detail
	case ok:
		return pg.Code
	case err != nil:
		return err.Error()
	}
	return "ok"
}
