package chaos

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/provision"
)

// witness writes down each change of a status, and what no claim may do, in the
// transaction in which it happens.
const witness = `
CREATE SCHEMA witness;
CREATE TABLE witness.changes (n bigserial, provision_id uuid, was text, was_code text, now text, code text);
CREATE TABLE witness.wrongs (what text);

CREATE FUNCTION witness.change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO witness.changes (provision_id, was, was_code, now, code)
  VALUES (NEW.id, CASE TG_OP WHEN 'UPDATE' THEN OLD.status END, CASE TG_OP WHEN 'UPDATE' THEN OLD.error_code END, NEW.status, NEW.error_code);
  RETURN NULL;
END $$;
CREATE TRIGGER witness_insert AFTER INSERT ON public.provisions FOR EACH ROW EXECUTE FUNCTION witness.change();
CREATE TRIGGER witness_update AFTER UPDATE ON public.provisions
  FOR EACH ROW WHEN ((OLD.status, OLD.error_code) IS DISTINCT FROM (NEW.status, NEW.error_code)) EXECUTE FUNCTION witness.change();

CREATE FUNCTION witness.claim() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  p public.provisions;
BEGIN
  SELECT * INTO p FROM public.provisions WHERE id = NEW.provision_id;
  IF TG_OP = 'INSERT' THEN
    INSERT INTO witness.wrongs SELECT format('provision %s was claimed while %s', p.number, x.why) FROM (
      SELECT 'its workspace was locked' FROM public.workspaces WHERE id = NEW.workspace_id AND locked_at IS NOT NULL
      UNION ALL SELECT 'its workspace was reserved' FROM public.workspaces WHERE id = NEW.workspace_id AND reserved_by <> p.id
      UNION ALL SELECT 'its workspace was held' FROM public.workspaces WHERE id = NEW.workspace_id AND held_by_claim IS NOT NULL
      UNION ALL SELECT 'another ran' FROM tendril.claims c WHERE c.workspace_id = NEW.workspace_id AND c.id <> NEW.id AND c.state = 'running') x (why);
  ELSIF OLD.apply_begun_at IS NULL AND NEW.apply_begun_at IS NOT NULL THEN
    INSERT INTO witness.wrongs SELECT format('the apply of provision %s (%s) began while %s', p.number, p.operation, x.why) FROM (
      SELECT 'it was to be cancelled' WHERE OLD.cancel_requested_at IS NOT NULL
      UNION ALL SELECT 'it was not running' WHERE OLD.state <> 'running'
      UNION ALL SELECT 'its plan was not approved' WHERE p.operation IN ('apply', 'destroy') AND p.approved_plan IS NULL
        AND (p.config_snapshot ->> 'approval' = 'always' OR p.config_snapshot ->> 'approval' = 'destructive'
             AND (p.operation = 'destroy' OR (p.plan_summary ->> 'destroy')::int > 0 OR (p.plan_summary ->> 'replace')::int > 0))
      UNION ALL SELECT 'it is none that applies' WHERE p.operation IN ('plan', 'refresh', 'unlock')) x (why);
  ELSIF array_position(ARRAY['running', 'lost', 'ended'], NEW.state) < array_position(ARRAY['running', 'lost', 'ended'], OLD.state) THEN
    INSERT INTO witness.wrongs SELECT format('the claim of provision %s was %s and became %s', p.number, OLD.state, NEW.state);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER witness_claim AFTER INSERT OR UPDATE ON tendril.claims FOR EACH ROW EXECUTE FUNCTION witness.claim();
`

func (l *lives) watch() {
	l.T.Helper()
	l.Exec(l.T, witness)
}

