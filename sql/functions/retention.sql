-- Retention: old logs are archived and deleted, and old rows of every table that grows are
-- deleted. docs/CONTRACT.md has each table with its setting.

-- Deletes rows that are older than tendril.settings.*_delete_after says, in batches. What something
-- live needs is kept at any age: rows of runs that have not ended, each workspace's newest run and
-- last success, pins of tags, agents that a workspace depends on. Timers call it; a second caller
-- finds the first at work and does nothing.
--
-- Arguments:
--   p_limit  rows of a table in a call
--   p_time   no further table is begun after this time
-- Answers: a row for each table with deleted rows or a problem:
--   what     the table
--   removed  how many rows were deleted
--   problem  why rows could not be deleted; null: nothing failed
-- Errors: none.
-- Locks: expiry, then in each table the rows to delete, skipping locked ones.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.expire(p_limit int DEFAULT 1000, p_time interval DEFAULT '1 second')
RETURNS TABLE (what text, removed int, problem text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s'
AS $$
DECLARE
  c_never CONSTANT interval := '1000 years'; -- deliveries beyond a webhook's limit go all the same
  c_joins CONSTANT interval := '1 hour'; -- so that an agent learns that its request was refused
  v_now   timestamptz := clock_timestamp();
  v_after tendril.settings;
  v_rule  record;
BEGIN
  PERFORM FROM tendril.expiry WHERE name = 'agents' FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  SELECT * INTO STRICT v_after FROM tendril.settings;
  -- A query of a table's rows, by their place, which are locked: those go. Or a function that
  -- removes them. $1: what is from before that goes. $2: how many rows at most. Run by EXECUTE,
  -- so that a plan made when a table was empty is not kept.
  FOR v_rule IN
    SELECT r.name, v_now - r.after AS before, r.statement FROM (VALUES
      -- These are in the order of their ids, near enough: the first that is too young ends it.
      ('public.audit_events', v_after.audit_delete_after,
        $r$SELECT o.ctid FROM (SELECT a.ctid, a.at FROM public.audit_events a ORDER BY a.id
                             LIMIT CASE WHEN (SELECT f.at FROM public.audit_events f ORDER BY f.id LIMIT 1) < $1 THEN $2 ELSE 0 END) o
           WHERE o.at < $1$r$),
      ('public.provision_events', v_after.event_delete_after,
        $r$SELECT o.ctid FROM (SELECT e.ctid, e.at FROM public.provision_events e ORDER BY e.id
                             LIMIT CASE WHEN (SELECT f.at FROM public.provision_events f ORDER BY f.id LIMIT 1) < $1 THEN $2 ELSE 0 END) o
           WHERE o.at < $1$r$),
      ('public.machine_events', v_after.event_delete_after,
        $r$SELECT o.ctid FROM (SELECT e.ctid, e.at FROM public.machine_events e ORDER BY e.id
                             LIMIT CASE WHEN (SELECT f.at FROM public.machine_events f ORDER BY f.id LIMIT 1) < $1 THEN $2 ELSE 0 END) o
           WHERE o.at < $1$r$),
      ('public.machines', v_after.machine_delete_after,
        $r$SELECT m.ctid FROM public.machines m WHERE m.status = 'gone' AND m.updated_at < $1 ORDER BY m.updated_at LIMIT $2 FOR UPDATE SKIP LOCKED$r$),
      ('tendril.cluster_tokens', v_after.token_delete_after,
        $r$SELECT t.ctid FROM tendril.cluster_tokens t WHERE least(t.revoked_at, t.expires_at) < $1
           ORDER BY least(t.revoked_at, t.expires_at) LIMIT $2 FOR UPDATE SKIP LOCKED$r$),
      ('tendril.agent_keys', v_after.token_delete_after,
        $r$SELECT k.ctid FROM tendril.agent_keys k WHERE least(k.revoked_at, k.expires_at) < $1
           ORDER BY least(k.revoked_at, k.expires_at) LIMIT $2 FOR UPDATE SKIP LOCKED$r$),
      ('tendril.join_tokens', v_after.token_delete_after,
        $r$SELECT t.ctid FROM tendril.join_tokens t WHERE least(t.used_at, t.expires_at) < $1
           ORDER BY least(t.used_at, t.expires_at) LIMIT $2 FOR UPDATE SKIP LOCKED$r$),
      ('tendril.join_requests', c_joins,
        $r$SELECT j.ctid FROM tendril.join_requests j WHERE j.expires_at < $1 ORDER BY j.expires_at LIMIT $2 FOR UPDATE SKIP LOCKED$r$),
      ('tendril.join_guesses', c_joins,
        $r$SELECT g.ctid FROM tendril.join_guesses g WHERE g.at < $1 ORDER BY g.at LIMIT $2 FOR UPDATE SKIP LOCKED$r$),
      ('tendril.credentials', v_after.credential_delete_after,
        $r$SELECT c.ctid FROM tendril.credentials c WHERE least(c.revoked_at, c.expires_at) < $1
           ORDER BY least(c.revoked_at, c.expires_at) LIMIT $2 FOR UPDATE SKIP LOCKED$r$),
      ('public.invitations', v_after.invitation_delete_after,
        $r$SELECT i.ctid FROM public.invitations i WHERE coalesce(i.accepted_at, i.declined_at, i.expires_at) < $1
           ORDER BY coalesce(i.accepted_at, i.declined_at, i.expires_at) LIMIT $2 FOR UPDATE SKIP LOCKED$r$),
      ('tendril.nonces', interval '0',
        $r$SELECT n.ctid FROM tendril.nonces n WHERE n.until < $1 ORDER BY n.until LIMIT $2 FOR UPDATE SKIP LOCKED$r$),
      ('tendril.watched', interval '0',
        $r$SELECT w.ctid FROM tendril.watched w WHERE w.until < $1 ORDER BY w.until LIMIT $2 FOR UPDATE SKIP LOCKED$r$),
      ('tendril.identity_shares', interval '0',
        $r$SELECT s.ctid FROM tendril.identity_shares s WHERE s.expires_at < $1 ORDER BY s.expires_at LIMIT $2 FOR UPDATE SKIP LOCKED$r$),
      ('tendril.requests', v_after.request_delete_after,
        $r$SELECT q.ctid FROM tendril.requests q WHERE q.made_at < $1 ORDER BY q.made_at LIMIT $2 FOR UPDATE SKIP LOCKED$r$),
      ('public.webhook_deliveries', coalesce(v_after.delivery_delete_after, c_never), 'SELECT tendril.expire_deliveries($1, $2)'),
      -- What is in the catalogue stays.
      ('public.template_inspections', v_after.inspection_delete_after,
        $r$SELECT i.ctid FROM public.template_inspections i
           WHERE i.status IN ('done', 'failed') AND greatest(i.requested_at, i.inspected_at) < $1
             AND NOT EXISTS (SELECT FROM public.templates t WHERE t.org_id = i.org_id AND t.version = i.version
                             AND tendril.plain_repo(t.repo) = i.repo AND tendril.plain_path(t.path) = i.path)
           ORDER BY greatest(i.requested_at, i.inspected_at) LIMIT $2 FOR UPDATE OF i SKIP LOCKED$r$),
      ('public.template_tags', v_after.tag_delete_after,
        $r$SELECT g.ctid FROM public.template_tags g
           WHERE g.listed_at < $1 AND NOT EXISTS (SELECT FROM public.templates t WHERE t.org_id = g.org_id AND tendril.plain_repo(t.repo) = g.repo)
           ORDER BY g.listed_at LIMIT $2 FOR UPDATE OF g SKIP LOCKED$r$),
      -- A full commit means itself; only the pin of a tag protects something.
      ('public.cluster_pins', v_after.pin_delete_after,
        $r$SELECT c.ctid FROM public.cluster_pins c
           WHERE c.version ~ '^[0-9a-f]{40}$' AND c.first_used_at < $1 ORDER BY c.first_used_at LIMIT $2 FOR UPDATE SKIP LOCKED$r$),
      -- Last, for they may take longest.
      ('tendril.blobs', interval '0', 'SELECT tendril.expire_blobs()'),
      ('public.provisions', v_after.provision_delete_after, 'SELECT tendril.expire_provisions($1, $2)'),
      ('tendril.claims', CASE WHEN v_after.claim_delete_after IS NOT NULL THEN greatest(v_after.claim_delete_after, v_after.late_log) END, 'SELECT tendril.expire_claims($1, $2)'),
      ('public.agents', v_after.agent_delete_after, 'SELECT tendril.expire_agents($1, $2)')
    ) r (name, after, statement) WHERE r.after IS NOT NULL
  LOOP
    EXIT WHEN clock_timestamp() > v_now + p_time;
    what := v_rule.name;
    removed := 0;
    problem := NULL;
    BEGIN
      IF v_rule.statement LIKE 'SELECT tendril.%' THEN
        EXECUTE v_rule.statement INTO removed USING v_rule.before, p_limit;
      ELSE
        EXECUTE format('DELETE FROM %s WHERE ctid = ANY (ARRAY(%s))', v_rule.name, v_rule.statement) USING v_rule.before, p_limit;
        GET DIAGNOSTICS removed = ROW_COUNT;
      END IF;
    EXCEPTION
      WHEN OTHERS THEN -- the others have their turn
        removed := 0;
        problem := format('%s (%s)', SQLERRM, SQLSTATE);
        RAISE WARNING 'old rows of % cannot be deleted: %', what, problem;
    END;
    IF removed > 0 OR problem IS NOT NULL THEN
      RETURN NEXT;
    END IF;
  END LOOP;
END $$;

-- Deletes provisions that ended before p_before, with their logs and events, p_limit rows in all.
-- It checks p_limit provisions in a call, in the order of their numbers, and continues there; what
-- is kept is checked again in the next pass. Each call is audited. Answers how many it deleted.
--
-- Locks: expiry (by its caller), then of each provision workspace, provision, skipping locked ones.
CREATE OR REPLACE FUNCTION tendril.expire_provisions(p_before timestamptz, p_limit int) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_archives CONSTANT int := 16; -- of 4 MiB each
  v_at    tendril.expiry;
  v_p     record;
  v_left  int := p_limit;
  v_parts int := c_archives;
  v_some  int;
  v_gone  int := 0;
  v_next  bigint;
  v_told  jsonb := '{}';   -- by organisation: how many, from and to which number
BEGIN
  v_at := tendril.begin_pass('provisions');
  v_next := v_at.next_number;
  FOR v_p IN SELECT p.id, p.number, p.org_id, p.workspace_id, p.operation, p.status, p.created_at, p.finished_at FROM public.provisions p
             WHERE p.number >= v_at.next_number ORDER BY p.number LIMIT p_limit LOOP
    EXIT WHEN v_p.created_at >= p_before; -- so are all behind it
    IF v_p.status IN ('SUCCESS', 'FAILED', 'CANCELLED') AND v_p.finished_at < p_before
       -- The newest of its workspace, the last success there and who wrote its state are kept.
       AND EXISTS (SELECT FROM public.provisions n WHERE n.workspace_id = v_p.workspace_id AND n.number > v_p.number)
       AND NOT (v_p.status = 'SUCCESS' AND v_p.operation IN ('apply', 'destroy')
                AND NOT EXISTS (SELECT FROM public.provisions n WHERE n.workspace_id = v_p.workspace_id AND n.number > v_p.number
                                AND n.operation IN ('apply', 'destroy') AND CASE n.status WHEN 'SUCCESS' THEN true ELSE false END))
       AND NOT EXISTS (SELECT FROM tendril.claims c WHERE c.provision_id = v_p.id AND c.state <> 'ended') THEN
      PERFORM FROM public.workspaces w WHERE w.id = v_p.workspace_id AND w.state_provision IS DISTINCT FROM v_p.id FOR NO KEY UPDATE SKIP LOCKED;
      IF FOUND THEN
        PERFORM FROM public.provisions p WHERE p.id = v_p.id FOR UPDATE SKIP LOCKED;
      END IF;
      IF FOUND THEN
        DELETE FROM public.provision_events WHERE id IN (SELECT e.id FROM public.provision_events e WHERE e.provision_id = v_p.id LIMIT v_left);
        GET DIAGNOSTICS v_some = ROW_COUNT;
        v_left := v_left - v_some;
        DELETE FROM public.provision_logs WHERE provision_id = v_p.id AND seq IN (
          SELECT l.seq FROM public.provision_logs l WHERE l.provision_id = v_p.id ORDER BY l.seq LIMIT v_left);
        GET DIAGNOSTICS v_some = ROW_COUNT;
        v_left := v_left - v_some;
        DELETE FROM public.provision_log_archives WHERE provision_id = v_p.id AND last_seq IN (
          SELECT a.last_seq FROM public.provision_log_archives a WHERE a.provision_id = v_p.id ORDER BY a.last_seq LIMIT v_parts);
        GET DIAGNOSTICS v_some = ROW_COUNT;
        v_parts := v_parts - v_some;
        EXIT WHEN v_left <= 0 OR v_parts <= 0; -- there may be more of it
        DELETE FROM public.provisions WHERE id = v_p.id;
        v_left := v_left - 1;
        v_gone := v_gone + 1;
        v_told := v_told || jsonb_build_object(v_p.org_id, jsonb_build_object('count', coalesce((v_told -> v_p.org_id::text ->> 'count')::int, 0) + 1,
          'first', coalesce((v_told -> v_p.org_id::text ->> 'first')::bigint, v_p.number), 'last', v_p.number));
      END IF;
    END IF;
    v_next := v_p.number + 1;
    EXIT WHEN v_left <= 0;
  END LOOP;
  PERFORM tendril.audit(t.key::uuid, 'delete_provisions', 'provision', NULL, t.value) FROM jsonb_each(v_told) t;
  UPDATE tendril.expiry SET next_number = v_next WHERE name = 'provisions' AND next_number <> v_next;
  RETURN v_gone;
END $$;

-- Where a pass over provisions goes on; a new pass begins a week after the previous one did.
CREATE OR REPLACE FUNCTION tendril.begin_pass(p_name text) RETURNS tendril.expiry
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_every CONSTANT interval := '7 days';
  v_at tendril.expiry;
BEGIN
  UPDATE tendril.expiry SET next_number = 1, began_at = clock_timestamp()
  WHERE name = p_name AND began_at NOT BETWEEN clock_timestamp() - c_every AND clock_timestamp();
  SELECT * INTO STRICT v_at FROM tendril.expiry WHERE name = p_name;
  RETURN v_at;
END $$;

-- Deletes claims that ended before p_before, of provisions that have ended, at most p_limit. It
-- checks the claims of p_limit provisions in a call, in the order of their numbers, and continues
-- there. Answers how many it deleted.
--
-- Locks: claim.
CREATE OR REPLACE FUNCTION tendril.expire_claims(p_before timestamptz, p_limit int) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_at   tendril.expiry := tendril.begin_pass('claims');
  v_next bigint := v_at.next_number;
  v_p    record;
  v_some int;
  v_gone int := 0;
BEGIN
  FOR v_p IN SELECT p.id, p.number, p.status, p.created_at FROM public.provisions p WHERE p.number >= v_at.next_number ORDER BY p.number LIMIT p_limit LOOP
    EXIT WHEN v_p.created_at >= p_before; -- so are all behind it
    IF v_p.status IN ('SUCCESS', 'FAILED', 'CANCELLED') THEN
      DELETE FROM tendril.claims WHERE ctid = ANY (ARRAY(
        SELECT c.ctid FROM tendril.claims c WHERE c.provision_id = v_p.id AND c.state = 'ended' AND c.ended_at < p_before
        LIMIT p_limit - v_gone FOR UPDATE SKIP LOCKED));
      GET DIAGNOSTICS v_some = ROW_COUNT;
      v_gone := v_gone + v_some;
      EXIT WHEN v_gone >= p_limit; -- there may be more of it
    END IF;
    v_next := v_p.number + 1;
  END LOOP;
  UPDATE tendril.expiry SET next_number = v_next WHERE name = 'claims' AND next_number <> v_next;
  RETURN v_gone;
END $$;

-- Deletes agents without a heartbeat since p_before that nothing depends on, at most p_limit and at
-- most once an hour. Answers how many.
--
-- Locks: agent.
-- Notes: Once an hour, because an index would cost every heartbeat a write.
CREATE OR REPLACE FUNCTION tendril.expire_agents(p_before timestamptz, p_limit int) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_every CONSTANT interval := '1 hour';
  v_gone int := 0;
BEGIN
  IF EXISTS (SELECT FROM tendril.expiry WHERE name = 'agents' AND began_at NOT BETWEEN clock_timestamp() - c_every AND clock_timestamp()) THEN
    DELETE FROM public.agents WHERE id IN (SELECT a.id FROM tendril.idle_agents(p_before) a LIMIT p_limit);
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    UPDATE tendril.expiry SET began_at = clock_timestamp() WHERE name = 'agents' AND v_gone < p_limit;
  END IF;
  RETURN v_gone;
END $$;

-- Locks and answers the agents of a cluster, or of all clusters, without a heartbeat since
-- p_before: those that no workspace and no open claim depends on. Skips locked ones.
--
-- Locks: agent.
CREATE OR REPLACE FUNCTION tendril.idle_agents(p_before timestamptz, p_cluster uuid DEFAULT NULL) RETURNS SETOF public.agents
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  -- What agents have in hand is little, and found by indexes; then each agent is read once.
  v_needed uuid[] := ARRAY(
    SELECT c.instance_id FROM tendril.claims c WHERE c.state = 'running' UNION SELECT c.instance_id FROM tendril.claims c WHERE c.state = 'lost');
BEGIN
  RETURN QUERY SELECT a.* FROM public.agents a
    WHERE a.last_heartbeat_at < p_before AND (p_cluster IS NULL OR a.cluster_id = p_cluster) AND a.instance_id <> ALL (v_needed)
      AND NOT EXISTS (SELECT FROM public.workspaces w WHERE w.cluster_id = a.cluster_id AND a.instance_id IN (w.home_instance, w.unsaved_state_on))
    ORDER BY a.last_heartbeat_at FOR UPDATE SKIP LOCKED;
END $$;

-- Notes the end of a provision for the archive of logs. A lost run that reports its result later
-- ends again.
CREATE OR REPLACE FUNCTION tendril.note_log_end() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  INSERT INTO tendril.log_ends (provision_id, org_id, ended_at) VALUES (NEW.id, NEW.org_id, coalesce(NEW.finished_at, clock_timestamp()))
  ON CONFLICT (provision_id) DO UPDATE SET ended_at = EXCLUDED.ended_at;
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER provisions_note_log_end AFTER UPDATE OF status, finished_at ON public.provisions FOR EACH ROW
  WHEN (NEW.status IN ('SUCCESS', 'FAILED', 'CANCELLED') AND (OLD.status, OLD.finished_at) IS DISTINCT FROM (NEW.status, NEW.finished_at))
  EXECUTE FUNCTION tendril.note_log_end();

-- Moves the first rows of a log into one archive row: up to 4 MiB of text and 16384 rows. The
-- statement that deletes the rows makes the archive row from them. Answers how many chunks and
-- bytes; null where no row is left.
CREATE OR REPLACE FUNCTION tendril.archive_part(p_provision uuid, p_org uuid, OUT chunks bigint, OUT bytes bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_first bigint;
  v_last  bigint;
BEGIN
  -- A row that somebody has deleted by hand ends a part.
  SELECT min(n.seq), max(n.seq) INTO v_first, v_last
  FROM (SELECT l.seq, first_value(l.seq) OVER w AS first, row_number() OVER w AS nth, sum(octet_length(l.log_chunk)) OVER w AS bytes
        FROM (SELECT seq, log_chunk FROM public.provision_logs WHERE provision_id = p_provision ORDER BY seq LIMIT tendril.archive_part_rows()) l
        WINDOW w AS (ORDER BY l.seq ROWS UNBOUNDED PRECEDING)) n
  WHERE n.nth = 1 OR n.bytes <= tendril.archive_part_bytes() AND n.seq = n.first + n.nth - 1;
  IF v_first IS NULL THEN
    RETURN;
  END IF;
  WITH gone AS (
    DELETE FROM public.provision_logs WHERE provision_id = p_provision AND seq BETWEEN v_first AND v_last RETURNING *)
  INSERT INTO public.provision_log_archives AS a (provision_id, first_seq, last_seq, org_id, bytes, stream_types, log_chunks, emitted_at, created_at)
  SELECT p_provision, v_first, v_last, p_org, sum(octet_length(g.log_chunk)), array_agg(g.stream_type), array_agg(g.log_chunk), array_agg(g.emitted_at), array_agg(g.created_at)
  FROM (SELECT * FROM gone ORDER BY seq) g
  HAVING count(*) = v_last - v_first + 1
  RETURNING a.last_seq - a.first_seq + 1, a.bytes INTO chunks, bytes;
  IF NOT FOUND THEN -- the rows stay
    RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = format('rows of the log of run %s were deleted while they were archived', p_provision);
  END IF;
END $$;

-- Enters provisions of earlier releases into log_ends, 5000 in a call. Answers whether there are
-- more.
CREATE OR REPLACE FUNCTION tendril.find_log_ends() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_next bigint;
  v_last bigint;
BEGIN
  SELECT next_number, last_number INTO v_next, v_last FROM tendril.log_backlog;
  IF v_next > v_last THEN
    RETURN false;
  END IF;
  SELECT next_number INTO v_next FROM tendril.log_backlog FOR UPDATE SKIP LOCKED;
  IF FOUND THEN
    INSERT INTO tendril.log_ends (provision_id, org_id, ended_at)
    SELECT id, org_id, finished_at FROM public.provisions
    WHERE number >= v_next AND number < v_next + tendril.log_ends_batch() AND status IN ('SUCCESS', 'FAILED', 'CANCELLED') AND finished_at IS NOT NULL
    ON CONFLICT (provision_id) DO NOTHING;
    UPDATE tendril.log_backlog SET next_number = v_next + tendril.log_ends_batch() WHERE only_row;
  END IF;
  RETURN true;
END $$;

-- Archives logs that ended long enough ago. Several may call it at once; each takes logs that
-- nobody else has. A log that cannot be read is skipped for a day, with a warning, so that later
-- ones have their turn.
--
-- Arguments:
--   p_rows        about how many rows to move; 32 MiB of text at most
--   p_older_than  archive logs that ended this long ago; null: tendril.settings.log_archive_after
--   p_time        no further part is begun after this time
-- Answers: one row:
--   logs    logs that are archived completely
--   chunks  rows that were moved
--   bytes   bytes of text that were moved
--   more    whether more can be archived at once
-- Errors: none.
-- Locks: provision.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.archive_logs(p_rows int DEFAULT 20000, p_older_than interval DEFAULT NULL, p_time interval DEFAULT '1 second',
  OUT logs int, OUT chunks bigint, OUT bytes bigint, OUT more boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s'
AS $$
DECLARE
  c_held   CONSTANT interval := '1 hour'; -- until a log whose workspace is held is looked at again
  c_broken CONSTANT interval := '1 day';  -- until one that cannot be read is
  v_until  timestamptz := clock_timestamp() + p_time;
  v_after  interval;
  v_late   interval;
  v_before timestamptz;
  v_passed uuid[] := '{}';
  v_id     uuid;
  v_org    uuid;
  v_noted  timestamptz;
  v_ended  timestamptz;
  v_part   record;
  v_did    boolean := false;
BEGIN
  logs := 0;
  chunks := 0;
  bytes := 0;
  more := false;
  SELECT coalesce(p_older_than, log_archive_after), late_log INTO v_after, v_late FROM tendril.settings;
  -- Not while somebody moves the table's rows (trellis gc --compact).
  PERFORM FROM tendril.locks WHERE name = 'archive' FOR SHARE SKIP LOCKED;
  IF v_after IS NULL OR NOT FOUND THEN
    RETURN;
  END IF;
  more := tendril.find_log_ends();
  v_before := clock_timestamp() - greatest(v_after, v_late);
  BEGIN
    LOOP
      IF chunks >= p_rows OR bytes >= tendril.archive_call_bytes() OR clock_timestamp() >= v_until THEN
        more := true;
        RETURN;
      ELSIF cardinality(v_passed) >= tendril.archive_call_logs() THEN
        more := more OR v_did;
        RETURN;
      END IF;
      v_id := NULL;
      -- The provision first: who deletes one waits for that, and not for what hangs on it.
      SELECT p.id, p.org_id, e.ended_at INTO v_id, v_org, v_noted FROM tendril.log_ends e JOIN public.provisions p ON p.id = e.provision_id
      WHERE NOT e.archived AND e.ended_at < v_before AND e.provision_id <> ALL (v_passed)
      ORDER BY e.ended_at LIMIT 1 FOR KEY SHARE OF p SKIP LOCKED;
      IF NOT FOUND THEN
        RETURN;
      END IF;
      v_passed := v_passed || v_id;
      PERFORM FROM tendril.log_ends e WHERE e.provision_id = v_id AND NOT e.archived FOR NO KEY UPDATE SKIP LOCKED;
      CONTINUE WHEN NOT FOUND;
      -- Without one it has no line; while it is locked none is added.
      PERFORM FROM tendril.log_heads h WHERE h.provision_id = v_id FOR NO KEY UPDATE SKIP LOCKED;
      CONTINUE WHEN NOT FOUND AND EXISTS (SELECT FROM tendril.log_heads h WHERE h.provision_id = v_id);
      -- Its newest claim may add lines for as long after its own end.
      v_ended := greatest(v_noted, (SELECT max(c.ended_at) FROM tendril.claims c WHERE c.provision_id = v_id));
      IF v_ended >= v_before THEN
        UPDATE tendril.log_ends SET ended_at = v_ended WHERE provision_id = v_id;
        v_did := true;
        CONTINUE;
      END IF;
      -- Its agent may still apply, and tell of it. Looked at again in an hour, so that
      -- a thousand of them are in nobody's way.
      IF EXISTS (SELECT FROM tendril.claims c JOIN public.workspaces w ON w.held_by_claim = c.id WHERE c.provision_id = v_id) THEN
        UPDATE tendril.log_ends SET ended_at = v_before + c_held WHERE provision_id = v_id;
        v_did := true;
        CONTINUE;
      END IF;
      WHILE EXISTS (SELECT FROM public.provision_logs l WHERE l.provision_id = v_id) LOOP
        v_part := tendril.archive_part(v_id, v_org);
        chunks := chunks + coalesce(v_part.chunks, 0);
        bytes := bytes + coalesce(v_part.bytes, 0);
        EXIT WHEN chunks >= p_rows OR bytes >= tendril.archive_call_bytes() OR clock_timestamp() >= v_until;
      END LOOP;
      IF NOT EXISTS (SELECT FROM public.provision_logs l WHERE l.provision_id = v_id) THEN
        UPDATE tendril.log_heads SET archived = true WHERE provision_id = v_id;
        UPDATE tendril.log_ends SET archived = true WHERE provision_id = v_id;
        logs := logs + 1;
        v_did := true;
      END IF;
    END LOOP;
  EXCEPTION
    WHEN transaction_rollback OR insufficient_resources THEN
      RAISE;
    WHEN OTHERS THEN -- all of this call is undone; the next begins behind this log
      IF v_id IS NULL THEN
        RAISE;
      END IF;
      UPDATE tendril.log_ends SET ended_at = v_before + c_broken WHERE provision_id = v_id;
      logs := 0;
      chunks := 0;
      bytes := 0;
      more := true;
      RAISE WARNING 'the log of provision % cannot be archived and is skipped for a day: %', v_id, SQLERRM;
  END;
END $$;

-- Moves the archive of a log back into provision_logs. Answers how many rows.
--
-- Locks: provision.
CREATE OR REPLACE FUNCTION tendril.restore_log(p_provision uuid) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_count bigint;
BEGIN
  PERFORM FROM public.provisions WHERE id = p_provision FOR KEY SHARE;
  PERFORM FROM tendril.log_heads WHERE provision_id = p_provision FOR NO KEY UPDATE;
  UPDATE tendril.log_heads SET archived = false WHERE provision_id = p_provision;
  UPDATE tendril.log_ends SET archived = false WHERE provision_id = p_provision;
  WITH gone AS (
    DELETE FROM public.provision_log_archives WHERE provision_id = p_provision RETURNING *)
  INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at, created_at)
  SELECT g.provision_id, g.first_seq + u.nth - 1, g.org_id, u.stream_type, u.log_chunk, u.emitted_at, u.created_at
  FROM gone g, unnest(g.stream_types, g.log_chunks, g.emitted_at, g.created_at) WITH ORDINALITY u (stream_type, log_chunk, emitted_at, created_at, nth);
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END $$;

-- Deletes archived logs older than tendril.settings.log_delete_after, about 64 MiB in a call. One
-- line in place of each log says so, and the audit too.
--
-- Arguments:
--   p_limit  logs in a call
-- Answers: how many logs it deleted.
-- Errors: none.
-- Locks: provision.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.delete_logs(p_limit int DEFAULT 100) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_after  interval := (SELECT log_delete_after FROM tendril.settings);
  v_now    timestamptz := clock_timestamp();
  v_passed uuid[] := '{}';
  v_id     uuid;
  v_org    uuid;
  v_chunks bigint;
  v_bytes  bigint;
  v_all    bigint := 0;
  v_text   text;
  v_count  int := 0;
BEGIN
  WHILE v_after IS NOT NULL AND cardinality(v_passed) < p_limit AND v_all < tendril.delete_call_bytes() LOOP
    SELECT p.id, p.org_id INTO v_id, v_org FROM tendril.log_ends e JOIN public.provisions p ON p.id = e.provision_id
    WHERE e.archived AND e.ended_at < v_now - v_after AND e.provision_id <> ALL (v_passed)
    ORDER BY e.ended_at LIMIT 1 FOR KEY SHARE OF p SKIP LOCKED;
    EXIT WHEN NOT FOUND;
    v_passed := v_passed || v_id;
    PERFORM FROM tendril.log_ends e WHERE e.provision_id = v_id AND e.archived FOR NO KEY UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    PERFORM FROM tendril.log_heads h WHERE h.provision_id = v_id FOR NO KEY UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND AND EXISTS (SELECT FROM tendril.log_heads h WHERE h.provision_id = v_id);
    WITH gone AS (
      DELETE FROM public.provision_log_archives a WHERE a.provision_id = v_id RETURNING a.last_seq - a.first_seq + 1 AS chunks, a.bytes)
    SELECT coalesce(sum(g.chunks), 0), coalesce(sum(g.bytes), 0) INTO v_chunks, v_bytes FROM gone g;
    -- Who reads from the beginning finds row 1, and no gap behind it.
    v_text := format(E'This log was deleted at %s, %s after the end of the run (tendril.settings.log_delete_after). It had %s.\n', tendril.at(v_now), v_after, pg_size_pretty(v_bytes));
    IF v_chunks > 0 THEN -- a provision that was cancelled in the queue may have none
      INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at) VALUES (v_id, 1, v_org, 'SYSTEM', v_text, v_now);
      PERFORM tendril.audit(v_org, 'delete_log', 'provision', v_id, jsonb_build_object('bytes', v_bytes, 'after', v_after));
      UPDATE tendril.log_heads SET next_seq = 2, bytes = octet_length(v_text), archived = false WHERE provision_id = v_id;
      v_count := v_count + 1;
    END IF;
    DELETE FROM tendril.log_ends WHERE provision_id = v_id;
    v_all := v_all + v_bytes;
  END LOOP;
  RETURN v_count;
END $$;
