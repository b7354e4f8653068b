-- The status machine: what may follow what, and what a change of status brings about.

-- Refuses every change of status that is not drawn in the design, whoever asks. Nothing awaits
-- approval without a plan, and nothing goes on from there but by the approval of that plan.
CREATE OR REPLACE FUNCTION tendril.guard_status() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF (CASE OLD.status
        WHEN 'QUEUED'            THEN NEW.status IN ('PROCESSING', 'CANCELLED')
        WHEN 'PROCESSING'        THEN NEW.status IN ('SUCCESS', 'FAILED', 'CANCELLED') OR NEW.status = 'AWAITING_APPROVAL' AND NEW.plan_digest IS NOT NULL
        WHEN 'AWAITING_APPROVAL' THEN NEW.status = 'CANCELLED' OR NEW.status = 'QUEUED' AND NEW.approved_plan = NEW.plan_digest
        -- Late settlement: the agent was given up and reports after all.
        WHEN 'FAILED'            THEN OLD.error_code = 'agent_lost' AND NEW.status IN ('SUCCESS', 'FAILED', 'CANCELLED')
      END) IS NOT TRUE THEN
    PERFORM tendril.refuse('PT409', 'illegal_transition',
      format('provision %s is %s and cannot become %s', OLD.id, OLD.status, NEW.status));
  END IF;
  RETURN NEW;
END $$;

-- What identifies a provision never changes, but for one thing: where its workspace was renamed,
-- the snapshot of one that is not over may follow.
CREATE OR REPLACE FUNCTION tendril.guard_identity() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF OLD.status IN ('QUEUED', 'PROCESSING', 'AWAITING_APPROVAL')
     AND (OLD.id, OLD.org_id, OLD.cluster_id, OLD.workspace_id, OLD.operation, OLD.requested_by, OLD.config_snapshot - 'workspace')
         IS NOT DISTINCT FROM (NEW.id, NEW.org_id, NEW.cluster_id, NEW.workspace_id, NEW.operation, NEW.requested_by, NEW.config_snapshot - 'workspace')
     AND NEW.config_snapshot ->> 'workspace' = (SELECT w.name FROM public.workspaces w WHERE w.id = OLD.workspace_id) THEN
    RETURN NEW;
  END IF;
  PERFORM tendril.refuse('PT409', 'immutable', format('provision %s: what was asked for cannot be changed; make a new provision', OLD.id));
  RETURN NULL;
END $$;

-- What was planned, what of it was approved and which attempt it is changes with the status
-- that it belongs to, and never else.
CREATE OR REPLACE FUNCTION tendril.guard_plan() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF (NEW.attempt, NEW.retry_of) IS NOT DISTINCT FROM (OLD.attempt, OLD.retry_of)
     AND (OLD.status = 'PROCESSING' AND NEW.status = 'AWAITING_APPROVAL' AND (NEW.approved_plan, NEW.approved_at, NEW.approved_by) IS NOT DISTINCT FROM (OLD.approved_plan, OLD.approved_at, OLD.approved_by)
          OR OLD.status = 'AWAITING_APPROVAL' AND NEW.status = 'QUEUED' AND NEW.plan_digest = OLD.plan_digest AND NEW.approved_plan = OLD.plan_digest) THEN
    RETURN NEW;
  END IF;
  PERFORM tendril.refuse('PT409', 'immutable', format('provision %s: the plan that is to be approved, or was, cannot be changed', OLD.id));
  RETURN NULL;
END $$;

