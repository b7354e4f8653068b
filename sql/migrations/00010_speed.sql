-- What is asked for most often, made cheap: polls and heartbeats of idle
-- agents, claims, and lines. Nothing that they mean has changed.

-- +goose Up

-- All locks at once, or none: the functions that run meanwhile take them in
-- orders of their own, and who reads for long (a dump) must not have every agent
-- queue behind us.
-- +goose StatementBegin
DO $$
BEGIN
  PERFORM set_config('lock_timeout', '200ms', true);
  FOR i IN 1..150 LOOP
    BEGIN
      LOCK TABLE public.clusters, public.agents, public.workspaces, tendril.claims, public.provisions, public.provision_logs, public.resources
        IN ACCESS EXCLUSIVE MODE;
      PERFORM set_config('lock_timeout', '0', true);
      RETURN;
    EXCEPTION WHEN lock_not_available THEN
      PERFORM pg_sleep(0.1);
    END;
  END LOOP;
  RAISE EXCEPTION 'the tables could not be locked within 45 seconds: a transaction that has been open for long reads or writes them'
    USING HINT = 'find it in pg_stat_activity (xact_start) and end it, then migrate again';
END $$;
-- +goose StatementEnd

-- A plan is kept, and a partial index that is empty when it is made looks
-- cheaper than any other, the primary key included. It is read from end to end
-- when it has grown: every running claim by each heartbeat, the whole queue by
-- each claim. So no condition may imply the predicate of an index that is not
-- meant, which = and <> do, and CASE does not.
DROP INDEX tendril.claims_instance;
DROP INDEX tendril.claims_one_running;
-- Whatever else goes wrong: never two at once on a workspace.
CREATE UNIQUE INDEX claims_one_running ON tendril.claims (workspace_id) WHERE CASE state WHEN 'running' THEN true ELSE false END;

-- The one agent instance that may run a workspace; all zeros: any. Where the
-- state's file is on one and an unsaved state on another, neither may: all f.
ALTER TABLE public.workspaces ADD COLUMN only_instance uuid NOT NULL GENERATED ALWAYS AS (
  CASE WHEN home_instance <> unsaved_state_on THEN 'ffffffff-ffff-ffff-ffff-ffffffffffff'
       ELSE coalesce(home_instance, unsaved_state_on, '00000000-0000-0000-0000-000000000000') END) STORED;

