-- States: what may follow what, and what a change of status causes.

-- Refuses every change of status that the state machine does not have, whoever makes it. A
-- provision awaits a person only with a plan, and continues only with the approval of that plan, or
-- with the answer of who carried it out. One that runs is queued again only when it was set down, or
-- when it found no room in a pool.
-- FAILED with agent_lost may still become what the agent reports later.
--
-- Errors: PT409 illegal_transition.
CREATE OR REPLACE FUNCTION tendril.guard_status() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF (CASE OLD.status
        WHEN 'QUEUED'            THEN NEW.status IN ('PROCESSING', 'CANCELLED')
        WHEN 'PROCESSING'        THEN NEW.status IN ('SUCCESS', 'FAILED', 'CANCELLED') OR NEW.status IN ('AWAITING_APPROVAL', 'AWAITING_INPUT') AND NEW.plan_digest IS NOT NULL
                                      OR NEW.status = 'QUEUED' AND (SELECT c.set_down_at IS NOT NULL OR c.take_up_failure IS NOT NULL FROM tendril.claims c WHERE c.provision_id = NEW.id ORDER BY c.number DESC LIMIT 1)
                                      OR NEW.status = 'QUEUED' AND NEW.waits_for IS NOT NULL AND NOT EXISTS (SELECT FROM tendril.claims c WHERE c.provision_id = NEW.id AND c.apply_begun_at IS NOT NULL)
        WHEN 'AWAITING_APPROVAL' THEN NEW.status = 'CANCELLED' OR NEW.status = 'QUEUED' AND NEW.approved_plan = NEW.plan_digest
        WHEN 'AWAITING_INPUT'    THEN NEW.status = 'CANCELLED' OR NEW.status = 'QUEUED'
                                      AND EXISTS (SELECT FROM public.provision_inputs i WHERE i.provision_id = NEW.id AND i.answer IS NOT NULL)
        -- Late settlement: the agent was given up and reports after all.
        WHEN 'FAILED'            THEN OLD.error_code = 'agent_lost' AND NEW.status IN ('SUCCESS', 'FAILED', 'CANCELLED')
      END) IS NOT TRUE THEN
    PERFORM tendril.refuse('PT409', 'illegal_transition',
      format('run %s is %s and cannot become %s', OLD.id, OLD.status, NEW.status));
  END IF;
  RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER provisions_guard_status BEFORE UPDATE OF status ON public.provisions
  FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status)
  EXECUTE FUNCTION tendril.guard_status();

-- Refuses changes of what identifies a provision. Where a workspace was renamed, the snapshot of a
-- provision that has not ended may follow.
--
-- Errors: PT409 immutable.
CREATE OR REPLACE FUNCTION tendril.guard_identity() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF OLD.status IN ('QUEUED', 'PROCESSING', 'AWAITING_APPROVAL', 'AWAITING_INPUT')
     AND (OLD.id, OLD.org_id, OLD.cluster_id, OLD.workspace_id, OLD.operation, OLD.requested_by, OLD.asked_with, OLD.least_approval, OLD.config_snapshot - 'workspace')
         IS NOT DISTINCT FROM (NEW.id, NEW.org_id, NEW.cluster_id, NEW.workspace_id, NEW.operation, NEW.requested_by, NEW.asked_with, NEW.least_approval, NEW.config_snapshot - 'workspace')
     AND NEW.config_snapshot ->> 'workspace' = (SELECT w.name FROM public.workspaces w WHERE w.id = OLD.workspace_id) THEN
    RETURN NEW;
  END IF;
  PERFORM tendril.refuse('PT409', 'immutable', format('run %s cannot be changed; create a new provision', OLD.id));
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER provisions_guard_identity BEFORE UPDATE OF id, org_id, cluster_id, workspace_id, operation, config_snapshot, requested_by, asked_with, least_approval ON public.provisions
  FOR EACH ROW WHEN ((OLD.id, OLD.org_id, OLD.cluster_id, OLD.workspace_id, OLD.operation, OLD.config_snapshot, OLD.requested_by, OLD.asked_with, OLD.least_approval)
  IS DISTINCT FROM (NEW.id, NEW.org_id, NEW.cluster_id, NEW.workspace_id, NEW.operation, NEW.config_snapshot, NEW.requested_by, NEW.asked_with, NEW.least_approval))
  EXECUTE FUNCTION tendril.guard_identity();

