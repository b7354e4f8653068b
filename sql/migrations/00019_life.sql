-- The life of a provision beyond one run: who may approve a plan and until when,
-- and another attempt at what failed before its apply began.

-- +goose Up

SELECT tendril.lock_tables('public.clusters, public.workspaces, public.provisions, public.templates, tendril.settings');

-- How long the first automatic attempt after a failure waits; each further one
-- waits twice as long, and none longer than that.
ALTER TABLE tendril.settings
  ADD COLUMN retry_after   interval NOT NULL DEFAULT '30 seconds' CHECK (retry_after > interval '0'),
  ADD COLUMN retry_at_most interval NOT NULL DEFAULT '10 minutes';

-- What was planned, what of it was approved and which attempt it is changes with
-- the status that it belongs to, and never else.
-- +goose StatementBegin
CREATE FUNCTION tendril.guard_plan() RETURNS trigger
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
-- +goose StatementEnd
CREATE TRIGGER provisions_guard_plan BEFORE UPDATE OF plan_digest, approved_plan, approved_at, approved_by, attempt, retry_of ON public.provisions
  FOR EACH ROW WHEN ((OLD.plan_digest, OLD.approved_plan, OLD.approved_at, OLD.approved_by, OLD.attempt, OLD.retry_of)
                     IS DISTINCT FROM (NEW.plan_digest, NEW.approved_plan, NEW.approved_at, NEW.approved_by, NEW.attempt, NEW.retry_of))
  EXECUTE FUNCTION tendril.guard_plan();

