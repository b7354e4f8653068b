package sql_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// theirRun is a run of the scene's own agent, and an agent of another cluster
// that would like to have it.
func theirRun(t *testing.T) (s *scene, thief *agent) {
	t.Helper()
	s = newScene(t, pgtest.New(t, migrated).Conn(t))
	thief = s.siblingAgent(t)
	return s, thief
}

// siblingAgent is an agent of another cluster of the same organisation, which
// should make no difference.
func (s *scene) siblingAgent(t *testing.T) *agent {
	t.Helper()
	other := *s.world
	s.as(t, "authenticated", s.adminID, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT cluster_id, token FROM public.create_cluster('second')").Scan(&other.cluster, &other.token)
	})
	other.tokenHash = hashOf(other.token)
	return other.newAgent(t, "thief")
}

// The token of one cluster is good for nothing in another, whatever is known of
// what is there.
func TestClustersAreApart(t *testing.T) {
	t.Parallel()
	s, thief := theirRun(t)
	everything := func() string {
		return one[string](t, s.conn, `SELECT md5(string_agg(x::text, ' ' ORDER BY x::text)) FROM (
			SELECT to_jsonb(p) FROM public.provisions p UNION ALL SELECT to_jsonb(c) FROM tendril.claims c UNION ALL SELECT to_jsonb(w) FROM public.workspaces w
			UNION ALL SELECT to_jsonb(l) FROM public.provision_logs l UNION ALL SELECT to_jsonb(e) FROM public.provision_events e
			UNION ALL SELECT to_jsonb(g) FROM public.provision_progress g UNION ALL SELECT to_jsonb(a) FROM public.agents a WHERE cluster_id = '`+s.cluster.String()+`') u (x)`)
	}
	before := everything()

	if got, err := thief.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Errorf("claim = %s, %v, want nothing: all that is queued is another cluster's", got, err)
	}
	for _, claim := range []uuid.UUID{s.running, s.held} {
		_, err := thief.claim(t, claim)
		wantRefusal(t, err, "PT409", "claim_lost")
		_, err = thief.lines(t, claim, 2, "forged\n")
		wantRefusal(t, err, "PT409", "claim_lost")
		_, err = thief.lines(t, claim, 1) // what is expected next is not told either
		wantRefusal(t, err, "PT409", "claim_lost")
		for _, status := range []string{"PROCESSING", "SUCCESS", "FAILED", "CANCELLED"} {
			wantRefusal(t, thief.report(t, claim, status, `{"state_unsaved": true, "local_state": true}`), "PT409", "claim_lost")
		}
		p, err := thief.heartbeat(t, claim)
		if err != nil || len(p.Cancel) != 0 || len(p.Lost) != 1 {
			t.Errorf("heartbeat for their claim = %+v, %v, want it told lost and no more", p, err)
		}
	}
	// In the other's name: the instance and the boot are no secret.
	forged := *thief
	forged.instance, forged.boot = s.agent.instance, s.agent.boot
	_, err := forged.heartbeat(t, s.running)
	wantRefusal(t, err, "PT409", "agent_unregistered")
	_, err = forged.claim(t, uuid.New())
	wantRefusal(t, err, "PT409", "agent_unregistered")
	forged.host = s.agent.host
	forged.name, forged.boot = "forged", uuid.New()
	if err := forged.register(t); err != nil { // the same instance elsewhere is another agent
		t.Fatal(err)
	}
	if swept := forged.sweep(t); len(swept) != 0 {
		t.Errorf("sweep in the other's name = %v, want none", swept)
	}
	if _, err := forged.heartbeat(t, s.running); err != nil {
		t.Fatal(err)
	}
	if after := everything(); after != before {
		t.Error("something of the other cluster has changed")
	}
	// And the one whose run it is notices nothing.
	if p, err := s.agent.heartbeat(t, s.running); err != nil || len(p.Lost) != 0 {
		t.Errorf("heartbeat of the owner = %+v, %v, want its claim kept", p, err)
	}
	if next, err := s.agent.lines(t, s.running, 2, "its own\n"); err != nil || next != 3 {
		t.Errorf("lines of the owner = %d, %v, want 3", next, err)
	}
}

// What a claim that exists and one that does not are told must not differ.
func TestForeignClaimsLookLikeNone(t *testing.T) {
	t.Parallel()
	s, thief := theirRun(t)
	absent := uuid.New()
	_, there := thief.lines(t, s.running, 1, "x")
	_, none := thief.lines(t, absent, 1, "x")
	for call, errs := range map[string][2]error{
		"insert_provision_log":    {there, none},
		"update_provision_status": {thief.report(t, s.running, "SUCCESS", `{}`), thief.report(t, absent, "SUCCESS", `{}`)},
	} {
		got, want := strings.ReplaceAll(fmt.Sprint(errs[0]), s.running.String(), "ID"), strings.ReplaceAll(fmt.Sprint(errs[1]), absent.String(), "ID")
		if got != want {
			t.Errorf("%s: %q for another cluster's claim, %q for none, want one answer", call, got, want)
		}
	}
}

