-- Approval and cancellation.

-- Whether an operation changes something, so that a person may have to approve it.
CREATE OR REPLACE FUNCTION tendril.is_approvable(p_operation text, p_snapshot jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE -- becomes part of the expression that asks: claims do
RETURN p_operation IN ('apply', 'destroy') OR p_operation = 'state' AND coalesce(p_snapshot -> 'state' ->> 'command' NOT IN ('pull', 'list', 'reveal'), true);

-- When the plan of a provision must be approved: the strictest rule of its snapshot, its template
-- in the catalogue, its cluster and the token that asked for it. Answers never, destructive or always.
CREATE OR REPLACE FUNCTION tendril.approval_for(p_provision public.provisions) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_rules CONSTANT text[] := ARRAY['never', 'destructive', 'always'];
  v_rule  int;
  v_key   text;
BEGIN
  IF NOT tendril.is_approvable(p_provision.operation, p_provision.config_snapshot) THEN
    RETURN 'never';
  END IF;
  v_rule := greatest(1, array_position(c_rules, p_provision.config_snapshot ->> 'approval'), array_position(c_rules, p_provision.least_approval),
    (SELECT array_position(c_rules, c.approval) FROM public.clusters c WHERE c.id = p_provision.cluster_id));
  -- Asked with each claim: to see that no template has a rule takes less time
  -- than to say which one it is.
  PERFORM FROM public.templates t WHERE t.org_id = p_provision.org_id AND t.approval <> 'never' LIMIT 1;
  IF FOUND THEN
    v_key := tendril.template_key(p_provision.config_snapshot -> 'template_source' ->> 'repo', p_provision.config_snapshot -> 'template_source' ->> 'path');
    -- What does not show which template it is counts as each of them.
    v_rule := greatest(v_rule, (
      SELECT max(array_position(c_rules, t.approval)) FROM public.templates t
      WHERE t.org_id = p_provision.org_id AND t.approval <> 'never' AND coalesce(tendril.template_key(t.repo, t.path) = v_key, true)));
  END IF;
  RETURN c_rules[v_rule];
END $$;

-- Ends the claim of a run that awaits a person, and reserves the workspace for its provision until
-- p_due. The plan is one that was approved before, or p_plan_digest.
--
-- Errors: PT409 cancel_requested.
-- Locks: workspace, provision, claim.
CREATE OR REPLACE FUNCTION tendril.await_person(p_claim uuid, p_status text, p_plan_digest text, p_line text, p_due timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_claim tendril.claims;
BEGIN
  SELECT * INTO STRICT v_claim FROM tendril.claims WHERE id = p_claim;
  PERFORM FROM public.workspaces WHERE id = v_claim.workspace_id FOR NO KEY UPDATE;
  PERFORM FROM public.provisions WHERE id = v_claim.provision_id FOR NO KEY UPDATE;
  SELECT * INTO STRICT v_claim FROM tendril.claims WHERE id = p_claim FOR NO KEY UPDATE;
  IF v_claim.state <> 'running' OR v_claim.apply_begun_at IS NOT NULL THEN
    PERFORM tendril.claim_lost(p_claim, 'has no plan that could await a person');
  ELSIF v_claim.cancel_requested_at IS NOT NULL THEN
    PERFORM tendril.refuse('PT409', 'cancel_requested', 'cancellation was requested, so the plan must not await a person');
  END IF;
  UPDATE public.provisions SET status = p_status, plan_digest = coalesce(approved_plan, p_plan_digest) WHERE id = v_claim.provision_id;
  PERFORM tendril.system_line(v_claim.provision_id, p_line);
  PERFORM tendril.end_claim(p_claim, v_claim.workspace_id);
  UPDATE public.provision_progress SET stage = CASE p_status WHEN 'AWAITING_INPUT' THEN 'input' ELSE 'approval' END, percent = NULL, updated_at = clock_timestamp()
  WHERE provision_id = v_claim.provision_id;
  UPDATE public.workspaces SET reserved_by = v_claim.provision_id, due_at = p_due WHERE id = v_claim.workspace_id;
  PERFORM tendril.refresh_head(v_claim.workspace_id);
END $$;

-- Ends the claim of a run whose plan needs approval, until a person decides or the cluster's
-- approval_expiry passes.
--
-- Errors: PT409 cancel_requested.
-- Locks: workspace, provision, claim.
CREATE OR REPLACE FUNCTION tendril.await_approval(p_claim uuid, p_plan_digest text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.await_person(p_claim, 'AWAITING_APPROVAL', p_plan_digest, 'The plan needs approval.', clock_timestamp() + c.approval_expiry)
  FROM tendril.claims l JOIN public.clusters c ON c.id = l.cluster_id WHERE l.id = p_claim;
END $$;

-- Approves the plan of a provision, which then runs before anything else queued in its workspace.
-- Only that plan may be applied. A repeat changes nothing. Needs the role operator, or what the
-- cluster's policy demands.
--
-- Arguments:
--   p_provision    the provision
--   p_plan_digest  provisions.plan_digest of the plan that the caller has read
-- Answers: the status now: QUEUED, or a later one for a repeat.
-- Errors: PT403 four_eyes, PT403 not_an_approver, PT403 token_may_not, PT404 provision_not_found,
--   PT409 approval_expired, PT409 not_awaiting_approval, PT409 plan_changed, PT503 busy.
-- Locks: cluster, workspace, provision, claim, agent.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.approve_provision(p_provision uuid, p_plan_digest text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_provision public.provisions;
  v_policy    record;
  v_who       uuid := tendril.current_user_id();
BEGIN
  v_provision := tendril.lock_provision_for(p_provision, 'operator', 'approve');
  IF v_provision.status <> 'AWAITING_APPROVAL' AND v_provision.approved_plan = p_plan_digest THEN
    RETURN v_provision.status;
  ELSIF v_provision.status <> 'AWAITING_APPROVAL' THEN
    PERFORM tendril.refuse('PT409', 'not_awaiting_approval', format('run %s is %s and does not need approval', v_provision.number, v_provision.status));
  ELSIF v_provision.plan_digest IS DISTINCT FROM p_plan_digest THEN
    PERFORM tendril.refuse('PT409', 'plan_changed', format('run %s has another plan that needs approval', v_provision.number),
      'read the plan again, and approve the digest in provisions.plan_digest');
  END IF;
  SELECT c.name, c.approvers, c.four_eyes, w.due_at INTO STRICT v_policy
  FROM public.workspaces w JOIN public.clusters c ON c.id = w.cluster_id WHERE w.id = v_provision.workspace_id;
  IF NOT tendril.has_role(v_provision.org_id, v_policy.approvers) THEN
    PERFORM tendril.refuse('PT403', 'not_an_approver', format('only an %s may approve plans for cluster %s', v_policy.approvers, to_json(v_policy.name)), 'ask one to approve it');
  ELSIF v_policy.four_eyes AND (v_who IS NULL OR v_who = v_provision.requested_by) THEN
    PERFORM tendril.refuse('PT403', 'four_eyes', format('plans for cluster %s need approval from someone other than the requester', to_json(v_policy.name)),
      'ask someone else who may approve');
  ELSIF v_policy.due_at < clock_timestamp() AND tendril.beat() THEN -- nobody could approve while the database was away
    PERFORM tendril.refuse('PT409', 'approval_expired', format('the plan of run %s was not approved in time', v_provision.number), 'deploy again');
  END IF;
  UPDATE public.provisions
  SET status = 'QUEUED', approved_plan = plan_digest, approved_at = clock_timestamp(), approved_by = v_who
  WHERE id = p_provision;
  UPDATE public.workspaces SET reserved_by = p_provision, due_at = NULL
  WHERE id = v_provision.workspace_id AND (reserved_by IS NULL OR reserved_by = p_provision);
  PERFORM tendril.system_line(p_provision, 'The plan was approved.');
  PERFORM tendril.refresh_head(v_provision.workspace_id);
  PERFORM tendril.audit(v_provision.org_id, 'approve_provision', 'provision', p_provision, jsonb_build_object('plan_digest', p_plan_digest));
  RETURN 'QUEUED';
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Rejects the plan of a provision and cancels it. The workspace is free for what is queued behind
-- it. A repeat changes nothing. Needs the role operator.
--
-- Arguments:
--   p_provision  the provision
--   p_reason     for the log and the audit, at most 1000 characters
-- Answers: the status now: CANCELLED.
-- Errors: PT403 token_may_not, PT404 provision_not_found, PT409 not_awaiting_approval,
--   PT422 bad_reason, PT503 busy.
-- Locks: workspace, provision.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.reject_provision(p_provision uuid, p_reason text DEFAULT '') RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_provision public.provisions;
  v_reason    text;
BEGIN
  v_provision := tendril.lock_provision_for(p_provision, 'operator', 'end');
  v_reason := tendril.reason(p_reason);
  IF v_provision.status = 'CANCELLED' AND v_provision.error_code = 'rejected' THEN
    RETURN 'CANCELLED'; -- a repeat after a lost reply
  ELSIF v_provision.status <> 'AWAITING_APPROVAL' THEN
    PERFORM tendril.refuse('PT409', 'not_awaiting_approval', format('run %s is %s and does not need approval', v_provision.number, v_provision.status),
      CASE WHEN v_provision.status IN ('QUEUED', 'PROCESSING') THEN 'cancel the provision instead' ELSE '' END);
  END IF;
  PERFORM tendril.system_line(p_provision, 'The plan was rejected' || CASE WHEN v_reason = '' THEN '.' ELSE format(' (%s).', v_reason) END);
  PERFORM tendril.end_provision(p_provision, 'CANCELLED', 'rejected',
    'The plan was rejected, so nothing was changed.' || CASE WHEN v_reason = '' THEN '' ELSE ' Reason: ' || v_reason END);
  PERFORM tendril.wake(v_provision.workspace_id); -- who passed over it while we held the lock
  PERFORM tendril.audit(v_provision.org_id, 'reject_provision', 'provision', p_provision,
    jsonb_build_object('reason', v_reason, 'plan_digest', v_provision.plan_digest));
  RETURN 'CANCELLED';
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Cancels a provision that is queued or awaits a person, and asks the agent to stop one that runs. A
-- success that is reported first wins. A repeat changes nothing. Needs the role operator.
--
-- Arguments:
--   p_provision  the provision
-- Answers: the status now: CANCELLED; PROCESSING, where the agent was asked to stop; or FAILED,
--   where a lost run still holds its workspace.
-- Errors: PT403 token_may_not, PT404 provision_not_found, PT409 already_ended, PT503 busy.
-- Locks: workspace, provision, claim.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.cancel_provision(p_provision uuid) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_provision public.provisions;
  v_claim     tendril.claims;
  v_set_down  boolean;
  v_who       uuid := tendril.current_user_id();
BEGIN
  SELECT * INTO v_provision FROM public.provisions WHERE id = p_provision;
  IF v_provision.id IS NULL OR NOT tendril.may_act(v_provision.org_id, 'operator') THEN
    PERFORM tendril.refuse('PT404', 'provision_not_found', format('run %s not found, or you may not cancel it', p_provision));
  END IF;

  PERFORM FROM public.workspaces WHERE id = v_provision.workspace_id FOR NO KEY UPDATE;
  SELECT * INTO STRICT v_provision FROM public.provisions WHERE id = p_provision FOR NO KEY UPDATE;
  SELECT * INTO v_claim FROM tendril.claims WHERE provision_id = p_provision AND state <> 'ended' ORDER BY number DESC LIMIT 1 FOR NO KEY UPDATE;
  PERFORM tendril.check_token((SELECT name FROM public.workspaces WHERE id = v_provision.workspace_id), 'end', v_provision);

  IF v_provision.status = 'CANCELLED' THEN
    RETURN 'CANCELLED'; -- a repeat after a lost reply
  ELSIF v_provision.status IN ('QUEUED', 'AWAITING_APPROVAL', 'AWAITING_INPUT') THEN
    v_set_down := tendril.set_down_by(p_provision) IS NOT NULL;
    UPDATE public.provisions SET cancel_requested_at = clock_timestamp(), cancel_requested_by = v_who WHERE id = p_provision;
    PERFORM tendril.system_line(p_provision, CASE v_provision.status WHEN 'QUEUED' THEN CASE WHEN v_set_down THEN 'Cancelled while it was set down.' WHEN EXISTS (SELECT FROM public.provision_inputs i WHERE i.provision_id = p_provision) THEN 'Cancelled before the answer was recorded.' ELSE 'Cancelled before it began.' END WHEN 'AWAITING_INPUT' THEN 'Cancelled before anybody had done it.' ELSE 'Cancelled before approval.' END);
    PERFORM tendril.end_provision(p_provision, 'CANCELLED', 'cancelled', CASE WHEN v_set_down THEN 'Cancelled while it was set down. What it began continues: deploy again to take that over, or destroy it.'
      ELSE 'Cancelled before apply had begun.' END);
    UPDATE public.workspaces SET reserved_by = NULL WHERE id = v_provision.workspace_id AND reserved_by = p_provision;
    PERFORM tendril.refresh_head(v_provision.workspace_id);
    PERFORM tendril.wake(v_provision.workspace_id); -- who passed over it while we held the lock
  ELSIF v_claim.id IS NOT NULL AND (v_provision.status = 'PROCESSING'
        OR EXISTS (SELECT FROM public.workspaces WHERE id = v_provision.workspace_id AND held_by_claim = v_claim.id)) THEN
    IF v_claim.cancel_requested_at IS NULL THEN
      UPDATE tendril.claims SET cancel_requested_at = clock_timestamp() WHERE id = v_claim.id;
      UPDATE public.provisions SET cancel_requested_at = clock_timestamp(), cancel_requested_by = v_who WHERE id = p_provision;
      PERFORM tendril.system_line(p_provision, 'Cancel requested.');
    END IF;
    PERFORM tendril.attend(v_provision.cluster_id, v_claim.instance_id);
  ELSE
    PERFORM tendril.refuse('PT409', 'already_ended', format('run %s has already ended: it is %s', v_provision.number, v_provision.status));
  END IF;
  PERFORM tendril.audit(v_provision.org_id, 'cancel_provision', 'provision', p_provision, jsonb_build_object('was', v_provision.status));
  RETURN (SELECT status FROM public.provisions WHERE id = p_provision);
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Changes when plans for a cluster need approval, and by whom. Plans that await approval already
-- keep their deadline. Needs the role admin.
--
-- Arguments:
--   p_cluster  the cluster
--   p_policy   an object with the settings to change, at most 8192 bytes
--     approval         never, destructive or always
--     approvers        least role that may approve: operator or admin
--     four_eyes        true: the requester may not approve
--     approval_expiry  how long a plan waits, "1 minute" to "90 days"
-- Answers: an object with all four settings as they are now.
-- Errors: PT403 token_may_not, PT404 cluster_not_found, PT422 bad_policy, PT503 busy.
-- Locks: cluster.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.set_cluster_policy(p_cluster uuid, p_policy jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_known   CONSTANT text[] := ARRAY['approval', 'approvers', 'four_eyes', 'approval_expiry'];
  v_cluster public.clusters;
  v_was     jsonb;
  v_now     jsonb;
  v_problem text;
BEGIN
  v_cluster := tendril.cluster_for(p_cluster, 'admin');
  IF jsonb_typeof(p_policy) IS DISTINCT FROM 'object' OR tendril.has_vast_number(p_policy) OR octet_length(p_policy::text) > tendril.max_object_bytes() THEN
    PERFORM tendril.refuse('PT422', 'bad_policy', format('p_policy: must be an object of at most %s bytes', tendril.max_object_bytes()));
  END IF;
  SELECT format('p_policy.%s: unknown; known are %s', left(k, tendril.quoted_name()), array_to_string(c_known, ', ')) INTO v_problem
  FROM jsonb_object_keys(p_policy) k WHERE k <> ALL (c_known) ORDER BY k LIMIT 1;
  v_problem := coalesce(v_problem,
    CASE WHEN p_policy ->> 'approval' NOT IN ('never', 'destructive', 'always') THEN 'p_policy.approval: must be "never", "destructive" or "always"'
         WHEN p_policy ->> 'approvers' NOT IN ('operator', 'admin') THEN 'p_policy.approvers: must be "operator" or "admin"'
         WHEN jsonb_typeof(p_policy -> 'four_eyes') NOT IN ('boolean', 'null') THEN 'p_policy.four_eyes: must be true or false' END);
  IF v_problem IS NOT NULL THEN
    PERFORM tendril.refuse('PT422', 'bad_policy', v_problem);
  END IF;
  SELECT * INTO STRICT v_cluster FROM public.clusters WHERE id = p_cluster FOR NO KEY UPDATE;
  v_was := (SELECT jsonb_object_agg(k, to_jsonb(v_cluster) -> k) FROM unnest(c_known) k);
  UPDATE public.clusters
  SET approval        = coalesce(p_policy ->> 'approval', approval),
      approvers       = coalesce(p_policy ->> 'approvers', approvers),
      four_eyes       = coalesce((p_policy ->> 'four_eyes')::boolean, four_eyes),
      approval_expiry = coalesce((p_policy ->> 'approval_expiry')::interval, approval_expiry)
  WHERE id = p_cluster RETURNING * INTO STRICT v_cluster;
  v_now := (SELECT jsonb_object_agg(k, to_jsonb(v_cluster) -> k) FROM unnest(c_known) k);
  IF v_now <> v_was THEN
    PERFORM tendril.audit(v_cluster.org_id, 'set_cluster_policy', 'cluster', p_cluster, jsonb_build_object('was', v_was, 'now', v_now));
  END IF;
  RETURN v_now;
EXCEPTION
  WHEN data_exception OR check_violation THEN
    PERFORM tendril.refuse('PT422', 'bad_policy', 'p_policy.approval_expiry: must be a time from "1 minute" to "90 days"');
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