// checkWitness holds what happened to the drawing of the status machine.
func (l *lives) checkWitness() {
	l.T.Helper()
	type change struct{ ID, Was, WasCode, Now, Code string }
	rows, err := l.Conn.Query(l.T.Context(), `SELECT provision_id::text, coalesce(was, ''), coalesce(was_code, ''), now, coalesce(code, '') FROM witness.changes ORDER BY n`)
	if err != nil {
		l.T.Fatal(err)
	}
	changes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[change])
	if err != nil {
		l.T.Fatal(err)
	}
	at := map[string]string{}
	for _, c := range changes {
		was, now := provision.Status(c.Was), provision.Status(c.Now)
		legal := was.CanBecome(now)
		switch {
		case c.Was == "":
			legal = now == provision.Queued
		case was == provision.Failed:
			// Late settlement, whatever the run reports.
			legal = c.WasCode == string(provision.CodeAgentLost) && now.Terminal()
			counted.add("lives: settled late", 1)
		}
		if at[c.ID] != c.Was || !legal {
			l.T.Errorf("provision %s was %s, then became %s/%s from %s/%s: the machine has no such arrow", c.ID, at[c.ID], c.Now, c.Code, c.Was, c.WasCode)
		}
		at[c.ID] = c.Now
	}
	counted.add("lives: changes of status checked", len(changes))
	l.none("SELECT what FROM witness.wrongs")
	l.checkRows()
}

