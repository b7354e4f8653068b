-- Agents: registration and heartbeat.

-- Registers an agent's start with its cluster. An agent calls this first after each start, and
-- every other function refuses an instance that has not.
--
-- A name and an instance belong to one live agent. They are free at once when the previous owner is
-- provably dead: it ran on this host in this data directory (whose lock the new agent holds), or
-- the host has restarted since its last heartbeat.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_agent       an object
--     instance_id     UUID that the agent keeps in its data directory
--     boot_id         UUID, new at each start; a superseded one is refused everywhere
--     name            1 to 200 characters; one live agent of the cluster may have it
--     host            HOST or HOST:DIRECTORY (the data directory), at most 300 characters
--     version         version of the program, 1 to 100 characters
--     contract        version of this contract that the agent speaks, from 1
--     slots           how many provisions it runs at once, 1 to 64
--     age_public_key  age recipient; becomes the cluster's key where the cluster has none. Optional
--     operations      list of the operations that the agent's policy allows. Optional
--     kernel          id of the machine's current boot, at most 100 characters. Optional
--     uptime_seconds  seconds since the machine started. Optional
-- Answers: an object:
--   cluster_id         the cluster
--   cluster_name       its name
--   contract           version of this contract in the database
--   age_public_key     the cluster's key, null where it has none; it may differ from the agent's
--   heartbeat_seconds  how often to send a heartbeat
--   lease_seconds      how long a claim lives after a heartbeat
--   realtime           whether the database sends wakes by Supabase's Realtime
-- Errors: PT401 token_invalid, PT409 agent_instance_elsewhere, PT409 agent_name_taken,
--   PT409 agent_superseded, PT422 bad_agent, PT426 contract_too_new, PT429 too_many_agents,
--   PT503 busy.
-- Locks: cluster, agent.
-- Callers: anon, tendril_agent.
-- Notes: A heartbeat that lies in the future proves nothing: a live agent stamps it again within
--   seconds, and a dead one would keep its name for as long as the clock was ahead.
CREATE OR REPLACE FUNCTION public.register_agent(p_token_hash text, p_agent jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_host       CONSTANT int := 300; -- characters
  c_version    CONSTANT int := 100; -- characters, of the kernel's id as well
  c_slots      CONSTANT int := 64;  -- as the table allows
  c_uptime     CONSTANT double precision := 1e10; -- seconds
  c_operation  CONSTANT int := 40;  -- characters
  c_operations CONSTANT int := 20;
  c_boots      CONSTANT int := 20;  -- superseded boots that are kept
  v_cluster   public.clusters := tendril.authenticate(p_token_hash);
  v_settings  tendril.settings;
  v_instance  uuid;
  v_boot      uuid;
  v_other     public.agents;
  v_host      text := split_part(p_agent ->> 'host', ':', 1);
  v_directory text := nullif(substr(p_agent ->> 'host', length(v_host) + 2), '');
  v_key       text := p_agent ->> 'age_public_key';
  v_kernel    text := left(p_agent ->> 'kernel', c_version);
  v_booted    timestamptz;
  v_granted   text[];
BEGIN
  BEGIN
    v_instance := (p_agent ->> 'instance_id')::uuid;
    v_boot     := (p_agent ->> 'boot_id')::uuid;
    IF v_instance IS NULL OR v_boot IS NULL
       OR length(coalesce(p_agent ->> 'name', '')) NOT BETWEEN 1 AND tendril.max_name()
       OR coalesce(v_host, '') = '' OR length(p_agent ->> 'host') > c_host
       OR length(coalesce(p_agent ->> 'version', '')) NOT BETWEEN 1 AND c_version
       OR coalesce((p_agent ->> 'contract')::int, 0) < 1
       OR coalesce((p_agent ->> 'slots')::int, 0) NOT BETWEEN 1 AND c_slots
       OR (p_agent ->> 'uptime_seconds')::double precision NOT BETWEEN 0 AND c_uptime THEN
      RAISE data_exception;
    END IF;
    v_booted := clock_timestamp() - make_interval(secs => (p_agent ->> 'uptime_seconds')::double precision);
  EXCEPTION WHEN data_exception THEN
    PERFORM tendril.refuse('PT422', 'bad_agent', 'p_agent needs instance_id and boot_id (UUIDs), name, host, version, contract (from 1) and slots (1 to 64)');
  END;
  IF v_key !~ tendril.age_key_pattern() THEN
    PERFORM tendril.refuse('PT422', 'bad_agent', 'p_agent.age_public_key: must be an age recipient (age1…)');
  END IF;
  IF p_agent ->> 'operations' IS NOT NULL THEN
    IF jsonb_typeof(p_agent -> 'operations') <> 'array' THEN
      PERFORM tendril.refuse('PT422', 'bad_agent', 'p_agent.operations: must be a list');
    END IF;
    v_granted := ARRAY(SELECT left(o, c_operation) FROM jsonb_array_elements_text(p_agent -> 'operations') o LIMIT c_operations);
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
      format('another agent of this cluster uses the name %s: on %s, last seen %s s ago', to_json(v_other.name), v_other.host,
             greatest(0, round(extract(epoch FROM clock_timestamp() - v_other.last_heartbeat_at)))),
      'give this agent another name, or stop the other one');
  END IF;
  SELECT * INTO v_other FROM public.agents
  WHERE cluster_id = v_cluster.id AND instance_id = v_instance AND (host <> v_host OR directory <> v_directory)
    AND last_heartbeat_at BETWEEN clock_timestamp() - v_settings.agent_alive AND clock_timestamp() + v_settings.agent_alive;
  IF FOUND THEN
    PERFORM tendril.refuse('PT409', 'agent_instance_elsewhere',
      format('this agent''s data directory is in use on %s, last seen %s s ago', concat_ws(':', v_other.host, v_other.directory),
             greatest(0, round(extract(epoch FROM clock_timestamp() - v_other.last_heartbeat_at)))),
      'a data directory belongs to one agent: do not copy it, and start this agent with an empty one');
  END IF;

  IF EXISTS (SELECT FROM public.agents WHERE cluster_id = v_cluster.id AND instance_id = v_instance AND v_boot = ANY (past_boots)) THEN
    PERFORM tendril.refuse('PT409', 'agent_superseded', 'this agent has been started again since; this earlier process must stop');
  END IF;

  IF NOT EXISTS (SELECT FROM public.agents WHERE cluster_id = v_cluster.id AND instance_id = v_instance) THEN
    PERFORM tendril.check_agents(v_cluster);
  END IF;
  INSERT INTO public.agents AS a (org_id, cluster_id, instance_id, boot_id, name, host, directory, kernel, version, contract, slots, operations)
  VALUES (v_cluster.org_id, v_cluster.id, v_instance, v_boot, p_agent ->> 'name', v_host, v_directory, v_kernel,
          p_agent ->> 'version', (p_agent ->> 'contract')::int, (p_agent ->> 'slots')::int, v_granted)
  ON CONFLICT (cluster_id, instance_id) DO UPDATE
  SET past_boots = CASE WHEN a.boot_id = EXCLUDED.boot_id THEN a.past_boots ELSE (a.boot_id || a.past_boots)[1:c_boots] END,
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
    'heartbeat_seconds', extract(epoch FROM v_settings.heartbeat), 'lease_seconds', extract(epoch FROM v_settings.lease),
    'realtime', tendril.can_broadcast());
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Renews the leases of the agent's claims and tells the agent what to stop. An agent sends it every
-- heartbeat_seconds, also when it runs nothing. A lease that ran out is renewed too, unless another
-- session has given it up already.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_instance    the agent's instance id
--   p_boot        the boot id of this start
--   p_claims      the claims that the agent still runs or reports on, at most 1000; empty: none
--   p_awaits      what would be news to the agent, for a server that holds the call until there is
--                 some; null: the call is not held. An object, all of it optional, at most 128 KiB:
--     free       true: it has a free slot, and waits for work
--     checks     true: it waits for checks that are due
--     cancelled  claims that it has been told to stop
--     lost       claims that it has been told are lost
--     watched    claims of which it has been told that people watch their logs; without it that is
--                no news
-- Answers: an object:
--   cancel             claims that the agent must stop
--   lost               claims of p_claims that are no longer its own: stop them before apply
--                      begins; an apply that has begun goes on and reports its result later
--   watched            claims whose logs people watch: close chunks after 200 ms
--   poll_seconds       how often to ask for work when nothing wakes the agent
--   heartbeat_seconds  how often to send a heartbeat
--   newest_agent       newest released agent version, null: not known
--   checks_due         whether lease_checks() has something to do
--   work               whether fetch_next_provision() has something for it; false unless p_awaits
--                      says that it has a free slot
-- Errors: PT401 token_invalid, PT409 agent_superseded, PT409 agent_unregistered,
--   PT413 too_many_claims, PT422 bad_agent, PT503 busy.
-- Locks: cluster (skipped when locked), claims by id, agent; then, as reap(), workspace, provision
--   and claim that nobody else has locked.
-- Callers: anon, tendril_agent.
-- Notes: It renews first and then reaps others, so an agent that comes back in time keeps its
--   claims. Nothing may raise after reaping. An empty heartbeat takes few steps: without claims
--   there is nothing to renew, and reap() runs only when something is due. Claims are found by
--   their ids alone. When the agent was last seen is written at most every 15 s.
CREATE OR REPLACE FUNCTION public.agent_heartbeat(p_token_hash text, p_instance uuid, p_boot uuid, p_claims uuid[], p_awaits jsonb DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_awaits  CONSTANT int := 131072; -- bytes
  v_caller  record := tendril.caller(p_token_hash, p_instance, p_boot);
  v_now     timestamptz;
  v_at      record;
  v_running uuid[];
  v_cancel  uuid[];
  v_lost    uuid[];
  v_watched uuid[];
  v_due     timestamptz;
  v_free    boolean := p_awaits -> 'free' = 'true';
  v_work    boolean := false;
  v_hold    interval;
  v_reaped  int := 0;
  v_alone   boolean := pg_current_xact_id_if_assigned() IS NULL;
BEGIN
  IF cardinality(p_claims) > tendril.max_claims() THEN
    PERFORM tendril.refuse('PT413', 'too_many_claims', format('%s claims in one heartbeat; at most %s are allowed', cardinality(p_claims), tendril.max_claims()));
  ELSIF octet_length(p_awaits::text) > c_awaits THEN
    PERFORM tendril.refuse('PT413', 'too_many_claims', format('p_awaits: %s bytes; at most %s are allowed', octet_length(p_awaits::text), c_awaits));
  END IF;
  IF v_caller.last_seen_at IS NULL OR v_caller.last_seen_at < clock_timestamp() - tendril.seen_every() THEN
    -- Another agent that stamps it does as well.
    PERFORM FROM public.clusters WHERE id = v_caller.cluster_id FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE public.clusters SET last_seen_at = clock_timestamp() WHERE id = v_caller.cluster_id;
    END IF;
  END IF;

  PERFORM tendril.use_key();

  SELECT s.lease, s.poll, s.heartbeat, s.agent_alive, s.newest_agent, p.stamped_at, p.reap_not_before,
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
    UPDATE tendril.claims SET lease_until = greatest(lease_until, tendril.asked_at() + v_at.lease) WHERE id = ANY (v_running);
    -- Not locked: what is lost is somebody else's business, and must not cost
    -- the others their leases.
    SELECT array_agg(id) INTO v_cancel FROM tendril.claims
    WHERE id = ANY (p_claims) AND cluster_id = v_caller.cluster_id AND instance_id = p_instance AND cancel_requested_at IS NOT NULL;
    v_watched := ARRAY(SELECT c.id FROM tendril.claims c JOIN tendril.watched w ON w.provision_id = c.provision_id WHERE c.id = ANY (v_running) AND w.until > clock_timestamp());
  END IF;

  UPDATE public.agents SET last_heartbeat_at = clock_timestamp()
  WHERE id = v_caller.agent_id
    AND last_heartbeat_at NOT BETWEEN clock_timestamp() - least(tendril.seen_every(), v_at.agent_alive / 3) AND clock_timestamp();

  -- What is wrong with somebody else's run must not cost us our leases.
  v_now := clock_timestamp(); -- after the read: nobody has stamped later than this
  IF v_at.first_lease_until < v_now OR v_at.stamped_at NOT BETWEEN v_now - v_at.lease * tendril.pulse_share() AND v_now OR v_at.reap_not_before > v_now + v_at.lease THEN
    BEGIN
      v_reaped := tendril.reap();
    EXCEPTION
      WHEN OTHERS THEN
        RAISE WARNING 'expired leases could not be given up: % (%)', SQLERRM, SQLSTATE;
    END;
  END IF;
  IF p_claims = '{}' AND v_reaped = 0 AND v_alone THEN
    -- A stamp that a crash of the server takes back is made again soon: nobody
    -- need wait until it is on the disk.
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  v_lost := ARRAY(SELECT a.id FROM unnest(p_claims) a (id) WHERE a.id = ANY (v_running) IS NOT TRUE);
  SELECT min(c.due_at) INTO v_due FROM tendril.machine_checks c WHERE c.cluster_id = v_caller.cluster_id;
  IF v_free AND v_caller.paused_at IS NULL THEN
    v_work := tendril.has_work(v_caller.cluster_id, p_instance, v_caller.contract);
  END IF;
  IF p_awaits IS NOT NULL AND NOT v_work AND (p_awaits -> 'checks' = 'true' AND v_due <= v_now) IS NOT TRUE
     AND NOT EXISTS (SELECT FROM unnest(v_cancel) c (id) WHERE (p_awaits -> 'cancelled' ? c.id::text) IS NOT TRUE)
     AND NOT EXISTS (SELECT FROM unnest(v_lost) l (id) WHERE (p_awaits -> 'lost' ? l.id::text) IS NOT TRUE)
     AND NOT EXISTS (SELECT FROM unnest(v_watched) w (id) WHERE p_awaits ? 'watched' AND (p_awaits -> 'watched' ? w.id::text) IS NOT TRUE) THEN
    v_hold := least(tendril.held_at_most(), 2 * v_at.heartbeat, v_at.lease / 6);
    IF v_due > v_now AND p_awaits -> 'checks' = 'true' THEN
      -- All agents of the cluster wait for these checks: spread, for the first does them all.
      v_hold := least(v_hold, v_due - v_now + random() * v_at.heartbeat);
    END IF;
    PERFORM tendril.hold(p_instance::text, v_hold, ARRAY['tendril_agent:' || p_instance] || CASE WHEN v_free THEN ARRAY['tendril_work:' || v_caller.cluster_id] ELSE '{}' END);
  END IF;
  RETURN jsonb_build_object(
    'cancel', to_jsonb(coalesce(v_cancel, '{}')),
    'lost', to_jsonb(v_lost),
    'watched', to_jsonb(coalesce(v_watched, '{}')),
    'poll_seconds', extract(epoch FROM v_at.poll),
    'heartbeat_seconds', extract(epoch FROM v_at.heartbeat),
    'newest_agent', v_at.newest_agent,
    'checks_due', coalesce(v_due <= v_now, false),
    'work', v_work);
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Checks a token without registering, for diagnostics. Changes nothing, and sends the event "probe"
-- by Supabase's Realtime if that is asked for.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_agent       an object with the name and instance_id that the agent would register, and
--                 probe: true for that event
-- Answers: an object:
--   cluster_id          the cluster
--   cluster_name        its name
--   contract            version of this contract in the database
--   age_public_key      the cluster's key, null where it has none
--   now                 the database's clock
--   paused              whether the cluster is paused
--   name_taken_on       host of another live agent of that name, empty: none
--   broad_publications  publications that carry more tables than they should
--   realtime            whether the database sends wakes by Supabase's Realtime
--   certificates        certificates that wait for the cluster's identity, the newest 20; a list of
--                       objects: key, 64 hexadecimal digits, and certificate
-- Errors: PT401 token_invalid, PT503 busy.
-- Locks: none.
-- Callers: anon, tendril_agent.
CREATE OR REPLACE FUNCTION public.check_agent(p_token_hash text, p_agent jsonb DEFAULT '{}') RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
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
  IF p_agent -> 'probe' = 'true' THEN
    PERFORM tendril.broadcast(v_cluster.id, 'probe');
  END IF;
  RETURN jsonb_build_object(
    'cluster_id', v_cluster.id, 'cluster_name', v_cluster.name, 'contract', tendril.contract_version(),
    'age_public_key', v_cluster.age_public_key,
    'now', clock_timestamp(), 'paused', v_cluster.paused_at IS NOT NULL, 'name_taken_on', coalesce(v_other, ''),
    'broad_publications', ARRAY(SELECT p.publication FROM tendril.broad_publications() p),
    'realtime', tendril.can_broadcast(), 'certificates', tendril.waiting_certificates(v_cluster.id));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Whether a heartbeat is recent enough, by the database's clock, for its agent to count as online.
CREATE OR REPLACE FUNCTION tendril.is_online(p_heartbeat timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce(p_heartbeat BETWEEN now() - tendril.online_within() AND now() + tendril.online_within(), false);
END $$;
