-- Refreshes on a schedule.

-- Has a workspace looked at for drift every so often; null: never (operator). What has not
-- been looked at for that long is due at once.
--
-- Locks: workspace.
CREATE OR REPLACE FUNCTION public.set_drift_schedule(p_workspace uuid, p_every interval) RETURNS void
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

-- Queues a refresh for one workspace, whose lock the caller holds: what was applied last, all
-- of it, after everything else that is wanted. False: nothing exists there that could have
-- drifted.
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
  VALUES (p_workspace.cluster_id, 'refresh', -100,
    (v_newest.config_snapshot - ARRAY['targets', 'replace', 'approval'])
      -- The name as well: it may have been made of variables.
      || jsonb_build_object('workspace', p_workspace.name,
           'meta', CASE jsonb_typeof(v_newest.config_snapshot -> 'meta') WHEN 'object' THEN v_newest.config_snapshot -> 'meta' ELSE '{}' END
                   || '{"triggered_by": "drift schedule"}'));
  RETURN true;
END $$;

-- Queues a refresh wherever one is due, at most p_limit of them, and returns how many. A
-- workspace in which something is queued, runs, is held, locked or reserved stays due until it
-- is free. May be called at any time, by several at once: who comes second finds it done. One
-- workspace that cannot be looked at does not keep the others from it.
--
-- Locks: cluster, workspace.
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
        RAISE WARNING 'workspace % cannot be looked at for drift: % (%)', v_id, SQLERRM, SQLSTATE;
        -- At its next turn; until then others have theirs.
        UPDATE public.workspaces SET drift_due_at = v_now + drift_every
        WHERE id IN (SELECT id FROM public.workspaces WHERE id = v_id AND drift_due_at <= v_now FOR NO KEY UPDATE SKIP LOCKED);
    END;
  END LOOP;
  RETURN v_count;
END $$;
