-- What keeps a workspace from others longer than a run does: a claim that was
-- lost during apply, and a state that an engine could not store and its agent
-- keeps. And clocks that step back.
--
-- Contract 2: p_detail of update_provision_status may say state_unsaved, and
-- the host of an agent may have its data directory behind a colon. An agent of
-- contract 1 says neither, and finds all else as it was.

-- +goose Up

CREATE OR REPLACE FUNCTION tendril.contract_version() RETURNS int
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS 'SELECT 2';

-- The agent instance that keeps a state which could not be stored. Only it may
-- run the workspace: its next run stores that state before anything else.
ALTER TABLE public.workspaces ADD COLUMN unsaved_state_on uuid;

-- Tells a data directory from a copy of it on the same host. NULL: an agent of
-- contract 1, which may be the same one before its upgrade.
ALTER TABLE public.agents ADD COLUMN directory text;
ALTER TABLE tendril.claims ADD COLUMN directory text;

CREATE INDEX claims_lost ON tendril.claims (workspace_id) WHERE state = 'lost';

CREATE OR REPLACE TRIGGER workspaces_notify AFTER UPDATE ON public.workspaces
  FOR EACH ROW
  WHEN (NEW.head_id IS NOT NULL AND NEW.running_claim IS NULL AND NEW.held_by_claim IS NULL AND NEW.locked_at IS NULL
        AND (OLD.head_id IS DISTINCT FROM NEW.head_id OR OLD.running_claim IS NOT NULL
             OR OLD.held_by_claim IS NOT NULL OR OLD.locked_at IS NOT NULL
             OR OLD.unsaved_state_on IS NOT NULL AND NEW.unsaved_state_on IS NULL))
  EXECUTE FUNCTION tendril.notify_runnable();

