-- How long a provision had waited when it was claimed: agents measure it, and have
-- no clock to compare with the database's.

-- +goose Up

-- As before, and: queued_seconds, from when it was queued this time (an approval
-- and an automatic attempt queue it anew), or from when it might begin, to its
-- claim. A repeat after a lost reply says the same.
DROP FUNCTION public.fetch_next_provision(text, uuid, uuid, uuid);
-- +goose StatementBegin
CREATE FUNCTION public.fetch_next_provision(p_token_hash text, p_instance uuid, p_boot uuid, p_claim_id uuid)
RETURNS TABLE (claim_id uuid, provision_id uuid, number bigint, workspace_id uuid, workspace_name text,
               operation text, config_snapshot jsonb, pinned_commit text,
               approval text, approved_plan text, attempt smallint, has_resources boolean,
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
  v_contract  int;
BEGIN
  SELECT * INTO v_claim FROM tendril.claims WHERE id = p_claim_id;
  IF FOUND THEN
    -- A repeat after a lost reply, or somebody else's id.
    IF v_claim.cluster_id <> v_caller.cluster_id OR v_claim.instance_id <> p_instance OR v_claim.boot_id <> p_boot OR v_claim.state <> 'running' THEN
      PERFORM tendril.refuse('PT409', 'claim_lost', format('claim %s is used up', p_claim_id), 'claim with a new id');
    END IF;
    v_provision := v_claim.provision_id;
  ELSIF p_claim_id IS NULL THEN
    PERFORM tendril.refuse('PT422', 'claim_id_missing', 'p_claim_id: missing; the agent chooses it, a new UUID for each claim');
  ELSIF v_caller.paused_at IS NOT NULL THEN
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
      -- Locked: a later boot that registers meanwhile waits until this claim can
      -- be seen by its sweep.
      SELECT contract INTO v_contract FROM public.agents WHERE id = v_caller.agent_id AND boot_id = p_boot FOR SHARE;
      IF NOT FOUND THEN
        PERFORM tendril.current_agent(v_caller.cluster_id, p_instance, p_boot);
        PERFORM tendril.refuse('PT503', 'busy', 'the agent was registered just now', 'try again');
      END IF;
      SELECT * INTO v_found FROM public.workspaces w
      WHERE w.cluster_id = v_caller.cluster_id AND w.only_instance = v_group.only_instance
        AND w.head_id IS NOT NULL AND w.running_claim IS NULL AND w.held_by_claim IS NULL AND w.locked_at IS NULL
        AND CASE WHEN v_contract >= 4 THEN true ELSE tendril.suits(w.head_id, v_contract) END
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
      RETURN; -- others claim it, or deploy to it and wake us then
    END IF;

    -- CASE, for status = 'QUEUED' would imply the queue's index.
    UPDATE public.provisions SET status = 'PROCESSING', started_at = coalesce(started_at, clock_timestamp())
    WHERE id = v_workspace.head_id AND CASE status WHEN 'QUEUED' THEN true ELSE false END;
    IF NOT FOUND THEN
      -- Somebody changed or deleted it by hand: one such row must not stop the
      -- whole cluster.
      PERFORM tendril.refresh_head(v_workspace.id);
      CONTINUE;
    END IF;

    WITH claim AS (
      INSERT INTO tendril.claims (id, provision_id, workspace_id, cluster_id, instance_id, boot_id, host, directory, lease_until)
      SELECT p_claim_id, v_workspace.head_id, v_workspace.id, v_caller.cluster_id, p_instance, p_boot, v_caller.host, v_caller.directory,
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
    v_provision := v_workspace.head_id;
  END LOOP;

  RETURN QUERY
  SELECT p_claim_id, p.id, p.number, w.id, w.name, p.operation, p.config_snapshot,
         (SELECT t.commit FROM public.template_pins t
          WHERE t.org_id = p.org_id AND t.repo = tendril.plain_repo(p.config_snapshot -> 'template_source' ->> 'repo')
            AND t.version = p.config_snapshot -> 'template_source' ->> 'version'),
         tendril.approval_for(p), p.approved_plan, p.attempt,
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
-- +goose StatementEnd

SELECT tendril.deny_all(ARRAY['fetch_next_provision']);
GRANT EXECUTE ON FUNCTION public.fetch_next_provision(text, uuid, uuid, uuid) TO anon, tendril_agent;

NOTIFY pgrst, 'reload schema';
