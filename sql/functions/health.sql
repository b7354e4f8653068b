-- Health of machines: which checks there are, who does them, and what they find.

-- When a machine counts as unknown of which no result comes: after its interval, the time of a
-- check, and a while.
CREATE OR REPLACE FUNCTION tendril.doubt_after(p_spec jsonb) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_late CONSTANT interval := '2 minutes';
BEGIN
  RETURN clock_timestamp() + make_interval(secs => (p_spec ->> 'interval')::int + (p_spec ->> 'timeout')::int) + c_late;
END $$;

-- Stores how the machines that a report lists are checked; a check that has changed in more than
-- when it was made is due at once.
-- The caller holds the workspace's lock.
CREATE OR REPLACE FUNCTION tendril.record_checks(p_provision public.provisions, p_machines jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  INSERT INTO tendril.machine_checks AS c (machine_id, workspace_id, cluster_id, spec, doubt_at)
  SELECT DISTINCT ON (m.id) m.id, m.workspace_id, p_provision.cluster_id, l.item -> 'check', tendril.doubt_after(l.item -> 'check')
  FROM jsonb_array_elements(p_machines) WITH ORDINALITY l (item, ord)
  JOIN public.machines m ON m.workspace_id = p_provision.workspace_id AND m.name = l.item ->> 'name'
  WHERE jsonb_typeof(l.item -> 'check') = 'object' AND m.status <> 'gone'
  ORDER BY m.id, l.ord DESC
  ON CONFLICT (machine_id) DO UPDATE
  SET (spec, cluster_id, doubt_at) = (EXCLUDED.spec, EXCLUDED.cluster_id, EXCLUDED.doubt_at),
      (due_at, streak) = (SELECT CASE WHEN same THEN c.due_at ELSE clock_timestamp() END, CASE WHEN same THEN c.streak ELSE 0 END
                          FROM (SELECT (c.spec - 'mac') #- '{command,made}' = (EXCLUDED.spec - 'mac') #- '{command,made}' AS same) s)
  WHERE c.spec <> EXCLUDED.spec;
  DELETE FROM tendril.machine_checks c USING public.machines m
  WHERE c.machine_id = m.id AND m.workspace_id = p_provision.workspace_id
    AND (m.status = 'gone' OR EXISTS (SELECT FROM jsonb_array_elements(p_machines) l WHERE l ->> 'name' = m.name AND jsonb_typeof(l -> 'check') IS DISTINCT FROM 'object'));
  UPDATE public.machines m SET health = NULL, health_why = NULL, health_at = NULL
  WHERE m.workspace_id = p_provision.workspace_id AND m.health IS NOT NULL
    AND (m.status NOT IN ('running', 'unknown')
         OR NOT EXISTS (SELECT FROM tendril.machine_checks c WHERE c.machine_id = m.id)
            AND NOT EXISTS (SELECT FROM public.pools p JOIN public.pool_nodes n ON n.pool_id = p.id
                            WHERE p.cluster_id = p_provision.cluster_id AND p.name = m.pool AND n.server ->> 'id' = m.external_id AND n.server ? 'health'));
END $$;

-- Takes checks of the cluster's machines that are due, for an agent to do. Each is put off by its
-- interval, so no other agent does it meanwhile, and another one does it next if no result comes. A
-- machine that does not run is passed over. An agent that does not know checks by a command
-- doesn't say p_commands, and gets none.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_instance    the agent's instance id
--   p_boot        the boot id of this start
--   p_limit       at most so many but for those by a command, 0 to 500
--   p_commands    at most so many by a command of the template, 0 to 500
--   p_without     workspaces that get none now, at most 500: what this agent does for them already
--                 is their share
-- Answers: a list of {machine, workspace, name, check}: ids, the machine's name and how it is
--   checked; empty: nothing is due.
-- Errors: PT401 token_invalid, PT409 agent_superseded, PT409 agent_unregistered,
--   PT409 request_repeated, PT422 bad_agent, PT503 busy.
-- Locks: checks (skips locked ones).
-- Callers: anon, tendril_agent.
CREATE OR REPLACE FUNCTION public.lease_checks(p_token_hash text, p_instance uuid, p_boot uuid, p_limit int, p_commands int DEFAULT 0, p_without uuid[] DEFAULT '{}') RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_most    CONSTANT int := 500;
  v_caller  record := tendril.caller(p_token_hash, p_instance, p_boot);
  v_now     timestamptz := clock_timestamp();
  v_without uuid[] := coalesce(p_without[1:c_most], '{}');
  v_checks  jsonb;
BEGIN
  PERFORM tendril.once();
  WITH asked AS (
    SELECT c.machine_id FROM tendril.machine_checks c
    WHERE c.cluster_id = v_caller.cluster_id AND NOT c.by_command AND c.due_at <= v_now AND c.workspace_id <> ALL (v_without)
    ORDER BY c.due_at LIMIT greatest(0, least(p_limit, c_most)) FOR NO KEY UPDATE SKIP LOCKED
  ), run AS (
    SELECT c.machine_id FROM tendril.machine_checks c
    WHERE c.cluster_id = v_caller.cluster_id AND c.by_command AND c.due_at <= v_now AND c.workspace_id <> ALL (v_without)
    ORDER BY c.due_at LIMIT greatest(0, least(coalesce(p_commands, 0), c_most)) FOR NO KEY UPDATE SKIP LOCKED
  ), due AS (
    SELECT machine_id FROM asked UNION ALL SELECT machine_id FROM run
  ), leased AS (
    UPDATE tendril.machine_checks c
    SET leased_by = p_instance, due_at = v_now + make_interval(secs => greatest((c.spec ->> 'interval')::int, (c.spec ->> 'timeout')::int))
    FROM due WHERE c.machine_id = due.machine_id
    RETURNING c.machine_id, c.spec
  )
  SELECT jsonb_agg(jsonb_build_object('machine', m.id, 'workspace', m.workspace_id, 'name', m.name, 'check', l.spec)) INTO v_checks
  FROM leased l JOIN public.machines m ON m.id = l.machine_id WHERE m.status IN ('running', 'unknown');
  RETURN coalesce(v_checks, '[]');
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Reports what checks have found. A machine is healthy after healthy_after good results in a row,
-- and unhealthy after unhealthy_after bad ones. Results of checks that another agent has taken since
-- are ignored.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_instance    the agent's instance id
--   p_boot        the boot id of this start
--   p_results     a list of at most 500 {machine, result, why}: result is healthy, unhealthy, or
--                 unknown where the agent could not ask; why is cut after 600 characters
-- Answers: nothing.
-- Errors: PT401 token_invalid, PT409 agent_superseded, PT409 agent_unregistered,
--   PT409 request_repeated, PT413 too_many_results, PT422 bad_agent, PT422 bad_results,
--   PT503 busy.
-- Locks: checks, machines.
-- Callers: anon, tendril_agent.
CREATE OR REPLACE FUNCTION public.report_checks(p_token_hash text, p_instance uuid, p_boot uuid, p_results jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_most   CONSTANT int := 500;
  c_why    CONSTANT int := 600; -- characters
  c_streak CONSTANT int := 100; -- as the table keeps it
  v_caller record := tendril.caller(p_token_hash, p_instance, p_boot);
  v_found  record;
BEGIN
  PERFORM tendril.once();
  IF jsonb_typeof(p_results) IS DISTINCT FROM 'array' THEN
    PERFORM tendril.refuse('PT422', 'bad_results', 'p_results: must be a list');
  ELSIF jsonb_array_length(p_results) > c_most THEN
    PERFORM tendril.refuse('PT413', 'too_many_results', format('%s results; at most %s are allowed', jsonb_array_length(p_results), c_most));
  END IF;
  -- In this order, as record_machines() locks them, so that no two wait for each other.
  PERFORM FROM tendril.machine_checks c
  WHERE c.machine_id IN (SELECT r.machine FROM jsonb_to_recordset(p_results) AS r (machine uuid)) AND c.cluster_id = v_caller.cluster_id
  ORDER BY c.machine_id FOR NO KEY UPDATE;
  FOR v_found IN
    WITH told AS (
      SELECT DISTINCT ON (r.machine) r.machine, r.result, left(r.why, c_why) AS why
      FROM jsonb_to_recordset(p_results) AS r (machine uuid, result text, why text)
      WHERE r.result IN ('healthy', 'unhealthy', 'unknown') ORDER BY r.machine
    ), counted AS (
      UPDATE tendril.machine_checks c
      SET doubt_at = tendril.doubt_after(c.spec),
          streak = CASE t.result WHEN 'healthy' THEN least(greatest(c.streak, 0) + 1, c_streak) WHEN 'unhealthy' THEN greatest(least(c.streak, 0) - 1, -c_streak) ELSE 0 END
      FROM told t WHERE c.machine_id = t.machine AND c.cluster_id = v_caller.cluster_id AND c.leased_by = p_instance
      RETURNING c.machine_id, c.streak, c.spec, t.result, t.why
    ), found AS (
      SELECT n.machine_id, CASE n.result WHEN 'healthy' THEN NULL ELSE n.why END AS why,
        CASE WHEN n.result = 'unknown' THEN 'unknown'
             WHEN n.streak >= (n.spec ->> 'healthy_after')::int THEN 'healthy'
             WHEN -n.streak >= (n.spec ->> 'unhealthy_after')::int THEN 'unhealthy' END AS health
      FROM counted n
    )
    SELECT f.machine_id, f.health, f.why FROM found f JOIN public.machines m ON m.id = f.machine_id
    WHERE f.health IS NOT NULL AND (m.health, m.health_why) IS DISTINCT FROM (f.health, f.why) ORDER BY f.machine_id
  LOOP
    UPDATE public.machines SET health_at = CASE WHEN health IS DISTINCT FROM v_found.health THEN clock_timestamp() ELSE health_at END, health = v_found.health, health_why = v_found.why
    WHERE id = v_found.machine_id;
  END LOOP;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
  WHEN data_exception THEN
    PERFORM tendril.refuse('PT422', 'bad_results', format('p_results: malformed: %s', left(SQLERRM, tendril.quoted_error())));
END $$;

-- Gives the machines on a cluster's bare-metal servers, and those that are such servers, the health of
-- the server that was reported last, unless their templates have a check: that asks the machine
-- itself. A server that works is healthy, a warning included.
--
-- Locks: machines.
CREATE OR REPLACE FUNCTION tendril.record_server_health(p_cluster uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_why   CONSTANT int := 600; -- characters
  v_found record;
BEGIN
  FOR v_found IN
    WITH there AS (
      SELECT m.id, CASE n.server ->> 'health' WHEN 'critical' THEN 'unhealthy' WHEN 'unknown' THEN 'unknown' ELSE 'healthy' END AS health, left(n.server ->> 'health_why', c_why) AS why
      FROM public.pools p JOIN public.pool_nodes n ON n.pool_id = p.id
      JOIN public.machines m ON m.external_id = n.server ->> 'id' AND m.pool = p.name AND m.status IN ('running', 'unknown')
      JOIN public.workspaces w ON w.id = m.workspace_id AND w.cluster_id = p.cluster_id
      WHERE p.cluster_id = p_cluster AND p.problem IS NULL AND n.server ? 'health'
        AND NOT EXISTS (SELECT FROM tendril.machine_checks c WHERE c.machine_id = m.id)
    )
    SELECT t.id, t.health, CASE t.health WHEN 'healthy' THEN NULL ELSE t.why END AS why FROM there t JOIN public.machines m ON m.id = t.id
    WHERE (m.health, m.health_why) IS DISTINCT FROM (t.health, CASE t.health WHEN 'healthy' THEN NULL ELSE t.why END) ORDER BY t.id
  LOOP
    UPDATE public.machines SET health_at = CASE WHEN health IS DISTINCT FROM v_found.health THEN clock_timestamp() ELSE health_at END, health = v_found.health, health_why = v_found.why
    WHERE id = v_found.id AND status IN ('running', 'unknown');
  END LOOP;
END $$;

-- Of a machine whose check brings no result nobody knows how it is, and of one on a bare-metal server
-- of which none is reported. At most p_limit of each.
--
-- Locks: checks (skips locked ones), machines.
CREATE OR REPLACE FUNCTION tendril.doubt_health(p_limit int) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_late CONSTANT interval := '2 minutes';
  v_late uuid;
BEGIN
  FOR v_late IN
    UPDATE tendril.machine_checks SET doubt_at = NULL
    WHERE machine_id IN (SELECT c.machine_id FROM tendril.machine_checks c WHERE c.doubt_at < clock_timestamp() ORDER BY c.doubt_at LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING machine_id
  LOOP
    UPDATE public.machines SET health = 'unknown', health_why = 'no agent has said in time what its check found', health_at = clock_timestamp()
    WHERE id = v_late AND status IN ('running', 'unknown') AND health IS DISTINCT FROM 'unknown';
  END LOOP;
  FOR v_late IN
    SELECT m.id FROM public.pools p JOIN public.pool_nodes n ON n.pool_id = p.id
    JOIN public.machines m ON m.external_id = n.server ->> 'id' AND m.pool = p.name AND m.status IN ('running', 'unknown')
    JOIN public.workspaces w ON w.id = m.workspace_id AND w.cluster_id = p.cluster_id
    WHERE p.kind = 'ironic' AND n.measured_at < clock_timestamp() - c_late AND m.health <> 'unknown'
      AND NOT EXISTS (SELECT FROM tendril.machine_checks c WHERE c.machine_id = m.id)
    ORDER BY m.id LIMIT p_limit
  LOOP
    UPDATE public.machines SET health = 'unknown', health_why = 'no agent has reported its server for a while', health_at = clock_timestamp()
    WHERE id = v_late AND status IN ('running', 'unknown') AND health <> 'unknown';
  END LOOP;
END $$;

-- Tells webhooks that a machine's health has changed, but for the first good news of it.
CREATE OR REPLACE FUNCTION tendril.tell_of_health() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.tell_webhooks('health', NEW.org_id, w.cluster_id, NEW.workspace_id, NULL,
    jsonb_build_object('machine', jsonb_build_object('id', NEW.id, 'name', NEW.name, 'health', NEW.health, 'was', OLD.health, 'why', NEW.health_why)))
  FROM public.workspaces w WHERE w.id = NEW.workspace_id;
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER machines_tell_webhooks AFTER UPDATE OF health ON public.machines
  FOR EACH ROW WHEN (NEW.health IS DISTINCT FROM OLD.health AND NEW.health IS NOT NULL AND (OLD.health IS NOT NULL OR NEW.health <> 'healthy'))
  EXECUTE FUNCTION tendril.tell_of_health();