// none fails the test if the query has rows, which it shows.
func (l *lives) none(query string, args ...any) {
	l.T.Helper()
	rows, err := l.Conn.Query(l.T.Context(), query, args...)
	if err != nil {
		l.T.Fatalf("%s: %v", query, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		l.T.Fatalf("%s: %v", query, err)
	}
	for _, one := range found {
		l.T.Error(one)
	}
}

// passing are the codes of failures that what befalls agents may bring about,
// and with which a provision may be tried again.
const passing = `('agent_lost', 'agent_restarted', 'agent_drained', 'exec_died')`

// checkRows looks at what is left of all lives.
func (l *lives) checkRows() {
	l.T.Helper()
	// Why something failed: it was made to, or what befell its agent did it.
	l.none(`SELECT format('provision %s (%s of %s) ended as %s/%s: %s', p.number, p.operation, p.config_snapshot -> 'template_source' ->> 'version', p.status, p.error_code, p.error_message)
		FROM public.provisions p WHERE NOT coalesce(CASE p.status
			WHEN 'SUCCESS' THEN p.error_code IS NULL AND (p.config_snapshot -> 'template_source' ->> 'version' = 'v1' OR p.operation IN ('state', 'unlock', 'destroy', 'refresh')
			                                              OR p.config_snapshot ? 'targets' OR p.config_snapshot -> 'template_source' ->> 'version' = 'v4-apply')
			WHEN 'CANCELLED' THEN p.error_code = 'cancelled' AND p.cancel_requested_at IS NOT NULL OR p.error_code = 'rejected'
			                      OR p.error_code = 'cancelled' AND p.attempt > 1
			ELSE p.error_code IN ` + passing + `
			     OR p.error_code = 'timed_out' AND p.config_snapshot ? 'timeout_seconds'
			     OR p.error_code = 'state_failed' AND p.operation IN ('state', 'unlock')
			     OR p.error_code = 'operation_refused' AND p.config_snapshot -> 'state' ->> 'command' = 'rollback' -- of a state that was not the newest any more
			     OR p.error_code || '/' || (p.config_snapshot -> 'template_source' ->> 'version') IN ('plan_failed/v2-plan', 'init_failed/v3-init', 'apply_failed/v4-apply')
			END, false)`)
	for what, query := range map[string]string{
		"%s: its log has %s rows and ends at %s": `SELECT format($1::text, provision_id, count(*), max(seq)) FROM public.provision_logs GROUP BY provision_id HAVING count(*) <> max(seq) OR min(seq) <> 1`,
		"%s: it ended without saying why":        `SELECT format($1::text, id) FROM public.provisions WHERE finished_at IS NULL OR status <> 'SUCCESS' AND coalesce(error_message, '') = ''`,
		"%s: stage %s of attempt %s is open":     `SELECT format($1::text, provision_id, stage, attempt) FROM public.provision_stages WHERE ended_at IS NULL OR ended_at < started_at`,
		"%s: it has no stage queued":             `SELECT format($1::text, id) FROM public.provisions p WHERE NOT EXISTS (SELECT FROM public.provision_stages s WHERE s.provision_id = p.id AND s.stage = 'queued')`,
		"%s: it succeeded without stage done":    `SELECT format($1::text, id) FROM public.provisions p WHERE status = 'SUCCESS' AND NOT EXISTS (SELECT FROM public.provision_stages s WHERE s.provision_id = p.id AND s.stage = 'done')`,
		"%s: attempt %s is of nothing": `SELECT format($1::text, n.id, n.attempt) FROM public.provisions n LEFT JOIN public.provisions p ON p.id = n.retry_of
			WHERE n.attempt > 1 AND NOT coalesce(p.attempt = n.attempt - 1 AND p.workspace_id = n.workspace_id AND p.config_snapshot = n.config_snapshot AND p.operation = n.operation
			      AND n.attempt <= (n.config_snapshot ->> 'max_attempts')::int AND (p.status = 'FAILED' AND p.error_code IN ('init_failed', 'agent_lost', 'agent_restarted', 'agent_drained', 'exec_died')
			           OR n.error_code = 'cancelled'), false)`,
		"%s: it failed (%s) before its apply and was not tried again": `SELECT format($1::text, p.id, p.error_code) FROM public.provisions p
			WHERE p.status = 'FAILED' AND p.error_code IN ('init_failed', 'agent_lost', 'agent_restarted', 'agent_drained', 'exec_died') AND p.cancel_requested_at IS NULL
			  AND p.attempt < coalesce((p.config_snapshot ->> 'max_attempts')::int, 1) AND NOT EXISTS (SELECT FROM public.provisions n WHERE n.retry_of = p.id AND n.attempt = p.attempt + 1)
			  AND NOT EXISTS (SELECT FROM tendril.claims c WHERE c.provision_id = p.id AND c.apply_begun_at IS NOT NULL)`,
		"%s: it was applied, and tried again all the same": `SELECT format($1::text, p.id) FROM public.provisions p JOIN public.provisions n ON n.retry_of = p.id AND n.attempt > 1
			WHERE n.error_code IS DISTINCT FROM 'cancelled' AND EXISTS (SELECT FROM tendril.claims c WHERE c.provision_id = p.id AND c.apply_begun_at IS NOT NULL)`,
		"%s: claim %s is %s":                    `SELECT format($1::text, provision_id, id, state) FROM tendril.claims WHERE state = 'running'`,
		"%s: its plan is still stored":          `SELECT format($1::text, provision_id) FROM tendril.blobs WHERE kind = 'plan'`,
		"%s: a %s that never became whole":      `SELECT format($1::text, coalesce(provision_id, workspace_id), kind) FROM tendril.blobs WHERE complete_at IS NULL`,
		"%s: a result of what is no state pull": `SELECT format($1::text, p.id) FROM tendril.blobs b JOIN public.provisions p ON p.id = b.provision_id WHERE b.kind = 'result' AND p.config_snapshot -> 'state' ->> 'command' <> 'pull'`,
		"%s: %s states are kept":                `SELECT format($1::text, workspace_id, count(*)) FROM tendril.blobs WHERE kind = 'state' GROUP BY workspace_id HAVING count(*) > 20`,
		"%s: it was applied by %s claims":       `SELECT format($1::text, provision_id, count(*)) FROM tendril.claims WHERE apply_begun_at IS NOT NULL GROUP BY provision_id HAVING count(*) > 1`,
	} {
		l.none(query, what)
	}
	for _, one := range l.all {
		for id, digest := range one.approved {
			l.none(`SELECT format('provision %s: plan %s is approved, and %s was said yes to', id, approved_plan, $2::text) FROM public.provisions
				WHERE id = $1 AND approved_plan <> $2`, id, digest)
		}
		l.none(`SELECT format('provision %s: a plan is approved that nobody said yes to', p.id) FROM public.provisions p JOIN public.workspaces w ON w.id = p.workspace_id
			WHERE w.name = $1 AND p.approved_plan IS NOT NULL AND p.id::text <> ALL ($2::text[])`, one.workspace, fmt.Sprintf("{%s}", joined(one.approved)))
	}
}
