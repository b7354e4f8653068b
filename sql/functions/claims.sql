-- Claims.

-- The trace that a claimed run belongs to.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_claim_id    the claim
-- Answers: traceparent as W3C Trace Context writes it; null: the run has none, or the claim is not of
--   the agent's cluster.
-- Errors: PT401 token_invalid, PT503 busy.
-- Locks: none.
-- Callers: anon, tendril_agent.
CREATE OR REPLACE FUNCTION public.claim_trace(p_token_hash text, p_claim_id uuid) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters := tendril.authenticate_for(p_token_hash, p_claim_id);
BEGIN
  RETURN (SELECT p.traceparent FROM tendril.claims c JOIN public.provisions p ON p.id = c.provision_id
          WHERE c.id = p_claim_id AND c.cluster_id = v_cluster.id);
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Claims the next provision of the cluster: of all workspaces that are idle, not held, not locked
-- and not bound to another agent instance, the one whose next provision has the highest priority,
-- then the lowest number.
--
-- The agent chooses the claim id, so a call repeated after a lost reply answers the same provision.
-- The lease starts with the claim.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_instance    the agent's instance id
--   p_boot        the boot id of this start
--   p_claim_id    new UUID for each claim; the same one to repeat a call
-- Answers: one row, or none: there is nothing to run:
--   claim_id         the claim
--   provision_id     the provision
--   number           the provision's number
--   workspace_id     the workspace; state keys are made from it
--   workspace_name   its name
--   operation        plan, apply, destroy, refresh, power, unlock, state or inspect
--   config_snapshot  what to run
--   pinned_commit    the commit that the version means; null: not pinned yet
--   approval         when the plan needs approval: never, destructive or always
--   approved_plan    digest of the plan that was approved, that a person has carried out or that an
--                    earlier agent has begun to apply, which get_blob() reads; null: plan first
--   input            what a person has answered, see give_input(); null: nobody was asked
--   attempt          number of this automatic attempt, from 1
--   has_resources    whether the workspace lists resources
--   queued_seconds   how long the provision was queued
-- Errors: PT401 token_invalid, PT409 agent_superseded, PT409 agent_unregistered, PT409 claim_lost,
--   PT422 bad_agent, PT422 claim_id_missing, PT503 busy.
-- Locks: workspace (skips locked ones), provision, earlier claims (skips locked ones), agent.
-- Callers: anon, tendril_agent.
-- Notes: An empty poll locks and writes nothing. A lost claim ends when another begins in its
--   workspace. refresh_head() chooses the workspace's next run. A new condition here needs its
--   reason in why_waiting(), and its place in the index workspaces_runnable.
CREATE OR REPLACE FUNCTION public.fetch_next_provision(p_token_hash text, p_instance uuid, p_boot uuid, p_claim_id uuid)
RETURNS TABLE (claim_id uuid, provision_id uuid, number bigint, workspace_id uuid, workspace_name text,
               operation text, config_snapshot jsonb, pinned_commit text,
               approval text, approved_plan text, input jsonb, attempt smallint, has_resources boolean,
               queued_seconds double precision)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_caller    record := tendril.caller(p_token_hash, p_instance, p_boot);
  v_claim     tendril.claims;
  v_workspace public.workspaces;
  v_found     public.workspaces;
  v_group     record;
  v_passed    uuid;
  v_provision uuid;
  v_plan      text;
