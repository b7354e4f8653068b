-- What nobody need ask for: that a workspace is looked at for drift, by a schedule
-- of its own. And what everybody asks: why a provision has not started.

-- +goose Up

SELECT tendril.lock_tables('public.agents, public.workspaces');

ALTER TABLE public.workspaces
  -- How often a refresh looks for drift, and when it does next.
  ADD COLUMN drift_every  interval CHECK (drift_every BETWEEN interval '5 minutes' AND interval '366 days'),
  ADD COLUMN drift_due_at timestamptz,
  ADD CHECK ((drift_every IS NULL) = (drift_due_at IS NULL));
CREATE INDEX workspaces_drift_due ON public.workspaces (drift_due_at) WHERE drift_due_at IS NOT NULL;

-- What the agent's own policy lets provisions do. Null: it has not said.
ALTER TABLE public.agents ADD COLUMN operations text[];

-- Contract 3: operations other than apply, what a snapshot may say beside template
-- and variables, plans that are approved, blobs. An agent of contract 2 gets no such
-- provisions (contract_needed), and finds all else as it was.
CREATE OR REPLACE FUNCTION tendril.contract_version() RETURNS int
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS 'SELECT 3';

-- As before, and: an agent may say which operations its policy grants.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION public.register_agent(p_token_hash text, p_agent jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster   public.clusters := tendril.authenticate(p_token_hash);
  v_settings  tendril.settings;
  v_instance  uuid;
  v_boot      uuid;
  v_other     public.agents;
  v_host      text := split_part(p_agent ->> 'host', ':', 1);
  v_directory text := nullif(substr(p_agent ->> 'host', length(v_host) + 2), '');
  v_key       text := p_agent ->> 'age_public_key';
  v_granted   text[];
BEGIN
  BEGIN
    v_instance := (p_agent ->> 'instance_id')::uuid;
    v_boot     := (p_agent ->> 'boot_id')::uuid;
    IF v_instance IS NULL OR v_boot IS NULL
       OR length(coalesce(p_agent ->> 'name', '')) NOT BETWEEN 1 AND 200
       OR coalesce(v_host, '') = '' OR length(p_agent ->> 'host') > 300
       OR length(coalesce(p_agent ->> 'version', '')) NOT BETWEEN 1 AND 100
       OR coalesce((p_agent ->> 'contract')::int, 0) < 1
       OR coalesce((p_agent ->> 'slots')::int, 0) NOT BETWEEN 1 AND 64 THEN
      RAISE data_exception;
    END IF;
  EXCEPTION WHEN data_exception THEN
    PERFORM tendril.refuse('PT422', 'bad_agent', 'p_agent needs instance_id and boot_id (UUIDs), name, host, version, contract (from 1) and slots (1 to 64)');
  END;
  IF v_key !~ tendril.age_key_pattern() THEN
    PERFORM tendril.refuse('PT422', 'bad_agent', 'p_agent.age_public_key: no age recipient (age1…)');
  END IF;
  IF p_agent ->> 'operations' IS NOT NULL THEN
    IF jsonb_typeof(p_agent -> 'operations') <> 'array' THEN
      PERFORM tendril.refuse('PT422', 'bad_agent', 'p_agent.operations: must be a list');
    END IF;
    v_granted := ARRAY(SELECT left(o, 40) FROM jsonb_array_elements_text(p_agent -> 'operations') o LIMIT 20);
  END IF;
  IF (p_agent ->> 'contract')::int > tendril.contract_version() THEN
    PERFORM tendril.refuse('PT426', 'contract_too_new',
      format('this agent speaks contract %s, the database only %s', p_agent ->> 'contract', tendril.contract_version()),
      'upgrade the control plane and run "trellis migrate", or use an older agent');
  END IF;
  SELECT * INTO v_settings FROM tendril.settings;

  -- One registration at a time, so that two cannot both find the name free.
  SELECT * INTO STRICT v_cluster FROM public.clusters WHERE id = v_cluster.id FOR NO KEY UPDATE;

  SELECT * INTO v_other FROM public.agents
  WHERE cluster_id = v_cluster.id AND name = p_agent ->> 'name' AND instance_id <> v_instance
    AND last_heartbeat_at BETWEEN clock_timestamp() - v_settings.agent_alive AND clock_timestamp() + v_settings.agent_alive
  LIMIT 1;
  IF FOUND THEN
    PERFORM tendril.refuse('PT409', 'agent_name_taken',
      format('the name %s is in use by another agent of this cluster, on %s, which was heard of %s s ago', to_json(v_other.name), v_other.host,
             greatest(0, round(extract(epoch FROM clock_timestamp() - v_other.last_heartbeat_at)))),
      'give this agent another name, or stop the other one');
  END IF;
  SELECT * INTO v_other FROM public.agents
  WHERE cluster_id = v_cluster.id AND instance_id = v_instance AND (host <> v_host OR directory <> v_directory)
    AND last_heartbeat_at BETWEEN clock_timestamp() - v_settings.agent_alive AND clock_timestamp() + v_settings.agent_alive;
  IF FOUND THEN
    PERFORM tendril.refuse('PT409', 'agent_instance_elsewhere',
      format('this agent''s data directory is in use on %s, where it was heard of %s s ago', concat_ws(':', v_other.host, v_other.directory),
             greatest(0, round(extract(epoch FROM clock_timestamp() - v_other.last_heartbeat_at)))),
      'a data directory belongs to one agent: do not copy it; start this one with an empty one');
  END IF;

  IF EXISTS (SELECT FROM public.agents WHERE cluster_id = v_cluster.id AND instance_id = v_instance AND v_boot = ANY (past_boots)) THEN
    PERFORM tendril.refuse('PT409', 'agent_superseded', 'this agent was started again since; this earlier start of it may do nothing more');
  END IF;

  INSERT INTO public.agents AS a (org_id, cluster_id, instance_id, boot_id, name, host, directory, version, contract, slots, operations)
  VALUES (v_cluster.org_id, v_cluster.id, v_instance, v_boot, p_agent ->> 'name', v_host, v_directory,
          p_agent ->> 'version', (p_agent ->> 'contract')::int, (p_agent ->> 'slots')::int, v_granted)
  ON CONFLICT (cluster_id, instance_id) DO UPDATE
  SET past_boots = CASE WHEN a.boot_id = EXCLUDED.boot_id THEN a.past_boots ELSE (a.boot_id || a.past_boots)[1:20] END,
      boot_id = EXCLUDED.boot_id, name = EXCLUDED.name, host = EXCLUDED.host, directory = EXCLUDED.directory, version = EXCLUDED.version,
      contract = EXCLUDED.contract, slots = EXCLUDED.slots, operations = EXCLUDED.operations, registered_at = now(), last_heartbeat_at = clock_timestamp();
  UPDATE public.clusters SET last_seen_at = clock_timestamp() WHERE id = v_cluster.id;

  IF v_cluster.age_public_key IS NULL AND v_key IS NOT NULL THEN
    UPDATE public.clusters SET age_public_key = v_key WHERE id = v_cluster.id;
    PERFORM tendril.audit(v_cluster.org_id, 'set_cluster_key', 'cluster', v_cluster.id,
      jsonb_build_object('age_public_key', v_key, 'agent', p_agent ->> 'name', 'instance_id', v_instance));
    v_cluster.age_public_key := v_key;
  END IF;

  RETURN jsonb_build_object(
    'cluster_id', v_cluster.id, 'cluster_name', v_cluster.name, 'contract', tendril.contract_version(),
    'age_public_key', v_cluster.age_public_key,
    'heartbeat_seconds', extract(epoch FROM v_settings.heartbeat), 'lease_seconds', extract(epoch FROM v_settings.lease));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Has a workspace looked at for drift every so often; null: never (operator). What
-- has not been looked at for that long is due at once.
-- +goose StatementBegin
CREATE FUNCTION public.set_drift_schedule(p_workspace uuid, p_every interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_workspace public.workspaces;
BEGIN
  v_workspace := tendril.lock_workspace_for(p_workspace, 'operator');
  IF p_every NOT BETWEEN interval '5 minutes' AND interval '366 days' THEN
    PERFORM tendril.refuse('PT422', 'bad_interval', format('p_every: %s is not between 5 minutes and 366 days', left(p_every::text, 100)),
      'null switches the schedule off');
  ELSIF v_workspace.drift_every IS NOT DISTINCT FROM p_every THEN
    RETURN; -- it is as wanted
  END IF;
  UPDATE public.workspaces
  SET drift_every = p_every,
      drift_due_at = CASE WHEN p_every IS NOT NULL THEN greatest(clock_timestamp(), drift_at + p_every) END
  WHERE id = p_workspace;
  PERFORM tendril.audit(v_workspace.org_id, 'set_drift_schedule', 'workspace', p_workspace,
    jsonb_build_object('every', p_every, 'was', v_workspace.drift_every));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Queues a refresh for one workspace, whose lock the caller holds: what was applied
-- last, all of it, after everything else that is wanted. False: nothing exists
-- there that could have drifted.
-- +goose StatementBegin
CREATE FUNCTION tendril.queue_refresh(p_workspace public.workspaces) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_newest public.provisions;
BEGIN
  SELECT * INTO v_newest FROM public.provisions
  WHERE workspace_id = p_workspace.id AND operation IN ('apply', 'destroy')
    AND CASE status WHEN 'SUCCESS' THEN true ELSE false END
  ORDER BY number DESC LIMIT 1;
  IF v_newest.operation IS DISTINCT FROM 'apply' THEN
    RETURN false;
  END IF;
  INSERT INTO public.provisions (cluster_id, operation, priority, config_snapshot)
  VALUES (p_workspace.cluster_id, 'refresh', -100,
    (v_newest.config_snapshot - ARRAY['targets', 'replace', 'approval'])
      -- The name as well: it may have been made of variables.
      || jsonb_build_object('workspace', p_workspace.name,
           'meta', CASE jsonb_typeof(v_newest.config_snapshot -> 'meta') WHEN 'object' THEN v_newest.config_snapshot -> 'meta' ELSE '{}' END
                   || '{"triggered_by": "drift schedule"}'));
  RETURN true;
END $$;
-- +goose StatementEnd

-- Queues a refresh wherever one is due, at most p_limit of them, and returns how
-- many. A workspace in which something is queued, runs, is held, locked or reserved
-- stays due until it is free. May be called at any time, by several at once: who
-- comes second finds it done. One workspace that cannot be looked at does not keep
-- the others from it.
-- +goose StatementBegin
CREATE FUNCTION tendril.queue_drift(p_limit int DEFAULT 20) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_now       timestamptz := clock_timestamp();
  v_id        uuid;
  v_workspace public.workspaces;
  v_queued    boolean;
  v_count     int := 0;
BEGIN
  FOR v_id IN
    SELECT w.id FROM public.workspaces w JOIN public.clusters c ON c.id = w.cluster_id
    WHERE w.drift_due_at <= v_now AND w.head_id IS NULL AND w.running_claim IS NULL AND w.held_by_claim IS NULL
      AND w.reserved_by IS NULL AND w.locked_at IS NULL AND c.paused_at IS NULL
    ORDER BY w.drift_due_at LIMIT p_limit
  LOOP
    BEGIN
      -- Asked again once it is ours: it may have been looked at, or taken.
      SELECT * INTO v_workspace FROM public.workspaces
      WHERE id = v_id AND drift_due_at <= v_now AND head_id IS NULL AND running_claim IS NULL AND held_by_claim IS NULL
        AND reserved_by IS NULL AND locked_at IS NULL
      FOR NO KEY UPDATE SKIP LOCKED;
      CONTINUE WHEN NOT FOUND;
      UPDATE public.workspaces SET drift_due_at = v_now + drift_every WHERE id = v_id;
      v_queued := NOT EXISTS (SELECT FROM public.provisions WHERE workspace_id = v_id AND status = 'QUEUED')
                  AND tendril.queue_refresh(v_workspace);
      v_count := v_count + v_queued::int;
    EXCEPTION
      WHEN OTHERS THEN
        RAISE WARNING 'workspace % cannot be looked at for drift: % (%)', v_id, SQLERRM, SQLSTATE;
        -- At its next turn; until then others have theirs.
        UPDATE public.workspaces SET drift_due_at = v_now + drift_every
        WHERE id IN (SELECT id FROM public.workspaces WHERE id = v_id AND drift_due_at <= v_now FOR NO KEY UPDATE SKIP LOCKED);
    END;
  END LOOP;
  RETURN v_count;
END $$;
-- +goose StatementEnd

-- As before, and: drift, and what nobody has come for (migration 22).
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.schedule_jobs() RETURNS TABLE (run_as text, statement text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_job record;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_cron') THEN
    RETURN;
  END IF;
  statement := format('GRANT USAGE ON SCHEMA cron TO %I', current_user);
  run_as := 'a superuser';
  FOR v_job IN VALUES ('tendril-reap', 'SELECT tendril.reap()'), ('tendril-drift', 'SELECT tendril.queue_drift()'), ('tendril-expire', 'SELECT tendril.expire_blobs()') LOOP
    IF NOT EXISTS (SELECT FROM cron.job WHERE jobname = v_job.column1 AND database = current_database()) THEN
      PERFORM cron.schedule(v_job.column1, '* * * * *', v_job.column2);
    END IF;
  END LOOP;
EXCEPTION
  WHEN insufficient_privilege THEN
    RETURN NEXT;
END $$;
-- +goose StatementEnd

-- A time in a message.
-- +goose StatementBegin
CREATE FUNCTION tendril.at(p_at timestamptz) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"');
END $$;

-- Whether an agent was heard of just now, by the clock of this database.
CREATE FUNCTION tendril.is_online(p_heartbeat timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce(p_heartbeat BETWEEN now() - interval '45 seconds' AND now() + interval '45 seconds', false);
END $$;
-- +goose StatementEnd

-- What of its workspace keeps a provision waiting.
-- +goose StatementBegin
CREATE FUNCTION tendril.why_workspace(p_provision public.provisions, p_workspace public.workspaces)
RETURNS TABLE (reason text, message text, detail jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_other record;
  v_ahead record;
BEGIN
  IF p_workspace.locked_at IS NOT NULL THEN
    RETURN QUERY SELECT 'workspace_locked',
      format('the workspace is locked since %s: %s', tendril.at(p_workspace.locked_at), p_workspace.lock_reason),
      jsonb_build_object('workspace', p_workspace.name, 'since', p_workspace.locked_at, 'by', p_workspace.locked_by, 'why', p_workspace.lock_reason);
  END IF;

  SELECT p.number, p.operation, c.host, c.ended_at, c.stage INTO v_other
  FROM tendril.claims c JOIN public.provisions p ON p.id = c.provision_id WHERE c.id = p_workspace.held_by_claim;
  IF FOUND THEN
    RETURN QUERY SELECT 'workspace_held',
      format('the workspace is held by provision %s: the agent on %s was lost at %s while it applied there, and may still be at it',
             v_other.number, v_other.host, tendril.at(v_other.ended_at)),
      jsonb_build_object('workspace', p_workspace.name, 'number', v_other.number, 'host', v_other.host, 'since', v_other.ended_at);
  END IF;

  SELECT p.number, p.operation, c.host, c.created_at, coalesce(c.stage, 'checkout') AS stage, p.cancel_requested_at INTO v_other
  FROM tendril.claims c JOIN public.provisions p ON p.id = c.provision_id WHERE c.id = p_workspace.running_claim;
  IF FOUND THEN
    RETURN QUERY SELECT 'workspace_busy',
      format('provision %s runs in this workspace since %s, now in stage %s%s', v_other.number, tendril.at(v_other.created_at), v_other.stage,
             CASE WHEN v_other.cancel_requested_at IS NULL THEN '' ELSE ', and is being stopped' END),
      jsonb_build_object('workspace', p_workspace.name, 'number', v_other.number, 'operation', v_other.operation, 'stage', v_other.stage,
                         'host', v_other.host, 'since', v_other.created_at);
  END IF;

  SELECT p.id, p.number, p.status, p.approved_plan INTO v_other
  FROM public.provisions p WHERE p.id = p_workspace.reserved_by AND p.id <> p_provision.id AND p.status IN ('QUEUED', 'AWAITING_APPROVAL');
  IF FOUND THEN
    RETURN QUERY SELECT 'workspace_reserved',
      CASE WHEN v_other.status = 'AWAITING_APPROVAL' THEN format('the plan of provision %s awaits approval, and nothing else may change this workspace meanwhile', v_other.number)
           WHEN v_other.approved_plan IS NOT NULL THEN format('the plan of provision %s is approved and is applied first', v_other.number)
           ELSE format('provision %s, another attempt at what failed, comes first', v_other.number) END,
      jsonb_build_object('workspace', p_workspace.name, 'number', v_other.number, 'provision', v_other.id, 'status', v_other.status);
  ELSE
    -- Who is ahead: ten of them are named. They are the first in the order of the
    -- queue's index, so that however much is behind, no more than these are read.
    SELECT count(*) AS more, (array_agg(a.number ORDER BY a.priority DESC, a.number))[1:10] AS numbers, max(a.priority) AS priority INTO v_ahead
    FROM (SELECT p.number, p.priority FROM public.provisions p
          WHERE p.workspace_id = p_provision.workspace_id AND p.status = 'QUEUED'
          ORDER BY p.priority DESC, p.number LIMIT 1000) a
    WHERE (a.priority > p_provision.priority OR a.priority = p_provision.priority AND a.number < p_provision.number)
      AND p_workspace.reserved_by IS DISTINCT FROM p_provision.id;
    IF v_ahead.more > 0 THEN
      RETURN QUERY SELECT CASE WHEN v_ahead.priority > p_provision.priority THEN 'higher_priority' ELSE 'queued_behind' END,
        format('%s in this workspace %s first: %s%s',
               CASE v_ahead.more WHEN 1 THEN 'another provision' WHEN 1000 THEN '1000 other provisions or more' ELSE v_ahead.more || ' other provisions' END, CASE v_ahead.more WHEN 1 THEN 'comes' ELSE 'come' END,
               array_to_string(v_ahead.numbers, ', '), CASE WHEN v_ahead.more > 10 THEN ', …' ELSE '' END)
          || CASE WHEN v_ahead.priority > p_provision.priority THEN format(', of priority %s', v_ahead.priority) ELSE '' END,
        jsonb_build_object('workspace', p_workspace.name, 'ahead', v_ahead.more, 'numbers', to_jsonb(v_ahead.numbers), 'priority', v_ahead.priority);
    END IF;
  END IF;
END $$;
-- +goose StatementEnd

-- What of its cluster and agents keeps a provision waiting, or will have it fail.
-- +goose StatementBegin
CREATE FUNCTION tendril.why_cluster(p_provision public.provisions, p_workspace public.workspaces)
RETURNS TABLE (reason text, message text, detail jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_nobody  CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
  v_cluster public.clusters;
  v_event   public.audit_events;
  v_seen    timestamptz;
  v_agent   public.agents;
  v_able    record;
  v_busy    jsonb;
  v_last    record;
BEGIN
  SELECT * INTO STRICT v_cluster FROM public.clusters WHERE id = p_provision.cluster_id;
  IF v_cluster.paused_at IS NOT NULL THEN
    SELECT * INTO v_event FROM public.audit_events
    WHERE org_id = v_cluster.org_id AND action = 'pause_cluster' AND object_id = v_cluster.id ORDER BY id DESC LIMIT 1;
    RETURN QUERY SELECT 'cluster_paused',
      format('the cluster %s is paused since %s', v_cluster.name, tendril.at(v_cluster.paused_at)) || coalesce(': ' || nullif(v_event.detail ->> 'reason', ''), ''),
      jsonb_build_object('cluster', v_cluster.name, 'since', v_cluster.paused_at, 'by', v_event.actor, 'why', coalesce(v_event.detail ->> 'reason', ''));
  END IF;

  -- Whose file the state is, or who keeps one that could not be stored.
  IF p_workspace.only_instance <> c_nobody THEN
    SELECT * INTO v_agent FROM public.agents WHERE cluster_id = v_cluster.id AND instance_id = coalesce(p_workspace.unsaved_state_on, p_workspace.home_instance);
    IF NOT tendril.is_online(v_agent.last_heartbeat_at) THEN
      RETURN QUERY SELECT CASE WHEN p_workspace.unsaved_state_on IS NULL THEN 'home_away' ELSE 'state_kept' END,
        CASE WHEN p_workspace.unsaved_state_on IS NULL THEN 'the workspace''s state is a file on an agent that is away'
             ELSE 'a state that could not be stored is kept by an agent that is away' END
          || coalesce(format(', %s on %s, last heard of at %s', v_agent.name, v_agent.host, tendril.at(v_agent.last_heartbeat_at)), ''),
        jsonb_build_object('workspace', p_workspace.name, 'agent', v_agent.name, 'host', v_agent.host, 'last_seen', v_agent.last_heartbeat_at,
                           'instance', coalesce(p_workspace.unsaved_state_on, p_workspace.home_instance));
      RETURN; -- others need not be there
    ELSIF p_workspace.home_instance <> p_workspace.unsaved_state_on THEN
      RETURN QUERY SELECT 'state_kept',
        format('a state that could not be stored is kept by %s on %s, and the workspace''s own is a file on another agent', v_agent.name, v_agent.host),
        jsonb_build_object('workspace', p_workspace.name, 'agent', v_agent.name, 'host', v_agent.host);
      RETURN;
    END IF;
  END IF;

  SELECT greatest(v_cluster.last_seen_at, max(a.last_heartbeat_at)) INTO v_seen FROM public.agents a WHERE a.cluster_id = v_cluster.id;
  IF NOT EXISTS (SELECT FROM public.agents a WHERE a.cluster_id = v_cluster.id AND tendril.is_online(a.last_heartbeat_at)) THEN
    RETURN QUERY SELECT 'no_agent',
      CASE WHEN v_seen IS NULL THEN format('no agent of cluster %s has ever been heard of', v_cluster.name)
           ELSE format('no agent of cluster %s is online: the last was heard of at %s', v_cluster.name, tendril.at(v_seen)) END,
      jsonb_build_object('cluster', v_cluster.name, 'last_seen', v_seen);
    RETURN; -- nothing can be said of agents that are not there
  END IF;

  -- Of those that may run it and are there.
  SELECT count(*) AS agents, sum(a.slots) AS slots, max(a.contract) AS contract, array_agg(a.instance_id) AS instances,
         bool_or(a.operations IS NULL OR p_provision.operation = ANY (a.operations)) AS granted INTO v_able
  FROM public.agents a
  WHERE a.cluster_id = v_cluster.id AND p_workspace.only_instance IN (c_nobody, a.instance_id) AND tendril.is_online(a.last_heartbeat_at);
  IF v_able.contract < tendril.contract_needed(p_provision) THEN
    RETURN QUERY SELECT 'agent_too_old',
      format('the agents that are online are too old for it: they speak contract %s, and %s is needed', v_able.contract, tendril.contract_needed(p_provision)),
      jsonb_build_object('cluster', v_cluster.name, 'contract', v_able.contract, 'needed', tendril.contract_needed(p_provision));
  ELSIF NOT v_able.granted THEN
    RETURN QUERY SELECT 'operation_refused',
      format('no agent that is online grants the operation %s: it will be refused when it is its turn', p_provision.operation),
      jsonb_build_object('cluster', v_cluster.name, 'operation', p_provision.operation);
  END IF;

  SELECT jsonb_agg(jsonb_build_object('number', p.number, 'workspace', w.name, 'stage', coalesce(c.stage, 'checkout'), 'since', c.created_at) ORDER BY c.number)
  INTO v_busy
  FROM tendril.claims c JOIN public.provisions p ON p.id = c.provision_id JOIN public.workspaces w ON w.id = c.workspace_id
  WHERE c.state = 'running' AND c.cluster_id = v_cluster.id AND c.instance_id = ANY (v_able.instances);
  IF jsonb_array_length(v_busy) >= v_able.slots THEN
    RETURN QUERY SELECT 'slots_busy',
      format('%s busy: %s', CASE v_able.slots WHEN 1 THEN 'the only slot is' ELSE format('all %s slots are', v_able.slots) END,
             (SELECT string_agg(format('provision %s in %s', b ->> 'number', b ->> 'workspace'), ', ') FROM jsonb_array_elements(jsonb_path_query_array(v_busy, '$[0 to 4]')) b)
             || CASE WHEN jsonb_array_length(v_busy) > 5 THEN ', …' ELSE '' END),
      jsonb_build_object('slots', v_able.slots, 'agents', v_able.agents, 'running', jsonb_path_query_array(v_busy, '$[0 to 19]'));
  END IF;

  -- Nobody says which engines they could get: what the newest run that wanted the
  -- same one here came to does, among the organisation's last 200.
  IF p_provision.config_snapshot -> 'terraform' ->> 'version' IS NOT NULL THEN
    SELECT r.number, r.error_code, r.finished_at INTO v_last
    FROM (SELECT p.number, p.cluster_id, p.config_snapshot -> 'terraform' AS terraform, p.status, p.error_code, p.finished_at, p.engine_version
          FROM public.provisions p WHERE p.org_id = p_provision.org_id AND p.number < p_provision.number ORDER BY p.number DESC LIMIT 200) r
    WHERE r.cluster_id = p_provision.cluster_id AND r.terraform = p_provision.config_snapshot -> 'terraform'
      AND (r.error_code = 'engine_missing' OR r.engine_version IS NOT NULL)
    ORDER BY r.number DESC LIMIT 1;
    IF v_last.error_code = 'engine_missing' THEN
      RETURN QUERY SELECT 'engine_missing',
        format('%s %s could not be had here when provision %s wanted it, at %s: it may fail likewise',
               coalesce(p_provision.config_snapshot -> 'terraform' ->> 'engine', 'the engine'), p_provision.config_snapshot -> 'terraform' ->> 'version',
               v_last.number, tendril.at(v_last.finished_at)),
        jsonb_build_object('cluster', v_cluster.name, 'engine', p_provision.config_snapshot -> 'terraform' ->> 'engine',
                           'version', p_provision.config_snapshot -> 'terraform' ->> 'version', 'number', v_last.number);
    END IF;
  END IF;
END $$;
-- +goose StatementEnd

-- Why a provision has not started (viewer): a row for each reason, what must be
-- over first before the others. reason is a stable word, message for people, without
-- a full stop; detail has what the message names. No row: it has started, or is over,
-- or its turn is now. It may look into claims, which nobody else may: hence the
-- owner's rights, and the question who asks.
-- +goose StatementBegin
CREATE FUNCTION public.why_waiting(p_provision uuid) RETURNS TABLE (reason text, message text, detail jsonb)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_provision public.provisions;
  v_workspace public.workspaces;
  v_cluster   public.clusters;
  v_failed    record;
BEGIN
  SELECT * INTO v_provision FROM public.provisions WHERE id = p_provision;
  IF NOT tendril.may_act(v_provision.org_id, 'viewer') OR v_provision.id IS NULL THEN
    PERFORM tendril.refuse('PT404', 'provision_not_found', format('there is no provision %s where you are viewer', p_provision));
  END IF;
  SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE id = v_provision.workspace_id;
  IF v_provision.status = 'AWAITING_APPROVAL' THEN
    SELECT * INTO STRICT v_cluster FROM public.clusters WHERE id = v_provision.cluster_id;
    RETURN QUERY SELECT 'awaits_approval',
      'its plan awaits approval' || CASE v_cluster.approvers WHEN 'admin' THEN ' by an admin' ELSE '' END
        || CASE WHEN v_cluster.four_eyes THEN ', not by who asked for it' ELSE '' END || coalesce(', until ' || tendril.at(v_workspace.due_at), ''),
      jsonb_build_object('plan_digest', v_provision.plan_digest, 'approvers', v_cluster.approvers, 'four_eyes', v_cluster.four_eyes, 'until', v_workspace.due_at);
  ELSIF v_provision.status = 'QUEUED' THEN
    RETURN QUERY SELECT * FROM tendril.why_workspace(v_provision, v_workspace);
    IF v_provision.not_before > clock_timestamp() THEN
      SELECT p.number, p.error_code INTO v_failed FROM public.provisions p WHERE p.id = v_provision.retry_of;
      RETURN QUERY SELECT 'not_due',
        format('it is attempt %s, and begins at %s: provision %s failed (%s)', v_provision.attempt, tendril.at(v_provision.not_before), v_failed.number, v_failed.error_code),
        jsonb_build_object('at', v_provision.not_before, 'attempt', v_provision.attempt, 'number', v_failed.number, 'code', v_failed.error_code);
    END IF;
    RETURN QUERY SELECT * FROM tendril.why_cluster(v_provision, v_workspace);
  END IF;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
DO $$
DECLARE
  v_left record;
BEGIN
  FOR v_left IN SELECT * FROM tendril.schedule_jobs() LOOP
    RAISE NOTICE 'still to be run by %: %;', v_left.run_as, v_left.statement;
  END LOOP;
END $$;
-- +goose StatementEnd

SELECT tendril.deny_all(ARRAY['set_drift_schedule', 'why_waiting']);
GRANT EXECUTE ON FUNCTION public.set_drift_schedule(uuid, interval), public.why_waiting(uuid) TO authenticated, service_role;

NOTIFY pgrst, 'reload schema';
