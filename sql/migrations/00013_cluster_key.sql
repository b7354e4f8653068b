-- +goose Up
-- What is secret in a deploy will be sealed to a key of the cluster's, whose
-- private half its agents have. The database learns the public half from the
-- first agent that has one; afterwards only a person changes it.

CREATE FUNCTION tendril.age_key_pattern() RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT '^age1[02-9ac-hj-np-z]{58}$' $$;

-- As before, and: age_public_key, which older agents do not send, becomes the
-- cluster's where that has none. The answer has the cluster's: another one is no
-- reason to refuse an agent, which says so in its log.
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
  v_key       text := p_agent ->> 'age_public_key';
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
  IF v_key !~ tendril.age_key_pattern() THEN
    PERFORM tendril.refuse('PT422', 'bad_agent', 'p_agent.age_public_key: no age recipient (age1…)');
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
-- +goose StatementEnd

-- Sets the key that what is secret is sealed to (admin). NULL has the next agent
-- that registers set its own.
-- +goose StatementBegin
CREATE FUNCTION public.set_cluster_key(p_cluster uuid, p_age_public_key text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters;
BEGIN
  v_cluster := tendril.cluster_for(p_cluster, 'admin');
  IF p_age_public_key !~ tendril.age_key_pattern() THEN
    PERFORM tendril.refuse('PT422', 'bad_key', 'p_age_public_key: no age recipient', 'give the public half of the agents'' identity, age1…; their log shows it');
  END IF;
  UPDATE public.clusters SET age_public_key = p_age_public_key
  WHERE id = p_cluster AND age_public_key IS DISTINCT FROM p_age_public_key;
  IF FOUND THEN
    PERFORM tendril.audit(v_cluster.org_id, 'set_cluster_key', 'cluster', p_cluster,
      jsonb_build_object('age_public_key', p_age_public_key, 'before', v_cluster.age_public_key));
  END IF;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

SELECT tendril.deny_all(ARRAY['set_cluster_key']);
GRANT EXECUTE ON FUNCTION public.set_cluster_key(uuid, text) TO authenticated, service_role;

NOTIFY pgrst, 'reload schema';
