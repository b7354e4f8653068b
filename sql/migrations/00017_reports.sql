-- How much an agent may report: what one report may hold, and all events of a
-- run together, which are stored one by one.

-- +goose Up

SELECT tendril.lock_tables('tendril.settings, tendril.claims');
-- The most that is kept of one run's events, as JSON. A run that makes 100,000
-- resources has less.
ALTER TABLE tendril.settings ADD COLUMN event_limit bigint NOT NULL DEFAULT 64 * 1024 * 1024 CHECK (event_limit > 0);
ALTER TABLE tendril.claims ADD COLUMN event_bytes bigint NOT NULL DEFAULT 0;

-- As before, and: vast numbers are refused before they are written out, and
-- events beyond the limit are left out, as lines are beyond the log's. The rest
-- of the report counts, so that the run comes to its end.
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
  v_events    bigint := 0;
  v_most      bigint;
BEGIN
  IF p_status IS NULL OR p_status NOT IN ('PROCESSING', 'SUCCESS', 'FAILED', 'CANCELLED') THEN
    PERFORM tendril.refuse('PT422', 'bad_status', format('p_status: %s is not PROCESSING, SUCCESS, FAILED or CANCELLED', coalesce(to_json(left(p_status, 100))::text, 'missing')));
  ELSIF jsonb_typeof(v_detail) <> 'object' THEN
    PERFORM tendril.refuse('PT422', 'bad_detail', 'p_detail must be an object');
  ELSIF tendril.has_vast_number(v_detail) THEN
    PERFORM tendril.refuse('PT422', 'bad_detail', 'p_detail: a number in it is larger than 1e400 or has more than 400 digits after the point');
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
  IF v_detail ? 'events' THEN
    v_events := octet_length((v_detail -> 'events')::text);
    v_most := (SELECT event_limit FROM tendril.settings);
    IF v_claim.event_bytes + v_events > v_most THEN
      v_detail := v_detail - 'events';
      IF v_claim.event_bytes <= v_most THEN
        PERFORM tendril.system_line(v_provision.id, format('This run has reported %s of events, the most that the database keeps (tendril.settings.event_limit). Further ones are left out.', pg_size_pretty(v_most)));
      END IF;
    END IF;
  END IF;
  IF v_detail ? 'n' OR v_events > 0 THEN
    UPDATE tendril.claims SET last_report = coalesce((v_detail ->> 'n')::bigint, last_report), event_bytes = event_bytes + v_events WHERE id = p_claim_id;
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
    PERFORM tendril.refuse('PT422', 'bad_detail', format('p_detail cannot be stored: %s', left(SQLERRM, 500)));
END $$;
-- +goose StatementEnd

SELECT tendril.deny_all('{}');

NOTIFY pgrst, 'reload schema';