-- Refuses the apply of a plan that a person must approve first. Asked under the rules of now:
-- an admin may have made them stricter since the plan was made. Nothing is applied by an
-- inspection.
CREATE OR REPLACE FUNCTION tendril.guard_apply(p_provision public.provisions, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_rule text := tendril.approval_for(p_provision);
  v_plan jsonb := coalesce(p_detail -> 'plan', p_provision.plan_summary);
BEGIN
  IF p_provision.operation IN ('plan', 'refresh', 'inspect') THEN
    PERFORM tendril.refuse('PT409', 'operation_refused', format('a %s is not applied', p_provision.operation));
  ELSIF p_provision.approved_plan IS NOT NULL THEN
    IF NOT tendril.plan_bundle_stored(p_provision.id, p_provision.approved_plan) THEN
      PERFORM tendril.refuse('PT409', 'plan_missing', 'the plan that was approved is not stored any more, and no other may be applied', 'deploy again');
    ELSIF p_detail ->> 'plan_digest' IS DISTINCT FROM p_provision.approved_plan THEN
      -- Such as an agent that is too old to know of approved plans, and has made
      -- one of its own.
      PERFORM tendril.refuse('PT409', 'plan_invalid', 'the plan that was approved must be applied, and the agent tells of another or of none', 'update the agent, and deploy again');
    END IF;
  ELSIF v_rule = 'always' OR v_rule = 'destructive' AND (
          p_provision.operation = 'destroy'
          OR p_provision.operation = 'state' AND p_provision.config_snapshot -> 'state' ->> 'command' IN ('push', 'rollback')
          -- Nothing told of the plan is no word that it destroys nothing.
          OR coalesce(jsonb_typeof(v_plan), 'null') <> 'object'
          OR coalesce((v_plan ->> 'destroy')::bigint, 0) + coalesce((v_plan ->> 'replace')::bigint, 0) + coalesce((v_plan ->> 'forget')::bigint, 0) > 0) THEN
    PERFORM tendril.refuse('PT409', 'approval_needed',
      CASE v_rule WHEN 'always' THEN 'this plan must be approved before it is applied'
                  ELSE 'this plan destroys, replaces or forgets something, and must be approved before it is applied' END,
      'report AWAITING_APPROVAL, with the plan stored');
  END IF;
END $$;

-- Ends a provision. Its claim, if it has one, and its workspace are the caller's business.
-- What may pass is tried again.
--
-- Locks: workspace, provision.
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
  IF p_status = 'SUCCESS' THEN
    UPDATE public.provision_progress SET stage = 'done', percent = 100, updated_at = clock_timestamp() WHERE provision_id = p_provision;
  END IF;
  IF v_was = 'PROCESSING' AND p_status = 'FAILED' AND tendril.may_pass(p_code) THEN
    PERFORM tendril.try_again(p_provision, p_code);
  ELSIF v_was = 'FAILED' AND NOT (p_status = 'FAILED' AND tendril.may_pass(p_code)) THEN
    PERFORM tendril.drop_attempt(p_provision);
  END IF;
END $$;

-- Whether a failure with that code may be over when the same is tried again: nothing that the
-- template, its variables or a policy is to blame for.
CREATE OR REPLACE FUNCTION tendril.may_pass(p_code text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce(p_code IN ('agent_lost', 'agent_restarted', 'agent_drained', 'exec_died', 'checkout_failed', 'init_failed',
                             'engine_missing', 'state_locked', 'internal'), false);
END $$;

-- Queues another attempt at what failed before its apply began, if the snapshot wants one: a
-- provision of its own, for ended is ended. The workspace is kept for it meanwhile: were
-- something newer to run in between, the attempt would undo it. Whoever cannot wait cancels
-- the attempt. The caller has the locks.
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
    INSERT INTO public.provisions (cluster_id, config_snapshot, operation, priority, requested_by, retry_of, attempt, not_before)
    VALUES (v_failed.cluster_id, v_failed.config_snapshot, v_failed.operation, v_failed.priority, v_failed.requested_by,
            p_provision, v_failed.attempt + 1, v_due)
    RETURNING id, number INTO v_next;
  EXCEPTION
    -- What failed must be recorded, whatever keeps it from being tried again.
    WHEN OTHERS THEN
      PERFORM tendril.system_line(p_provision, format('This could not be queued again: %s', left(SQLERRM, 500)));
      RETURN;
  END;
  UPDATE public.workspaces SET reserved_by = v_next.id, due_at = v_due
  WHERE id = v_failed.workspace_id AND (reserved_by IS NULL OR reserved_by = p_provision);
  PERFORM tendril.system_line(p_provision, format('It will be tried again in %s s, as provision %s (attempt %s of %s).',
    round(extract(epoch FROM v_wait), 1), v_next.number, v_failed.attempt + 1, v_most));
  PERFORM tendril.system_line(v_next.id, format('Attempt %s of %s: provision %s failed (%s).', v_failed.attempt + 1, v_most, v_failed.number, p_code));
END $$;

-- Cancels the attempt that waits because of a run that was given up and reported after all
-- what needs no other attempt.
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
    PERFORM tendril.system_line(v_attempt, 'Cancelled: the run before reported after all.');
    PERFORM tendril.end_provision(v_attempt, 'CANCELLED', 'cancelled', 'The run that this was another attempt at reported after all, so it was not needed.');
  END IF;
END $$;

-- The stages that a status is, whoever changes it; those of a run it tells itself. SECURITY
-- DEFINER, for people insert provisions as themselves.
--
-- Locks: workspace.
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
    CASE NEW.status WHEN 'QUEUED' THEN 'queued' WHEN 'AWAITING_APPROVAL' THEN 'approval' WHEN 'SUCCESS' THEN 'done' END,
    -- Late settlement: the stage lasted until now.
    CASE OLD.status WHEN 'FAILED' THEN coalesce(v_claim.stage, 'checkout') END);
  UPDATE public.provision_progress SET running = '[]' WHERE provision_id = NEW.id AND running <> '[]';
  IF NEW.status = 'SUCCESS' THEN
    PERFORM tendril.clear_findings(NEW);
  END IF;
  RETURN NULL;
END $$;

-- Tells viewers that a provision has changed. Not at the claim: NOTIFY makes commits wait for
-- each other, and the first stage is told a moment later.
CREATE OR REPLACE FUNCTION tendril.notify_provision() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.notify('tendril_provision', NEW.id);
  RETURN NULL;
END $$;