BEGIN
  SELECT * INTO v_claim FROM tendril.claims WHERE id = p_claim_id;
  IF FOUND THEN
    -- A repeat after a lost reply, or somebody else's id.
    IF v_claim.cluster_id <> v_caller.cluster_id OR v_claim.instance_id <> p_instance OR v_claim.boot_id <> p_boot OR v_claim.state <> 'running' THEN
      PERFORM tendril.refuse('PT409', 'claim_lost', format('claim id %s has been used before', p_claim_id), 'use a new id for each claim');
    END IF;
    v_provision := v_claim.provision_id;
  ELSIF p_claim_id IS NULL THEN
    PERFORM tendril.refuse('PT422', 'claim_id_missing', 'p_claim_id: missing; the agent chooses it, a new UUID for each claim');
  ELSIF v_caller.paused_at IS NOT NULL THEN
    PERFORM tendril.hold_claim(v_caller.cluster_id, p_instance);
    RETURN;
  END IF;
  WHILE v_provision IS NULL LOOP
    v_workspace := NULL;
    v_passed := NULL;
    -- The most urgent of what anybody may do, and of what only this agent may.
    FOR v_group IN
      SELECT u.only_instance, u.head_priority, u.head_number FROM (
        (SELECT w.only_instance, w.head_priority, w.head_number FROM public.workspaces w
         WHERE w.cluster_id = v_caller.cluster_id AND w.only_instance = '00000000-0000-0000-0000-000000000000'
           AND w.head_id IS NOT NULL AND w.running_claim IS NULL AND w.held_by_claim IS NULL AND w.locked_at IS NULL
         ORDER BY w.head_priority DESC, w.head_number LIMIT 1)
        UNION ALL
        (SELECT w.only_instance, w.head_priority, w.head_number FROM public.workspaces w
         WHERE w.cluster_id = v_caller.cluster_id AND w.only_instance = p_instance
           AND w.head_id IS NOT NULL AND w.running_claim IS NULL AND w.held_by_claim IS NULL AND w.locked_at IS NULL
         ORDER BY w.head_priority DESC, w.head_number LIMIT 1)) u
      ORDER BY u.head_priority DESC, u.head_number
    LOOP
      -- Usually the first group's first is free, and goes before all of the second.
      EXIT WHEN (v_workspace.head_priority, v_group.head_number) > (v_group.head_priority, v_workspace.head_number);
      SELECT * INTO v_found FROM public.workspaces w
      WHERE w.cluster_id = v_caller.cluster_id AND w.only_instance = v_group.only_instance
        AND w.head_id IS NOT NULL AND w.running_claim IS NULL AND w.held_by_claim IS NULL AND w.locked_at IS NULL
        AND CASE WHEN v_caller.contract >= 8 THEN true ELSE tendril.suits(w.head_id, v_caller.contract) END
      ORDER BY w.head_priority DESC, w.head_number
      LIMIT 1
      FOR NO KEY UPDATE SKIP LOCKED;
      CONTINUE WHEN NOT FOUND;
      IF v_workspace.id IS NULL OR (v_found.head_priority, v_workspace.head_number) > (v_workspace.head_priority, v_found.head_number) THEN
        v_passed := v_workspace.id;
        v_workspace := v_found;
      ELSE
        v_passed := v_found.id;
      END IF;
    END LOOP;
    -- Locked for nothing until we commit: who passed over it is told.
    PERFORM tendril.wake(v_passed) WHERE v_passed IS NOT NULL;
    IF v_workspace.id IS NULL THEN
      PERFORM tendril.hold_claim(v_caller.cluster_id, p_instance);
      RETURN; -- others claim it, or deploy to it and wake us then
    END IF;

    -- CASE, for status = 'QUEUED' would imply the queue's index.
    UPDATE public.provisions SET status = 'PROCESSING', started_at = coalesce(started_at, clock_timestamp())
    WHERE id = v_workspace.head_id AND CASE status WHEN 'QUEUED' THEN true ELSE false END
    RETURNING plan_digest INTO v_plan;
    IF NOT FOUND THEN
      -- Somebody changed or deleted it by hand: one such row must not stop the
      -- whole cluster.
      PERFORM tendril.refresh_head(v_workspace.id);
      CONTINUE;
    END IF;

    WITH claim AS (
      INSERT INTO tendril.claims (id, provision_id, workspace_id, cluster_id, instance_id, boot_id, host, directory, credential_id, open_intents, lease_until)
      SELECT p_claim_id, v_workspace.head_id, v_workspace.id, v_caller.cluster_id, p_instance, p_boot, v_caller.host, v_caller.directory, tendril.credential_of(p_token_hash),
             -- What is taken up is carried out without a further intent.
             CASE WHEN v_plan IS NULL THEN '{}' ELSE (SELECT c.open_intents FROM tendril.claims c WHERE c.provision_id = v_workspace.head_id ORDER BY c.number DESC LIMIT 1) END,
             clock_timestamp() + s.lease FROM tendril.settings s
    ), lost AS ( -- what was lost here before can never settle now
      UPDATE tendril.claims SET state = 'ended'
      WHERE id IN (SELECT id FROM tendril.claims WHERE workspace_id = v_workspace.id AND state = 'lost' FOR NO KEY UPDATE SKIP LOCKED)
    ), progress AS (
      INSERT INTO public.provision_progress (provision_id, org_id, stage)
      VALUES (v_workspace.head_id, v_workspace.org_id, 'checkout')
      ON CONFLICT (provision_id) DO UPDATE SET stage = 'checkout', percent = NULL, updated_at = clock_timestamp()
    )
    -- The next head is chosen when this one ends; until then nothing runs here.
    UPDATE public.workspaces
    SET running_claim = p_claim_id,
        (head_id, head_priority, head_number) = (
          SELECT p.id, p.priority, p.number FROM public.provisions p
          WHERE p.workspace_id = v_workspace.id AND p.status = 'QUEUED' AND v_workspace.reserved_by IS NULL
          ORDER BY p.priority DESC, p.number LIMIT 1)
    WHERE id = v_workspace.id;
    -- Last in the order: a later boot that registers meanwhile waits until this claim can
    -- be seen by its sweep.
    PERFORM FROM public.agents WHERE id = v_caller.agent_id AND boot_id = p_boot FOR SHARE;
    IF NOT FOUND THEN
      PERFORM tendril.current_agent(v_caller.cluster_id, p_instance, p_boot);
      PERFORM tendril.refuse('PT503', 'busy', 'the agent has just registered', 'try again');
    END IF;
    v_provision := v_workspace.head_id;
    IF v_plan IS NOT NULL THEN
      PERFORM tendril.system_line(v_provision, format('Taken up by agent %s on %s: what agent %s began continues.', tendril.agent_of(v_caller.cluster_id, p_instance), v_caller.host, s.name))
      FROM tendril.set_down_by(v_provision) AS s (name) WHERE s.name IS NOT NULL;
    END IF;
  END LOOP;

  RETURN QUERY
  SELECT p_claim_id, p.id, p.number, w.id, w.name, p.operation, p.config_snapshot,
         tendril.pinned_commit(p.org_id, p.cluster_id, (tendril.canonical_repo(p.config_snapshot -> 'template_source' ->> 'repo')).p_canonical,
                               p.config_snapshot -> 'template_source' ->> 'version'),
         tendril.approval_for(p), p.plan_digest, (SELECT i.answer FROM public.provision_inputs i WHERE i.provision_id = p.id), p.attempt,
         EXISTS (SELECT FROM public.resources r WHERE r.workspace_id = w.id),
         (SELECT greatest(extract(epoch FROM c.created_at - greatest(s.started_at, p.not_before)), 0)::double precision
          FROM tendril.claims c, public.provision_stages s
          WHERE c.id = p_claim_id AND s.provision_id = p.id AND s.stage = 'queued'
          ORDER BY s.attempt DESC LIMIT 1)
  FROM public.provisions p JOIN public.workspaces w ON w.id = p.workspace_id WHERE p.id = v_provision;