-- Refuses changes of plan, approval and attempt other than with the status they belong to.
--
-- Errors: PT409 immutable.
CREATE OR REPLACE FUNCTION tendril.guard_plan() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF (NEW.attempt, NEW.retry_of) IS NOT DISTINCT FROM (OLD.attempt, OLD.retry_of)
     AND (OLD.status = 'PROCESSING' AND NEW.status IN ('AWAITING_APPROVAL', 'AWAITING_INPUT', 'QUEUED') AND (NEW.approved_plan, NEW.approved_at, NEW.approved_by) IS NOT DISTINCT FROM (OLD.approved_plan, OLD.approved_at, OLD.approved_by)
          OR OLD.status = 'AWAITING_APPROVAL' AND NEW.status = 'QUEUED' AND NEW.plan_digest = OLD.plan_digest AND NEW.approved_plan = OLD.plan_digest) THEN
    RETURN NEW;
  END IF;
  PERFORM tendril.refuse('PT409', 'immutable', format('the plan and the approval of run %s cannot be changed', OLD.id));
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER provisions_guard_plan BEFORE UPDATE OF plan_digest, approved_plan, approved_at, approved_by, attempt, retry_of ON public.provisions
  FOR EACH ROW WHEN ((OLD.plan_digest, OLD.approved_plan, OLD.approved_at, OLD.approved_by, OLD.attempt, OLD.retry_of)
  IS DISTINCT FROM (NEW.plan_digest, NEW.approved_plan, NEW.approved_at, NEW.approved_by, NEW.attempt, NEW.retry_of))
  EXECUTE FUNCTION tendril.guard_plan();

-- Why a plan must be approved under the rules of now: an admin may have made them stricter since
-- the plan was made. NULL: it need not be. p_plan is its summary.
CREATE OR REPLACE FUNCTION tendril.approval_wanted(p_provision public.provisions, p_plan jsonb) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_rule text := tendril.approval_for(p_provision);
BEGIN
  IF v_rule = 'always' THEN
    RETURN 'this plan needs approval before it is applied';
  ELSIF v_rule = 'destructive' AND (
          p_provision.operation = 'destroy'
          OR p_provision.operation = 'state' AND p_provision.config_snapshot -> 'state' ->> 'command' IN ('push', 'rollback')
          -- Nothing told of the plan is no word that it destroys nothing.
          OR coalesce(jsonb_typeof(p_plan), 'null') <> 'object'
          OR coalesce((p_plan ->> 'destroy')::bigint, 0) + coalesce((p_plan ->> 'replace')::bigint, 0) + coalesce((p_plan ->> 'forget')::bigint, 0) > 0) THEN
    RETURN 'this plan destroys, replaces or forgets something, and needs approval before it is applied';
  END IF;
  RETURN NULL;
END $$;