// A token that ends takes its agent's voice at the next call, whichever that is.
// What was running is given up as lost, in its log and in its status; and when
// the agent has got a new token, it settles what it had.
func TestRunsOutliveTheirToken(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]string{
		"revoked": "SELECT public.revoke_cluster_token($1)",
		"expired": "UPDATE tendril.cluster_tokens SET expires_at = clock_timestamp() WHERE cluster_id = $1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, timer := theirRun(t)
			s.agent.mustReport(t, s.running, "PROCESSING", applying)
			mustExec(t, s.conn, end, s.cluster)
			_, fetched := s.agent.claim(t, uuid.New())
			_, beaten := s.agent.heartbeat(t, s.running)
			_, logged := s.agent.lines(t, s.running, 2, "x")
			var swept any
			for call, err := range map[string]error{
				"register": s.agent.register(t), "fetch": fetched, "heartbeat": beaten, "log": logged, "status": s.agent.report(t, s.running, "SUCCESS", `{}`),
				"sweep": s.agent.call(t, &swept, "SELECT public.fail_orphaned_provisions($1, $2, $3)", s.tokenHash, s.agent.instance, s.agent.boot),
			} {
				if got := wantRefusal(t, err, "PT401", "token_invalid"); strings.Contains(got, s.tokenHash) {
					t.Errorf("%s: error = %q, want no hash in it", call, got)
				}
			}
			if got := s.status(t, s.taking); got != "PROCESSING" {
				t.Errorf("status within the lease = %s, want PROCESSING: the run goes on", got)
			}

			s.expire(t, s.running)
			if _, err := timer.heartbeat(t); err != nil { // anybody's reaps
				t.Fatal(err)
			}
			if got := s.statusAndCode(t, s.taking); got != "FAILED/agent_lost" || !strings.Contains(s.log(t, s.taking), "is lost: its lease ran out. Apply had begun, so the workspace stays held") {
				t.Errorf("after the lease: %s, log %q, want it given up, and said so", got, s.log(t, s.taking))
			}
			if got := one[uuid.UUID](t, s.conn, "SELECT held_by_claim FROM public.workspaces WHERE name = 'running'"); got != s.running {
				t.Errorf("the workspace is held by %s, want the claim: it may still apply", got)
			}

			token, err := person[string](t, s.world, s.adminID, "SELECT token FROM public.rotate_cluster_token($1, '0')", s.cluster)
			if err != nil {
				t.Fatal(err)
			}
			s.tokenHash = hashOf(token)
			if next, err := s.agent.lines(t, s.running, 2, "the rest\n"); err != nil || next != 3 {
				t.Errorf("lines with the new token = %d, %v, want 3", next, err)
			}
			s.agent.mustReport(t, s.running, "SUCCESS", `{}`)
			if got := s.status(t, s.taking); got != "SUCCESS" || !strings.Contains(s.log(t, s.taking), "the rest\n") {
				t.Errorf("after all: %s, log %q, want what the run came to", got, s.log(t, s.taking))
			}
		})
	}
}

// Nor do they differ in what is looked up for the answer, and so in the time it
// takes. cancel_provision and release_workspace are older than this rule.
func TestForeignThingsAreLookedUpLikeNone(t *testing.T) {
	t.Parallel()
	s := newScene(t, pgtest.New(t, migrated).Conn(t))
	mustExec(t, s.conn, "SET track_functions = 'all'")
	const count = "SELECT coalesce(sum(calls), 0) FROM pg_stat_xact_user_functions WHERE funcname = 'orgs_with_role'"
	// In a transaction of its own, for the counts are this one's.
	lookups := func(query string, id uuid.UUID) (n int) {
		err := pgx.BeginFunc(t.Context(), s.conn, func(tx pgx.Tx) error {
			var before, after int
			_, role := tx.Exec(t.Context(), "SELECT set_config('request.jwt.claims', $1, true)", fmt.Sprintf(`{"sub": %q}`, s.stranger))
			first := tx.QueryRow(t.Context(), count).Scan(&before)
			_, call := tx.Exec(t.Context(), "DO $do$ BEGIN SET LOCAL ROLE authenticated; PERFORM "+fmt.Sprintf(query, id)+"; RAISE 'allowed'; EXCEPTION WHEN SQLSTATE 'PT404' THEN RESET ROLE; END $do$")
			last := tx.QueryRow(t.Context(), count).Scan(&after)
			n = after - before
			return errors.Join(role, first, call, last)
		})
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		return n
	}
	for query, id := range map[string]uuid.UUID{
		"public.approve_provision('%s', '')": s.awaiting, "public.reject_provision('%s')": s.awaiting, "public.retry_provision('%s')": s.ended,
		"public.lock_workspace('%s', 'r')": s.workspaces["queued"], "public.unlock_workspace('%s')": s.workspaces["queued"],
		"public.pause_cluster('%s')": s.cluster, "public.rotate_cluster_token('%s')": s.cluster,
	} {
		if there, none := lookups(query, id), lookups(query, uuid.New()); there != none || there == 0 {
			t.Errorf("%s: memberships are looked up %d times for what is there and %d times for what is not, want the same", query, there, none)
		}
	}
}
