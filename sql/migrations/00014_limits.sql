-- How much one call, one deploy, one queue and one log may be, and how long a
-- call may wait. What is beyond a limit is refused with the limit and the size;
-- only of a log, whose agent could do nothing about it, the rest is left out.

-- +goose Up

SELECT tendril.lock_tables('tendril.settings, tendril.log_heads');
ALTER TABLE tendril.settings
  -- The most that is kept of one provision's log, in bytes. An agent keeps 64 MiB
  -- by itself, and a provision that awaits approval has a run before it and one
  -- after: so what an agent sends fits, unless its run.log_limit is set higher.
  ADD COLUMN log_limit   bigint NOT NULL DEFAULT 256 * 1024 * 1024 CHECK (log_limit > 0),
  -- The most provisions that people may have queued in one workspace.
  ADD COLUMN queue_limit int    NOT NULL DEFAULT 1000 CHECK (queue_limit > 0);
-- Whether the log has reached its limit.
ALTER TABLE tendril.log_heads ADD COLUMN cut boolean NOT NULL DEFAULT false;

-- A call that hangs is ended by the server before its agent gives it up. Only
-- for who logs in as this very role: members have to be given it themselves.
-- +goose StatementBegin
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_db_role_setting WHERE setrole = 'tendril_agent'::regrole AND setdatabase = 0) THEN
    ALTER ROLE tendril_agent SET statement_timeout = '15s';
  END IF;
EXCEPTION
  -- Somebody else made the role; or another database of the server migrates now.
  WHEN insufficient_privilege OR unique_violation OR internal_error THEN NULL;
END $$;
-- +goose StatementEnd