ALTER TABLE public.agents ADD CONSTRAINT agents_instance_is_one
  CHECK (instance_id NOT IN ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff')) NOT VALID;

-- So that nobody reads past what is not for them.
DROP INDEX public.workspaces_runnable;
CREATE INDEX workspaces_runnable ON public.workspaces (cluster_id, only_instance, head_priority DESC, head_number)
  WHERE head_id IS NOT NULL AND running_claim IS NULL AND held_by_claim IS NULL AND locked_at IS NULL;

-- Keys that begin with the time they were made (version 7 of RFC 9562): what is
-- made together lies together, so a claim finds its pages in memory and changes
-- few of them. Agents make the ids of claims likewise.
ALTER TABLE public.provisions ALTER COLUMN id SET DEFAULT (
  lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid;
ALTER TABLE public.workspaces ALTER COLUMN id SET DEFAULT (
  lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid;

-- Deleting a provision looks for what refers to it and to its claims: without
-- these it reads every workspace and resource, for each.
CREATE INDEX workspaces_running_claim ON public.workspaces (running_claim) WHERE running_claim IS NOT NULL;
CREATE INDEX workspaces_held_by_claim ON public.workspaces (held_by_claim) WHERE held_by_claim IS NOT NULL;
CREATE INDEX workspaces_reserved_by   ON public.workspaces (reserved_by)   WHERE reserved_by IS NOT NULL;
CREATE INDEX resources_provision      ON public.resources (provision_id);

-- Each heartbeat writes a row anew; with room on its page no index need know.
ALTER TABLE public.agents   SET (fillfactor = 50);
ALTER TABLE public.clusters SET (fillfactor = 50);
-- Every claim and every end leaves a dead entry where the next claim begins to
-- read.
ALTER TABLE public.workspaces SET (autovacuum_vacuum_scale_factor = 0.02);

-- lz4 compresses a log as well as the default does, in a fraction of the time.
-- A server may have been built without it. What is stored stays as it is.
-- +goose StatementBegin
DO $$
BEGIN
  ALTER TABLE public.provision_logs ALTER COLUMN log_chunk SET COMPRESSION lz4;
  ALTER TABLE public.provisions ALTER COLUMN config_snapshot SET COMPRESSION lz4;
EXCEPTION
  WHEN feature_not_supported THEN
    RAISE NOTICE 'this server compresses logs by pglz: it was built without lz4';
END $$;
-- +goose StatementEnd

-- Who calls: the agent and its cluster, read at once. authenticate() and
-- current_agent() say what is wrong, if something is.
-- +goose StatementBegin
CREATE FUNCTION tendril.caller(p_token_hash text, p_instance uuid, p_boot uuid,
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
END $$;
-- +goose StatementEnd

-- As before, in fewer steps: who finds nothing has locked nothing, so an empty
-- poll writes nothing either.
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
  v_caller    record := tendril.caller(p_token_hash, p_instance, p_boot);
  v_claim     tendril.claims;
  v_workspace public.workspaces;
  v_found     public.workspaces;
  v_group     record;
  v_passed    uuid;
  v_provision uuid;
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
      PERFORM FROM public.agents WHERE id = v_caller.agent_id AND boot_id = p_boot FOR SHARE;
      IF NOT FOUND THEN
        PERFORM tendril.current_agent(v_caller.cluster_id, p_instance, p_boot);
        PERFORM tendril.refuse('PT503', 'busy', 'the agent was registered just now', 'try again');
      END IF;
      SELECT * INTO v_found FROM public.workspaces w
      WHERE w.cluster_id = v_caller.cluster_id AND w.only_instance = v_group.only_instance
        AND w.head_id IS NOT NULL AND w.running_claim IS NULL AND w.held_by_claim IS NULL AND w.locked_at IS NULL
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
            AND t.version = p.config_snapshot -> 'template_source' ->> 'version')
  FROM public.provisions p JOIN public.workspaces w ON w.id = p.workspace_id WHERE p.id = v_provision;
EXCEPTION
  -- unique_violation: the same claim id, of a call that is not committed yet.
  WHEN lock_not_available OR unique_violation THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- As before, in fewer steps: without claims there is nothing to renew, and
-- reap() is called only when it has something to do. Claims are found by their ids
-- alone.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION public.agent_heartbeat(p_token_hash text, p_instance uuid, p_boot uuid, p_claims uuid[]) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_caller  record := tendril.caller(p_token_hash, p_instance, p_boot);
  v_now     timestamptz;
  v_at      record;
  v_running uuid[];
  v_cancel  uuid[];
  v_reaped  int := 0;
  v_alone   boolean := pg_current_xact_id_if_assigned() IS NULL;
BEGIN
  IF cardinality(p_claims) > 1000 THEN
    PERFORM tendril.refuse('PT413', 'too_many_claims', format('%s claims in one heartbeat, more than the 1000 allowed', cardinality(p_claims)));
  END IF;
  UPDATE public.agents SET last_heartbeat_at = clock_timestamp() WHERE id = v_caller.agent_id;
  IF v_caller.last_seen_at IS NULL OR v_caller.last_seen_at < clock_timestamp() - interval '15 seconds' THEN
    -- Another agent that stamps it does as well; and register_agent locks in
    -- the other order.
    PERFORM FROM public.clusters WHERE id = v_caller.cluster_id FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE public.clusters SET last_seen_at = clock_timestamp() WHERE id = v_caller.cluster_id;
    END IF;
  END IF;

  SELECT s.lease, s.poll, s.heartbeat, s.newest_agent, p.stamped_at, p.reap_not_before,
         (SELECT c.lease_until FROM tendril.claims c WHERE c.state = 'running' ORDER BY c.lease_until LIMIT 1) AS first_lease_until
  INTO v_at FROM tendril.settings s, tendril.pulse p;

  IF p_claims <> '{}' THEN
    -- By instance, not by boot: a new boot that is still ending what the earlier
    -- one left keeps those leases alive too. In order of id, so that two never
    -- wait for each other.
    SELECT array_agg(c.id) INTO v_running
    FROM (SELECT id FROM tendril.claims
          WHERE id = ANY (p_claims) AND cluster_id = v_caller.cluster_id AND instance_id = p_instance
            AND CASE state WHEN 'running' THEN true ELSE false END
          ORDER BY id FOR NO KEY UPDATE) c;
    UPDATE tendril.claims SET lease_until = clock_timestamp() + v_at.lease WHERE id = ANY (v_running);
    -- Not locked: what is lost is somebody else's business, and must not cost
    -- the others their leases.
    SELECT array_agg(id) INTO v_cancel FROM tendril.claims
    WHERE id = ANY (p_claims) AND cluster_id = v_caller.cluster_id AND instance_id = p_instance AND cancel_requested_at IS NOT NULL;
  END IF;

  -- What is wrong with somebody else's run must not cost us our leases.
  v_now := clock_timestamp(); -- after the read: nobody has stamped later than this
  IF v_at.first_lease_until < v_now OR v_at.stamped_at NOT BETWEEN v_now - v_at.lease * 0.05 AND v_now OR v_at.reap_not_before > v_now + v_at.lease THEN
    BEGIN
      v_reaped := tendril.reap();
    EXCEPTION
      WHEN OTHERS THEN
        RAISE WARNING 'reaping failed: % (%)', SQLERRM, SQLSTATE;
    END;
  END IF;
  IF p_claims = '{}' AND v_reaped = 0 AND v_alone THEN
    -- A stamp that a crash of the server takes back is made again soon: nobody
    -- need wait until it is on the disk.
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  RETURN jsonb_build_object(
    'cancel', to_jsonb(coalesce(v_cancel, '{}')),
    'lost', to_jsonb(ARRAY(SELECT a.id FROM unnest(p_claims) a (id) WHERE a.id = ANY (v_running) IS NOT TRUE)),
    'poll_seconds', extract(epoch FROM v_at.poll),
    'heartbeat_seconds', extract(epoch FROM v_at.heartbeat),
    'newest_agent', v_at.newest_agent);
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- As before, and: the clock is read first. In the condition it was read for
-- each running claim, and so each claim was.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.reap(p_limit int DEFAULT 20) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_now       timestamptz;
  v_candidate record;
  v_count     int := 0;
BEGIN
  IF NOT tendril.beat() THEN
    RETURN 0;
  END IF;
  v_now := clock_timestamp();
  FOR v_candidate IN
    SELECT id, workspace_id FROM tendril.claims
    WHERE state = 'running' AND lease_until < v_now
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

-- As before. There is no index by instance any more: an agent starts seldom,
-- and what is open anywhere is not much.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION public.fail_orphaned_provisions(p_token_hash text, p_instance uuid, p_boot uuid, p_except uuid[] DEFAULT '{}') RETURNS SETOF uuid
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
    SELECT c.id, c.workspace_id
    FROM (SELECT * FROM tendril.claims WHERE state = 'running' UNION ALL SELECT * FROM tendril.claims WHERE state = 'lost') c
    WHERE c.instance_id = p_instance AND c.cluster_id = v_cluster.id AND c.boot_id <> p_boot AND c.host = v_agent.host AND coalesce(c.directory = v_agent.directory, true)
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

-- As before, but kept planned: a function in SQL that cannot be inlined is
-- planned anew by each statement that calls it, half of what a deploy took.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.plain_repo(p_repo text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN regexp_replace(regexp_replace(CASE
    WHEN p_repo ~ '^[a-z]+://'
      THEN regexp_replace(lower(substring(p_repo FROM '^[a-z]+://[^/]*')), '^(https://.*):443$', '\1')
           || regexp_replace(substring(p_repo FROM '^[a-z]+://[^/]*(.*)$'), '/{2,}', '/', 'g')
    ELSE lower(split_part(p_repo, ':', 1)) || ':' || substr(p_repo, strpos(p_repo, ':') + 1)
  END, '/+$', ''), '\.git$', '');
END $$;

CREATE OR REPLACE FUNCTION tendril.plain_path(p_path text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN btrim(regexp_replace(coalesce(p_path, ''), '^(\./)+', ''), '/');
END $$;

CREATE OR REPLACE FUNCTION tendril.snapshot_workspace(p_snapshot jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce(p_snapshot ->> 'workspace',
                  (p_snapshot -> 'terraform_vars' ->> 'project_name') || '/' || (p_snapshot -> 'terraform_vars' ->> 'environment'));
END $$;

CREATE OR REPLACE FUNCTION tendril.is_person() RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce((
    SELECT NOT (r.rolsuper OR r.rolbypassrls
                OR pg_has_role(r.oid, (SELECT nspowner FROM pg_namespace WHERE nspname = 'tendril'), 'MEMBER'))
    FROM pg_roles r
    WHERE r.rolname = coalesce(nullif(current_setting('role', true), 'none'), session_user)), true);
END $$;

CREATE OR REPLACE FUNCTION tendril.orgs_with_role(p_least text) RETURNS uuid[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (
    SELECT coalesce(array_agg(m.org_id), '{}')
    FROM public.org_members m
    WHERE m.user_id = tendril.current_user_id()
      AND array_position(ARRAY['viewer', 'operator', 'admin'], m.role)
          >= array_position(ARRAY['viewer', 'operator', 'admin'], p_least));
END $$;

CREATE OR REPLACE FUNCTION tendril.may_act(p_org uuid, p_least text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce(NOT tendril.is_person() OR p_org = ANY (tendril.orgs_with_role(p_least)), false);
END $$;
-- +goose StatementEnd

-- As before, found by its id alone.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.wake(p_workspace uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_workspace record;
BEGIN
  SELECT cluster_id, head_id, running_claim, held_by_claim, locked_at INTO v_workspace FROM public.workspaces WHERE id = p_workspace;
  IF v_workspace.head_id IS NOT NULL AND v_workspace.running_claim IS NULL AND v_workspace.held_by_claim IS NULL AND v_workspace.locked_at IS NULL THEN
    PERFORM pg_notify('tendril_work', v_workspace.cluster_id::text);
  END IF;
END $$;
-- +goose StatementEnd

SELECT tendril.deny_all('{}');

NOTIFY pgrst, 'reload schema';
