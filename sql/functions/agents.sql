-- Agents register and send heartbeats.

-- A heartbeat that lies in the future tells nothing. An agent that lives stamps it anew within
-- seconds; one that is gone would keep its name for as long as the clock was ahead. And host
-- is "host" or "host:directory". Age_public_key, which older agents do not send, becomes the
-- cluster's where that has none. The answer has the cluster's: another one is no reason to
-- refuse an agent, which says so in its log. An agent may say which operations its policy
-- grants.
--
-- A name is free at once when its last owner is proven dead: it was on this host, in this
-- data directory, whose lock the new agent has (p_agent.kernel is the same), or this host has
-- booted since it was heard of (p_agent.uptime_seconds).
--
-- PT429 too_many_agents: the cluster has as many as tendril.settings.agent_limit.
--
-- Locks: cluster, agent.
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
  v_key       text := p_agent ->> 'age_public_key';
  v_kernel    text := left(p_agent ->> 'kernel', 100);
  v_booted    timestamptz;
  v_granted   text[];
BEGIN
  BEGIN
    v_instance := (p_agent ->> 'instance_id')::uuid;
    v_boot     := (p_agent ->> 'boot_id')::uuid;
    IF v_instance IS NULL OR v_boot IS NULL
       OR length(coalesce(p_agent ->> 'name', '')) NOT BETWEEN 1 AND 200
       OR coalesce(v_host, '') = '' OR length(p_agent ->> 'host') > 300
       OR length(coalesce(p_agent ->> 'version', '')) NOT BETWEEN 1 AND 100
       OR coalesce((p_agent ->> 'contract')::int, 0) < 1
       OR coalesce((p_agent ->> 'slots')::int, 0) NOT BETWEEN 1 AND 64
       OR (p_agent ->> 'uptime_seconds')::double precision NOT BETWEEN 0 AND 1e10 THEN
      RAISE data_exception;
    END IF;
    v_booted := clock_timestamp() - make_interval(secs => (p_agent ->> 'uptime_seconds')::double precision);
  EXCEPTION WHEN data_exception THEN
    PERFORM tendril.refuse('PT422', 'bad_agent', 'p_agent needs instance_id and boot_id (UUIDs), name, host, version, contract (from 1) and slots (1 to 64)');
  END;
  IF v_key !~ tendril.age_key_pattern() THEN
    PERFORM tendril.refuse('PT422', 'bad_agent', 'p_agent.age_public_key: no age recipient (age1…)');
  END IF;
  IF p_agent ->> 'operations' IS NOT NULL THEN
    IF jsonb_typeof(p_agent -> 'operations') <> 'array' THEN
      PERFORM tendril.refuse('PT422', 'bad_agent', 'p_agent.operations: must be a list');
    END IF;
    v_granted := ARRAY(SELECT left(o, 40) FROM jsonb_array_elements_text(p_agent -> 'operations') o LIMIT 20);
  END IF;
  IF (p_agent ->> 'contract')::int > tendril.contract_version() THEN
    PERFORM tendril.refuse('PT426', 'contract_too_new',
      format('this agent speaks contract %s, the database only %s', p_agent ->> 'contract', tendril.contract_version()),
      'upgrade the control plane and run "trellis migrate", or use an older agent');
  END IF;
  SELECT * INTO v_settings FROM tendril.settings;

  -- One registration at a time, so that two cannot both find the name free.
  SELECT * INTO STRICT v_cluster FROM public.clusters WHERE id = v_cluster.id FOR NO KEY UPDATE;

  SELECT * INTO v_other FROM public.agents
  WHERE cluster_id = v_cluster.id AND name = p_agent ->> 'name' AND instance_id <> v_instance
    AND last_heartbeat_at BETWEEN clock_timestamp() - v_settings.agent_alive AND clock_timestamp() + v_settings.agent_alive
    AND NOT coalesce(host = v_host AND (kernel = v_kernel AND directory = v_directory OR kernel <> v_kernel AND last_heartbeat_at < v_booted), false)
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

  IF NOT EXISTS (SELECT FROM public.agents WHERE cluster_id = v_cluster.id AND instance_id = v_instance) THEN
    PERFORM tendril.check_agents(v_cluster);
  END IF;
  INSERT INTO public.agents AS a (org_id, cluster_id, instance_id, boot_id, name, host, directory, kernel, version, contract, slots, operations)
  VALUES (v_cluster.org_id, v_cluster.id, v_instance, v_boot, p_agent ->> 'name', v_host, v_directory, v_kernel,
          p_agent ->> 'version', (p_agent ->> 'contract')::int, (p_agent ->> 'slots')::int, v_granted)
  ON CONFLICT (cluster_id, instance_id) DO UPDATE
  SET past_boots = CASE WHEN a.boot_id = EXCLUDED.boot_id THEN a.past_boots ELSE (a.boot_id || a.past_boots)[1:20] END,
      boot_id = EXCLUDED.boot_id, name = EXCLUDED.name, host = EXCLUDED.host, directory = EXCLUDED.directory, kernel = EXCLUDED.kernel, version = EXCLUDED.version,
      contract = EXCLUDED.contract, slots = EXCLUDED.slots, operations = EXCLUDED.operations, registered_at = now(), last_heartbeat_at = clock_timestamp();
  UPDATE public.clusters SET last_seen_at = clock_timestamp() WHERE id = v_cluster.id;

  IF v_cluster.age_public_key IS NULL AND v_key IS NOT NULL THEN
    UPDATE public.clusters SET age_public_key = v_key WHERE id = v_cluster.id;
    PERFORM tendril.audit(v_cluster.org_id, 'set_cluster_key', 'cluster', v_cluster.id,
      jsonb_build_object('age_public_key', v_key, 'agent', p_agent ->> 'name', 'instance_id', v_instance));
    v_cluster.age_public_key := v_key;
  END IF;

  RETURN jsonb_build_object(
    'cluster_id', v_cluster.id, 'cluster_name', v_cluster.name, 'contract', tendril.contract_version(),
    'age_public_key', v_cluster.age_public_key,
    'heartbeat_seconds', extract(epoch FROM v_settings.heartbeat), 'lease_seconds', extract(epoch FROM v_settings.lease));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Renews first, then reaps others: an agent that comes back in time, however late, keeps what