EXCEPTION
  -- unique_violation: the same claim id, of a call that is not committed yet.
  WHEN lock_not_available OR unique_violation THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Lists what an agent would be given next, the most urgent first, at most 100. Takes nothing. With a
-- key that is what the agent of the key's name may have, with a token what any agent may.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's token or key, as 64 hexadecimal digits
-- Answers: a list of objects, in the words of a provider's contracts:
--   contract_id           the provision
--   action                provision, or terminate for a destroy
--   number                the provision's number
--   workspace             name of the workspace
--   operation             plan, apply, destroy, refresh, power, unlock, state or inspect
--   offering              {id}: the template as REPO@VERSION
--   requester_ssh_pubkey  the snapshot's requester_key, where that is an SSH key; else null
--   instance_config       the snapshot's terraform_vars; null: none, or more than 8192 bytes
--   queued_at             when it was asked for
-- Errors: PT401 token_invalid, PT503 busy.
-- Locks: none.
-- Callers: anon, tendril_agent.
CREATE OR REPLACE FUNCTION public.pending_provisions(p_token_hash text) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_most    CONSTANT int := 100;
  c_nobody  CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
  v_cluster public.clusters := tendril.authenticate(p_token_hash);
  v_own     uuid[];
  v_found   jsonb;
BEGIN
  IF v_cluster.paused_at IS NOT NULL THEN
    RETURN '[]';
  END IF;
  v_own := ARRAY(SELECT a.instance_id FROM public.agents a JOIN tendril.agent_keys k ON k.cluster_id = a.cluster_id AND k.name = a.name
                 WHERE k.public_key = tendril.signing_key() AND a.cluster_id = v_cluster.id);
  SELECT jsonb_agg(jsonb_build_object(
    'contract_id', p.id, 'action', CASE p.operation WHEN 'destroy' THEN 'terminate' ELSE 'provision' END, 'number', p.number,
    'workspace', w.name, 'operation', p.operation,
    'offering', jsonb_build_object('id', concat_ws('@', p.config_snapshot -> 'template_source' ->> 'repo', p.config_snapshot -> 'template_source' ->> 'version')),
    'requester_ssh_pubkey', CASE WHEN p.config_snapshot ->> 'requester_key' LIKE 'ssh-%' THEN p.config_snapshot ->> 'requester_key' END,
    'instance_config', CASE WHEN octet_length((p.config_snapshot -> 'terraform_vars')::text) <= tendril.max_object_bytes() THEN p.config_snapshot -> 'terraform_vars' END,
    'queued_at', p.created_at) ORDER BY w.head_priority DESC, w.head_number) INTO v_found
  FROM (SELECT u.* FROM public.workspaces u
        WHERE u.cluster_id = v_cluster.id AND u.only_instance = ANY (v_own || c_nobody)
          AND u.head_id IS NOT NULL AND u.running_claim IS NULL AND u.held_by_claim IS NULL AND u.locked_at IS NULL
        ORDER BY u.head_priority DESC, u.head_number LIMIT c_most) w
  JOIN public.provisions p ON p.id = w.head_id;
  RETURN coalesce(v_found, '[]');
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Lists the agents that have carried out a provision, in the order in which they claimed it. Needs
-- the role viewer.
--
-- Arguments:
--   p_provision  the provision
-- Answers: a row for each claim:
--   agent       name of the agent, unknown where it is no longer listed
--   host        where it ran
--   at          when it claimed
--   applied_at  when it began to apply; null: it did not
--   key         SHA-256 of the key that signed the claim, as 64 hexadecimal digits; null: a token
-- Errors: PT404 provision_not_found, PT503 busy.
-- Locks: none.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.provision_agents(p_provision uuid)
RETURNS TABLE (agent text, host text, at timestamptz, applied_at timestamptz, key text)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_org uuid := (SELECT p.org_id FROM public.provisions p WHERE p.id = p_provision);
BEGIN
  IF NOT tendril.has_role(v_org, 'viewer') OR v_org IS NULL THEN
    PERFORM tendril.refuse('PT404', 'provision_not_found', format('run %s not found, or you have no access to it', p_provision));
  END IF;
  RETURN QUERY
  SELECT tendril.agent_of(c.cluster_id, c.instance_id), c.host, c.created_at, c.apply_begun_at,
         (SELECT encode(sha256(k.public_key), 'hex') FROM tendril.agent_keys k WHERE k.id = c.credential_id)
  FROM tendril.claims c WHERE c.provision_id = p_provision ORDER BY c.number;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Refuses because the claim is not, or no longer, the agent's.
