-- Why a provision waits.

-- What about its workspace keeps a provision waiting.
CREATE OR REPLACE FUNCTION tendril.why_workspace(p_provision public.provisions, p_workspace public.workspaces)
RETURNS TABLE (reason text, message text, detail jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_other record;
  v_ahead record;
BEGIN
  IF p_workspace.locked_at IS NOT NULL THEN
    RETURN QUERY SELECT 'workspace_locked',
      format('the workspace has been locked since %s: %s', tendril.at(p_workspace.locked_at), p_workspace.lock_reason),
      jsonb_build_object('workspace', p_workspace.name, 'since', p_workspace.locked_at, 'by', p_workspace.locked_by, 'why', p_workspace.lock_reason);
  END IF;

  SELECT p.number, p.operation, c.host, c.ended_at, c.stage INTO v_other
  FROM tendril.claims c JOIN public.provisions p ON p.id = c.provision_id WHERE c.id = p_workspace.held_by_claim;
  IF FOUND THEN
    RETURN QUERY SELECT 'workspace_held',
      format('the workspace is held by run %s: the agent on %s was lost at %s during apply, and may still be applying',
             v_other.number, v_other.host, tendril.at(v_other.ended_at)),
      jsonb_build_object('workspace', p_workspace.name, 'number', v_other.number, 'host', v_other.host, 'since', v_other.ended_at);
  END IF;

  SELECT p.number, p.operation, c.host, c.created_at, coalesce(c.stage, 'checkout') AS stage, p.cancel_requested_at INTO v_other
  FROM tendril.claims c JOIN public.provisions p ON p.id = c.provision_id WHERE c.id = p_workspace.running_claim;
  IF FOUND THEN
    RETURN QUERY SELECT 'workspace_busy',
      format('run %s has been running in this workspace since %s, now in stage %s%s', v_other.number, tendril.at(v_other.created_at), v_other.stage,
             CASE WHEN v_other.cancel_requested_at IS NULL THEN '' ELSE ', and is being stopped' END),
      jsonb_build_object('workspace', p_workspace.name, 'number', v_other.number, 'operation', v_other.operation, 'stage', v_other.stage,
                         'host', v_other.host, 'since', v_other.created_at);
  END IF;

  SELECT p.id, p.number, p.status, p.plan_digest, p.approved_plan, p.waits_for INTO v_other
  FROM public.provisions p WHERE p.id = p_workspace.reserved_by AND p.id <> p_provision.id AND p.status IN ('QUEUED', 'AWAITING_APPROVAL', 'AWAITING_INPUT');
  IF FOUND THEN
    RETURN QUERY SELECT 'workspace_reserved',
      CASE WHEN v_other.status = 'AWAITING_APPROVAL' THEN format('the plan of run %s needs approval, and nothing else may run in this workspace meanwhile', v_other.number)
           WHEN v_other.status = 'AWAITING_INPUT' THEN format('a person is to do the work of run %s, and nothing else may run in this workspace meanwhile', v_other.number)
           WHEN tendril.set_down_by(v_other.id) IS NOT NULL THEN format('run %s, which agent %s has set down, is taken up first', v_other.number, tendril.set_down_by(v_other.id))
           WHEN v_other.plan_digest IS NOT NULL AND v_other.approved_plan IS NULL THEN format('run %s, which a person has done the work of, comes first', v_other.number)
           WHEN v_other.waits_for IS NOT NULL THEN format('run %s waits for room in a pool and comes first', v_other.number)
           WHEN v_other.approved_plan IS NOT NULL THEN format('the plan of run %s is approved and is applied first', v_other.number)
           ELSE format('run %s, an automatic retry, comes first', v_other.number) END,
      jsonb_build_object('workspace', p_workspace.name, 'number', v_other.number, 'provision', v_other.id, 'status', v_other.status);
  ELSE
    -- Who is ahead: ten of them are named. They are the first in the order of the
    -- queue's index, so that however much is behind, no more than these are read.
    SELECT count(*) AS more, (array_agg(a.number ORDER BY a.priority DESC, a.number))[1:tendril.max_ahead_named()] AS numbers, max(a.priority) AS priority INTO v_ahead
    FROM (SELECT p.number, p.priority FROM public.provisions p
          WHERE p.workspace_id = p_provision.workspace_id AND p.status = 'QUEUED'
          ORDER BY p.priority DESC, p.number LIMIT tendril.max_ahead_counted()) a
    WHERE (a.priority > p_provision.priority OR a.priority = p_provision.priority AND a.number < p_provision.number)
      AND p_workspace.reserved_by IS DISTINCT FROM p_provision.id;
    IF v_ahead.more > 0 THEN
      RETURN QUERY SELECT CASE WHEN v_ahead.priority > p_provision.priority THEN 'higher_priority' ELSE 'queued_behind' END,
        format('%s in this workspace %s first: %s%s',
               CASE v_ahead.more WHEN 1 THEN 'another provision' WHEN tendril.max_ahead_counted() THEN tendril.max_ahead_counted() || ' other provisions or more' ELSE v_ahead.more || ' other provisions' END, CASE v_ahead.more WHEN 1 THEN 'comes' ELSE 'come' END,
               array_to_string(v_ahead.numbers, ', '), CASE WHEN v_ahead.more > tendril.max_ahead_named() THEN ', …' ELSE '' END)
          || CASE WHEN v_ahead.priority > p_provision.priority THEN format(', of priority %s', v_ahead.priority) ELSE '' END,
        jsonb_build_object('workspace', p_workspace.name, 'ahead', v_ahead.more, 'numbers', to_jsonb(v_ahead.numbers), 'priority', v_ahead.priority);
    END IF;
  END IF;
END $$;

-- What about its cluster and agents keeps a provision waiting, or will make it fail.
CREATE OR REPLACE FUNCTION tendril.why_cluster(p_provision public.provisions, p_workspace public.workspaces)
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
      format('cluster %s has been paused since %s', v_cluster.name, tendril.at(v_cluster.paused_at)) || coalesce(': ' || nullif(v_event.detail ->> 'reason', ''), ''),
      jsonb_build_object('cluster', v_cluster.name, 'since', v_cluster.paused_at, 'by', v_event.actor, 'why', coalesce(v_event.detail ->> 'reason', ''));
  END IF;

  -- Whose file the state is, or who keeps one that could not be stored.
  IF p_workspace.only_instance <> c_nobody THEN
    SELECT * INTO v_agent FROM public.agents WHERE cluster_id = v_cluster.id AND instance_id = coalesce(p_workspace.unsaved_state_on, p_workspace.home_instance);
    IF NOT tendril.is_online(v_agent.last_heartbeat_at) THEN
      RETURN QUERY SELECT CASE WHEN p_workspace.unsaved_state_on IS NULL THEN 'home_away' ELSE 'state_kept' END,
        CASE WHEN p_workspace.unsaved_state_on IS NULL THEN 'the workspace''s state is a file on an agent that is offline'
             ELSE 'a state that could not be stored is kept by an agent that is offline' END
          || coalesce(format(', %s on %s, last seen at %s', v_agent.name, v_agent.host, tendril.at(v_agent.last_heartbeat_at)), ''),
        jsonb_build_object('workspace', p_workspace.name, 'agent', v_agent.name, 'host', v_agent.host, 'last_seen', v_agent.last_heartbeat_at,
                           'instance', coalesce(p_workspace.unsaved_state_on, p_workspace.home_instance));
      RETURN; -- others need not be there
    ELSIF p_workspace.home_instance <> p_workspace.unsaved_state_on THEN
      RETURN QUERY SELECT 'state_kept',
        format('a state that could not be stored is kept by %s on %s, and the workspace''s state is a file on another agent', v_agent.name, v_agent.host),
        jsonb_build_object('workspace', p_workspace.name, 'agent', v_agent.name, 'host', v_agent.host);
      RETURN;
    END IF;
  END IF;

  SELECT greatest(v_cluster.last_seen_at, max(a.last_heartbeat_at)) INTO v_seen FROM public.agents a WHERE a.cluster_id = v_cluster.id;
  IF NOT EXISTS (SELECT FROM public.agents a WHERE a.cluster_id = v_cluster.id AND tendril.is_online(a.last_heartbeat_at)) THEN
    RETURN QUERY SELECT 'no_agent',
      CASE WHEN v_seen IS NULL THEN format('cluster %s has never had an agent', v_cluster.name)
           ELSE format('no agent of cluster %s is online; the last one was seen at %s', v_cluster.name, tendril.at(v_seen)) END,
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
      format('the online agents are too old: they speak contract %s, and this run needs %s', v_able.contract, tendril.contract_needed(p_provision)),
      jsonb_build_object('cluster', v_cluster.name, 'contract', v_able.contract, 'needed', tendril.contract_needed(p_provision));
  ELSIF NOT v_able.granted THEN
    RETURN QUERY SELECT 'operation_refused',
      format('no online agent allows the operation %s: the run will be refused when an agent takes it', p_provision.operation),
      jsonb_build_object('cluster', v_cluster.name, 'operation', p_provision.operation);
  END IF;

  SELECT jsonb_agg(jsonb_build_object('number', p.number, 'workspace', w.name, 'stage', coalesce(c.stage, 'checkout'), 'since', c.created_at) ORDER BY c.number)
  INTO v_busy
  FROM tendril.claims c JOIN public.provisions p ON p.id = c.provision_id JOIN public.workspaces w ON w.id = c.workspace_id
  WHERE c.state = 'running' AND c.cluster_id = v_cluster.id AND c.instance_id = ANY (v_able.instances);
  IF jsonb_array_length(v_busy) >= v_able.slots THEN
    RETURN QUERY SELECT 'slots_busy',
      format('%s busy: %s', CASE v_able.slots WHEN 1 THEN 'the only slot is' ELSE format('all %s slots are', v_able.slots) END,
             (SELECT string_agg(format('run %s in %s', b ->> 'number', b ->> 'workspace'), ', ') FROM jsonb_array_elements(jsonb_path_query_array(v_busy, '$[0 to 4]')) b)
             || CASE WHEN jsonb_array_length(v_busy) > tendril.max_busy_named() THEN ', …' ELSE '' END),
      jsonb_build_object('slots', v_able.slots, 'agents', v_able.agents, 'running', jsonb_path_query_array(v_busy, '$[0 to 19]'));
  END IF;

  -- Nobody says which engines they could get: what the newest run that wanted the
  -- same one here came to does, among the organisation's last 200.
  IF p_provision.config_snapshot -> 'terraform' ->> 'version' IS NOT NULL THEN
    SELECT r.number, r.error_code, r.finished_at INTO v_last
    FROM (SELECT p.number, p.cluster_id, p.config_snapshot -> 'terraform' AS terraform, p.status, p.error_code, p.finished_at, p.engine_version
          FROM public.provisions p WHERE p.org_id = p_provision.org_id AND p.number < p_provision.number ORDER BY p.number DESC LIMIT tendril.runs_searched()) r
    WHERE r.cluster_id = p_provision.cluster_id AND r.terraform = p_provision.config_snapshot -> 'terraform'
      AND (r.error_code = 'engine_missing' OR r.engine_version IS NOT NULL)
    ORDER BY r.number DESC LIMIT 1;
    IF v_last.error_code = 'engine_missing' THEN
      RETURN QUERY SELECT 'engine_missing',
        format('%s %s could not be installed here for run %s, at %s; this run may fail too',
               coalesce(p_provision.config_snapshot -> 'terraform' ->> 'engine', 'the engine'), p_provision.config_snapshot -> 'terraform' ->> 'version',
               v_last.number, tendril.at(v_last.finished_at)),
        jsonb_build_object('cluster', v_cluster.name, 'engine', p_provision.config_snapshot -> 'terraform' ->> 'engine',
                           'version', p_provision.config_snapshot -> 'terraform' ->> 'version', 'number', v_last.number);
    END IF;
  END IF;
END $$;

-- Why a provision has not started: a row for each reason, first what must be over first. No row: it
-- has started or ended, or an agent will take it next. Needs the role viewer.
--
-- Arguments:
--   p_provision  the provision
-- Answers: a row for each reason:
--   reason   a stable word: workspace_locked, workspace_held, workspace_busy, workspace_reserved,
--            higher_priority, queued_behind, cluster_paused, home_away, state_kept, no_agent,
--            agent_too_old, operation_refused, slots_busy, engine_missing, awaits_approval,
--            awaits_input, set_down, no_room or not_due
--   message  the same for people, without a full stop
--   detail   what the message names, an object
-- Errors: PT404 provision_not_found, PT503 busy.
-- Locks: none.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.why_waiting(p_provision uuid) RETURNS TABLE (reason text, message text, detail jsonb)
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
  IF NOT tendril.has_role(v_provision.org_id, 'viewer') OR v_provision.id IS NULL THEN
    PERFORM tendril.refuse('PT404', 'provision_not_found', format('run %s not found, or you have no access to it', p_provision));
  END IF;
  SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE id = v_provision.workspace_id;
  IF v_provision.status = 'AWAITING_APPROVAL' THEN
    SELECT * INTO STRICT v_cluster FROM public.clusters WHERE id = v_provision.cluster_id;
    RETURN QUERY SELECT 'awaits_approval',
      'its plan needs approval'
        || CASE WHEN v_cluster.approvers = 'admin' AND v_cluster.four_eyes THEN ' from an admin other than the requester'
                WHEN v_cluster.approvers = 'admin' THEN ' from an admin'
                WHEN v_cluster.four_eyes THEN ' from someone other than the requester' ELSE '' END
        || coalesce(' before ' || tendril.at(v_workspace.due_at), ''),
      jsonb_build_object('plan_digest', v_provision.plan_digest, 'approvers', v_cluster.approvers, 'four_eyes', v_cluster.four_eyes, 'until', v_workspace.due_at);
  ELSIF v_provision.status = 'AWAITING_INPUT' THEN
    SELECT i.expires_at, i.assigned_to INTO STRICT v_failed FROM public.provision_inputs i WHERE i.provision_id = p_provision;
    RETURN QUERY SELECT 'awaits_input',
      CASE WHEN v_failed.assigned_to IS NULL THEN 'a person is to do what its template says' ELSE tendril.name_in(v_provision.org_id, v_failed.assigned_to) || ' is to do what its template says' END
        || ' before ' || tendril.at(v_failed.expires_at),
      jsonb_build_object('until', v_failed.expires_at, 'assigned_to', v_failed.assigned_to);
  ELSIF v_provision.status = 'QUEUED' THEN
    RETURN QUERY
    SELECT 'set_down', format('agent %s on %s set it down at %s; what it began continues, and the next agent takes it up', tendril.agent_of(c.cluster_id, c.instance_id), c.host, tendril.at(c.set_down_at))
             || coalesce(format('. Agent %s could not (%s), so try %s of %s is at %s', tendril.agent_of(f.cluster_id, f.instance_id), rtrim(f.take_up_failure, '.'), f.failures + 1, tendril.max_take_ups(),
                  coalesce(tendril.at(v_workspace.due_at), 'any moment')), ''),
           jsonb_build_object('agent', tendril.agent_of(c.cluster_id, c.instance_id), 'host', c.host, 'since', c.set_down_at)
             || CASE WHEN f.failures IS NULL THEN '{}'
                     ELSE jsonb_build_object('failures', f.failures, 'failure', f.take_up_failure, 'failed_agent', tendril.agent_of(f.cluster_id, f.instance_id), 'at', v_workspace.due_at) END
    FROM (SELECT * FROM tendril.claims WHERE provision_id = p_provision AND set_down_at IS NOT NULL ORDER BY number DESC LIMIT 1) c
    LEFT JOIN LATERAL (SELECT n.*, count(*) OVER () AS failures FROM tendril.claims n
                       WHERE n.provision_id = p_provision AND n.number > c.number AND n.take_up_failure IS NOT NULL ORDER BY n.number DESC LIMIT 1) f ON true;
    RETURN QUERY SELECT * FROM tendril.why_workspace(v_provision, v_workspace);
    IF v_provision.waits_for IS NOT NULL AND v_provision.not_before > clock_timestamp() THEN
      RETURN QUERY SELECT 'no_room',
        format('%s; it is tried again at %s, or once a place becomes free', rtrim(v_provision.waits_for, '.'), tendril.at(v_provision.not_before)),
        jsonb_build_object('why', v_provision.waits_for, 'since', v_provision.waits_since, 'at', v_provision.not_before);
    ELSIF v_provision.not_before > clock_timestamp() THEN
      SELECT p.number, p.error_code INTO v_failed FROM public.provisions p WHERE p.id = v_provision.retry_of;
      RETURN QUERY SELECT 'not_due',
        format('attempt %s starts at %s, because run %s failed (%s)', v_provision.attempt, tendril.at(v_provision.not_before), v_failed.number, v_failed.error_code),
        jsonb_build_object('at', v_provision.not_before, 'attempt', v_provision.attempt, 'number', v_failed.number, 'code', v_failed.error_code);
    END IF;
    RETURN QUERY SELECT * FROM tendril.why_cluster(v_provision, v_workspace);
  END IF;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
