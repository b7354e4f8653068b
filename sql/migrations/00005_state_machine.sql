-- The status machine and the moves that several functions share: settling a
-- run, freeing a workspace, reaping leases, writing SYSTEM lines.
--
-- Locks are always taken in the order workspace, claim, provision, log head.

-- +goose Up

-- Refuses every change of status that is not drawn in the design, whoever asks.
-- +goose StatementBegin
CREATE FUNCTION tendril.guard_status() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF NOT (CASE OLD.status
           WHEN 'QUEUED'            THEN NEW.status IN ('PROCESSING', 'CANCELLED')
           WHEN 'PROCESSING'        THEN NEW.status IN ('SUCCESS', 'FAILED', 'CANCELLED', 'AWAITING_APPROVAL')
           WHEN 'AWAITING_APPROVAL' THEN NEW.status IN ('QUEUED', 'CANCELLED')
           -- Late settlement: the agent was given up and reports after all.
           WHEN 'FAILED'            THEN OLD.error_code = 'agent_lost' AND NEW.status IN ('SUCCESS', 'FAILED', 'CANCELLED')
           ELSE false
         END) THEN
    PERFORM tendril.refuse('PT409', 'illegal_transition',
      format('provision %s is %s and cannot become %s', OLD.id, OLD.status, NEW.status));
  END IF;
  RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER provisions_guard_status BEFORE UPDATE OF status ON public.provisions
  FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status)
  EXECUTE FUNCTION tendril.guard_status();

-- What identifies a provision never changes.
-- +goose StatementBegin
CREATE FUNCTION tendril.guard_identity() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.refuse('PT409', 'immutable', format('provision %s: what was asked for cannot be changed; make a new provision', OLD.id));
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER provisions_guard_identity BEFORE UPDATE OF id, org_id, cluster_id, workspace_id, operation, config_snapshot, requested_by ON public.provisions
  FOR EACH ROW WHEN ((OLD.id, OLD.org_id, OLD.cluster_id, OLD.workspace_id, OLD.operation, OLD.config_snapshot, OLD.requested_by)
                     IS DISTINCT FROM (NEW.id, NEW.org_id, NEW.cluster_id, NEW.workspace_id, NEW.operation, NEW.config_snapshot, NEW.requested_by))
  EXECUTE FUNCTION tendril.guard_identity();

-- Chooses which provision a workspace runs next. The caller holds its lock.
-- +goose StatementBegin
CREATE FUNCTION tendril.refresh_head(p_workspace uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_reserved uuid;
  v_head     record;
BEGIN
  SELECT reserved_by INTO v_reserved FROM public.workspaces WHERE id = p_workspace;
  SELECT p.id, p.priority, p.number INTO v_head
  FROM public.provisions p
  WHERE p.workspace_id = p_workspace AND p.status = 'QUEUED' AND (v_reserved IS NULL OR p.id = v_reserved)
  ORDER BY p.priority DESC, p.number
  LIMIT 1;
  UPDATE public.workspaces
  SET head_id = v_head.id, head_priority = v_head.priority, head_number = v_head.number
  WHERE id = p_workspace AND head_id IS DISTINCT FROM v_head.id;
END $$;
-- +goose StatementEnd

-- Tells listening agents that a workspace has become runnable. A hint only: who
-- hears it asks the queue, who misses it polls.
-- +goose StatementBegin
CREATE FUNCTION tendril.notify_runnable() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM pg_notify('tendril_work', NEW.cluster_id::text);
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER workspaces_notify AFTER UPDATE ON public.workspaces
  FOR EACH ROW
  WHEN (NEW.head_id IS NOT NULL AND NEW.running_claim IS NULL AND NEW.held_by_claim IS NULL AND NEW.locked_at IS NULL
        AND (OLD.head_id IS DISTINCT FROM NEW.head_id OR OLD.running_claim IS NOT NULL
             OR OLD.held_by_claim IS NOT NULL OR OLD.locked_at IS NOT NULL))
  EXECUTE FUNCTION tendril.notify_runnable();

-- Tells viewers that a provision has changed. Not at the claim: NOTIFY makes
-- commits wait for each other, and the first stage is told a moment later.
-- +goose StatementBegin
CREATE FUNCTION tendril.notify_provision() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM pg_notify('tendril_provision', NEW.id::text);
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER provisions_notify AFTER UPDATE OF status ON public.provisions
  FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status AND NEW.status <> 'PROCESSING')
  EXECUTE FUNCTION tendril.notify_provision();