-- it has. Nothing here raises after reaping. A claim that has ended is told to stop as well.
-- An agent names only what it still runs: the one whose workspace was released, and used
-- since. In fewer steps: without claims there is nothing to renew, and reap() is called only
-- when it has something to do. Claims are found by their ids alone.
--
-- Locks: cluster (unless somebody else has), claims by id, agent; then, as reap(), workspace,
-- provision and claim, none that somebody else has locked.
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
  IF v_caller.last_seen_at IS NULL OR v_caller.last_seen_at < clock_timestamp() - interval '15 seconds' THEN
    -- Another agent that stamps it does as well.
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

  UPDATE public.agents SET last_heartbeat_at = clock_timestamp() WHERE id = v_caller.agent_id;

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

-- p_agent is what register_agent is told, of which name and instance_id count.
CREATE OR REPLACE FUNCTION public.check_agent(p_token_hash text, p_agent jsonb DEFAULT '{}') RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters := tendril.authenticate(p_token_hash);
  v_alive   interval;
  v_other   text;
BEGIN
  SELECT s.agent_alive INTO STRICT v_alive FROM tendril.settings s;
  SELECT a.host INTO v_other FROM public.agents a
  WHERE a.cluster_id = v_cluster.id AND a.name = p_agent ->> 'name' AND a.instance_id::text IS DISTINCT FROM p_agent ->> 'instance_id'
    AND a.last_heartbeat_at BETWEEN clock_timestamp() - v_alive AND clock_timestamp() + v_alive
  LIMIT 1;
  RETURN jsonb_build_object(
    'cluster_id', v_cluster.id, 'cluster_name', v_cluster.name, 'contract', tendril.contract_version(),
    'now', clock_timestamp(), 'paused', v_cluster.paused_at IS NOT NULL, 'name_taken_on', coalesce(v_other, ''),
    'broad_publications', ARRAY(SELECT p.publication FROM tendril.broad_publications() p));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Whether an agent was heard of just now, by the clock of this database.
CREATE OR REPLACE FUNCTION tendril.is_online(p_heartbeat timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce(p_heartbeat BETWEEN now() - interval '45 seconds' AND now() + interval '45 seconds', false);
END $$;