-- As before, and: what the workspace is reserved for runs when it is due. Found
-- by its id, however long the queue is.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.refresh_head(p_workspace uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_workspace record;
  v_head      record;
BEGIN
  SELECT reserved_by, due_at INTO v_workspace FROM public.workspaces WHERE id = p_workspace;
  IF v_workspace.reserved_by IS NULL THEN
    SELECT p.id, p.priority, p.number INTO v_head
    FROM public.provisions p
    WHERE p.workspace_id = p_workspace AND p.status = 'QUEUED'
    ORDER BY p.priority DESC, p.number
    LIMIT 1;
  ELSE
    SELECT p.id, p.priority, p.number INTO v_head
    FROM public.provisions p
    WHERE p.id = v_workspace.reserved_by AND CASE p.status WHEN 'QUEUED' THEN v_workspace.due_at IS NULL ELSE false END;
  END IF;
  UPDATE public.workspaces
  SET head_id = v_head.id, head_priority = v_head.priority, head_number = v_head.number
  WHERE id = p_workspace AND head_id IS DISTINCT FROM v_head.id;
END $$;
-- +goose StatementEnd

-- As before, and: an attempt that waits is put in its place by who makes it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.queue_deploy() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF NEW.not_before IS NOT NULL THEN
    RETURN NULL; -- an attempt, which waits: try_again() says for what
  END IF;
  -- Usually the queue has a head already and nothing is to be done.
  UPDATE public.workspaces SET head_id = NEW.id, head_priority = NEW.priority, head_number = NEW.number
  WHERE id = NEW.workspace_id AND reserved_by IS NULL
    AND (head_id IS NULL OR head_priority < NEW.priority
         -- numbers are drawn before the workspace is locked
         OR head_priority = NEW.priority AND head_number > NEW.number);
  -- Also when the head is another: who was woken for it may have passed over
  -- the workspace because this insert held its lock.
  PERFORM tendril.wake(NEW.workspace_id);
  RETURN NULL;
END $$;
-- +goose StatementEnd

-- As before, and: the time is over with the reservation.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.end_reservation() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  UPDATE public.workspaces SET reserved_by = NULL, due_at = NULL WHERE id = NEW.workspace_id AND reserved_by = NEW.id;
  IF FOUND THEN
    PERFORM tendril.refresh_head(NEW.workspace_id);
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd

-- As before, and: the plan waits as long as the cluster's policy says.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.await_approval(p_claim uuid, p_plan_digest text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_claim tendril.claims;
BEGIN
  SELECT * INTO STRICT v_claim FROM tendril.claims WHERE id = p_claim;
  PERFORM FROM public.workspaces WHERE id = v_claim.workspace_id FOR NO KEY UPDATE;
  SELECT * INTO STRICT v_claim FROM tendril.claims WHERE id = p_claim FOR NO KEY UPDATE;
  IF v_claim.state <> 'running' OR v_claim.apply_begun_at IS NOT NULL THEN
    PERFORM tendril.claim_lost(p_claim, 'has no plan that could await approval');
  ELSIF v_claim.cancel_requested_at IS NOT NULL THEN
    PERFORM tendril.refuse('PT409', 'cancel_requested', 'the provision is to be cancelled; it must not await approval');
  END IF;
  UPDATE public.provisions SET status = 'AWAITING_APPROVAL', plan_digest = p_plan_digest WHERE id = v_claim.provision_id;
  PERFORM tendril.system_line(v_claim.provision_id, 'The plan awaits approval.');
  PERFORM tendril.end_claim(p_claim, v_claim.workspace_id);
  UPDATE public.provision_progress SET stage = 'approval', percent = NULL, updated_at = clock_timestamp() WHERE provision_id = v_claim.provision_id;
  UPDATE public.workspaces w SET reserved_by = v_claim.provision_id, due_at = clock_timestamp() + c.approval_expiry
  FROM public.clusters c WHERE w.id = v_claim.workspace_id AND c.id = w.cluster_id;
  PERFORM tendril.refresh_head(v_claim.workspace_id);
END $$;
-- +goose StatementEnd

-- Whether a failure with that code may be over when the same is tried again:
-- nothing that the template, its variables or a policy is to blame for.
-- +goose StatementBegin
CREATE FUNCTION tendril.may_pass(p_code text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce(p_code IN ('agent_lost', 'agent_restarted', 'agent_drained', 'exec_died', 'checkout_failed', 'init_failed',
                             'engine_missing', 'state_locked', 'internal'), false);
END $$;

-- Queues another attempt at what failed before its apply began, if the snapshot
-- wants one: a provision of its own, for ended is ended. The workspace is kept
-- for it meanwhile: were something newer to run in between, the attempt would
-- undo it. Whoever cannot wait cancels the attempt. The caller has the locks.
CREATE FUNCTION tendril.try_again(p_provision uuid, p_code text) RETURNS void
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

-- Cancels the attempt that waits because of a run that was given up and reported
-- after all what needs no other attempt.
CREATE FUNCTION tendril.drop_attempt(p_provision uuid) RETURNS void
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

-- As before, and: what may pass is tried again.
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

-- Does what is due in workspaces that are reserved: an approval that nobody gave
-- in time expires, and an attempt's time has come. At most p_limit of them; says
-- how many. What somebody has locked is left to the next call.
CREATE FUNCTION tendril.settle_due(p_limit int DEFAULT 20) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_now       timestamptz := clock_timestamp();
  v_due       record;
  v_workspace record;
  v_provision record;
  v_count     int := 0;
BEGIN
  FOR v_due IN SELECT id FROM public.workspaces WHERE due_at <= v_now ORDER BY due_at LIMIT p_limit LOOP
    BEGIN
      SELECT reserved_by, due_at INTO v_workspace FROM public.workspaces WHERE id = v_due.id FOR NO KEY UPDATE SKIP LOCKED;
      CONTINUE WHEN v_workspace.due_at > v_now OR v_workspace.due_at IS NULL;
      UPDATE public.workspaces SET due_at = NULL WHERE id = v_due.id;
      SELECT id, status, org_id, plan_digest INTO v_provision FROM public.provisions WHERE id = v_workspace.reserved_by FOR NO KEY UPDATE;
      IF v_provision.status = 'AWAITING_APPROVAL' THEN
        PERFORM tendril.system_line(v_provision.id, 'Nobody approved the plan in time.');
        PERFORM tendril.end_provision(v_provision.id, 'CANCELLED', 'approval_expired', 'Nobody approved the plan in time, so nothing was changed. Deploy again to get a new plan.');
      END IF;
      -- The trigger tells agents if there is something to run now.
      PERFORM tendril.refresh_head(v_due.id);
      v_count := v_count + 1;
    EXCEPTION
      WHEN OTHERS THEN
        RAISE WARNING 'what is due in workspace % cannot be done: % (%)', v_due.id, SQLERRM, SQLSTATE;
        -- Later once more; until then others have their turn.
        UPDATE public.workspaces SET due_at = v_now + interval '1 minute'
        WHERE id IN (SELECT id FROM public.workspaces WHERE id = v_due.id AND due_at <= v_now FOR NO KEY UPDATE SKIP LOCKED);
    END;
  END LOOP;
  RETURN v_count;
END $$;

-- As before, and: whoever reaps, an agent or a timer, also does what is due. Put
-- off with the leases: people could not approve either while the database was
-- away, and a clock that steps ahead may step back.
CREATE OR REPLACE FUNCTION tendril.reap(p_limit int DEFAULT 20) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_now       timestamptz;
  v_candidate record;
  v_count     int := 0;
BEGIN
  IF NOT tendril.beat() THEN
    RETURN 0;
  END IF;
  v_now := clock_timestamp();
  -- In the index's order, so that no plan reads anything else.
  IF (SELECT w.due_at FROM public.workspaces w WHERE w.due_at IS NOT NULL ORDER BY w.due_at LIMIT 1) <= v_now THEN
    PERFORM tendril.settle_due(p_limit);
  END IF;
  FOR v_candidate IN
    SELECT id, workspace_id FROM tendril.claims
    WHERE state = 'running' AND lease_until < v_now
    ORDER BY lease_until LIMIT p_limit
  LOOP
    BEGIN
      v_count := v_count + tendril.reap_claim(v_candidate.id, v_candidate.workspace_id);
    EXCEPTION
      WHEN OTHERS THEN
        RAISE WARNING 'claim % cannot be given up: % (%)', v_candidate.id, SQLERRM, SQLSTATE;
    END;
  END LOOP;
  RETURN v_count;
END $$;

-- As before, and: an attempt waits no longer because the clock was ahead.
CREATE OR REPLACE FUNCTION tendril.cut_future_stamps(p_now timestamptz, p_lease interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  UPDATE tendril.claims SET lease_until = p_now + p_lease
  WHERE id IN (SELECT id FROM tendril.claims WHERE state = 'running' AND lease_until > p_now + p_lease FOR NO KEY UPDATE SKIP LOCKED);
  UPDATE public.agents SET last_heartbeat_at = p_now
  WHERE id IN (SELECT id FROM public.agents WHERE last_heartbeat_at > p_now FOR NO KEY UPDATE SKIP LOCKED);
  UPDATE public.clusters SET last_seen_at = p_now
  WHERE id IN (SELECT id FROM public.clusters WHERE last_seen_at > p_now FOR NO KEY UPDATE SKIP LOCKED);
  UPDATE public.workspaces SET due_at = p_now
  WHERE id IN (SELECT w.id FROM public.workspaces w JOIN public.provisions p ON p.id = w.reserved_by
               WHERE w.due_at > p_now + (SELECT retry_at_most FROM tendril.settings) AND p.not_before >= w.due_at FOR NO KEY UPDATE OF w SKIP LOCKED);
END $$;
-- +goose StatementEnd

-- As before, and: only whom the cluster's policy lets, and in time.
-- +goose StatementBegin
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
  v_provision := tendril.lock_provision_for(p_provision, 'operator');
  IF v_provision.status <> 'AWAITING_APPROVAL' AND v_provision.approved_plan = p_plan_digest THEN
    RETURN v_provision.status;
  ELSIF v_provision.status <> 'AWAITING_APPROVAL' THEN
    PERFORM tendril.refuse('PT409', 'not_awaiting_approval', format('provision %s is %s and awaits no approval', v_provision.number, v_provision.status));
  ELSIF v_provision.plan_digest IS DISTINCT FROM p_plan_digest THEN
    PERFORM tendril.refuse('PT409', 'plan_changed', format('provision %s awaits the approval of another plan', v_provision.number),
      'look at the plan again and approve the digest that is in provisions.plan_digest then');
  END IF;
  SELECT c.name, c.approvers, c.four_eyes, w.due_at INTO STRICT v_policy
  FROM public.workspaces w JOIN public.clusters c ON c.id = w.cluster_id WHERE w.id = v_provision.workspace_id;
  IF NOT tendril.may_act(v_provision.org_id, v_policy.approvers) THEN
    PERFORM tendril.refuse('PT403', 'not_an_approver', format('plans for cluster %s are approved by an %s', to_json(v_policy.name), v_policy.approvers), 'ask one');
  ELSIF v_policy.four_eyes AND (v_who IS NULL OR v_who = v_provision.requested_by) THEN
    PERFORM tendril.refuse('PT403', 'four_eyes', format('plans for cluster %s are approved by somebody else than who asked for them', to_json(v_policy.name)),
      'ask somebody who may approve');
  ELSIF v_policy.due_at < clock_timestamp() THEN
    PERFORM tendril.refuse('PT409', 'approval_expired', format('nobody approved the plan of provision %s in time', v_provision.number), 'deploy again');
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
-- +goose StatementEnd

-- When plans for a cluster must be approved, and by whom (admin). p_policy has
-- what is to change: approval (never, destructive, always), approvers (operator,
-- admin), four_eyes (true: who asked may not approve) and approval_expiry (such as
-- "7 days"). Returns all of it as it is now. What awaits approval already keeps
-- the time that it was given.
-- +goose StatementBegin
CREATE FUNCTION public.set_cluster_policy(p_cluster uuid, p_policy jsonb) RETURNS jsonb
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
  IF jsonb_typeof(p_policy) IS DISTINCT FROM 'object' OR tendril.has_vast_number(p_policy) OR octet_length(p_policy::text) > 8192 THEN
    PERFORM tendril.refuse('PT422', 'bad_policy', 'p_policy: must be an object of at most 8192 bytes');
  END IF;
  SELECT format('p_policy.%s: unknown; known are %s', left(k, 100), array_to_string(c_known, ', ')) INTO v_problem
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
-- +goose StatementEnd

-- As before, and: when its plans must be approved. Null leaves what stands.
DROP FUNCTION public.save_template(uuid, text, text, text, text, text);
-- +goose StatementBegin
CREATE FUNCTION public.save_template(p_org uuid, p_name text, p_repo text, p_version text, p_path text DEFAULT '', p_description text DEFAULT '',
  p_approval text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_template uuid;
BEGIN
  PERFORM tendril.lock_org_for_admin(p_org);
  IF coalesce(length(p_name), 0) NOT BETWEEN 1 AND 200 THEN
    PERFORM tendril.refuse('PT422', 'bad_template', format('p_name: %s characters; from 1 to 200 are allowed', coalesce(length(p_name), 0)));
  ELSIF length(p_description) > 4000 THEN
    PERFORM tendril.refuse('PT422', 'bad_template', format('p_description: %s characters, more than the 4000 allowed', length(p_description)));
  ELSIF p_approval NOT IN ('never', 'destructive', 'always') THEN
    PERFORM tendril.refuse('PT422', 'bad_template', 'p_approval: must be "never", "destructive" or "always"');
  END IF;
  PERFORM tendril.check_source(p_repo, p_version, coalesce(p_path, ''));
  INSERT INTO public.templates (org_id, name, repo, version, path, description, approval)
  VALUES (p_org, p_name, p_repo, p_version, coalesce(p_path, ''), coalesce(p_description, ''), coalesce(p_approval, 'never'))
  ON CONFLICT (org_id, name) DO UPDATE
  SET repo = EXCLUDED.repo, version = EXCLUDED.version, path = EXCLUDED.path, description = EXCLUDED.description,
      approval = coalesce(p_approval, templates.approval)
  RETURNING id INTO v_template;
  PERFORM tendril.audit(p_org, 'save_template', 'template', v_template,
    jsonb_build_object('name', p_name, 'repo', p_repo, 'version', p_version, 'path', coalesce(p_path, ''))
      || CASE WHEN p_approval IS NULL THEN '{}' ELSE jsonb_build_object('approval', p_approval) END);
  RETURN v_template;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

SELECT tendril.deny_all(ARRAY['set_cluster_policy', 'save_template']);
GRANT EXECUTE ON FUNCTION public.set_cluster_policy(uuid, jsonb), public.save_template(uuid, text, text, text, text, text, text)
  TO authenticated, service_role;

NOTIFY pgrst, 'reload schema';
