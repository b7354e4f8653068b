-- Reports of a run: stage, progress, plan, findings, resources, machines and result.

-- Reports the progress or the result of a run. Reports are numbered (n), and a number that is
-- stored already is ignored, so each call may be repeated.
--
-- An agent must not apply before a report of PROCESSING with stage apply has succeeded: that report
-- checks cancellation, the lease, the approval, the commit's pin and the workspace's template. A
-- run that was lost during apply goes on reporting until it settles. A run that ends with
-- AWAITING_APPROVAL or AWAITING_INPUT gives up its claim; its plan must be stored with put_blob()
-- first. So does one that ends with SET_DOWN, which is queued again: its work continues automatically,
-- and the agent that claims it takes that up. If that agent reports FAILED before it applies, the run
-- is queued again, tendril.max_take_ups() times at most.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_claim_id    the claim
--   p_status      PROCESSING for progress; SUCCESS, FAILED, CANCELLED, AWAITING_APPROVAL,
--                 AWAITING_INPUT or SET_DOWN for the end of the run
--   p_detail      an object of at most 1048576 bytes; every key is optional
--     n               number of this report, from 1 and without gaps
--     stage           checkout, validate, engine, init, plan, approval, apply or outputs
--     percent         progress of the stage, 0 to 100
--     running         resources in progress: list of {address, action, since, step, percent}; the
--                     first 50 are shown
--     commit          the commit that was checked out, 40 hexadecimal digits; needed before apply
--     engine          terraform or tofu
--     engine_version  exact version
--     plan            summary of the plan: counts (add, change, destroy, replace, forget) and
--                     resources
--     plan_digest     SHA-256 of the plan; needed for AWAITING_APPROVAL, for AWAITING_INPUT of a
--                     plan that is not approved, to apply what was approved or answered, and with
--                     detachable
--     detachable      with stage apply: true: the work continues automatically when the run is set
--                     down; the plan of plan_digest must be stored
--     input           what a person is to do, for AWAITING_INPUT: {instructions, destroys, outputs,
--                     machines, expires_seconds}; instructions are Markdown of at most 65536
--                     characters, outputs a list of {name, type, description, sensitive}, machines
--                     of {name, action} and what is wanted of it, expires_seconds 60 to 7776000
--     outputs         object of {value, type, sensitive} by name; values of sensitive outputs are
--                     dropped
--     resources       all resources in the state: list of {address, type, provider, external_id,
--                     ip_addresses, status}
--     machines        all machines of the workspace: list of {name, status, address, pool, node,
--                     external_id, ip_addresses, ssh_port, ssh_user, image, cores, memory_mib,
--                     disk_gib, labels, actions, check}; status is creating, running, stopped,
--                     failed or unknown; check says how its health is checked, see lease_checks()
--     machines_omitted
--                     how many machines there was no room for
--     events          list of {kind, at} with further keys, up to tendril.settings.event_limit
--                     bytes in a run
--     drift           changes outside Terraform that a refresh found: list of {address, action,
--                     attributes}
--     state_lock      who holds the state's lock: {id, who, operation, created}
--     local_state     true: the state is a file of this agent
--     state_unsaved   true: the agent keeps a state that it could not store; false: it is stored
--                     now
--     variables       variables that the template declares: list of objects
--     about           what the template says of itself, beside its variables: {title, description,
--                     icon, provisioner}
--     error_code      why the run failed or was cancelled, as a code; after a transient failure, such
--                     as checkout_failed, a new attempt is queued if the snapshot asks for it
--     error_message   the same for people, cut after 16384 characters
--     set_aside       note for the log: what the agent left out because it was refused, or what the
--                     run waits for
-- Answers: nothing.
-- Errors: PT401 token_invalid, PT409 already_approved, PT409 approval_needed,
--   PT409 already_answered, PT409 cancel_requested, PT409 claim_lost, PT409 commit_differs, PT409 commit_missing,
--   PT409 not_detachable, PT409 operation_refused, PT409 plan_invalid, PT409 plan_missing, PT409 tag_moved,
--   PT409 workspace_bound, PT409 workspace_elsewhere, PT409 workspace_managed,
--   PT413 detail_too_large, PT422 bad_detail, PT422 bad_status, PT429 too_many_pins, PT503 busy,
--   PT503 lease_expired.
-- Locks: workspace (if the report ends the run or says something about its workspace), provision,
--   claim.
-- Callers: anon, tendril_agent.
-- Notes: Events beyond the limit are left out and the rest of the report counts, so the run can
--   end. Where a person has set another status by hand, that status stays and the run is over.
CREATE OR REPLACE FUNCTION public.update_provision_status(p_token_hash text, p_claim_id uuid, p_status text, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster   public.clusters := tendril.authenticate_for(p_token_hash, p_claim_id);
  v_detail    jsonb := coalesce(p_detail, '{}');
  v_id        uuid;
  v_run       uuid;
  v_workspace public.workspaces;
  v_claim     tendril.claims;
  v_provision public.provisions;
  v_holds     boolean; -- lost, and the workspace is kept for it
  v_as_left   boolean; -- nobody has set another status by hand
  v_awaits    boolean := coalesce(p_status IN ('AWAITING_APPROVAL', 'AWAITING_INPUT'), false);
  v_events    bigint := 0;
  v_most      bigint;
  c_row CONSTANT int := 256; -- bytes that a row counts as
BEGIN
  IF p_status IS NULL OR p_status NOT IN ('PROCESSING', 'SUCCESS', 'FAILED', 'CANCELLED', 'AWAITING_APPROVAL', 'AWAITING_INPUT', 'SET_DOWN') THEN
    PERFORM tendril.refuse('PT422', 'bad_status', format('p_status: %s is not PROCESSING, SUCCESS, FAILED, CANCELLED, AWAITING_APPROVAL, AWAITING_INPUT or SET_DOWN', coalesce(to_json(left(p_status, tendril.quoted_name()))::text, 'missing')));
  ELSIF jsonb_typeof(v_detail) <> 'object' THEN
    PERFORM tendril.refuse('PT422', 'bad_detail', 'p_detail must be an object');
  ELSIF tendril.has_vast_number(v_detail) THEN
    PERFORM tendril.refuse('PT422', 'bad_detail', 'p_detail: a number in it is larger than 1e400 or has more than 400 digits after the point');
  ELSIF (p_status = 'AWAITING_APPROVAL' OR p_status = 'AWAITING_INPUT' AND v_detail ->> 'plan_digest' IS NOT NULL) AND coalesce(v_detail ->> 'plan_digest', '') !~ '^[0-9a-f]{64}$' THEN
    PERFORM tendril.refuse('PT422', 'bad_detail', 'p_detail.plan_digest: must be the SHA-256 of the plan, in hexadecimal');
  ELSIF octet_length(v_detail::text) > tendril.max_report_bytes() THEN
    PERFORM tendril.refuse('PT413', 'detail_too_large', format('p_detail has %s bytes; at most %s are allowed', octet_length(v_detail::text), tendril.max_report_bytes()));
  END IF;

  SELECT workspace_id, provision_id INTO v_id, v_run FROM tendril.claims WHERE id = p_claim_id AND cluster_id = v_cluster.id;
  IF NOT FOUND THEN
    PERFORM tendril.claim_lost(p_claim_id, 'is unknown');
  END IF;
  -- Progress leaves the workspace alone, but for what binds it and what was found in it.
  IF p_status <> 'PROCESSING' OR v_detail ?| ARRAY['commit', 'local_state', 'state_unsaved', 'plan', 'resources', 'machines', 'drift', 'state_lock'] THEN
    SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE id = v_id FOR NO KEY UPDATE;
  END IF;
  SELECT * INTO STRICT v_provision FROM public.provisions WHERE id = v_run FOR NO KEY UPDATE;
  SELECT * INTO STRICT v_claim FROM tendril.claims WHERE id = p_claim_id FOR NO KEY UPDATE;
  -- Whoever ends the hold waits for the claim's lock.
  v_holds := false;
  IF v_claim.state = 'lost' THEN
    v_holds := EXISTS (SELECT FROM public.workspaces WHERE id = v_id AND held_by_claim = p_claim_id);
  END IF;
  v_as_left := CASE v_claim.state WHEN 'running' THEN v_provision.status = 'PROCESSING'
                                  ELSE v_provision.status = 'FAILED' AND v_provision.error_code IS NOT DISTINCT FROM 'agent_lost' END;

  IF p_status = 'SET_DOWN' AND v_claim.set_down_at IS NOT NULL THEN
    RETURN; -- a repeat after a lost reply, and another agent may have it by now
  ELSIF p_status <> 'PROCESSING' AND v_claim.take_up_failure IS NOT NULL THEN
    RETURN; -- likewise: it is queued again
  ELSIF p_status = 'SET_DOWN' AND v_claim.state <> 'running' THEN
    -- Its plan went with the lease.
    p_status := 'FAILED';
    v_detail := v_detail || jsonb_build_object('error_code', 'agent_drained', 'error_message', 'The agent set the run down after its lease had run out. What it began continues: deploy again to take that over, or destroy it.');
  END IF;
  IF p_status = 'FAILED' AND v_detail ->> 'error_code' = 'no_room' AND v_claim.state = 'ended' AND v_provision.waits_for IS NOT NULL THEN
    RETURN; -- likewise, and the run waits or is tried again by now
  END IF;
  IF p_status <> 'PROCESSING' AND v_claim.state = 'ended' AND v_provision.status = p_status
     AND v_provision.error_code IS NOT DISTINCT FROM v_detail ->> 'error_code' THEN
    RETURN; -- a repeat after a lost reply
  ELSIF v_awaits AND v_claim.state = 'ended' AND v_provision.plan_digest = coalesce(v_detail ->> 'plan_digest', v_provision.approved_plan) THEN
    RETURN; -- likewise, and somebody may have spoken since
  ELSIF v_claim.state = 'ended' THEN
    PERFORM tendril.claim_lost(p_claim_id, format('has ended: the provision is %s', v_provision.status));
  ELSIF v_claim.state = 'lost' THEN
    IF v_awaits OR p_status = 'PROCESSING' AND (v_claim.apply_begun_at IS NULL OR v_detail ->> 'stage' = 'apply') THEN
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
      PERFORM tendril.refuse('PT409', 'cancel_requested', 'cancellation was requested; apply must not begin');
    ELSIF v_claim.lease_until < clock_timestamp() THEN
      PERFORM tendril.refuse('PT503', 'lease_expired', 'the claim''s lease has run out; apply must not begin', 'send a heartbeat, then ask again');
    ELSIF v_claim.apply_begun_at IS NULL THEN
      PERFORM tendril.guard_apply(v_provision, v_detail);
      IF (v_detail ->> 'detachable')::boolean AND NOT tendril.plan_bundle_stored(v_provision.id, coalesce(v_detail ->> 'plan_digest', '')) THEN
        PERFORM tendril.refuse('PT409', 'plan_missing', 'the plan that another agent may carry on is not stored', 'store it with put_blob first');
      END IF;
    END IF;
  ELSIF p_status = 'SET_DOWN' AND v_as_left THEN
    IF v_claim.plan_digest IS NULL THEN
      PERFORM tendril.refuse('PT409', 'not_detachable', CASE WHEN v_claim.apply_begun_at IS NULL THEN 'apply has not begun, so there is nothing that continues automatically'
        ELSE 'the work of this run does not continue automatically, so it cannot be set down' END);
    ELSIF NOT tendril.plan_bundle_stored(v_provision.id, v_claim.plan_digest) THEN
      PERFORM tendril.refuse('PT409', 'plan_missing', 'the plan of this run is no longer stored, and no other may be carried on');
    ELSIF v_claim.cancel_requested_at IS NULL THEN
      PERFORM tendril.set_down(p_claim_id, format('Set down by agent %s on %s. What it began continues, and the next agent takes it up.',
        tendril.agent_of(v_claim.cluster_id, v_claim.instance_id), v_claim.host));
      RETURN;
    END IF;
    p_status := 'CANCELLED'; -- nobody is to take it up
    v_detail := v_detail || jsonb_build_object('error_code', 'cancelled', 'error_message', 'Cancelled while its agent set it down. What it began continues: deploy again to take that over, or destroy it.');
  ELSIF v_awaits AND v_as_left THEN
    IF p_status = 'AWAITING_INPUT' AND v_provision.approved_plan IS NULL AND tendril.approval_wanted(v_provision, v_provision.plan_summary) IS NOT NULL THEN
      p_status := 'AWAITING_APPROVAL'; -- the rules are stricter by now; the next run asks the person
    END IF;
    IF v_claim.cancel_requested_at IS NOT NULL AND v_claim.apply_begun_at IS NULL THEN
      -- Nobody wants to know any more what the plan would do.
      p_status := 'CANCELLED';
      v_detail := v_detail || '{"error_code": "cancelled", "error_message": "Cancelled before apply had begun."}';
    ELSIF NOT tendril.is_approvable(v_provision.operation, v_provision.config_snapshot) THEN
      PERFORM tendril.refuse('PT409', 'operation_refused', format('a %s applies nothing, so it needs no approval', v_provision.operation));
    ELSIF p_status = 'AWAITING_INPUT' AND EXISTS (SELECT FROM public.provision_inputs i WHERE i.provision_id = v_run) THEN
      PERFORM tendril.refuse('PT409', 'already_answered', 'a person has done the work of this provision already; record what was answered');
    ELSIF p_status = 'AWAITING_APPROVAL' AND v_provision.plan_digest IS NOT NULL THEN
      PERFORM tendril.refuse('PT409', 'already_approved', 'a plan of this provision is approved; only that plan may be applied');
    ELSIF NOT tendril.plan_bundle_stored(v_provision.id, coalesce(v_provision.approved_plan, v_detail ->> 'plan_digest')) THEN
      PERFORM tendril.refuse('PT409', 'plan_missing', 'the plan that awaits a person is not stored', 'store it with put_blob first');
    END IF;
  END IF;
  IF (v_detail ->> 'n')::bigint > v_claim.last_report + tendril.max_report_gap() THEN
    PERFORM tendril.refuse('PT422', 'bad_detail', format('p_detail.n: report %s cannot follow report %s', v_detail ->> 'n', v_claim.last_report),
      'number reports one after the other');
  END IF;
  IF p_status = 'PROCESSING' AND (v_detail ->> 'n')::bigint <= v_claim.last_report THEN
    RETURN; -- a repeat as well: reports are numbered, and come in order
  END IF;

  IF v_detail ->> 'set_aside' IS NOT NULL THEN
    PERFORM tendril.system_line(v_provision.id, left(v_detail ->> 'set_aside', tendril.max_reason()));
  END IF;
  IF p_status <> 'PROCESSING' AND v_detail ->> 'stage' = 'apply' THEN
    v_detail := v_detail - 'stage'; -- a result asks for no acknowledgement
  END IF;
  IF jsonb_path_exists(v_detail, '$.events[*].kind ? (@ == "machine_intent")') THEN
    PERFORM tendril.record_machine_intents(v_provision, v_detail -> 'events');
  END IF;
  IF jsonb_path_exists(v_detail, '$.events[*].kind ? (@ == "machine_intent" || @ == "machine_found")') THEN
    PERFORM tendril.note_open_intents(p_claim_id, v_detail -> 'events');
  END IF;
  -- A change of stage leaves a row as well, and drift a message for each webhook.
  v_events := coalesce(octet_length((v_detail -> 'events')::text), 0) + coalesce(octet_length((v_detail -> 'drift')::text) + c_row, 0)
              + CASE WHEN v_detail ->> 'stage' <> v_claim.stage THEN c_row ELSE 0 END;
  IF v_events > 0 THEN
    v_most := (SELECT event_limit FROM tendril.settings);
    IF v_claim.event_bytes + v_events > v_most THEN
      v_detail := v_detail - ARRAY['events', 'drift'];
      IF v_claim.event_bytes <= v_most THEN
        PERFORM tendril.system_line(v_provision.id, format('This run has reported %s of events, the limit of one run (tendril.settings.event_limit). Further events are left out.', pg_size_pretty(v_most)));
      END IF;
    END IF;
  END IF;
  IF v_detail ? 'n' OR v_events > 0 THEN
    UPDATE tendril.claims SET last_report = coalesce((v_detail ->> 'n')::bigint, last_report), event_bytes = event_bytes + v_events WHERE id = p_claim_id;
  END IF;
  IF v_provision.waits_for IS NOT NULL AND (v_awaits OR v_detail ->> 'stage' = 'apply') THEN
    UPDATE public.provisions SET waits_for = NULL, waits_since = NULL WHERE id = v_provision.id; -- it has found room
  END IF;
  PERFORM tendril.record_progress(v_claim, v_provision, v_detail);
  IF v_detail ->> 'state_unsaved' IS NOT NULL THEN
    PERFORM tendril.note_unsaved_state(v_claim, (v_detail ->> 'state_unsaved')::boolean);
  END IF;
  IF p_status <> 'PROCESSING' AND NOT v_as_left THEN
    -- Somebody has set another status by hand: it stays, and the run is over.
    PERFORM tendril.system_line(v_provision.id, format('The agent on %s reported %s, but the provision had been set to %s.', v_claim.host, p_status, v_provision.status));
    PERFORM tendril.end_claim(p_claim_id, v_id);
  ELSIF p_status = 'AWAITING_APPROVAL' THEN
    PERFORM tendril.await_approval(p_claim_id, v_detail ->> 'plan_digest');
  ELSIF p_status = 'AWAITING_INPUT' THEN
    PERFORM tendril.ask_person(v_provision, p_claim_id, v_detail);
  ELSIF p_status <> 'PROCESSING' THEN
    IF v_claim.state = 'lost' THEN
      PERFORM tendril.system_line(v_provision.id, format('The agent on %s reported after all: %s.', v_claim.host, p_status));
    END IF;
    IF p_status = 'FAILED' AND v_claim.state = 'running' THEN
      IF v_detail ->> 'error_code' = 'no_room' AND v_claim.apply_begun_at IS NULL THEN
        IF tendril.await_room(p_claim_id, v_detail ->> 'error_message') THEN
          RETURN;
        END IF;
      ELSIF tendril.set_down_again(p_claim_id, v_detail ->> 'error_code', v_detail ->> 'error_message') THEN
        RETURN;
      END IF;
    END IF;
    PERFORM tendril.end_provision(v_provision.id, p_status, v_detail ->> 'error_code',
      left(v_detail ->> 'error_message', tendril.max_error_message()) || CASE WHEN p_status <> 'SUCCESS' THEN tendril.left_behind(v_claim) ELSE '' END);
    PERFORM tendril.end_claim(p_claim_id, v_id);
  END IF;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
  WHEN data_exception OR check_violation OR not_null_violation THEN
    PERFORM tendril.refuse('PT422', 'bad_detail', format('p_detail cannot be stored: %s', left(SQLERRM, tendril.quoted_error())));
END $$;

-- Stores what a run reports about itself while it goes on. The caller holds the locks.
--
-- Errors: PT409 commit_missing, PT409 workspace_elsewhere.
-- Locks: workspace, provision, claim.
-- Notes: Progress is shown at most once a second, because every viewer is told; a change of stage
--   and 100 percent are shown at once, and what is held back comes with the next report. An
--   inspection binds no template.
CREATE OR REPLACE FUNCTION tendril.record_progress(p_claim tendril.claims, p_provision public.provisions, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_stage     text := p_detail ->> 'stage';
  v_commit    text := p_detail ->> 'commit';
  v_repo      text;
  v_path      text;
  v_version   text := p_provision.config_snapshot -> 'template_source' ->> 'version';
  v_workspace public.workspaces;
  v_shown     public.provision_progress;
  v_percent   smallint;
  v_running   jsonb;
  v_now       timestamptz;
BEGIN
  -- The apply acknowledgement: Terraform applies only after this has said yes. What
  -- else speaks against it the caller has asked.
  IF v_stage = 'apply' AND p_claim.apply_begun_at IS NULL THEN
    IF coalesce(v_commit, p_provision.resolved_commit) IS NULL THEN
      PERFORM tendril.refuse('PT409', 'commit_missing', 'no commit is recorded for this provision, so neither its pin nor its workspace was checked',
        'report the commit first');
    END IF;
    UPDATE tendril.claims SET apply_begun_at = clock_timestamp(), plan_digest = CASE WHEN (p_detail ->> 'detachable')::boolean THEN p_detail ->> 'plan_digest' END
    WHERE id = p_claim.id;
  END IF;

  IF v_commit IS NOT NULL THEN
    v_repo := tendril.plain_repo(p_provision.config_snapshot -> 'template_source' ->> 'repo');
    v_path := tendril.plain_path(p_provision.config_snapshot -> 'template_source' ->> 'path');
    PERFORM tendril.pin_for_cluster(p_provision.org_id, p_claim.cluster_id, v_repo, v_version, v_commit);
    IF p_provision.operation <> 'inspect' THEN
      SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE id = p_claim.workspace_id;
      PERFORM tendril.check_binding(v_workspace, v_repo, v_path);
      UPDATE public.workspaces SET repo = v_repo, path = v_path WHERE id = v_workspace.id AND repo IS NULL;
    END IF;
  END IF;

  IF (p_detail ->> 'local_state')::boolean THEN
    SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE id = p_claim.workspace_id;
    IF v_workspace.home_instance <> p_claim.instance_id THEN
      PERFORM tendril.refuse('PT409', 'workspace_elsewhere',
        format('the state of workspace %s is a file on another agent (instance %s)', to_json(v_workspace.name), v_workspace.home_instance),
        'let that agent run it, or configure a shared state backend');
    END IF;
    UPDATE public.workspaces SET home_instance = p_claim.instance_id WHERE id = v_workspace.id AND home_instance IS NULL;
  END IF;

  IF v_stage IS NOT NULL OR p_detail ?| ARRAY['percent', 'running'] THEN
    SELECT * INTO v_shown FROM public.provision_progress WHERE provision_id = p_provision.id;
    v_percent := coalesce((p_detail ->> 'percent')::smallint, p_claim.percent_due, v_shown.percent);
    -- What was worked on in one stage is not worked on in the next.
    v_running := CASE WHEN p_detail ->> 'running' IS NOT NULL THEN tendril.plain_running(p_detail -> 'running')
                      WHEN v_stage <> v_shown.stage THEN '[]'
                      ELSE coalesce(p_claim.running_due, v_shown.running) END;
    v_now := clock_timestamp();
    IF v_stage <> v_shown.stage OR v_percent = 100 AND v_percent IS DISTINCT FROM v_shown.percent
       OR (v_percent, v_running) IS DISTINCT FROM (v_shown.percent, v_shown.running)
          AND v_shown.updated_at NOT BETWEEN v_now - tendril.shown_every() AND v_now THEN
      UPDATE public.provision_progress SET stage = coalesce(v_stage, stage), percent = v_percent, running = v_running, updated_at = v_now
      WHERE provision_id = p_provision.id;
      v_percent := NULL;
      v_running := NULL;
    ELSE
      v_percent := nullif(v_percent, v_shown.percent);
      v_running := nullif(v_running, v_shown.running);
    END IF;
    UPDATE tendril.claims SET stage = coalesce(v_stage, stage), percent_due = v_percent, running_due = v_running
    WHERE id = p_claim.id AND (stage, percent_due, running_due) IS DISTINCT FROM (coalesce(v_stage, stage), v_percent, v_running);
    IF v_stage IS NOT NULL AND v_stage IS DISTINCT FROM p_claim.stage THEN
      IF p_claim.stage IS NULL THEN
        PERFORM tendril.begin_stages(p_claim, p_provision.org_id);
      END IF;
      PERFORM tendril.enter_stage(p_provision.id, p_provision.org_id, v_stage, p_claim.stage, p_claim.state = 'lost');
      INSERT INTO public.provision_events (provision_id, org_id, kind, at, detail)
      SELECT p_provision.id, p_provision.org_id, 'stage', clock_timestamp(), jsonb_build_object('stage', v_stage)
      WHERE p_claim.event_bytes <= (SELECT event_limit FROM tendril.settings);
      PERFORM tendril.notify('tendril_provision', p_provision.id);
    END IF;
  END IF;

  IF p_detail ? 'events' THEN
    INSERT INTO public.provision_events (provision_id, org_id, kind, at, detail)
    SELECT p_provision.id, p_provision.org_id, e ->> 'kind', t.at,
           (e - 'kind' - 'at') || CASE WHEN (e ->> 'at')::timestamptz <> t.at THEN jsonb_build_object('agent_at', e -> 'at') ELSE '{}' END
    FROM jsonb_array_elements(p_detail -> 'events') e, LATERAL (SELECT tendril.plausible_time((e ->> 'at')::timestamptz, clock_timestamp()) AS at) t;
  END IF;

  IF p_detail ?| ARRAY['commit', 'engine', 'engine_version', 'plan', 'outputs'] THEN
    UPDATE public.provisions
    SET resolved_commit = coalesce(v_commit, resolved_commit),
        engine          = coalesce(p_detail ->> 'engine', engine),
        engine_version  = coalesce(p_detail ->> 'engine_version', engine_version),
        plan_summary    = coalesce(p_detail -> 'plan', plan_summary),
        -- Whatever the agent sends: the value of a sensitive output is not stored.
        outputs         = coalesce((SELECT jsonb_object_agg(o.key, CASE WHEN (o.value ->> 'sensitive')::boolean THEN o.value - 'value' ELSE o.value END)
                                    FROM jsonb_each(p_detail -> 'outputs') o), outputs)
    WHERE id = p_provision.id;
  END IF;

  IF p_detail ->> 'variables' IS NOT NULL THEN
    PERFORM tendril.record_variables(p_provision, coalesce(v_commit, p_provision.resolved_commit), p_detail -> 'variables', nullif(p_detail -> 'about', 'null'));
  END IF;
  IF p_detail ?| ARRAY['plan', 'resources', 'machines', 'drift', 'state_lock'] THEN
    PERFORM tendril.record_findings(p_claim, p_provision, p_detail);
  END IF;
END $$;

-- Shows progress that was held back, with the next heartbeat, log lines or the end of the run.
CREATE OR REPLACE FUNCTION tendril.show_percent_due() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_due boolean := (NEW.lease_until, NEW.state) IS DISTINCT FROM (OLD.lease_until, OLD.state);
BEGIN
  UPDATE public.provision_progress
  SET percent = coalesce(OLD.percent_due, percent), updated_at = v_now,
      running = CASE NEW.state WHEN 'running' THEN coalesce(OLD.running_due, running) ELSE running END
  WHERE provision_id = OLD.provision_id AND stage <> 'done' AND (v_due OR updated_at NOT BETWEEN v_now - tendril.shown_every() AND v_now);
  IF FOUND OR v_due THEN
    NEW.percent_due := NULL;
    NEW.running_due := NULL;
  END IF;
  RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER claims_show_percent_due BEFORE UPDATE OF lease_until, state, next_chunk ON tendril.claims
  FOR EACH ROW WHEN (OLD.percent_due IS NOT NULL OR OLD.running_due IS NOT NULL) EXECUTE FUNCTION tendril.show_percent_due();

-- Ends the stage that a provision is in and begins another; null: only ends it. The first stage of
-- an attempt is queued. p_from is a stage that was ended and went on all the same, because its
-- agent was given up (p_lost) and reports after all; stages of such a run are never left open.
CREATE OR REPLACE FUNCTION tendril.enter_stage(p_provision uuid, p_org uuid, p_stage text, p_from text DEFAULT NULL, p_lost boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_now     timestamptz := clock_timestamp();
  v_attempt int := (SELECT max(attempt) FROM public.provision_stages WHERE provision_id = p_provision);
BEGIN
  UPDATE public.provision_stages SET ended_at = greatest(v_now, started_at)
  WHERE provision_id = p_provision AND stage IS DISTINCT FROM p_stage
    AND (ended_at IS NULL OR stage = p_from AND attempt = v_attempt);
  IF p_stage IS NOT NULL THEN
    INSERT INTO public.provision_stages AS s (provision_id, org_id, attempt, stage, started_at, ended_at)
    VALUES (p_provision, p_org, CASE p_stage WHEN 'queued' THEN coalesce(v_attempt, 0) + 1 ELSE coalesce(v_attempt, 1) END,
            p_stage, v_now, CASE WHEN p_lost OR p_stage = 'done' THEN v_now END)
    ON CONFLICT (provision_id, attempt, stage) DO UPDATE SET ended_at = EXCLUDED.ended_at WHERE s.ended_at IS DISTINCT FROM EXCLUDED.ended_at;
  END IF;
END $$;

-- Ends the stage queued and begins checkout, both when the claim began. The run's first report or
-- its end does so, because a claim has to be quick.
CREATE OR REPLACE FUNCTION tendril.begin_stages(p_claim tendril.claims, p_org uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  UPDATE public.provision_stages SET ended_at = greatest(p_claim.created_at, started_at)
  WHERE provision_id = p_claim.provision_id AND ended_at IS NULL;
  INSERT INTO public.provision_stages (provision_id, org_id, attempt, stage, started_at)
  VALUES (p_claim.provision_id, p_org, coalesce((SELECT max(attempt) FROM public.provision_stages WHERE provision_id = p_claim.provision_id), 1),
          'checkout', p_claim.created_at)
  ON CONFLICT (provision_id, attempt, stage) DO NOTHING;
END $$;

-- Removes drift and state locks that a success has resolved. An apply of targets says nothing about
-- the rest, and only operations that change a state take its lock.
--
-- Locks: workspace.
CREATE OR REPLACE FUNCTION tendril.clear_findings(p_provision public.provisions) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF p_provision.operation IN ('apply', 'destroy') AND coalesce(p_provision.config_snapshot -> 'targets', '[]') = '[]' THEN
    UPDATE public.workspaces SET drift = NULL, drift_count = NULL, drift_at = NULL
    WHERE id = p_provision.workspace_id AND drift_at IS NOT NULL;
  END IF;
  IF p_provision.operation <> 'state' OR p_provision.config_snapshot -> 'state' ->> 'command' NOT IN ('pull', 'list', 'reveal') THEN
    UPDATE public.workspaces SET state_lock = NULL WHERE id = p_provision.workspace_id AND state_lock IS NOT NULL;
  END IF;
END $$;

-- The list of resources in progress as it is shown: cut, and without times that not every reader
-- can show.
CREATE OR REPLACE FUNCTION tendril.plain_running(p_running jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('address', left(r.item ->> 'address', tendril.max_address_key()), 'action', left(r.item ->> 'action', tendril.quoted_action()),
                                                       'since', CASE WHEN (r.item ->> 'since')::timestamptz BETWEEN '1970-01-01 00:00Z' AND '9999-01-01 00:00Z' THEN (r.item ->> 'since')::timestamptz END)
                           || jsonb_strip_nulls(jsonb_build_object('step', left(r.item ->> 'step', tendril.quoted_value()), 'percent', (r.item ->> 'percent')::numeric::smallint)) ORDER BY r.ord), '[]')
          FROM jsonb_array_elements(p_running) WITH ORDINALITY r (item, ord) WHERE r.ord <= tendril.max_running());
END $$;

-- Stores what a refresh found to have changed outside. One of targets has seen nothing else: it
-- replaces what was known of them, and says nothing of when the workspace was last checked, unless it never
-- was and something is found.
--
-- Locks: workspace.
CREATE OR REPLACE FUNCTION tendril.record_drift(p_provision public.provisions, p_drift jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_targets text[] := ARRAY(SELECT jsonb_array_elements_text(nullif(p_provision.config_snapshot -> 'targets', 'null')));
  v_known   public.workspaces;
  v_kept    jsonb := '[]';
BEGIN
  SELECT * INTO STRICT v_known FROM public.workspaces WHERE id = p_provision.workspace_id;
  IF v_targets <> '{}' THEN
    IF v_known.drift_at IS NULL AND p_drift = '[]' THEN
      RETURN;
    END IF;
    SELECT coalesce(jsonb_agg(d.item ORDER BY d.ord), '[]') INTO v_kept
    FROM jsonb_array_elements(coalesce(v_known.drift, '[]')) WITH ORDINALITY d (item, ord)
    WHERE NOT EXISTS (SELECT FROM unnest(v_targets) t WHERE d.item ->> 'address' = t OR starts_with(d.item ->> 'address', t || '[') OR starts_with(d.item ->> 'address', t || '.'));
  END IF;
  UPDATE public.workspaces
  SET drift = (SELECT coalesce(jsonb_agg(d.item ORDER BY d.ord), '[]') FROM jsonb_array_elements(v_kept || p_drift) WITH ORDINALITY d (item, ord) WHERE d.ord <= tendril.max_drift()),
      -- Of what there was no room for, nobody knows whether it is of the targets.
      drift_count = jsonb_array_length(v_kept || p_drift)
                    + CASE WHEN v_targets <> '{}' THEN greatest(0, coalesce(v_known.drift_count, 0) - jsonb_array_length(coalesce(v_known.drift, '[]'))) ELSE 0 END,
      drift_at = CASE WHEN v_targets = '{}' OR v_known.drift_at IS NULL THEN clock_timestamp() ELSE v_known.drift_at END
  WHERE id = p_provision.workspace_id;
END $$;

-- Stores what a run found in its workspace: resources, machines, drift, and who holds the state's lock. The
-- caller holds the locks of the workspace and the run.
--
-- Locks: workspace, provision.
CREATE OR REPLACE FUNCTION tendril.record_findings(p_claim tendril.claims, p_provision public.provisions, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_lock jsonb := p_detail -> 'state_lock';
BEGIN
  IF p_detail ->> 'resources' IS NOT NULL THEN
    PERFORM tendril.record_resources(p_provision, p_detail -> 'resources');
  END IF;
  IF p_detail ->> 'machines' IS NOT NULL THEN
    PERFORM tendril.record_machines(p_provision, p_detail -> 'machines', coalesce((p_detail ->> 'machines_omitted')::int, 0));
  END IF;

  IF p_detail ->> 'drift' IS NOT NULL AND p_provision.operation = 'refresh' THEN
    PERFORM tendril.record_drift(p_provision, p_detail -> 'drift');
  END IF;

  IF v_lock ->> 'id' IS NOT NULL THEN
    UPDATE public.workspaces
    SET state_lock = jsonb_build_object('id', left(v_lock ->> 'id', tendril.quoted_value()), 'who', left(v_lock ->> 'who', tendril.quoted_value()), 'operation', left(v_lock ->> 'operation', tendril.quoted_name()),
                                        'created', left(v_lock ->> 'created', tendril.quoted_name()), 'number', p_provision.number, 'at', clock_timestamp())
    WHERE id = p_claim.workspace_id;
  ELSIF p_detail ->> 'plan' IS NOT NULL THEN
    -- Who has made a plan has had the lock.
    UPDATE public.workspaces SET state_lock = NULL WHERE id = p_claim.workspace_id AND state_lock IS NOT NULL;
  END IF;
END $$;

-- An address as the key of an index: beyond 600 characters its end is replaced by a digest, so that
-- two with a common beginning stay different. provision.Key in Go does the same.
CREATE OR REPLACE FUNCTION tendril.address_key(p_address text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE WHEN length(p_address) <= tendril.max_address_key() THEN p_address
                  ELSE left(p_address, tendril.max_address_key() - 72) || '~sha256:' || encode(sha256(convert_to(p_address, 'UTF8')), 'hex') END $$;

-- Replaces the resources of a workspace by those that its state lists now, after a failed apply as
-- well. Unchanged rows are not written. Resources beyond tendril.settings.resource_limit are not
-- listed, and the log says so.
CREATE OR REPLACE FUNCTION tendril.record_resources(p_provision public.provisions, p_resources jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_most int := (SELECT resource_limit FROM tendril.settings);
BEGIN
  IF jsonb_array_length(p_resources) > v_most THEN
    PERFORM tendril.system_line(p_provision.id, format('The state has %s resources. The first %s of them are listed (tendril.settings.resource_limit).', jsonb_array_length(p_resources), v_most));
  END IF;
  WITH there AS MATERIALIZED (
    SELECT DISTINCT ON (tendril.address_key(r.address)) tendril.address_key(r.address) AS address, r.type, r.provider, r.external_id, coalesce(r.ip_addresses, '{}') AS ip_addresses, r.status
    FROM jsonb_to_recordset(p_resources) AS r (address text, type text, provider text, external_id text, ip_addresses text[], status text)
    ORDER BY tendril.address_key(r.address) LIMIT v_most
  ), gone AS (
    DELETE FROM public.resources r
    WHERE r.workspace_id = p_provision.workspace_id AND NOT EXISTS (SELECT FROM there t WHERE t.address = r.address)
  )
  INSERT INTO public.resources AS r (workspace_id, address, org_id, type, provider, external_id, ip_addresses, status, provision_id)
  SELECT p_provision.workspace_id, t.address, p_provision.org_id, t.type, t.provider, t.external_id, t.ip_addresses, t.status, p_provision.id
  FROM there t
  ON CONFLICT (workspace_id, address) DO UPDATE
  SET type = EXCLUDED.type, provider = EXCLUDED.provider, external_id = EXCLUDED.external_id, ip_addresses = EXCLUDED.ip_addresses,
      status = EXCLUDED.status, provision_id = EXCLUDED.provision_id, updated_at = now()
  WHERE (r.type, r.provider, r.external_id, r.ip_addresses, r.status)
        IS DISTINCT FROM (EXCLUDED.type, EXCLUDED.provider, EXCLUDED.external_id, EXCLUDED.ip_addresses, EXCLUDED.status);
END $$;