-- Notes what an agent says of a state that could not be stored. The caller
-- holds the workspace's lock.
-- +goose StatementBegin
CREATE FUNCTION tendril.note_unsaved_state(p_claim tendril.claims, p_unsaved boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF p_unsaved THEN
    UPDATE public.workspaces SET unsaved_state_on = p_claim.instance_id WHERE id = p_claim.workspace_id;
  ELSE
    UPDATE public.workspaces SET unsaved_state_on = NULL WHERE id = p_claim.workspace_id AND unsaved_state_on = p_claim.instance_id;
  END IF;
END $$;
-- +goose StatementEnd

-- Ends what holds a workspace without a run: a claim that was lost during
-- apply, and a state that an agent keeps (admin). For an agent that will not
-- come back. Should it come back all the same it is told to stop, and what it
-- reports is recorded unless the workspace has been used since; the workspace
-- is none of its business any more.
-- +goose StatementBegin
CREATE FUNCTION public.release_workspace(p_workspace uuid, p_reason text DEFAULT '') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_workspace public.workspaces;
  v_claim     tendril.claims;
  v_running   bigint;
  v_reason    text := btrim(regexp_replace(coalesce(p_reason, ''), '[[:cntrl:][:space:]]+', ' ', 'g'));
BEGIN
  SELECT * INTO v_workspace FROM public.workspaces WHERE id = p_workspace;
  IF v_workspace.id IS NULL OR NOT tendril.may_act(v_workspace.org_id, 'admin') THEN
    PERFORM tendril.refuse('PT404', 'workspace_not_found', format('there is no workspace %s that you may release', p_workspace),
      'check the id, and that you are an admin of its organisation');
  ELSIF length(v_reason) > 1000 THEN
    PERFORM tendril.refuse('PT422', 'bad_reason', format('p_reason: %s characters, more than the 1000 allowed', length(v_reason)));
  END IF;

  SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE id = p_workspace FOR NO KEY UPDATE;
  IF v_workspace.running_claim IS NOT NULL THEN
    SELECT p.number INTO v_running FROM tendril.claims c JOIN public.provisions p ON p.id = c.provision_id WHERE c.id = v_workspace.running_claim;
    PERFORM tendril.refuse('PT409', 'workspace_running',
      format('provision %s runs in workspace %s: there is nothing to release', v_running, to_json(v_workspace.name)), 'cancel the provision instead');
  ELSIF v_workspace.held_by_claim IS NULL AND v_workspace.unsaved_state_on IS NULL THEN
    PERFORM tendril.refuse('PT409', 'workspace_not_held', format('workspace %s is not held: there is nothing to release', to_json(v_workspace.name)));
  END IF;

  -- Whose run it was, for the log that tells of it.
  SELECT * INTO v_claim FROM tendril.claims
  WHERE workspace_id = p_workspace AND (id = v_workspace.held_by_claim OR v_workspace.held_by_claim IS NULL AND instance_id = v_workspace.unsaved_state_on)
  ORDER BY number DESC LIMIT 1 FOR NO KEY UPDATE;
  UPDATE tendril.claims SET cancel_requested_at = clock_timestamp()
  WHERE id = v_workspace.held_by_claim AND cancel_requested_at IS NULL;
  PERFORM pg_notify('tendril_attention', v_workspace.cluster_id::text);
  PERFORM tendril.system_line(v_claim.provision_id, 'An admin released the workspace'
    || CASE WHEN v_reason = '' THEN '.' ELSE format(' (%s).', v_reason) END
    || CASE WHEN v_workspace.unsaved_state_on IS NULL THEN '' ELSE format(' A state that was not stored may be left on the agent on %s.', v_claim.host) END);

  UPDATE public.workspaces
  SET held_by_claim = NULL, unsaved_state_on = NULL,
      reserved_by = CASE WHEN v_workspace.held_by_claim IS NOT NULL AND reserved_by = v_claim.provision_id THEN NULL ELSE reserved_by END
  WHERE id = p_workspace;
  PERFORM tendril.refresh_head(p_workspace);
  PERFORM tendril.wake(p_workspace); -- who passed over it while we held the lock
  PERFORM tendril.audit(v_workspace.org_id, 'release_workspace', 'workspace', p_workspace,
    jsonb_build_object('reason', v_reason, 'held_by_claim', v_workspace.held_by_claim, 'unsaved_state_on', v_workspace.unsaved_state_on));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- As before, and: a workspace whose state an agent keeps is for that one only.
-- A claim that was lost ends when another begins on its workspace.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION public.fetch_next_provision(p_token_hash text, p_instance uuid, p_boot uuid, p_claim_id uuid)
RETURNS TABLE (claim_id uuid, provision_id uuid, number bigint, workspace_id uuid, workspace_name text,
               operation text, config_snapshot jsonb, pinned_commit text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_cluster   public.clusters := tendril.authenticate(p_token_hash);
  v_agent     public.agents;
  v_claim     tendril.claims;
  v_workspace public.workspaces;
  v_next      record;
BEGIN
  -- Locked: a later boot that registers meanwhile waits until this claim can be
  -- seen by its sweep.
  PERFORM FROM public.agents WHERE cluster_id = v_cluster.id AND instance_id = p_instance FOR SHARE;
  v_agent := tendril.current_agent(v_cluster.id, p_instance, p_boot);

  SELECT * INTO v_claim FROM tendril.claims WHERE id = p_claim_id;
  IF FOUND THEN
    -- A repeat after a lost reply, or somebody else's id.
    IF v_claim.cluster_id <> v_cluster.id OR v_claim.instance_id <> p_instance OR v_claim.boot_id <> p_boot OR v_claim.state <> 'running' THEN
      PERFORM tendril.refuse('PT409', 'claim_lost', format('claim %s is used up', p_claim_id), 'claim with a new id');
    END IF;
    SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE id = v_claim.workspace_id;
  ELSE
    IF p_claim_id IS NULL THEN
      PERFORM tendril.refuse('PT422', 'claim_id_missing', 'p_claim_id: missing; the agent chooses it, a new UUID for each claim');
    END IF;
    IF v_cluster.paused_at IS NOT NULL THEN
      RETURN;
    END IF;
    LOOP
      SELECT * INTO v_workspace FROM public.workspaces w
      WHERE w.cluster_id = v_cluster.id
        AND w.head_id IS NOT NULL AND w.running_claim IS NULL AND w.held_by_claim IS NULL AND w.locked_at IS NULL
        AND (w.home_instance IS NULL OR w.home_instance = p_instance)
        AND (w.unsaved_state_on IS NULL OR w.unsaved_state_on = p_instance)
      ORDER BY w.head_priority DESC, w.head_number
      LIMIT 1
      FOR NO KEY UPDATE SKIP LOCKED;
      IF NOT FOUND THEN
        RETURN;
      END IF;
      UPDATE public.provisions SET status = 'PROCESSING', started_at = coalesce(started_at, clock_timestamp())
      WHERE id = v_workspace.head_id AND status = 'QUEUED';
      EXIT WHEN FOUND;
      -- Somebody changed or deleted it by hand: one such row must not stop the
      -- whole cluster.
      PERFORM tendril.refresh_head(v_workspace.id);
    END LOOP;

    INSERT INTO tendril.claims (id, provision_id, workspace_id, cluster_id, instance_id, boot_id, host, directory, lease_until)
    VALUES (p_claim_id, v_workspace.head_id, v_workspace.id, v_cluster.id, p_instance, p_boot, v_agent.host, v_agent.directory,
            clock_timestamp() + (SELECT lease FROM tendril.settings))
    RETURNING * INTO v_claim;
    -- What was lost here before can never settle now.
    UPDATE tendril.claims SET state = 'ended'
    WHERE id IN (SELECT id FROM tendril.claims WHERE workspace_id = v_workspace.id AND state = 'lost' FOR NO KEY UPDATE SKIP LOCKED);
    INSERT INTO public.provision_progress (provision_id, org_id, stage)
    VALUES (v_workspace.head_id, v_workspace.org_id, 'checkout')
    ON CONFLICT (provision_id) DO UPDATE SET stage = 'checkout', percent = NULL, updated_at = clock_timestamp();

    -- The next head is chosen when this one ends; until then nothing runs here.
    SELECT p.id, p.priority, p.number INTO v_next FROM public.provisions p
    WHERE p.workspace_id = v_workspace.id AND p.status = 'QUEUED' AND v_workspace.reserved_by IS NULL
    ORDER BY p.priority DESC, p.number LIMIT 1;
    UPDATE public.workspaces
    SET running_claim = p_claim_id, head_id = v_next.id, head_priority = v_next.priority, head_number = v_next.number
    WHERE id = v_workspace.id;
  END IF;

  RETURN QUERY
  SELECT v_claim.id, p.id, p.number, v_workspace.id, v_workspace.name, p.operation, p.config_snapshot,
         (SELECT t.commit FROM public.template_pins t
          WHERE t.org_id = p.org_id AND t.repo = tendril.plain_repo(p.config_snapshot -> 'template_source' ->> 'repo')
            AND t.version = p.config_snapshot -> 'template_source' ->> 'version')
  FROM public.provisions p WHERE p.id = v_claim.provision_id;
EXCEPTION
  -- unique_violation: the same claim id, of a call that is not committed yet.
  WHEN lock_not_available OR unique_violation THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- As before, and: a claim that has ended is told to stop as well. An agent names
-- only what it still runs: the one whose workspace was released, and used since.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION public.agent_heartbeat(p_token_hash text, p_instance uuid, p_boot uuid, p_claims uuid[]) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster  public.clusters := tendril.authenticate(p_token_hash);
  v_agent    public.agents   := tendril.current_agent(v_cluster.id, p_instance, p_boot);
  v_settings tendril.settings;
  v_reply    jsonb;
BEGIN
  IF cardinality(p_claims) > 1000 THEN
    PERFORM tendril.refuse('PT413', 'too_many_claims', format('%s claims in one heartbeat, more than the 1000 allowed', cardinality(p_claims)));
  END IF;
  SELECT * INTO v_settings FROM tendril.settings;

  UPDATE public.agents SET last_heartbeat_at = clock_timestamp() WHERE id = v_agent.id;
  IF v_cluster.last_seen_at IS NULL OR v_cluster.last_seen_at < clock_timestamp() - interval '15 seconds' THEN
    -- Another agent that stamps it does as well; and register_agent locks in
    -- the other order.
    PERFORM FROM public.clusters WHERE id = v_cluster.id FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE public.clusters SET last_seen_at = clock_timestamp() WHERE id = v_cluster.id;
    END IF;
  END IF;

  -- By instance, not by boot: a new boot that is still ending what the earlier
  -- one left keeps those leases alive too. In order of id, so that two never
  -- wait for each other.
  PERFORM FROM tendril.claims
  WHERE id = ANY (p_claims) AND cluster_id = v_cluster.id AND instance_id = p_instance AND state = 'running'
  ORDER BY id FOR NO KEY UPDATE;
  UPDATE tendril.claims SET lease_until = clock_timestamp() + v_settings.lease
  WHERE id = ANY (p_claims) AND cluster_id = v_cluster.id AND instance_id = p_instance AND state = 'running';

  SELECT jsonb_build_object(
    'cancel', coalesce(jsonb_agg(c.id) FILTER (WHERE c.cancel_requested_at IS NOT NULL), '[]'),
    'lost',   coalesce(jsonb_agg(a.id) FILTER (WHERE c.id IS NULL OR c.state <> 'running'), '[]'),
    'poll_seconds', extract(epoch FROM v_settings.poll),
    'heartbeat_seconds', extract(epoch FROM v_settings.heartbeat),
    'newest_agent', v_settings.newest_agent)
  INTO v_reply
  FROM unnest(p_claims) a (id)
  LEFT JOIN tendril.claims c ON c.id = a.id AND c.cluster_id = v_cluster.id AND c.instance_id = p_instance;

  -- What is wrong with somebody else's run must not cost us our leases.
  BEGIN
    PERFORM tendril.reap();
  EXCEPTION
    WHEN OTHERS THEN
      RAISE WARNING 'reaping failed: % (%)', SQLERRM, SQLSTATE;
  END;
  RETURN v_reply;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- As before, and: a claim that holds its workspace may add lines however late,
-- for its result, which ends the hold, comes after them.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION public.insert_provision_log(p_token_hash text, p_claim_id uuid, p_first_chunk bigint, p_chunks jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters := tendril.authenticate(p_token_hash);
  v_claim   tendril.claims;
  v_count   int := 0;
  v_skip    bigint;
  v_bytes   bigint;
  v_largest int;
  v_bad     boolean;
  v_seq     bigint;
BEGIN
  SELECT * INTO v_claim FROM tendril.claims WHERE id = p_claim_id AND cluster_id = v_cluster.id FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    PERFORM tendril.claim_lost(p_claim_id, 'is not known here');
  END IF;
  IF v_claim.state <> 'running' THEN
    IF v_claim.ended_at < clock_timestamp() - (SELECT late_log FROM tendril.settings)
       AND NOT EXISTS (SELECT FROM public.workspaces WHERE id = v_claim.workspace_id AND held_by_claim = p_claim_id) THEN
      PERFORM tendril.claim_lost(p_claim_id, 'ended too long ago to add lines to its log');
    ELSIF EXISTS (SELECT FROM tendril.claims c WHERE c.provision_id = v_claim.provision_id AND c.number > v_claim.number) THEN
      PERFORM tendril.claim_lost(p_claim_id, 'was followed by a newer one, which has the log now');
    END IF;
  END IF;

  IF p_chunks IS NOT NULL THEN
    IF jsonb_typeof(p_chunks) <> 'array' OR p_first_chunk IS NULL OR p_first_chunk < 1 THEN
      PERFORM tendril.refuse('PT422', 'bad_chunks', 'p_chunks must be an array and p_first_chunk a number from 1');
    END IF;
    v_count := jsonb_array_length(p_chunks);
    IF v_count > 128 THEN
      PERFORM tendril.refuse('PT413', 'too_many_chunks', format('%s chunks in one call, more than the 128 allowed', v_count));
    END IF;
  END IF;
  v_skip := v_claim.next_chunk - p_first_chunk;
  IF v_count = 0 OR v_skip < 0 OR v_skip >= v_count THEN
    RETURN v_claim.next_chunk;
  END IF;

  SELECT sum(octet_length(c.text)), max(octet_length(c.text)),
         bool_or(c.text IS NULL OR c.at IS NULL OR c.stream IS NULL OR c.stream NOT IN ('STDOUT', 'STDERR', 'SYSTEM'))
  INTO v_bytes, v_largest, v_bad
  FROM jsonb_to_recordset(p_chunks) AS c (stream text, text text, at timestamptz);
  IF v_bad THEN
    PERFORM tendril.refuse('PT422', 'bad_chunks', 'each chunk needs text, at (a time) and stream (STDOUT, STDERR or SYSTEM)');
  ELSIF v_largest > 65536 OR v_bytes > 1048576 THEN
    PERFORM tendril.refuse('PT413', 'chunks_too_large',
      format('the largest chunk has %s bytes (65536 allowed), the call %s (1048576 allowed)', v_largest, v_bytes));
  END IF;

  v_seq := tendril.take_seq(v_claim.provision_id, (v_count - v_skip)::int, v_bytes);
  INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at)
  SELECT v_claim.provision_id, v_seq + t.ord - 1 - v_skip, v_cluster.org_id, t.stream, t.text, t.at
  FROM ROWS FROM (jsonb_to_recordset(p_chunks) AS (stream text, text text, at timestamptz)) WITH ORDINALITY AS t (stream, text, at, ord)
  WHERE t.ord > v_skip;
  UPDATE tendril.claims SET next_chunk = p_first_chunk + v_count WHERE id = p_claim_id;
  RETURN p_first_chunk + v_count;
EXCEPTION
  WHEN data_exception THEN
    PERFORM tendril.refuse('PT422', 'bad_chunks', format('p_chunks cannot be stored: %s', SQLERRM));
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Stores progress (p_status PROCESSING) or the end of a run. One that was lost
-- during apply goes on telling what it does until it settles: its outputs and
-- events come before its end.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION public.update_provision_status(p_token_hash text, p_claim_id uuid, p_status text, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster   public.clusters := tendril.authenticate(p_token_hash);
  v_detail    jsonb := coalesce(p_detail, '{}');
  v_id        uuid;
  v_workspace public.workspaces;
  v_claim     tendril.claims;
  v_provision public.provisions;
  v_holds     boolean; -- lost, and the workspace is kept for it
  v_as_left   boolean; -- nobody has set another status by hand
BEGIN
  IF p_status IS NULL OR p_status NOT IN ('PROCESSING', 'SUCCESS', 'FAILED', 'CANCELLED') THEN
    PERFORM tendril.refuse('PT422', 'bad_status', format('p_status: %s is not PROCESSING, SUCCESS, FAILED or CANCELLED', coalesce(to_json(p_status)::text, 'missing')));
  ELSIF jsonb_typeof(v_detail) <> 'object' THEN
    PERFORM tendril.refuse('PT422', 'bad_detail', 'p_detail must be an object');
  ELSIF octet_length(v_detail::text) > 1048576 THEN
    PERFORM tendril.refuse('PT413', 'detail_too_large', format('p_detail has %s bytes, more than the 1048576 allowed', octet_length(v_detail::text)));
  END IF;

  SELECT workspace_id INTO v_id FROM tendril.claims WHERE id = p_claim_id AND cluster_id = v_cluster.id;
  IF NOT FOUND THEN
    PERFORM tendril.claim_lost(p_claim_id, 'is not known here');
  END IF;
  -- Progress leaves the workspace alone, but for what binds it.
  IF p_status <> 'PROCESSING' OR v_detail ?| ARRAY['commit', 'local_state', 'state_unsaved'] THEN
    SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE id = v_id FOR NO KEY UPDATE;
  END IF;
  SELECT * INTO STRICT v_claim FROM tendril.claims WHERE id = p_claim_id FOR NO KEY UPDATE;
  SELECT * INTO STRICT v_provision FROM public.provisions WHERE id = v_claim.provision_id FOR NO KEY UPDATE;
  -- Whoever ends the hold waits for the claim's lock.
  v_holds := v_claim.state = 'lost' AND EXISTS (SELECT FROM public.workspaces WHERE id = v_id AND held_by_claim = p_claim_id);
  v_as_left := CASE v_claim.state WHEN 'running' THEN v_provision.status = 'PROCESSING'
                                  ELSE v_provision.status = 'FAILED' AND v_provision.error_code IS NOT DISTINCT FROM 'agent_lost' END;

  IF p_status <> 'PROCESSING' AND v_claim.state = 'ended' AND v_provision.status = p_status
     AND v_provision.error_code IS NOT DISTINCT FROM v_detail ->> 'error_code' THEN
    RETURN; -- a repeat after a lost reply
  ELSIF v_claim.state = 'ended' THEN
    PERFORM tendril.claim_lost(p_claim_id, format('has ended: the provision is %s', v_provision.status));
  ELSIF v_claim.state = 'lost' THEN
    IF p_status = 'PROCESSING' AND (v_claim.apply_begun_at IS NULL OR v_detail ->> 'stage' = 'apply') THEN
      PERFORM tendril.claim_lost(p_claim_id, 'has lost its lease');
    ELSIF NOT v_holds AND NOT v_as_left
          OR EXISTS (SELECT FROM tendril.claims c WHERE c.workspace_id = v_id AND c.number > v_claim.number) THEN
      PERFORM tendril.claim_lost(p_claim_id, 'has lost its lease, and the workspace has been used since');
    ELSIF NOT v_as_left THEN
      -- Somebody has set another status by hand: where the state is still
      -- matters, and no more.
      v_detail := jsonb_strip_nulls(jsonb_build_object('n', v_detail -> 'n', 'state_unsaved', v_detail -> 'state_unsaved'));
    ELSIF NOT v_holds AND v_claim.apply_begun_at IS NOT NULL THEN
      -- An admin has released the workspace: what the run tells is recorded, no
      -- more.
      v_detail := v_detail - ARRAY['state_unsaved', 'local_state'];
    END IF;
  ELSIF p_status = 'PROCESSING' AND v_detail ->> 'stage' = 'apply' THEN
    -- Also when it is asked again: the first answer was lost, so the apply has
    -- not begun.
    IF v_claim.cancel_requested_at IS NOT NULL THEN
      PERFORM tendril.refuse('PT409', 'cancel_requested', 'the provision is to be cancelled; apply must not begin');
    ELSIF v_claim.lease_until < clock_timestamp() THEN
      PERFORM tendril.refuse('PT503', 'lease_expired', 'the claim''s lease has run out; apply must not begin', 'send a heartbeat, then ask again');
    END IF;
  END IF;
  IF p_status = 'PROCESSING' AND (v_detail ->> 'n')::bigint <= v_claim.last_report THEN
    RETURN; -- a repeat as well: reports are numbered, and come in order
  END IF;

  IF p_status <> 'PROCESSING' AND v_detail ->> 'stage' = 'apply' THEN
    v_detail := v_detail - 'stage'; -- a result asks for no acknowledgement
  END IF;
  IF v_detail ? 'n' THEN
    UPDATE tendril.claims SET last_report = (v_detail ->> 'n')::bigint WHERE id = p_claim_id;
  END IF;
  PERFORM tendril.record_progress(v_claim, v_provision, v_detail);
  IF v_detail ->> 'state_unsaved' IS NOT NULL THEN
    PERFORM tendril.note_unsaved_state(v_claim, (v_detail ->> 'state_unsaved')::boolean);
  END IF;
  IF p_status <> 'PROCESSING' AND NOT v_as_left THEN
    -- Somebody has set another status by hand: it stays, and the run is over.
    PERFORM tendril.system_line(v_provision.id, format('The agent on %s reported %s; the provision had been set to %s.', v_claim.host, p_status, v_provision.status));
    PERFORM tendril.end_claim(p_claim_id, v_id);
  ELSIF p_status <> 'PROCESSING' THEN
    IF v_claim.state = 'lost' THEN
      PERFORM tendril.system_line(v_provision.id, format('The agent on %s reported after all: %s.', v_claim.host, p_status));
    END IF;
    PERFORM tendril.end_provision(v_provision.id, p_status, v_detail ->> 'error_code', left(v_detail ->> 'error_message', 16384));
    PERFORM tendril.end_claim(p_claim_id, v_id);
  END IF;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
  WHEN data_exception OR check_violation OR not_null_violation THEN
    PERFORM tendril.refuse('PT422', 'bad_detail', format('p_detail cannot be stored: %s', SQLERRM));
END $$;
-- +goose StatementEnd

-- Stamps the pulse and says whether leases may be reaped now. When the last
-- stamp is older than three quarters of a lease the database itself was away;
-- when it lies in the future its clock has been set back. Either way every
-- agent gets one lease's time to come back.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.beat() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_lease   interval := (SELECT lease FROM tendril.settings);
  v_now     timestamptz;
  v_pulse   tendril.pulse;
  v_stepped boolean;
BEGIN
  SELECT * INTO v_pulse FROM tendril.pulse;
  v_now := clock_timestamp(); -- after the read: nobody has stamped later than this
  v_stepped := v_pulse.stamped_at > v_now OR v_pulse.reap_not_before > v_now + v_lease;
  IF v_stepped OR v_pulse.stamped_at < v_now - v_lease * 0.05 THEN
    -- Whoever comes second need not wait for the first.
    PERFORM FROM tendril.pulse FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE tendril.pulse
      SET stamped_at = v_now,
          reap_not_before = CASE WHEN v_stepped OR v_pulse.stamped_at < v_now - v_lease * 0.75 THEN v_now + v_lease ELSE reap_not_before END;
      PERFORM tendril.cut_future_stamps(v_now, v_lease);
    END IF;
  END IF;
  RETURN NOT v_stepped AND v_pulse.stamped_at >= v_now - v_lease * 0.75 AND v_now >= v_pulse.reap_not_before;
END $$;
-- +goose StatementEnd

-- Brings back what a clock that was ahead has left in the future, where it
-- would keep the dead alive. What is locked belongs to somebody who stamps it
-- right now.
-- +goose StatementBegin
CREATE FUNCTION tendril.cut_future_stamps(p_now timestamptz, p_lease interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  UPDATE tendril.claims SET lease_until = p_now + p_lease
  WHERE id IN (SELECT id FROM tendril.claims WHERE state = 'running' AND lease_until > p_now + p_lease FOR NO KEY UPDATE SKIP LOCKED);
  UPDATE public.agents SET last_heartbeat_at = p_now
  WHERE id IN (SELECT id FROM public.agents WHERE last_heartbeat_at > p_now FOR NO KEY UPDATE SKIP LOCKED);
  UPDATE public.clusters SET last_seen_at = p_now
  WHERE id IN (SELECT id FROM public.clusters WHERE last_seen_at > p_now FOR NO KEY UPDATE SKIP LOCKED);
END $$;
-- +goose StatementEnd

-- As before, and: a NOTIFY that lies in the future withholds none. The clock is
-- read once the head is ours, so whoever had it before has stamped earlier.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.take_seq(p_provision uuid, p_count int, p_bytes bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_next     bigint;
  v_notified timestamptz;
  v_now      timestamptz;
BEGIN
  SELECT next_seq, notified_at INTO v_next, v_notified FROM tendril.log_heads WHERE provision_id = p_provision FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    INSERT INTO tendril.log_heads (provision_id, org_id)
    SELECT id, org_id FROM public.provisions WHERE id = p_provision
    ON CONFLICT (provision_id) DO NOTHING;
    SELECT next_seq, notified_at INTO v_next, v_notified FROM tendril.log_heads WHERE provision_id = p_provision FOR NO KEY UPDATE;
  END IF;
  v_now := clock_timestamp();
  IF v_notified <= v_now - (SELECT log_notify FROM tendril.settings) OR v_notified > v_now THEN
    PERFORM pg_notify('tendril_provision', p_provision::text);
    v_notified := v_now;
  END IF;
  UPDATE tendril.log_heads SET next_seq = v_next + p_count, bytes = bytes + p_bytes, notified_at = v_notified
  WHERE provision_id = p_provision;
  RETURN v_next;
END $$;
-- +goose StatementEnd

-- As before, and: a heartbeat that lies in the future tells nothing. An agent
-- that lives stamps it anew within seconds; one that is gone would keep its
-- name for as long as the clock was ahead. And host is "host" or
-- "host:directory".
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION public.register_agent(p_token_hash text, p_agent jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster   public.clusters := tendril.authenticate(p_token_hash);
  v_settings  tendril.settings;
  v_instance  uuid;
  v_boot      uuid;
  v_other     public.agents;
  v_host      text := split_part(p_agent ->> 'host', ':', 1);
  v_directory text := nullif(substr(p_agent ->> 'host', length(v_host) + 2), '');
BEGIN
  BEGIN
    v_instance := (p_agent ->> 'instance_id')::uuid;
    v_boot     := (p_agent ->> 'boot_id')::uuid;
    IF v_instance IS NULL OR v_boot IS NULL
       OR length(coalesce(p_agent ->> 'name', '')) NOT BETWEEN 1 AND 200
       OR coalesce(v_host, '') = '' OR length(p_agent ->> 'host') > 300
       OR length(coalesce(p_agent ->> 'version', '')) NOT BETWEEN 1 AND 100
       OR coalesce((p_agent ->> 'contract')::int, 0) < 1
       OR coalesce((p_agent ->> 'slots')::int, 0) NOT BETWEEN 1 AND 64 THEN
      RAISE data_exception;
    END IF;
  EXCEPTION WHEN data_exception THEN
    PERFORM tendril.refuse('PT422', 'bad_agent', 'p_agent needs instance_id and boot_id (UUIDs), name, host, version, contract (from 1) and slots (1 to 64)');
  END;
  IF (p_agent ->> 'contract')::int > tendril.contract_version() THEN
    PERFORM tendril.refuse('PT426', 'contract_too_new',
      format('this agent speaks contract %s, the database only %s', p_agent ->> 'contract', tendril.contract_version()),
      'upgrade the control plane and run "trellis migrate", or use an older agent');
  END IF;
  SELECT * INTO v_settings FROM tendril.settings;

  -- One registration at a time, so that two cannot both find the name free.
  PERFORM FROM public.clusters WHERE id = v_cluster.id FOR NO KEY UPDATE;

  SELECT * INTO v_other FROM public.agents
  WHERE cluster_id = v_cluster.id AND name = p_agent ->> 'name' AND instance_id <> v_instance
    AND last_heartbeat_at BETWEEN clock_timestamp() - v_settings.agent_alive AND clock_timestamp() + v_settings.agent_alive
  LIMIT 1;
  IF FOUND THEN
    PERFORM tendril.refuse('PT409', 'agent_name_taken',
      format('the name %s is in use by another agent of this cluster, on %s, which was heard of %s s ago', to_json(v_other.name), v_other.host,
             greatest(0, round(extract(epoch FROM clock_timestamp() - v_other.last_heartbeat_at)))),
      'give this agent another name, or stop the other one');
  END IF;
  SELECT * INTO v_other FROM public.agents
  WHERE cluster_id = v_cluster.id AND instance_id = v_instance AND (host <> v_host OR directory <> v_directory)
    AND last_heartbeat_at BETWEEN clock_timestamp() - v_settings.agent_alive AND clock_timestamp() + v_settings.agent_alive;
  IF FOUND THEN
    PERFORM tendril.refuse('PT409', 'agent_instance_elsewhere',
      format('this agent''s data directory is in use on %s, where it was heard of %s s ago', concat_ws(':', v_other.host, v_other.directory),
             greatest(0, round(extract(epoch FROM clock_timestamp() - v_other.last_heartbeat_at)))),
      'a data directory belongs to one agent: do not copy it; start this one with an empty one');
  END IF;

  IF EXISTS (SELECT FROM public.agents WHERE cluster_id = v_cluster.id AND instance_id = v_instance AND v_boot = ANY (past_boots)) THEN
    PERFORM tendril.refuse('PT409', 'agent_superseded', 'this agent was started again since; this earlier start of it may do nothing more');
  END IF;

  INSERT INTO public.agents AS a (org_id, cluster_id, instance_id, boot_id, name, host, directory, version, contract, slots)
  VALUES (v_cluster.org_id, v_cluster.id, v_instance, v_boot, p_agent ->> 'name', v_host, v_directory,
          p_agent ->> 'version', (p_agent ->> 'contract')::int, (p_agent ->> 'slots')::int)
  ON CONFLICT (cluster_id, instance_id) DO UPDATE
  SET past_boots = CASE WHEN a.boot_id = EXCLUDED.boot_id THEN a.past_boots ELSE (a.boot_id || a.past_boots)[1:20] END,
      boot_id = EXCLUDED.boot_id, name = EXCLUDED.name, host = EXCLUDED.host, directory = EXCLUDED.directory, version = EXCLUDED.version,
      contract = EXCLUDED.contract, slots = EXCLUDED.slots, registered_at = now(), last_heartbeat_at = clock_timestamp();
  UPDATE public.clusters SET last_seen_at = clock_timestamp() WHERE id = v_cluster.id;

  RETURN jsonb_build_object(
    'cluster_id', v_cluster.id, 'cluster_name', v_cluster.name, 'contract', tendril.contract_version(),
    'heartbeat_seconds', extract(epoch FROM v_settings.heartbeat), 'lease_seconds', extract(epoch FROM v_settings.lease));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- As before, and: what children of earlier boots still run is left out. Those
-- are p_except, at most 1000; the agent asks again when they have ended.
DROP FUNCTION public.fail_orphaned_provisions(text, uuid, uuid);
-- +goose StatementBegin
CREATE FUNCTION public.fail_orphaned_provisions(p_token_hash text, p_instance uuid, p_boot uuid, p_except uuid[] DEFAULT '{}') RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster   public.clusters := tendril.authenticate(p_token_hash);
  v_agent     public.agents   := tendril.current_agent(v_cluster.id, p_instance, p_boot);
  v_candidate record;
  v_claim     tendril.claims;
  v_provision public.provisions;
  v_apply     text;
BEGIN
  IF cardinality(p_except) > 1000 THEN
    PERFORM tendril.refuse('PT413', 'too_many_claims', format('%s claims in p_except, more than the 1000 allowed', cardinality(p_except)));
  END IF;
  FOR v_candidate IN
    SELECT c.id, c.workspace_id FROM tendril.claims c
    WHERE c.instance_id = p_instance AND c.cluster_id = v_cluster.id AND c.state <> 'ended' AND c.boot_id <> p_boot AND c.host = v_agent.host AND coalesce(c.directory = v_agent.directory, true)
      AND c.id <> ALL (array_remove(coalesce(p_except, '{}'), NULL))
    ORDER BY c.number
  LOOP
    PERFORM FROM public.workspaces WHERE id = v_candidate.workspace_id FOR NO KEY UPDATE;
    SELECT * INTO STRICT v_claim FROM tendril.claims WHERE id = v_candidate.id FOR NO KEY UPDATE;
    CONTINUE WHEN v_claim.state = 'ended';
    SELECT * INTO STRICT v_provision FROM public.provisions WHERE id = v_claim.provision_id FOR NO KEY UPDATE;

    IF v_provision.status = 'PROCESSING' AND v_claim.state = 'running' THEN
      IF v_claim.cancel_requested_at IS NOT NULL AND v_claim.apply_begun_at IS NULL THEN
        PERFORM tendril.system_line(v_provision.id, format('Cancelled: the agent was restarted in stage %s, before apply had begun.', coalesce(v_claim.stage, 'checkout')));
        PERFORM tendril.end_provision(v_provision.id, 'CANCELLED', 'cancelled', 'Cancelled before apply had begun.');
      ELSE
        v_apply := CASE WHEN v_claim.apply_begun_at IS NULL
                        THEN 'Apply had not begun, so nothing was changed.'
                        ELSE 'Apply had begun: some resources may exist that the state does not know of. Look at the log and the infrastructure, then deploy again.' END;
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
-- +goose StatementEnd

-- An agent seen in the future was not seen just now.
CREATE OR REPLACE VIEW public.cluster_overview WITH (security_invoker = true) AS
SELECT c.id, c.org_id, c.name, c.labels, c.paused_at, c.last_seen_at, c.created_at,
       CASE WHEN c.last_seen_at BETWEEN now() - interval '45 seconds' AND now() + interval '45 seconds' THEN 'ONLINE'
            WHEN c.last_seen_at BETWEEN now() - interval '5 minutes'  AND now() + interval '5 minutes'  THEN 'STALE'
            ELSE 'OFFLINE' END AS connectivity
FROM public.clusters c;

SELECT tendril.deny_all(ARRAY['release_workspace', 'fail_orphaned_provisions']);
GRANT EXECUTE ON FUNCTION public.release_workspace(uuid, text) TO authenticated;
GRANT EXECUTE ON FUNCTION public.fail_orphaned_provisions(text, uuid, uuid, uuid[]) TO anon, tendril_agent;

NOTIFY pgrst, 'reload schema';
