-- What an agent may call, and nothing else. Each function authenticates the
-- token, is fenced by boot or claim, may be repeated after a lost reply, and
-- answers with the same errors through PostgREST and directly.

-- +goose Up

-- The cluster a token belongs to. The digest is computed once, here, and not
-- per row.
-- +goose StatementBegin
CREATE FUNCTION tendril.authenticate(p_token_hash text) RETURNS public.clusters
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_digest  bytea;
  v_cluster public.clusters;
BEGIN
  IF p_token_hash ~ '^[0-9a-f]{64}$' THEN
    v_digest := sha256(decode(p_token_hash, 'hex'));
    SELECT c.* INTO v_cluster
    FROM tendril.cluster_tokens t JOIN public.clusters c ON c.id = t.cluster_id
    WHERE t.digest = v_digest AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp());
  END IF;
  IF v_cluster.id IS NULL THEN
    PERFORM tendril.refuse('PT401', 'token_invalid',
      'the agent token is unknown, revoked or expired',
      'create or rotate the cluster''s token, and set TENDRIL_API_TOKEN to the new one');
  END IF;
  RETURN v_cluster;
END $$;
-- +goose StatementEnd

-- The calling agent, if this boot is its newest.
-- +goose StatementBegin
CREATE FUNCTION tendril.current_agent(p_cluster uuid, p_instance uuid, p_boot uuid) RETURNS public.agents
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_agent public.agents;
BEGIN
  SELECT * INTO v_agent FROM public.agents WHERE cluster_id = p_cluster AND instance_id = p_instance;
  IF v_agent.id IS NULL THEN
    PERFORM tendril.refuse('PT409', 'agent_unregistered', 'this agent is not registered', 'call register_agent first');
  ELSIF v_agent.boot_id <> p_boot THEN
    PERFORM tendril.refuse('PT409', 'agent_superseded',
      format('agent %s was started again on %s; this earlier start of it may do nothing more', to_json(v_agent.name), v_agent.host));
  END IF;
  RETURN v_agent;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION public.register_agent(p_token_hash text, p_agent jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster  public.clusters := tendril.authenticate(p_token_hash);
  v_settings tendril.settings;
  v_instance uuid;
  v_boot     uuid;
  v_other    public.agents;
BEGIN
  BEGIN
    v_instance := (p_agent ->> 'instance_id')::uuid;
    v_boot     := (p_agent ->> 'boot_id')::uuid;
    IF v_instance IS NULL OR v_boot IS NULL
       OR length(coalesce(p_agent ->> 'name', '')) NOT BETWEEN 1 AND 200
       OR length(coalesce(p_agent ->> 'host', '')) NOT BETWEEN 1 AND 300
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
    AND last_heartbeat_at > clock_timestamp() - v_settings.agent_alive
  LIMIT 1;
  IF FOUND THEN
    PERFORM tendril.refuse('PT409', 'agent_name_taken',
      format('the name %s is in use by another agent of this cluster, on %s, which was heard of %s s ago', to_json(v_other.name), v_other.host,
             round(extract(epoch FROM clock_timestamp() - v_other.last_heartbeat_at))),
      'give this agent another name, or stop the other one');
  END IF;
  SELECT * INTO v_other FROM public.agents
  WHERE cluster_id = v_cluster.id AND instance_id = v_instance AND host <> p_agent ->> 'host'
    AND last_heartbeat_at > clock_timestamp() - v_settings.agent_alive;
  IF FOUND THEN
    PERFORM tendril.refuse('PT409', 'agent_instance_elsewhere',
      format('this agent''s data directory is in use on %s, where it was heard of %s s ago', v_other.host,
             round(extract(epoch FROM clock_timestamp() - v_other.last_heartbeat_at))),
      'a data directory belongs to one agent: do not copy it; start this one with an empty one');
  END IF;

  IF EXISTS (SELECT FROM public.agents WHERE cluster_id = v_cluster.id AND instance_id = v_instance AND v_boot = ANY (past_boots)) THEN
    PERFORM tendril.refuse('PT409', 'agent_superseded', 'this agent was started again since; this earlier start of it may do nothing more');
  END IF;

  INSERT INTO public.agents AS a (org_id, cluster_id, instance_id, boot_id, name, host, version, contract, slots)
  VALUES (v_cluster.org_id, v_cluster.id, v_instance, v_boot, p_agent ->> 'name', p_agent ->> 'host',
          p_agent ->> 'version', (p_agent ->> 'contract')::int, (p_agent ->> 'slots')::int)
  ON CONFLICT (cluster_id, instance_id) DO UPDATE
  SET past_boots = CASE WHEN a.boot_id = EXCLUDED.boot_id THEN a.past_boots ELSE (a.boot_id || a.past_boots)[1:20] END,
      boot_id = EXCLUDED.boot_id, name = EXCLUDED.name, host = EXCLUDED.host, version = EXCLUDED.version,
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

-- Renews first, then reaps others: an agent that comes back in time, however
-- late, keeps what it has. Nothing here raises after reaping.
-- +goose StatementBegin
CREATE FUNCTION public.agent_heartbeat(p_token_hash text, p_instance uuid, p_boot uuid, p_claims uuid[]) RETURNS jsonb
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
    'cancel', coalesce(jsonb_agg(c.id) FILTER (WHERE c.cancel_requested_at IS NOT NULL AND c.state <> 'ended'), '[]'),
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

-- Claims at most one provision: the head of the most urgent workspace that is
-- idle, not held, not locked, and not at home elsewhere.
-- +goose StatementBegin
CREATE FUNCTION public.fetch_next_provision(p_token_hash text, p_instance uuid, p_boot uuid, p_claim_id uuid)
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

    INSERT INTO tendril.claims (id, provision_id, workspace_id, cluster_id, instance_id, boot_id, host, lease_until)
    VALUES (p_claim_id, v_workspace.head_id, v_workspace.id, v_cluster.id, p_instance, p_boot, v_agent.host,
            clock_timestamp() + (SELECT lease FROM tendril.settings))
    RETURNING * INTO v_claim;
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

-- +goose StatementBegin
CREATE FUNCTION tendril.claim_lost(p_claim uuid, p_why text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.refuse('PT409', 'claim_lost', format('claim %s %s', p_claim, p_why));
END $$;
-- +goose StatementEnd

-- Stores chunks p_first_chunk, p_first_chunk + 1, … of a claim and returns the
-- number expected next. Numbers below that are there already and are ignored;
-- above it there is a gap, and nothing is stored.
-- +goose StatementBegin
CREATE FUNCTION public.insert_provision_log(p_token_hash text, p_claim_id uuid, p_first_chunk bigint, p_chunks jsonb) RETURNS bigint
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
    IF v_claim.ended_at < clock_timestamp() - (SELECT late_log FROM tendril.settings) THEN
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

-- What a run says about itself while it goes on. The caller holds the locks.
-- +goose StatementBegin
CREATE FUNCTION tendril.record_progress(p_claim tendril.claims, p_provision public.provisions, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_stage     text := p_detail ->> 'stage';
  v_commit    text := p_detail ->> 'commit';
  v_repo      text := tendril.plain_repo(p_provision.config_snapshot -> 'template_source' ->> 'repo');
  v_path      text := tendril.plain_path(p_provision.config_snapshot -> 'template_source' ->> 'path');
  v_version   text := p_provision.config_snapshot -> 'template_source' ->> 'version';
  v_pinned    text;
  v_workspace public.workspaces;
BEGIN
  -- The apply acknowledgement: Terraform applies only after this has said yes.
  IF v_stage = 'apply' AND p_claim.apply_begun_at IS NULL THEN
    IF p_provision.operation = 'plan' THEN
      PERFORM tendril.refuse('PT409', 'operation_refused', 'a plan is not applied');
    ELSIF coalesce(v_commit, p_provision.resolved_commit) IS NULL THEN
      PERFORM tendril.refuse('PT409', 'commit_missing', 'no commit is recorded for this provision, so neither its pin nor its workspace was checked',
        'report the commit first');
    ELSIF p_claim.cancel_requested_at IS NOT NULL THEN
      PERFORM tendril.refuse('PT409', 'cancel_requested', 'the provision is to be cancelled; apply must not begin');
    ELSIF p_claim.lease_until < clock_timestamp() THEN
      PERFORM tendril.refuse('PT503', 'lease_expired', 'the claim''s lease has run out; apply must not begin', 'send a heartbeat, then ask again');
    END IF;
    UPDATE tendril.claims SET apply_begun_at = clock_timestamp() WHERE id = p_claim.id;
  END IF;

  IF v_commit IS NOT NULL THEN
    INSERT INTO public.template_pins (org_id, repo, version, commit)
    VALUES (p_provision.org_id, v_repo, v_version, v_commit)
    ON CONFLICT (org_id, repo, version) DO NOTHING;
    SELECT commit INTO STRICT v_pinned FROM public.template_pins
    WHERE org_id = p_provision.org_id AND repo = v_repo AND version = v_version;
    IF v_pinned <> v_commit THEN
      PERFORM tendril.refuse('PT409', 'tag_moved',
        format('%s of %s was %s when it was first used and is %s now', v_version, v_repo, v_pinned, v_commit),
        'give the new commit a new tag, or deploy the full commit');
    END IF;
    SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE id = p_claim.workspace_id;
    PERFORM tendril.check_binding(v_workspace, v_repo, v_path);
    UPDATE public.workspaces SET repo = v_repo, path = v_path WHERE id = v_workspace.id AND repo IS NULL;
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

  IF v_stage IS NOT NULL OR p_detail ? 'percent' THEN
    UPDATE tendril.claims SET stage = v_stage WHERE id = p_claim.id AND v_stage IS NOT NULL;
    UPDATE public.provision_progress
    SET stage = coalesce(v_stage, stage), percent = coalesce((p_detail ->> 'percent')::smallint, percent), updated_at = clock_timestamp()
    WHERE provision_id = p_provision.id;
    IF v_stage IS NOT NULL AND v_stage IS DISTINCT FROM p_claim.stage THEN
      INSERT INTO public.provision_events (provision_id, org_id, kind, at, detail)
      VALUES (p_provision.id, p_provision.org_id, 'stage', clock_timestamp(), jsonb_build_object('stage', v_stage));
      PERFORM pg_notify('tendril_provision', p_provision.id::text);
    END IF;
  END IF;

  INSERT INTO public.provision_events (provision_id, org_id, kind, at, detail)
  SELECT p_provision.id, p_provision.org_id, e ->> 'kind', (e ->> 'at')::timestamptz, e - 'kind' - 'at'
  FROM jsonb_array_elements(p_detail -> 'events') e;

  UPDATE public.provisions
  SET resolved_commit = coalesce(v_commit, resolved_commit),
      engine          = coalesce(p_detail ->> 'engine', engine),
      engine_version  = coalesce(p_detail ->> 'engine_version', engine_version),
      plan_summary    = coalesce(p_detail -> 'plan', plan_summary),
      -- Whatever the agent sends: the value of a sensitive output is not stored.
      outputs         = coalesce((SELECT jsonb_object_agg(o.key, CASE WHEN (o.value ->> 'sensitive')::boolean THEN o.value - 'value' ELSE o.value END)
                                  FROM jsonb_each(p_detail -> 'outputs') o), outputs)
  WHERE id = p_provision.id AND p_detail ?| ARRAY['commit', 'engine', 'engine_version', 'plan', 'outputs'];
END $$;
-- +goose StatementEnd

-- Stores progress (p_status PROCESSING) or the end of a run.
-- +goose StatementBegin
CREATE FUNCTION public.update_provision_status(p_token_hash text, p_claim_id uuid, p_status text, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster   public.clusters := tendril.authenticate(p_token_hash);
  v_detail    jsonb := coalesce(p_detail, '{}');
  v_workspace uuid;
  v_claim     tendril.claims;
  v_provision public.provisions;
BEGIN
  IF p_status IS NULL OR p_status NOT IN ('PROCESSING', 'SUCCESS', 'FAILED', 'CANCELLED') THEN
    PERFORM tendril.refuse('PT422', 'bad_status', format('p_status: %s is not PROCESSING, SUCCESS, FAILED or CANCELLED', coalesce(to_json(p_status)::text, 'missing')));
  ELSIF jsonb_typeof(v_detail) <> 'object' THEN
    PERFORM tendril.refuse('PT422', 'bad_detail', 'p_detail must be an object');
  ELSIF octet_length(v_detail::text) > 1048576 THEN
    PERFORM tendril.refuse('PT413', 'detail_too_large', format('p_detail has %s bytes, more than the 1048576 allowed', octet_length(v_detail::text)));
  END IF;

  SELECT workspace_id INTO v_workspace FROM tendril.claims WHERE id = p_claim_id AND cluster_id = v_cluster.id;
  IF NOT FOUND THEN
    PERFORM tendril.claim_lost(p_claim_id, 'is not known here');
  END IF;
  -- Progress leaves the workspace alone, but for what binds it.
  IF p_status <> 'PROCESSING' OR v_detail ?| ARRAY['commit', 'local_state'] THEN
    PERFORM FROM public.workspaces WHERE id = v_workspace FOR NO KEY UPDATE;
  END IF;
  SELECT * INTO STRICT v_claim FROM tendril.claims WHERE id = p_claim_id FOR NO KEY UPDATE;
  SELECT * INTO STRICT v_provision FROM public.provisions WHERE id = v_claim.provision_id FOR NO KEY UPDATE;

  IF p_status <> 'PROCESSING' AND v_claim.state = 'ended' AND v_provision.status = p_status
     AND v_provision.error_code IS NOT DISTINCT FROM v_detail ->> 'error_code' THEN
    RETURN; -- a repeat after a lost reply
  ELSIF p_status = 'PROCESSING' AND v_claim.state = 'running' AND (v_detail ->> 'n')::bigint <= v_claim.last_report THEN
    RETURN; -- likewise: reports are numbered, and come in order
  ELSIF v_claim.state = 'ended' THEN
    PERFORM tendril.claim_lost(p_claim_id, format('has ended: the provision is %s', v_provision.status));
  ELSIF v_claim.state = 'lost' THEN
    IF p_status = 'PROCESSING' THEN
      PERFORM tendril.claim_lost(p_claim_id, 'has lost its lease');
    ELSIF v_provision.status <> 'FAILED' OR v_provision.error_code IS DISTINCT FROM 'agent_lost'
          OR EXISTS (SELECT FROM tendril.claims c WHERE c.workspace_id = v_workspace AND c.number > v_claim.number) THEN
      PERFORM tendril.claim_lost(p_claim_id, 'has lost its lease, and the workspace has been used since');
    END IF;
  END IF;

  IF v_detail ? 'n' THEN
    UPDATE tendril.claims SET last_report = (v_detail ->> 'n')::bigint WHERE id = p_claim_id;
  END IF;
  PERFORM tendril.record_progress(v_claim, v_provision, v_detail);
  IF p_status <> 'PROCESSING' AND v_claim.state = 'running' AND v_provision.status <> 'PROCESSING' THEN
    -- Somebody has set another status by hand: it stays, and the run is over.
    PERFORM tendril.system_line(v_provision.id, format('The agent on %s reported %s; the provision had been set to %s.', v_claim.host, p_status, v_provision.status));
    PERFORM tendril.end_claim(p_claim_id, v_workspace);
  ELSIF p_status <> 'PROCESSING' THEN
    IF v_claim.state = 'lost' THEN
      PERFORM tendril.system_line(v_provision.id, format('The agent on %s reported after all: %s.', v_claim.host, p_status));
    END IF;
    PERFORM tendril.end_provision(v_provision.id, p_status, v_detail ->> 'error_code', left(v_detail ->> 'error_message', 16384));
    PERFORM tendril.end_claim(p_claim_id, v_workspace);
  END IF;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
  WHEN data_exception OR check_violation OR not_null_violation THEN
    PERFORM tendril.refuse('PT422', 'bad_detail', format('p_detail cannot be stored: %s', SQLERRM));
END $$;
-- +goose StatementEnd

-- At an agent's start, after it has delivered what its children left behind and
-- none of them lives: ends what earlier boots of this instance on this host
-- left without a result.
-- +goose StatementBegin
CREATE FUNCTION public.fail_orphaned_provisions(p_token_hash text, p_instance uuid, p_boot uuid) RETURNS SETOF uuid
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
  FOR v_candidate IN
    SELECT c.id, c.workspace_id FROM tendril.claims c
    WHERE c.instance_id = p_instance AND c.cluster_id = v_cluster.id AND c.state <> 'ended' AND c.boot_id <> p_boot AND c.host = v_agent.host
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

SELECT tendril.deny_all(ARRAY['register_agent', 'agent_heartbeat', 'fetch_next_provision', 'insert_provision_log',
                              'update_provision_status', 'fail_orphaned_provisions']);