-- Refuses an apply that needs an approval and has none. An inspection, a plan and a refresh apply
-- nothing. A provision that continues has the digest of its plan: it was approved, or a person has
-- carried it out, and it alone may be applied.
--
-- Errors: PT409 approval_needed, PT409 operation_refused, PT409 plan_invalid, PT409 plan_missing.
CREATE OR REPLACE FUNCTION tendril.guard_apply(p_provision public.provisions, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_why text;
BEGIN
  IF p_provision.operation IN ('plan', 'refresh', 'inspect') THEN
    PERFORM tendril.refuse('PT409', 'operation_refused', format('a %s applies nothing', p_provision.operation));
  ELSIF p_provision.plan_digest IS NOT NULL THEN
    IF NOT tendril.plan_bundle_stored(p_provision.id, p_provision.plan_digest) THEN
      PERFORM tendril.refuse('PT409', 'plan_missing', 'the approved plan is no longer stored, and no other may be applied', 'deploy again');
    ELSIF p_detail ->> 'plan_digest' IS DISTINCT FROM p_provision.plan_digest THEN
      -- Such as an agent that is too old to know of approved plans, and has made
      -- one of its own.
      PERFORM tendril.refuse('PT409', 'plan_invalid', 'only the approved plan may be applied, and the agent names another one or none', 'update the agent, and deploy again');
    END IF;
    RETURN;
  END IF;
  v_why := tendril.approval_wanted(p_provision, coalesce(p_detail -> 'plan', p_provision.plan_summary));
  IF v_why IS NOT NULL THEN
    PERFORM tendril.refuse('PT409', 'approval_needed', v_why, 'store the plan, then report AWAITING_APPROVAL');
  END IF;
END $$;

-- Ends a provision, and queues another attempt if the failure may be transient. The caller frees
-- its claim and its workspace.
--
-- Locks: workspace, provision, reservations.
CREATE OR REPLACE FUNCTION tendril.end_provision(p_provision uuid, p_status text, p_code text, p_message text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_was text;
BEGIN
  SELECT status INTO v_was FROM public.provisions WHERE id = p_provision;
  UPDATE public.provisions
  SET status = p_status, error_code = p_code, error_message = p_message, finished_at = clock_timestamp()
  WHERE id = p_provision;
  PERFORM tendril.doubt_machines(p_provision);
  PERFORM tendril.free_unused_places(p_provision, p.workspace_id, p_status = 'SUCCESS') FROM public.provisions p WHERE p.id = p_provision;
  IF p_status = 'SUCCESS' THEN
    UPDATE public.provision_progress SET stage = 'done', percent = 100, updated_at = clock_timestamp() WHERE provision_id = p_provision;
  END IF;
  IF v_was = 'PROCESSING' AND p_status = 'FAILED' AND tendril.may_pass(p_code) THEN
    PERFORM tendril.try_again(p_provision, p_code);
  ELSIF v_was = 'FAILED' AND NOT (p_status = 'FAILED' AND tendril.may_pass(p_code)) THEN
    PERFORM tendril.drop_attempt(p_provision);
  END IF;
END $$;

-- Whether a failure with that code may be transient: one that neither the template nor its
-- variables nor a policy causes.
CREATE OR REPLACE FUNCTION tendril.may_pass(p_code text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce(p_code IN ('agent_lost', 'agent_restarted', 'agent_drained', 'exec_died', 'runner_not_started', 'spool_failed', 'checkout_failed', 'init_failed',
                             'engine_missing', 'state_locked', 'internal'), false);
END $$;

-- Queues another attempt of a run that failed before its apply began, where the snapshot asks for
-- attempts. The workspace stays reserved for the attempt, so that it does not undo something newer.
-- The caller has the locks.
--
-- Locks: workspace.
CREATE OR REPLACE FUNCTION tendril.try_again(p_provision uuid, p_code text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_failed public.provisions;
  v_most   int;
  v_wait   interval;
  v_due    timestamptz;
  v_next   record;
BEGIN
  SELECT * INTO STRICT v_failed FROM public.provisions WHERE id = p_provision;
  v_most := coalesce((v_failed.config_snapshot ->> 'max_attempts')::numeric, 1);
  IF v_failed.attempt >= v_most OR v_failed.cancel_requested_at IS NOT NULL
     OR v_failed.operation NOT IN ('plan', 'apply', 'destroy', 'refresh')
     OR EXISTS (SELECT FROM tendril.claims c WHERE c.provision_id = p_provision AND c.apply_begun_at IS NOT NULL) THEN
    RETURN;
  END IF;
  SELECT least(s.retry_after * power(2, v_failed.attempt - 1), s.retry_at_most) INTO STRICT v_wait FROM tendril.settings s;
  v_due := clock_timestamp() + v_wait;
  BEGIN
    INSERT INTO public.provisions (cluster_id, config_snapshot, operation, priority, requested_by, asked_with, least_approval, traceparent, retry_of, attempt, not_before)
    VALUES (v_failed.cluster_id, v_failed.config_snapshot, v_failed.operation, v_failed.priority, v_failed.requested_by, v_failed.asked_with, v_failed.least_approval, v_failed.traceparent,
            p_provision, v_failed.attempt + 1, v_due)
    RETURNING id, number INTO v_next;
  EXCEPTION
    -- What failed must be recorded, whatever keeps it from being tried again.
    WHEN OTHERS THEN
      PERFORM tendril.system_line(p_provision, format('Another attempt could not be queued: %s', left(SQLERRM, tendril.quoted_error())));
      RETURN;
  END;
  UPDATE public.workspaces SET reserved_by = v_next.id, due_at = v_due
  WHERE id = v_failed.workspace_id AND (reserved_by IS NULL OR reserved_by = p_provision);
  PERFORM tendril.system_line(p_provision, format('Retry in %s s as run %s (attempt %s of %s).',
    round(extract(epoch FROM v_wait), 1), v_next.number, v_failed.attempt + 1, v_most));
  PERFORM tendril.system_line(v_next.id, format('Attempt %s of %s: run %s failed (%s).', v_failed.attempt + 1, v_most, v_failed.number, p_code));
END $$;

-- Cancels the waiting attempt of a lost run that has reported after all.
--
-- Locks: workspace, provision.
CREATE OR REPLACE FUNCTION tendril.drop_attempt(p_provision uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_attempt uuid;
BEGIN
  SELECT n.id INTO v_attempt
  FROM public.provisions p JOIN public.provisions n ON n.workspace_id = p.workspace_id AND n.number > p.number AND n.retry_of = p.id
  WHERE p.id = p_provision AND n.attempt > 1 AND CASE n.status WHEN 'QUEUED' THEN true ELSE false END
  FOR NO KEY UPDATE OF n;
  IF FOUND THEN
    PERFORM tendril.system_line(v_attempt, 'Cancelled: the earlier run reported after all.');
    PERFORM tendril.end_provision(v_attempt, 'CANCELLED', 'cancelled', 'The earlier run reported after all, so this attempt was not needed.');
  END IF;
END $$;

-- Records the stages that follow from a status; a run reports the others itself.
--
-- Locks: workspace.
-- Notes: SECURITY DEFINER, because people insert provisions as themselves.
CREATE OR REPLACE FUNCTION tendril.follow_status() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_claim tendril.claims;
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO public.provision_stages (provision_id, org_id, attempt, stage, started_at)
    VALUES (NEW.id, NEW.org_id, 1, 'queued', NEW.created_at);
    RETURN NULL;
  END IF;
  IF OLD.status IN ('PROCESSING', 'FAILED') THEN
    SELECT * INTO v_claim FROM tendril.claims WHERE provision_id = NEW.id ORDER BY number DESC LIMIT 1;
    IF v_claim.id IS NOT NULL AND v_claim.stage IS NULL THEN
      PERFORM tendril.begin_stages(v_claim, NEW.org_id);
    END IF;
  END IF;
  PERFORM tendril.enter_stage(NEW.id, NEW.org_id,
    CASE NEW.status WHEN 'QUEUED' THEN 'queued' WHEN 'AWAITING_APPROVAL' THEN 'approval' WHEN 'AWAITING_INPUT' THEN 'input' WHEN 'SUCCESS' THEN 'done' END,
    -- Late settlement: the stage lasted until now.
    CASE OLD.status WHEN 'FAILED' THEN coalesce(v_claim.stage, 'checkout') END);
  UPDATE public.provision_progress SET running = '[]' WHERE provision_id = NEW.id AND running <> '[]';
  IF NEW.status = 'SUCCESS' THEN
    PERFORM tendril.clear_findings(NEW);
  END IF;
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER provisions_begin_stages AFTER INSERT ON public.provisions
  FOR EACH ROW EXECUTE FUNCTION tendril.follow_status();

CREATE OR REPLACE TRIGGER provisions_follow_status AFTER UPDATE OF status ON public.provisions
  FOR EACH ROW WHEN (NEW.status <> 'PROCESSING' AND (OLD.status IS DISTINCT FROM NEW.status OR OLD.finished_at IS DISTINCT FROM NEW.finished_at)) EXECUTE FUNCTION tendril.follow_status();

-- Notifies viewers that a provision has changed. Not at the claim: NOTIFY makes commits wait for
-- each other, and the first stage follows a moment later.
CREATE OR REPLACE FUNCTION tendril.notify_provision() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.notify('tendril_provision', NEW.id);
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER provisions_notify AFTER UPDATE OF status ON public.provisions
  FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status AND NEW.status <> 'PROCESSING')
  EXECUTE FUNCTION tendril.notify_provision();