-- Whether a number in it is vast: 1e131071 takes ten bytes as JSON and 131 KB
-- written out, so a few of them fill the memory of whoever reads the row.
-- +goose StatementBegin
CREATE FUNCTION tendril.has_vast_number(p_json jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  -- Zero is looked at as well, for 0e-16383 is one. As one array, for
  -- jsonb_path_query moves all that is left with each row that it returns.
  RETURN EXISTS (SELECT FROM jsonb_array_elements(jsonb_path_query_array(p_json,
                   'strict $.** ? (@.type() == "number" && !(@ > 1e-400 && @ < 1e400 || @ < -1e-400 && @ > -1e400))')) n
                 WHERE scale(n::numeric) > 400 OR abs(n::numeric) >= 1e400);
END $$;
-- +goose StatementEnd

-- As before, and: priority, what is queued already and vast numbers are checked
-- here, for a constraint would show the row, and with it its variables, in the
-- server's log. The columns of an approval begin empty.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.accept_deploy() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_org       uuid;
  v_problems  text[];
  v_workspace public.workspaces;
  v_repo      text;
  v_path      text;
  v_person    boolean := tendril.is_person();
  v_most      int;
BEGIN
  -- First who asks, and one answer for "no such cluster" and "not yours":
  -- WITH CHECK runs only after triggers, and an error text must not tell a
  -- stranger what exists.
  -- Nor must the time that the answer takes: memberships are looked up for both.
  SELECT org_id INTO v_org FROM public.clusters WHERE id = NEW.cluster_id;
  IF NOT tendril.may_act(v_org, 'operator') OR v_org IS NULL THEN
    PERFORM tendril.refuse('PT404', 'cluster_not_found',
      format('there is no cluster %s that you may deploy to', NEW.cluster_id),
      'check the id, and that you are an operator of its organisation');
  END IF;

  IF tendril.has_vast_number(NEW.config_snapshot) THEN
    PERFORM tendril.refuse('PT422', 'bad_snapshot', 'config_snapshot: a number in it is larger than 1e400 or has more than 400 digits after the point');
  END IF;
  v_problems := tendril.snapshot_problems(NEW.config_snapshot);
  IF v_problems <> '{}' THEN
    -- Each unknown name is one: of a large snapshot they fill the server's log.
    PERFORM tendril.refuse('PT422', 'bad_snapshot', array_to_string(v_problems[1:20], E'\n')
      || CASE WHEN cardinality(v_problems) > 20 THEN format(E'\n(%s more)', cardinality(v_problems) - 20) ELSE '' END);
  ELSIF NEW.id IS NULL THEN
    PERFORM tendril.refuse('PT422', 'bad_id', 'id: null; leave it out, or give a UUID');
  ELSIF coalesce(NEW.priority, 0) NOT BETWEEN -100 AND 100 THEN
    PERFORM tendril.refuse('PT422', 'bad_priority', format('priority: %s is not between -100 and 100', NEW.priority));
  END IF;

  -- SQL alone makes workspaces; their state is keyed by the id.
  INSERT INTO public.workspaces (org_id, cluster_id, name)
  VALUES (v_org, NEW.cluster_id, tendril.snapshot_workspace(NEW.config_snapshot))
  ON CONFLICT (cluster_id, name) DO NOTHING;
  -- The lock makes whoever ends a run here see this row, or wait for it.
  SELECT * INTO STRICT v_workspace FROM public.workspaces
  WHERE cluster_id = NEW.cluster_id AND name = tendril.snapshot_workspace(NEW.config_snapshot)
  FOR NO KEY UPDATE;

  v_repo := tendril.plain_repo(NEW.config_snapshot -> 'template_source' ->> 'repo');
  v_path := tendril.plain_path(NEW.config_snapshot -> 'template_source' ->> 'path');
  PERFORM tendril.check_binding(v_workspace, v_repo, v_path);

  IF v_person THEN
    -- A script, or a model, that deploys in a loop stops here.
    v_most := (SELECT queue_limit FROM tendril.settings);
    -- In the order of the queue's index, so that no plan reads another one.
    PERFORM FROM public.provisions WHERE workspace_id = v_workspace.id AND status = 'QUEUED'
    ORDER BY priority DESC, number OFFSET v_most - 1 LIMIT 1;
    IF FOUND THEN
      PERFORM tendril.refuse('PT429', 'queue_full',
        format('%s provisions are queued in workspace %s, which is the most', v_most, to_json(v_workspace.name)),
        'cancel what is not needed, or wait until some of it has run');
    END IF;
  END IF;

  NEW.org_id       := v_org;
  NEW.workspace_id := v_workspace.id;
  NEW.status       := 'QUEUED';
  NEW.priority     := coalesce(NEW.priority, 0);
  NEW.created_at   := now();
  IF v_person OR NEW.requested_by IS NULL THEN
    NEW.requested_by := tendril.current_user_id();
  END IF;
  NEW.resolved_commit := NULL; NEW.engine := NULL; NEW.engine_version := NULL;
  NEW.plan_summary := NULL; NEW.outputs := NULL; NEW.error_code := NULL; NEW.error_message := NULL;
  NEW.started_at := NULL; NEW.finished_at := NULL;
  NEW.cancel_requested_at := NULL; NEW.cancel_requested_by := NULL;
  NEW.plan_digest := NULL; NEW.approved_plan := NULL; NEW.approved_at := NULL; NEW.approved_by := NULL;
  RETURN NEW;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
  WHEN program_limit_exceeded THEN
    PERFORM tendril.refuse('PT422', 'bad_snapshot', format('config_snapshot: %s', SQLERRM));
END $$;
-- +goose StatementEnd

-- As before, and: for lines of an agent's there is the limit. Null: the log has
-- reached it, and nothing was given out. Asked here, where the head is read anyway.
DROP FUNCTION tendril.take_seq(uuid, int, bigint);
-- +goose StatementBegin
CREATE FUNCTION tendril.take_seq(p_provision uuid, p_count int, p_bytes bigint, p_within boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_head record;
  v_most record;
  v_now  timestamptz;
BEGIN
  SELECT next_seq, notified_at, bytes, cut INTO v_head FROM tendril.log_heads WHERE provision_id = p_provision FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    INSERT INTO tendril.log_heads (provision_id, org_id)
    SELECT id, org_id FROM public.provisions WHERE id = p_provision
    ON CONFLICT (provision_id) DO NOTHING;
    SELECT next_seq, notified_at, bytes, cut INTO v_head FROM tendril.log_heads WHERE provision_id = p_provision FOR NO KEY UPDATE;
  END IF;
  SELECT log_notify, log_limit INTO v_most FROM tendril.settings;
  IF p_within AND (v_head.cut OR v_head.bytes + p_bytes > v_most.log_limit) THEN
    RETURN NULL;
  END IF;
  v_now := clock_timestamp();
  IF v_head.notified_at <= v_now - v_most.log_notify OR v_head.notified_at > v_now THEN
    PERFORM pg_notify('tendril_provision', p_provision::text);
    v_head.notified_at := v_now;
  END IF;
  UPDATE tendril.log_heads SET next_seq = v_head.next_seq + p_count, bytes = bytes + p_bytes, notified_at = v_head.notified_at
  WHERE provision_id = p_provision;
  RETURN v_head.next_seq;
END $$;
-- +goose StatementEnd

-- What of a log is kept once its limit is reached: the database's and the
-- agent's own words, SYSTEM lines, for another MiB. The rest is passed over, and
-- one line says so. The agent is not told: it could do nothing but ask again.
-- +goose StatementBegin
CREATE FUNCTION tendril.store_beyond_limit(p_claim tendril.claims, p_org uuid, p_chunks jsonb, p_skip bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_stored bigint;
  v_cut    boolean;
  v_limit  bigint := (SELECT log_limit FROM tendril.settings);
  v_chunk  record;
  v_weight int;
BEGIN
  -- take_seq() has locked it.
  SELECT bytes, cut INTO STRICT v_stored, v_cut FROM tendril.log_heads WHERE provision_id = p_claim.provision_id;
  FOR v_chunk IN
    SELECT t.stream, t.text, t.at
    FROM ROWS FROM (jsonb_to_recordset(p_chunks) AS (stream text, text text, at timestamptz)) WITH ORDINALITY AS t (stream, text, at, ord)
    WHERE t.ord > p_skip ORDER BY t.ord
  LOOP
    v_weight := greatest(octet_length(v_chunk.text), 16);
    IF (CASE v_chunk.stream WHEN 'SYSTEM' THEN v_stored + v_weight <= v_limit + 1048576
                            ELSE NOT v_cut AND v_stored + v_weight <= v_limit END) THEN
      INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at)
      VALUES (p_claim.provision_id, tendril.take_seq(p_claim.provision_id, 1, v_weight), p_org, v_chunk.stream, v_chunk.text, v_chunk.at);
      v_stored := v_stored + v_weight;
    ELSIF NOT v_cut THEN
      PERFORM tendril.system_line(p_claim.provision_id, format(
        'This log has reached %s, the most that the database keeps of one (tendril.settings.log_limit). What is printed from here on is left out.', pg_size_pretty(v_limit)));
      UPDATE tendril.log_heads SET cut = true WHERE provision_id = p_claim.provision_id;
      v_cut := true;
    END IF;
  END LOOP;
END $$;
-- +goose StatementEnd

-- As before, and: a log that has reached its limit takes no more text. Then, too,
-- the chunks count as stored: the run goes on, and its end is told after them. A
-- short line counts as 16 bytes, for its row takes more than that.
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
  v_weight  bigint;
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
         bool_or(c.text IS NULL OR c.at IS NULL OR c.stream IS NULL OR c.stream NOT IN ('STDOUT', 'STDERR', 'SYSTEM')),
         sum(greatest(octet_length(c.text), 16))
  INTO v_bytes, v_largest, v_bad, v_weight
  FROM jsonb_to_recordset(p_chunks) AS c (stream text, text text, at timestamptz);
  IF v_bad THEN
    PERFORM tendril.refuse('PT422', 'bad_chunks', 'each chunk needs text, at (a time) and stream (STDOUT, STDERR or SYSTEM)');
  ELSIF v_largest > 65536 OR v_bytes > 1048576 THEN
    PERFORM tendril.refuse('PT413', 'chunks_too_large',
      format('the largest chunk has %s bytes (65536 allowed), the call %s (1048576 allowed)', v_largest, v_bytes));
  END IF;

  v_seq := tendril.take_seq(v_claim.provision_id, (v_count - v_skip)::int, v_weight, p_within => true);
  IF v_seq IS NULL THEN
    PERFORM tendril.store_beyond_limit(v_claim, v_cluster.org_id, p_chunks, v_skip);
  ELSE
    INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at)
    SELECT v_claim.provision_id, v_seq + t.ord - 1 - v_skip, v_cluster.org_id, t.stream, t.text, t.at
    FROM ROWS FROM (jsonb_to_recordset(p_chunks) AS (stream text, text text, at timestamptz)) WITH ORDINALITY AS t (stream, text, at, ord)
    WHERE t.ord > v_skip;
  END IF;
  UPDATE tendril.claims SET next_chunk = p_first_chunk + v_count WHERE id = p_claim_id;
  RETURN p_first_chunk + v_count;
EXCEPTION
  WHEN data_exception THEN
    PERFORM tendril.refuse('PT422', 'bad_chunks', format('p_chunks cannot be stored: %s', left(SQLERRM, 500)));
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- As before, and: labels have a limit, the key is one, and who waits for a lock is told
-- to try again.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION public.create_cluster(p_name text, p_org uuid DEFAULT NULL, p_labels jsonb DEFAULT '{}', p_age_public_key text DEFAULT NULL)
RETURNS TABLE (cluster_id uuid, token_id uuid, token text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_orgs    uuid[];
  v_cluster uuid;
BEGIN
  IF p_org IS NULL THEN
    IF tendril.is_person() THEN
      v_orgs := tendril.orgs_with_role('admin');
    ELSE
      v_orgs := ARRAY(SELECT id FROM public.orgs);
    END IF;
    IF cardinality(v_orgs) <> 1 THEN
      PERFORM tendril.refuse('PT422', 'org_missing', format('p_org: say which organisation; you are admin of %s', cardinality(v_orgs)));
    END IF;
    p_org := v_orgs[1];
  ELSIF NOT tendril.may_act(p_org, 'admin') OR NOT EXISTS (SELECT FROM public.orgs WHERE id = p_org) THEN
    PERFORM tendril.refuse('PT404', 'org_not_found', format('there is no organisation %s where you are admin', p_org));
  END IF;
  IF tendril.has_vast_number(p_labels) OR octet_length(p_labels::text) > 8192 THEN
    PERFORM tendril.refuse('PT422', 'bad_cluster', 'p_labels: more than the 8192 bytes allowed');
  ELSIF p_age_public_key !~ tendril.age_key_pattern() THEN
    PERFORM tendril.refuse('PT422', 'bad_cluster', 'p_age_public_key: no age recipient (age1…)');
  END IF;

  INSERT INTO public.clusters (org_id, name, labels, age_public_key, created_by)
  VALUES (p_org, p_name, coalesce(p_labels, '{}'), p_age_public_key, tendril.current_user_id())
  RETURNING id INTO v_cluster;
  PERFORM tendril.audit(p_org, 'create_cluster', 'cluster', v_cluster, jsonb_build_object('name', p_name));
  RETURN QUERY SELECT v_cluster, t.token_id, t.token FROM tendril.issue_token(v_cluster) t;
EXCEPTION
  WHEN unique_violation THEN
    PERFORM tendril.refuse('PT409', 'cluster_exists', format('there is a cluster named %s already', to_json(p_name)), 'choose another name');
  WHEN check_violation OR not_null_violation THEN
    PERFORM tendril.refuse('PT422', 'bad_cluster', 'p_name: 1 to 63 letters, digits and . _ - are needed; p_labels must be an object');
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- As before, and: a table that is locked (by a migration) is PT503 here as well.
-- Callers have these in their DECLARE, which their own EXCEPTION does not cover.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.authenticate(p_token_hash text) RETURNS public.clusters
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
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

CREATE OR REPLACE FUNCTION tendril.current_agent(p_cluster uuid, p_instance uuid, p_boot uuid) RETURNS public.agents
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_agent public.agents;
BEGIN
  SELECT * INTO v_agent FROM public.agents WHERE cluster_id = p_cluster AND instance_id = p_instance;
  IF v_agent.id IS NULL THEN
    PERFORM tendril.refuse('PT409', 'agent_unregistered', 'this agent is not registered', 'call register_agent first');
  ELSIF v_agent.boot_id IS DISTINCT FROM p_boot THEN
    PERFORM tendril.refuse('PT409', 'agent_superseded',
      format('agent %s was started again on %s; this earlier start of it may do nothing more', to_json(v_agent.name), v_agent.host));
  END IF;
  RETURN v_agent;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

CREATE OR REPLACE FUNCTION tendril.caller(p_token_hash text, p_instance uuid, p_boot uuid,
  OUT cluster_id uuid, OUT paused_at timestamptz, OUT last_seen_at timestamptz, OUT agent_id uuid, OUT host text, OUT directory text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  v_digest bytea;
BEGIN
  IF p_token_hash ~ '^[0-9a-f]{64}$' THEN
    v_digest := sha256(decode(p_token_hash, 'hex'));
    SELECT c.id, c.paused_at, c.last_seen_at, a.id, a.host, a.directory
    INTO cluster_id, paused_at, last_seen_at, agent_id, host, directory
    FROM tendril.cluster_tokens t
    JOIN public.clusters c ON c.id = t.cluster_id
    JOIN public.agents a ON a.cluster_id = c.id AND a.instance_id = p_instance AND a.boot_id = p_boot
    WHERE t.digest = v_digest AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp());
  END IF;
  IF agent_id IS NULL THEN
    IF p_boot IS NULL THEN
      PERFORM tendril.authenticate(p_token_hash);
      PERFORM tendril.refuse('PT422', 'bad_agent', 'p_boot: missing');
    END IF;
    PERFORM tendril.current_agent((tendril.authenticate(p_token_hash)).id, p_instance, p_boot);
    PERFORM tendril.refuse('PT503', 'busy', 'the agent was registered just now', 'try again');
  END IF;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

CREATE OR REPLACE FUNCTION tendril.cluster_for(p_cluster uuid, p_least text) RETURNS public.clusters
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_cluster public.clusters;
BEGIN
  SELECT * INTO v_cluster FROM public.clusters WHERE id = p_cluster;
  IF NOT tendril.may_act(v_cluster.org_id, p_least) OR v_cluster.id IS NULL THEN
    PERFORM tendril.refuse('PT404', 'cluster_not_found', format('there is no cluster %s where you are %s', p_cluster, p_least));
  END IF;
  RETURN v_cluster;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- As before, and: claims too deep or too large for JSON are no claims either.
CREATE OR REPLACE FUNCTION tendril.current_user_id() RETURNS uuid
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (current_setting('request.jwt.claims', true)::jsonb ->> 'sub')::uuid;
EXCEPTION
  WHEN data_exception OR program_limit_exceeded THEN RETURN NULL;
END $$;
-- +goose StatementEnd

SELECT tendril.deny_all('{}');

NOTIFY pgrst, 'reload schema';
