-- What people may do beyond asking for a deploy and cancelling it: approve or
-- reject a plan, try again, lock a workspace, pause a cluster, and say who
-- belongs to an organisation. Each asks for the caller's role first, with one
-- answer for "there is none" and "not yours", and is audited.

-- +goose Up

-- Locks tables that a migration changes: all at once or none, as in migration
-- 10, for the functions that run meanwhile take them in orders of their own.
-- +goose StatementBegin
CREATE FUNCTION tendril.lock_tables(p_tables text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms'
AS $$
BEGIN
  FOR i IN 1..150 LOOP
    BEGIN
      EXECUTE 'LOCK TABLE ' || p_tables || ' IN ACCESS EXCLUSIVE MODE';
      RETURN;
    EXCEPTION WHEN lock_not_available THEN
      PERFORM pg_sleep(0.1);
    END;
  END LOOP;
  RAISE EXCEPTION 'the tables could not be locked within 45 seconds: a transaction that has been open for long reads or writes them'
    USING HINT = 'find it in pg_stat_activity (xact_start) and end it, then migrate again';
END $$;
-- +goose StatementEnd
-- Those of the migrations after this one as well: the printed script is one
-- transaction, which must not wait for a table while it has others.
SELECT tendril.lock_tables('public.provisions, public.audit_events, public.clusters, public.provision_events, public.provision_logs,
  public.provision_progress, tendril.claims, tendril.settings, tendril.log_heads');

ALTER TABLE public.provisions
  -- SHA-256, in hexadecimal, of the plan that awaits a person's word, and of
  -- the one that was approved: no other may be applied.
  ADD COLUMN plan_digest   text,
  ADD COLUMN approved_plan text,
  ADD COLUMN approved_at   timestamptz,
  ADD COLUMN approved_by   uuid,
  -- No foreign key: it would need an index, which is made from a million rows
  -- while everybody waits.
  ADD COLUMN retry_of      uuid,
  -- Rows of before have none of it: not to be looked for in them either.
  ADD CONSTRAINT provisions_plan_digest CHECK (plan_digest ~ '^[0-9a-f]{64}$') NOT VALID;

-- As before, and: nothing awaits approval without a plan, and nothing goes on
-- from there but by the approval of that plan.
-- +goose StatementBegin
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
-- +goose StatementEnd

-- A reservation ends with its provision, however that ends: by a function of
-- ours or by somebody's hand.
-- +goose StatementBegin
CREATE FUNCTION tendril.end_reservation() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  UPDATE public.workspaces SET reserved_by = NULL WHERE id = NEW.workspace_id AND reserved_by = NEW.id;
  IF FOUND THEN
    PERFORM tendril.refresh_head(NEW.workspace_id);
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER provisions_end_reservation AFTER UPDATE OF status ON public.provisions
  FOR EACH ROW WHEN (OLD.status IN ('QUEUED', 'AWAITING_APPROVAL') AND NEW.status = 'CANCELLED')
  EXECUTE FUNCTION tendril.end_reservation();

-- Ends the claim of a run whose plan a person must see first. The workspace is
-- free of it, and reserved for this provision until that person has spoken.
-- +goose StatementBegin
CREATE FUNCTION tendril.await_approval(p_claim uuid, p_plan_digest text) RETURNS void
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
  UPDATE public.workspaces SET reserved_by = v_claim.provision_id WHERE id = v_claim.workspace_id;
  PERFORM tendril.refresh_head(v_claim.workspace_id);
END $$;
-- +goose StatementEnd

-- What a person says of why, as one line.
-- +goose StatementBegin
CREATE FUNCTION tendril.reason(p_reason text, p_needed boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_reason text := btrim(regexp_replace(left(coalesce(p_reason, ''), 10000), '[[:cntrl:][:space:]]+', ' ', 'g'));
BEGIN
  IF length(p_reason) > 10000 OR length(v_reason) > 1000 THEN
    PERFORM tendril.refuse('PT422', 'bad_reason', format('p_reason: %s characters, more than the 1000 allowed', length(p_reason)));
  ELSIF p_needed AND v_reason = '' THEN
    PERFORM tendril.refuse('PT422', 'bad_reason', 'p_reason: missing; others will want to know');
  END IF;
  RETURN v_reason;
END $$;
-- +goose StatementEnd

-- The provision, if the caller has the role there, locked after its workspace.
-- +goose StatementBegin
CREATE FUNCTION tendril.lock_provision_for(p_provision uuid, p_least text) RETURNS public.provisions
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_provision public.provisions;
BEGIN
  SELECT * INTO v_provision FROM public.provisions WHERE id = p_provision;
  -- In this order, so that both answers take the same time.
  IF tendril.may_act(v_provision.org_id, p_least) AND v_provision.id IS NOT NULL THEN
    PERFORM FROM public.workspaces WHERE id = v_provision.workspace_id FOR NO KEY UPDATE;
    SELECT * INTO v_provision FROM public.provisions WHERE id = p_provision FOR NO KEY UPDATE;
    IF FOUND THEN
      RETURN v_provision;
    END IF;
  END IF;
  PERFORM tendril.refuse('PT404', 'provision_not_found', format('there is no provision %s where you are %s', p_provision, p_least));
END $$;
-- +goose StatementEnd

-- Likewise the workspace.
-- +goose StatementBegin
CREATE FUNCTION tendril.lock_workspace_for(p_workspace uuid, p_least text) RETURNS public.workspaces
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_workspace public.workspaces;
BEGIN
  SELECT * INTO v_workspace FROM public.workspaces WHERE id = p_workspace;
  IF tendril.may_act(v_workspace.org_id, p_least) AND v_workspace.id IS NOT NULL THEN
    SELECT * INTO v_workspace FROM public.workspaces WHERE id = p_workspace FOR NO KEY UPDATE;
    IF FOUND THEN
      RETURN v_workspace;
    END IF;
  END IF;
  PERFORM tendril.refuse('PT404', 'workspace_not_found', format('there is no workspace %s where you are %s', p_workspace, p_least));
END $$;
-- +goose StatementEnd

-- Lets a plan be applied (operator): the very one that the caller has seen,
-- which its digest says. It goes before anything else queued in the workspace.
-- Returns the status now. A repeat after a lost reply changes nothing.
-- +goose StatementBegin
CREATE FUNCTION public.approve_provision(p_provision uuid, p_plan_digest text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_provision public.provisions;
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
  UPDATE public.provisions
  SET status = 'QUEUED', approved_plan = plan_digest, approved_at = clock_timestamp(), approved_by = tendril.current_user_id()
  WHERE id = p_provision;
  UPDATE public.workspaces SET reserved_by = p_provision WHERE id = v_provision.workspace_id AND reserved_by IS NULL;
  PERFORM tendril.system_line(p_provision, 'The plan was approved.');
  PERFORM tendril.refresh_head(v_provision.workspace_id);
  PERFORM tendril.audit(v_provision.org_id, 'approve_provision', 'provision', p_provision, jsonb_build_object('plan_digest', p_plan_digest));
  RETURN 'QUEUED';
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Turns a plan down (operator): the provision is CANCELLED, and the workspace
-- free for what is queued behind it. Returns the status now.
-- +goose StatementBegin
CREATE FUNCTION public.reject_provision(p_provision uuid, p_reason text DEFAULT '') RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_provision public.provisions;
  v_reason    text;
BEGIN
  v_provision := tendril.lock_provision_for(p_provision, 'operator');
  v_reason := tendril.reason(p_reason);
  IF v_provision.status = 'CANCELLED' AND v_provision.error_code = 'rejected' THEN
    RETURN 'CANCELLED'; -- a repeat after a lost reply
  ELSIF v_provision.status <> 'AWAITING_APPROVAL' THEN
    PERFORM tendril.refuse('PT409', 'not_awaiting_approval', format('provision %s is %s and awaits no approval', v_provision.number, v_provision.status),
      CASE WHEN v_provision.status IN ('QUEUED', 'PROCESSING') THEN 'cancel the provision instead' ELSE '' END);
  END IF;
  PERFORM tendril.system_line(p_provision, 'The plan was rejected' || CASE WHEN v_reason = '' THEN '.' ELSE format(' (%s).', v_reason) END);
  PERFORM tendril.end_provision(p_provision, 'CANCELLED', 'rejected',
    'The plan was rejected, so nothing was changed.' || CASE WHEN v_reason = '' THEN '' ELSE ' Reason given: ' || v_reason END);
  PERFORM tendril.wake(v_provision.workspace_id); -- who passed over it while we held the lock
  PERFORM tendril.audit(v_provision.org_id, 'reject_provision', 'provision', p_provision,
    jsonb_build_object('reason', v_reason, 'plan_digest', v_provision.plan_digest));
  RETURN 'CANCELLED';
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Asks for the same once more (operator), when it has ended: a new provision of
-- the same snapshot, whose id is returned. While one such has not ended, that is
-- the answer: two clicks are one deploy.
-- +goose StatementBegin
CREATE FUNCTION public.retry_provision(p_provision uuid) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_provision public.provisions;
  v_retry     uuid;
BEGIN
  v_provision := tendril.lock_provision_for(p_provision, 'operator');
  IF v_provision.status NOT IN ('SUCCESS', 'FAILED', 'CANCELLED') THEN
    PERFORM tendril.refuse('PT409', 'not_ended', format('provision %s is %s: there is nothing to retry', v_provision.number, v_provision.status),
      'wait until it has ended, or cancel it');
  END IF;
  SELECT id INTO v_retry FROM public.provisions
  WHERE workspace_id = v_provision.workspace_id AND number > v_provision.number
    AND retry_of = p_provision AND status NOT IN ('SUCCESS', 'FAILED', 'CANCELLED') LIMIT 1;
  IF FOUND THEN
    RETURN v_retry;
  END IF;
  INSERT INTO public.provisions (cluster_id, config_snapshot, operation, priority, retry_of)
  VALUES (v_provision.cluster_id, v_provision.config_snapshot, v_provision.operation, v_provision.priority, p_provision)
  RETURNING id INTO v_retry;
  PERFORM tendril.audit(v_provision.org_id, 'retry_provision', 'provision', p_provision, jsonb_build_object('retry', v_retry));
  RETURN v_retry;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Keeps a workspace from running anything until it is unlocked (operator). What
-- runs there goes on; deploys are queued.
-- +goose StatementBegin
CREATE FUNCTION public.lock_workspace(p_workspace uuid, p_reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_workspace public.workspaces;
  v_who       uuid := tendril.current_user_id();
  v_reason    text;
BEGIN
  v_workspace := tendril.lock_workspace_for(p_workspace, 'operator');
  v_reason := tendril.reason(p_reason, true);
  IF v_workspace.locked_at IS NOT NULL AND v_workspace.locked_by IS NOT DISTINCT FROM v_who AND v_workspace.lock_reason = v_reason THEN
    RETURN; -- a repeat after a lost reply
  ELSIF v_workspace.locked_at IS NOT NULL THEN
    PERFORM tendril.refuse('PT409', 'workspace_locked',
      format('workspace %s has been locked since %s: %s', to_json(v_workspace.name),
             to_char(v_workspace.locked_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'), v_workspace.lock_reason),
      'it must be unlocked first');
  END IF;
  UPDATE public.workspaces SET locked_at = clock_timestamp(), locked_by = v_who, lock_reason = v_reason WHERE id = p_workspace;
  PERFORM tendril.audit(v_workspace.org_id, 'lock_workspace', 'workspace', p_workspace, jsonb_build_object('reason', v_reason));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Ends a person's lock: one's own (operator), or anybody's (admin).
-- +goose StatementBegin
CREATE FUNCTION public.unlock_workspace(p_workspace uuid, p_reason text DEFAULT '') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_workspace public.workspaces;
  v_reason    text;
BEGIN
  v_workspace := tendril.lock_workspace_for(p_workspace, 'operator');
  v_reason := tendril.reason(p_reason);
  IF v_workspace.locked_at IS NULL THEN
    RETURN; -- a repeat after a lost reply
  ELSIF v_workspace.locked_by IS DISTINCT FROM tendril.current_user_id() AND NOT tendril.may_act(v_workspace.org_id, 'admin') THEN
    PERFORM tendril.refuse('PT403', 'locked_by_another', format('somebody else has locked workspace %s: %s', to_json(v_workspace.name), v_workspace.lock_reason),
      'ask them, or an admin');
  END IF;
  -- The trigger wakes agents.
  UPDATE public.workspaces SET locked_at = NULL, locked_by = NULL, lock_reason = NULL WHERE id = p_workspace;
  PERFORM tendril.audit(v_workspace.org_id, 'unlock_workspace', 'workspace', p_workspace,
    jsonb_build_object('reason', v_reason, 'locked_by', v_workspace.locked_by, 'lock_reason', v_workspace.lock_reason));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Has a cluster claim nothing more, or claim again when p_paused is false
-- (admin). What runs goes on.
-- +goose StatementBegin
CREATE FUNCTION public.pause_cluster(p_cluster uuid, p_paused boolean DEFAULT true, p_reason text DEFAULT '') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters;
  v_reason  text;
BEGIN
  v_cluster := tendril.cluster_for(p_cluster, 'admin');
  v_reason := tendril.reason(p_reason);
  IF p_paused IS NULL THEN
    PERFORM tendril.refuse('PT422', 'bad_paused', 'p_paused: true or false');
  END IF;
  UPDATE public.clusters SET paused_at = CASE WHEN p_paused THEN clock_timestamp() END
  WHERE id = p_cluster AND (paused_at IS NOT NULL) <> p_paused;
  IF NOT FOUND THEN
    RETURN; -- it is as wanted
  END IF;
  IF NOT p_paused THEN
    PERFORM pg_notify('tendril_work', p_cluster::text);
  END IF;
  PERFORM tendril.audit(v_cluster.org_id, CASE WHEN p_paused THEN 'pause_cluster' ELSE 'resume_cluster' END, 'cluster', p_cluster,
    jsonb_build_object('reason', v_reason));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Who did what is for admins. Members see all else of their organisation, each
-- other's roles included: who waits for an approval must know whom to ask.
ALTER POLICY members_read ON public.audit_events USING (org_id = ANY ((SELECT tendril.orgs_with_role('admin'))::uuid[]));
ALTER POLICY members_read ON public.audit_events RENAME TO admins_read;

SELECT tendril.deny_all(ARRAY['approve_provision', 'reject_provision', 'retry_provision', 'lock_workspace', 'unlock_workspace', 'pause_cluster']);
GRANT EXECUTE ON FUNCTION public.approve_provision(uuid, text), public.reject_provision(uuid, text), public.retry_provision(uuid),
  public.lock_workspace(uuid, text), public.unlock_workspace(uuid, text), public.pause_cluster(uuid, boolean, text) TO authenticated;

NOTIFY pgrst, 'reload schema';
