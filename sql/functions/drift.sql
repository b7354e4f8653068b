-- Drift schedules.

-- Sets how often a workspace is checked for drift. A workspace that was not checked for that long
-- is due at once. Needs the role operator.
--
-- Arguments:
--   p_workspace  the workspace
--   p_every      5 minutes to 366 days; null: never
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 workspace_not_found, PT422 bad_interval, PT503 busy.
-- Locks: workspace.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.set_drift_schedule(p_workspace uuid, p_every interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_shortest CONSTANT interval := '5 minutes'; -- as the table allows
  c_longest  CONSTANT interval := '366 days';
  v_workspace public.workspaces;
BEGIN
  v_workspace := tendril.lock_workspace_for(p_workspace, 'operator');
  IF p_every NOT BETWEEN c_shortest AND c_longest THEN
    PERFORM tendril.refuse('PT422', 'bad_interval', format('p_every: %s is not between 5 minutes and 366 days', left(p_every::text, tendril.quoted_name())),
      'use null to turn the schedule off');
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

-- Queues a refresh of what was applied last in a workspace, behind everything else. Answers false
-- where nothing exists that could have drifted. The caller holds the workspace's lock.
--
-- Locks: workspace.
CREATE OR REPLACE FUNCTION tendril.queue_refresh(p_workspace public.workspaces) RETURNS boolean
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
  VALUES (p_workspace.cluster_id, 'refresh', tendril.least_priority(),
    -- Nobody asks for it, so there is nobody to seal anything to.
    (v_newest.config_snapshot - ARRAY['targets', 'replace', 'approval', 'requester_key'])
      -- The name as well: it may have been made of variables.
      || jsonb_build_object('workspace', p_workspace.name,
           'meta', CASE jsonb_typeof(v_newest.config_snapshot -> 'meta') WHEN 'object' THEN v_newest.config_snapshot -> 'meta' ELSE '{}' END
                   || '{"triggered_by": "drift schedule"}'));
  RETURN true;
END $$;

-- Queues a refresh in workspaces whose drift check is due. A workspace that is busy, held, locked
-- or reserved stays due until it is free. Several may call it at once, at any time.
--
-- Arguments:
--   p_limit  workspaces in a call
-- Answers: how many refreshes it queued.
-- Errors: none.
-- Locks: cluster, workspace.
-- Callers: the control plane.
-- Notes: A workspace that fails is postponed to its next turn, so that the others have theirs.
CREATE OR REPLACE FUNCTION tendril.queue_drift(p_limit int DEFAULT 20) RETURNS int
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
        RAISE WARNING 'workspace % cannot be checked for drift: % (%)', v_id, SQLERRM, SQLSTATE;
        -- At its next turn; until then others have theirs.
        UPDATE public.workspaces SET drift_due_at = v_now + drift_every
        WHERE id IN (SELECT id FROM public.workspaces WHERE id = v_id AND drift_due_at <= v_now FOR NO KEY UPDATE SKIP LOCKED);
    END;
  END LOOP;
  RETURN v_count;
END $$;