--
-- Errors: PT409 claim_lost.
CREATE OR REPLACE FUNCTION tendril.claim_lost(p_claim uuid, p_why text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.refuse('PT409', 'claim_lost', format('claim %s %s', p_claim, p_why));
END $$;

-- Ends a claim and frees what it had of its workspace. The caller holds the workspace's lock.
--
-- Locks: workspace, claim.
CREATE OR REPLACE FUNCTION tendril.end_claim(p_claim uuid, p_workspace uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  UPDATE tendril.claims SET state = 'ended', ended_at = coalesce(ended_at, clock_timestamp()) WHERE id = p_claim;
  UPDATE public.workspaces
  SET running_claim = CASE WHEN running_claim = p_claim THEN NULL ELSE running_claim END,
      held_by_claim = CASE WHEN held_by_claim = p_claim THEN NULL ELSE held_by_claim END,
      reserved_by   = CASE WHEN reserved_by = (SELECT provision_id FROM tendril.claims WHERE id = p_claim) THEN NULL ELSE reserved_by END
  WHERE id = p_workspace;
  PERFORM tendril.refresh_head(p_workspace);
END $$;

-- The name of an agent; "unknown" for one that is no longer listed.
CREATE OR REPLACE FUNCTION tendril.agent_of(p_cluster uuid, p_instance uuid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce((SELECT a.name FROM public.agents a WHERE a.cluster_id = p_cluster AND a.instance_id = p_instance), 'unknown');
END $$;

-- The agent that has set a provision down, the last one if several have; NULL: none has.
CREATE OR REPLACE FUNCTION tendril.set_down_by(p_provision uuid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (SELECT tendril.agent_of(c.cluster_id, c.instance_id) FROM tendril.claims c
          WHERE c.provision_id = p_provision AND c.set_down_at IS NOT NULL ORDER BY c.number DESC LIMIT 1);
END $$;

-- Queues a run again whose work continues automatically. Its claim ends and its workspace is reserved
-- for it. The agent that claims it carries on the plan that its apply began with; nobody approves twice.
-- The caller has made sure that the claim runs and that its plan is stored.
--
-- Locks: workspace, provision, claim.
CREATE OR REPLACE FUNCTION tendril.set_down(p_claim uuid, p_line text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_claim tendril.claims;
BEGIN
  SELECT * INTO STRICT v_claim FROM tendril.claims WHERE id = p_claim;
  UPDATE tendril.claims SET set_down_at = clock_timestamp() WHERE id = p_claim;
  UPDATE public.provisions SET status = 'QUEUED', plan_digest = coalesce(plan_digest, v_claim.plan_digest) WHERE id = v_claim.provision_id;
  PERFORM tendril.system_line(v_claim.provision_id, p_line);
  PERFORM tendril.end_claim(p_claim, v_claim.workspace_id);
  UPDATE public.workspaces SET reserved_by = v_claim.provision_id, due_at = NULL WHERE id = v_claim.workspace_id;
  PERFORM tendril.refresh_head(v_claim.workspace_id);
END $$;

-- Sets a run down whose agent is gone without having said so: it has crashed, or its lease ran out.
-- The caller has the locks and has made sure that the claim runs.
--
-- Arguments:
--   p_claim  the claim
--   p_line   the line of the log
-- Answers: whether it is queued. It is not where its work does not continue by itself, where
--   cancellation was requested or somebody has set another status by hand, where its plan is no longer
--   stored, and after tendril.max_set_downs() times.
-- Errors: none.
-- Locks: workspace, provision, claim.
CREATE OR REPLACE FUNCTION tendril.set_down_for(p_claim tendril.claims, p_line text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF p_claim.cancel_requested_at IS NOT NULL OR NOT tendril.plan_bundle_stored(p_claim.provision_id, p_claim.plan_digest)
     OR NOT EXISTS (SELECT FROM public.provisions p WHERE p.id = p_claim.provision_id AND p.status = 'PROCESSING')
     OR (SELECT count(*) FROM tendril.claims c WHERE c.provision_id = p_claim.provision_id AND c.set_down_at IS NOT NULL) >= tendril.max_set_downs() THEN
    RETURN false;
  END IF;
  PERFORM tendril.set_down(p_claim.id, p_line);
  RETURN true;
END $$;

-- Queues a run again that was set down and whose next agent failed before its apply: that tells
-- nothing of the work, which continues. The wait between two tries grows as that of retries. The caller has the locks
-- and has made sure that the provision is being processed.
--
-- Arguments:
--   p_claim    the claim that failed
--   p_code     why, as a code
--   p_message  the same for people
-- Answers: whether it is queued. It is not where nobody has set it down, where apply has begun or
--   cancellation was requested, where the plan can't be carried on, and after
--   tendril.max_take_ups() failures.
-- Errors: none.
-- Locks: workspace, provision, claim.
CREATE OR REPLACE FUNCTION tendril.set_down_again(p_claim uuid, p_code text, p_message text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_claim    tendril.claims;
  v_before   tendril.claims; -- the one that set it down
  v_failures bigint;
  v_due      timestamptz;
BEGIN
  SELECT * INTO STRICT v_claim FROM tendril.claims WHERE id = p_claim;
  SELECT * INTO v_before FROM tendril.claims
  WHERE provision_id = v_claim.provision_id AND set_down_at IS NOT NULL ORDER BY number DESC LIMIT 1;
  IF v_before.id IS NULL OR v_claim.apply_begun_at IS NOT NULL OR v_claim.cancel_requested_at IS NOT NULL
     OR coalesce(p_code IN ('plan_stale', 'plan_invalid'), false)
     OR NOT tendril.plan_bundle_stored(v_claim.provision_id, v_before.plan_digest) THEN
    RETURN false;
  END IF;
  SELECT count(*) + 1 INTO v_failures FROM tendril.claims
  WHERE provision_id = v_claim.provision_id AND number > v_before.number AND take_up_failure IS NOT NULL;
  IF v_failures >= tendril.max_take_ups() THEN
    RETURN false;
  END IF;
  SELECT clock_timestamp() + least(s.retry_after * power(2, v_failures - 1), s.retry_at_most) INTO STRICT v_due FROM tendril.settings s;
  UPDATE tendril.claims SET take_up_failure = left(format('%s: %s', coalesce(p_code, 'internal'), coalesce(p_message, 'no reason was given')), tendril.max_reason()) WHERE id = p_claim
  RETURNING * INTO v_claim;
  UPDATE public.provisions SET status = 'QUEUED' WHERE id = v_claim.provision_id;
  PERFORM tendril.system_line(v_claim.provision_id, format('Agent %s on %s could not take it up (%s). What agent %s began continues; try %s of %s is at %s.',
    tendril.agent_of(v_claim.cluster_id, v_claim.instance_id), v_claim.host, v_claim.take_up_failure,
    tendril.agent_of(v_before.cluster_id, v_before.instance_id), v_failures + 1, tendril.max_take_ups(), tendril.at(v_due)));
  PERFORM tendril.end_claim(p_claim, v_claim.workspace_id);
  UPDATE public.workspaces SET reserved_by = v_claim.provision_id, due_at = v_due WHERE id = v_claim.workspace_id;
  PERFORM tendril.refresh_head(v_claim.workspace_id);
  RETURN true;
END $$;

-- What the message of a run adds that ends before its apply, after an agent has set it down; empty
-- for all others.
CREATE OR REPLACE FUNCTION tendril.left_behind(p_claim tendril.claims) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_agent text;
BEGIN
  v_agent := CASE WHEN p_claim.apply_begun_at IS NULL THEN tendril.set_down_by(p_claim.provision_id) END;
  RETURN CASE WHEN v_agent IS NULL THEN ''
    ELSE format(' Agent %s had set this run down, and what it began may continue where it was begun: find it in the list of machines of workspace %s (trellis machines), and deploy again to take it over, or destroy it.',
           v_agent, (SELECT to_json(w.name) FROM public.workspaces w WHERE w.id = p_claim.workspace_id)) END;
END $$;

-- Ends what an earlier boot of this agent instance on this host left without a result. An agent
-- calls it once at its start, after it has delivered stored logs and results and none of its
-- earlier children lives.
--
-- A run becomes CANCELLED where cancellation was requested and apply had not begun, QUEUED where its
-- work continues by itself, otherwise FAILED (agent_restarted). Holds of lost claims end. Claims that
-- are delegated to a runner are left alone.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_instance    the agent's instance id
--   p_boot        the boot id of this start
--   p_except      claims that the agent still settles, at most 1000
-- Answers: the ids of the provisions that it ended.
-- Errors: PT401 token_invalid, PT409 agent_superseded, PT409 agent_unregistered,
--   PT413 too_many_claims, PT503 busy.
-- Locks: all workspaces, by id, then each one's provision and claim.
-- Callers: anon, tendril_agent.
-- Notes: There is no index by instance: agents start seldom and few claims are open.
CREATE OR REPLACE FUNCTION public.fail_orphaned_provisions(p_token_hash text, p_instance uuid, p_boot uuid, p_except uuid[] DEFAULT '{}') RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster   public.clusters := tendril.authenticate(p_token_hash);
  v_agent     public.agents   := tendril.current_agent(v_cluster.id, p_instance, p_boot);
  v_left      uuid[];
  v_candidate record;
  v_claim     tendril.claims;
  v_provision public.provisions;
  v_apply     text;
BEGIN
  IF cardinality(p_except) > tendril.max_claims() THEN
    PERFORM tendril.refuse('PT413', 'too_many_claims', format('%s claims in p_except; at most %s are allowed', cardinality(p_except), tendril.max_claims()));
  END IF;
  SELECT array_agg(c.id) INTO v_left
  FROM (SELECT * FROM tendril.claims WHERE state = 'running' UNION ALL SELECT * FROM tendril.claims WHERE state = 'lost') c
  WHERE c.instance_id = p_instance AND c.cluster_id = v_cluster.id AND c.boot_id <> p_boot AND c.host = v_agent.host AND coalesce(c.directory = v_agent.directory, true)
    AND c.id <> ALL (array_remove(coalesce(p_except, '{}'), NULL))
    AND NOT EXISTS (SELECT FROM tendril.runners r WHERE r.claim_id = c.id); -- which outlive the agent
  PERFORM FROM public.workspaces w WHERE w.id IN (SELECT c.workspace_id FROM tendril.claims c WHERE c.id = ANY (v_left)) ORDER BY w.id FOR NO KEY UPDATE;
  FOR v_candidate IN SELECT c.id, c.provision_id FROM tendril.claims c WHERE c.id = ANY (v_left) ORDER BY c.number LOOP
    SELECT * INTO STRICT v_provision FROM public.provisions WHERE id = v_candidate.provision_id FOR NO KEY UPDATE;
    SELECT * INTO STRICT v_claim FROM tendril.claims WHERE id = v_candidate.id FOR NO KEY UPDATE;
    CONTINUE WHEN v_claim.state = 'ended';

    IF v_provision.status = 'PROCESSING' AND v_claim.state = 'running' THEN
      IF v_claim.cancel_requested_at IS NOT NULL AND v_claim.apply_begun_at IS NULL THEN
        PERFORM tendril.system_line(v_provision.id, format('Cancelled: the agent was restarted in stage %s, before apply had begun.', coalesce(v_claim.stage, 'checkout')));
        PERFORM tendril.end_provision(v_provision.id, 'CANCELLED', 'cancelled', 'Cancelled before apply had begun.');
      ELSIF tendril.set_down_for(v_claim, format('The agent on %s was restarted. What this run began continues, and the next agent takes it up.', v_claim.host)) THEN
        RETURN NEXT v_provision.id;
        CONTINUE;
      ELSIF tendril.set_down_again(v_claim.id, 'agent_restarted', 'The agent was restarted.') THEN
        RETURN NEXT v_provision.id;
        CONTINUE;
      ELSE
        v_apply := CASE WHEN v_claim.apply_begun_at IS NULL
                        THEN coalesce(nullif(ltrim(tendril.left_behind(v_claim)), ''), 'Apply had not begun, so nothing was changed.')
                        ELSE 'Apply had begun: some resources may exist that are not in the state. Check the log and the infrastructure, then deploy again.' END;
        PERFORM tendril.system_line(v_provision.id, format('The agent on %s was restarted during stage %s. %s', v_claim.host, coalesce(v_claim.stage, 'checkout'), v_apply));
        PERFORM tendril.end_provision(v_provision.id, 'FAILED', 'agent_restarted',
          format('The agent on %s was restarted during stage %s. %s', v_claim.host, coalesce(v_claim.stage, 'checkout'), v_apply));
      END IF;
      RETURN NEXT v_provision.id;
    END IF;
    -- What was given up as lost already keeps its verdict; only the hold ends.
    PERFORM tendril.end_claim(v_claim.id, v_claim.workspace_id);
  END LOOP;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