-- Gives out the next p_count numbers of a provision's log and says where they
-- begin. The lock on the head is held until the transaction ends, so rows are
-- committed in the order of their numbers.
-- +goose StatementBegin
CREATE FUNCTION tendril.take_seq(p_provision uuid, p_count int, p_bytes bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_next     bigint;
  v_notified timestamptz;
  v_now      timestamptz := clock_timestamp();
BEGIN
  SELECT next_seq, notified_at INTO v_next, v_notified FROM tendril.log_heads WHERE provision_id = p_provision FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    INSERT INTO tendril.log_heads (provision_id, org_id)
    SELECT id, org_id FROM public.provisions WHERE id = p_provision
    ON CONFLICT (provision_id) DO NOTHING;
    SELECT next_seq, notified_at INTO v_next, v_notified FROM tendril.log_heads WHERE provision_id = p_provision FOR NO KEY UPDATE;
  END IF;
  IF v_notified <= v_now - (SELECT log_notify FROM tendril.settings) THEN
    PERFORM pg_notify('tendril_provision', p_provision::text);
    v_notified := v_now;
  END IF;
  UPDATE tendril.log_heads SET next_seq = v_next + p_count, bytes = bytes + p_bytes, notified_at = v_notified
  WHERE provision_id = p_provision;
  RETURN v_next;
END $$;
-- +goose StatementEnd

-- Appends one line that the database itself has to say.
-- +goose StatementBegin
CREATE FUNCTION tendril.system_line(p_provision uuid, p_text text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at)
  SELECT p.id, tendril.take_seq(p.id, 1, octet_length(p_text) + 1), p.org_id, 'SYSTEM', p_text || E'\n', clock_timestamp()
  FROM public.provisions p WHERE p.id = p_provision;
END $$;
-- +goose StatementEnd

-- Ends a provision. Its claim, if it has one, and its workspace are the
-- caller's business.
-- +goose StatementBegin
CREATE FUNCTION tendril.end_provision(p_provision uuid, p_status text, p_code text, p_message text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  UPDATE public.provisions
  SET status = p_status, error_code = p_code, error_message = p_message, finished_at = clock_timestamp()
  WHERE id = p_provision;
  IF p_status = 'SUCCESS' THEN
    UPDATE public.provision_progress SET stage = 'done', percent = 100, updated_at = clock_timestamp() WHERE provision_id = p_provision;
  END IF;
END $$;
-- +goose StatementEnd

-- Ends a claim and frees what it had of its workspace, whose lock the caller holds.
-- +goose StatementBegin
CREATE FUNCTION tendril.end_claim(p_claim uuid, p_workspace uuid) RETURNS void
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
-- +goose StatementEnd

-- Stamps the pulse and says whether leases may be reaped now. When the last
-- stamp is older than three quarters of a lease the database itself was away:
-- every agent then gets one lease's time to come back.
-- +goose StatementBegin
CREATE FUNCTION tendril.beat() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_lease interval := (SELECT lease FROM tendril.settings);
  v_now   timestamptz := clock_timestamp();
  v_pulse tendril.pulse;
BEGIN
  SELECT * INTO v_pulse FROM tendril.pulse;
  IF v_pulse.stamped_at < v_now - v_lease * 0.75 THEN
    UPDATE tendril.pulse SET stamped_at = v_now, reap_not_before = v_now + v_lease;
    RETURN false;
  END IF;
  IF v_pulse.stamped_at < v_now - v_lease * 0.05 THEN
    -- Whoever comes second need not wait for the first.
    PERFORM FROM tendril.pulse FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE tendril.pulse SET stamped_at = v_now;
    END IF;
  END IF;
  RETURN v_now >= v_pulse.reap_not_before;
END $$;
-- +goose StatementEnd

-- Gives up one claim if its lease has run out. Before apply had begun the
-- workspace is free again. After, Terraform may still be running, so the claim
-- goes on holding it.
-- +goose StatementBegin
CREATE FUNCTION tendril.reap_claim(p_claim uuid, p_workspace uuid) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_claim tendril.claims;
BEGIN
  PERFORM FROM public.workspaces WHERE id = p_workspace FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN 0;
  END IF;
  SELECT * INTO v_claim FROM tendril.claims
  WHERE id = p_claim AND state = 'running' AND lease_until < clock_timestamp()
  FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN 0;
  END IF;

  UPDATE tendril.claims SET state = 'lost', ended_at = clock_timestamp() WHERE id = p_claim;
  UPDATE public.workspaces
  SET running_claim = NULL,
      held_by_claim = CASE WHEN v_claim.apply_begun_at IS NULL THEN held_by_claim ELSE p_claim END,
      reserved_by   = CASE WHEN v_claim.apply_begun_at IS NULL AND reserved_by = v_claim.provision_id THEN NULL ELSE reserved_by END
  WHERE id = p_workspace AND running_claim = p_claim;
  -- Unless somebody has set another status by hand.
  IF EXISTS (SELECT FROM public.provisions WHERE id = v_claim.provision_id AND status = 'PROCESSING' FOR NO KEY UPDATE) THEN
    PERFORM tendril.end_provision(v_claim.provision_id, 'FAILED', 'agent_lost',
      format('The agent on %s has not been heard of since its lease ran out at %s, in stage %s. %s', v_claim.host,
             to_char(v_claim.lease_until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'), coalesce(v_claim.stage, 'checkout'),
             CASE WHEN v_claim.apply_begun_at IS NULL
                  THEN 'Apply had not begun; deploy again when an agent is online.'
                  ELSE 'Apply had begun and may still be running: the workspace is held until the agent reports or an admin releases it.' END));
    PERFORM tendril.system_line(v_claim.provision_id, format('The agent on %s is lost: its lease ran out. Apply had %s.', v_claim.host,
      CASE WHEN v_claim.apply_begun_at IS NULL THEN 'not begun' ELSE 'begun, so the workspace stays held' END));
  END IF;
  PERFORM tendril.refresh_head(p_workspace);
  RETURN 1;
END $$;
-- +goose StatementEnd

-- Gives up claims whose lease ran out, at most p_limit of them, and returns how
-- many. One that cannot be given up does not keep the others.
-- +goose StatementBegin
CREATE FUNCTION tendril.reap(p_limit int DEFAULT 20) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_candidate record;
  v_count     int := 0;
BEGIN
  IF NOT tendril.beat() THEN
    RETURN 0;
  END IF;
  FOR v_candidate IN
    SELECT id, workspace_id FROM tendril.claims
    WHERE state = 'running' AND lease_until < clock_timestamp()
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
-- +goose StatementEnd

SELECT tendril.deny_all('{}');
