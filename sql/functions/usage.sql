-- Bounds on what the holder of a cluster's token can make the database store. Settings say how
-- much; whoever wants more is refused with PT429, which an agent takes for an outage: it keeps
-- what it has and tries again.
--
--   bound          counted                     can be exceeded by
--   agent_limit    at each new agent           nothing
--   *_blob_limit   every 30 seconds            what is stored in 30 seconds; of an organisation,
--                                              by the shares of clusters that use less than theirs
--   pin_limit      at each new one             a few at once
--   inspection_limit  at each new one          a few at once
--   event_limit, log_limit, resource_limit     one report or call
--   cluster_log_limit, org_log_limit  every 5 minutes   what is stored in 5 minutes, and the MiB
--                                              of SYSTEM lines of each run; nothing is refused:
--                                              logs are cut, and say so
--
-- A claim stores one plan, one result and two states at most (the newest, and one that is on
-- its way), each of the size that tendril.most_parts() says.

-- A cluster begins with nothing in use.
CREATE OR REPLACE FUNCTION tendril.begin_usage() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  INSERT INTO tendril.cluster_usage (cluster_id, org_id) VALUES (NEW.id, NEW.org_id);
  RETURN NULL;
END $$;

-- Counts what clusters use, those first that were counted longest ago; not those of the last
-- five minutes. Says how many it has counted. Called by timers, for metrics.
--
-- Locks: expiry, cluster_usage, none that somebody else has locked.
CREATE OR REPLACE FUNCTION tendril.measure_usage(p_limit int DEFAULT 20) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_cluster uuid;
  v_count   int := 0;
BEGIN
  PERFORM tendril.measure_logs();
  FOR v_cluster IN SELECT u.cluster_id FROM tendril.cluster_usage u WHERE u.measured_at < clock_timestamp() - interval '5 minutes' ORDER BY u.measured_at LIMIT p_limit LOOP
    v_count := v_count + tendril.measure_cluster(v_cluster);
  END LOOP;
  RETURN v_count;
END $$;

-- Counts the text of all logs, every five minutes; between, and while somebody else does, it
-- does nothing. One pass over tendril.log_heads: an index with the bytes, or a counter for each
-- cluster, would cost every line that is stored.
--
-- Locks: expiry, cluster_usage, none that somebody else has locked.
CREATE OR REPLACE FUNCTION tendril.measure_logs() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM FROM tendril.expiry e WHERE e.name = 'log_usage' AND e.began_at NOT BETWEEN clock_timestamp() - interval '5 minutes' AND clock_timestamp()
  FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  UPDATE tendril.expiry SET began_at = clock_timestamp() WHERE name = 'log_usage';
  WITH stored AS MATERIALIZED (
    SELECT h.org_id, h.cluster_id, sum(h.bytes)::bigint AS bytes FROM tendril.log_heads h GROUP BY 1, 2
  ), counted AS (
    SELECT u.cluster_id, coalesce((SELECT s.bytes FROM stored s WHERE s.cluster_id = u.cluster_id), 0) AS bytes, coalesce(o.bytes, 0) AS org_bytes
    FROM tendril.cluster_usage u LEFT JOIN (SELECT s.org_id, sum(s.bytes)::bigint AS bytes FROM stored s GROUP BY 1) o ON o.org_id = u.org_id
  ), changed AS MATERIALIZED (
    SELECT u.cluster_id, c.bytes, c.org_bytes FROM tendril.cluster_usage u JOIN counted c ON c.cluster_id = u.cluster_id
    WHERE (u.log_bytes, u.org_log_bytes) IS DISTINCT FROM (c.bytes, c.org_bytes) FOR NO KEY UPDATE OF u SKIP LOCKED
  )
  UPDATE tendril.cluster_usage u SET log_bytes = c.bytes, org_log_bytes = c.org_bytes FROM changed c WHERE u.cluster_id = c.cluster_id;
END $$;

-- Says in a sentence, for a log, that a cluster's logs have reached what they, or those of its
-- organisation, may take; NULL while there is room. Where the organisation's clusters have
-- filled it together, each may go on to its equal share. Called for each call with lines.
CREATE OR REPLACE FUNCTION tendril.logs_full(p_cluster uuid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_u record;
BEGIN
  SELECT u.org_id, u.log_bytes, u.org_log_bytes, s.cluster_log_limit, s.org_log_limit INTO v_u
  FROM tendril.cluster_usage u, tendril.settings s WHERE u.cluster_id = p_cluster;
  IF v_u.log_bytes >= v_u.cluster_log_limit THEN
    RETURN format('The logs of this cluster have reached %s, the most that the database keeps of them (tendril.settings.cluster_log_limit).', pg_size_pretty(v_u.cluster_log_limit));
  ELSIF v_u.org_log_bytes >= v_u.org_log_limit
    AND v_u.log_bytes >= v_u.org_log_limit / (SELECT count(*) FROM tendril.cluster_usage o WHERE o.org_id = v_u.org_id) THEN
    RETURN format('The logs of this organisation have reached %s, the most that the database keeps of them (tendril.settings.org_log_limit).', pg_size_pretty(v_u.org_log_limit));
  END IF;
  RETURN NULL;
END $$;

-- Counts what one cluster uses. 0: somebody else does just now.
CREATE OR REPLACE FUNCTION tendril.measure_cluster(p_cluster uuid) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_most tendril.settings;
  v_org  uuid;
BEGIN
  SELECT u.org_id INTO v_org FROM tendril.cluster_usage u WHERE u.cluster_id = p_cluster FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN 0;
  END IF;
  SELECT * INTO STRICT v_most FROM tendril.settings;
  UPDATE tendril.cluster_usage
  SET measured_at = clock_timestamp(),
      agents      = (SELECT count(*) FROM public.agents a WHERE a.cluster_id = p_cluster),
      blob_bytes  = (SELECT coalesce(sum(b.bytes), 0) FROM tendril.blobs b WHERE b.cluster_id = p_cluster),
      pins        = (SELECT count(*) FROM (SELECT FROM public.cluster_pins c WHERE c.cluster_id = p_cluster LIMIT v_most.pin_limit) n),
      inspections = (SELECT count(*) FROM (SELECT FROM public.template_inspections i WHERE i.org_id = v_org LIMIT v_most.inspection_limit) n)
  WHERE cluster_id = p_cluster;
  RETURN 1;
END $$;

-- What a cluster uses, at most 30 seconds old; older while somebody else counts it.
CREATE OR REPLACE FUNCTION tendril.usage_of(p_cluster uuid) RETURNS tendril.cluster_usage
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_usage tendril.cluster_usage;
BEGIN
  SELECT * INTO v_usage FROM tendril.cluster_usage WHERE cluster_id = p_cluster;
  IF v_usage.measured_at NOT BETWEEN clock_timestamp() - interval '30 seconds' AND clock_timestamp() AND tendril.measure_cluster(p_cluster) > 0 THEN
    SELECT * INTO v_usage FROM tendril.cluster_usage WHERE cluster_id = p_cluster;
  END IF;
  RETURN v_usage;
END $$;

-- Refuses blobs beyond what a cluster or its organisation may store. PT429 cluster_blobs_full,
-- org_blobs_full. Where the organisation's clusters have filled it together, each may go on to
-- its equal share, so that none is shut out by what another stores.
CREATE OR REPLACE FUNCTION tendril.check_room(p_cluster public.clusters, p_bytes bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_hint CONSTANT text := 'an agent keeps what it could not store and tries again: raise the setting, keep fewer states (tendril.settings.state_history), or find out who stores so much';
  v_most  tendril.settings;
  v_usage tendril.cluster_usage;
  v_org   record;
BEGIN
  SELECT * INTO STRICT v_most FROM tendril.settings;
  v_usage := tendril.usage_of(p_cluster.id);
  IF v_usage.blob_bytes + p_bytes > v_most.cluster_blob_limit THEN
    PERFORM tendril.refuse('PT429', 'cluster_blobs_full', format('cluster %s stores %s of plans, states and results; with %s more it would be beyond the %s allowed (tendril.settings.cluster_blob_limit)',
      to_json(p_cluster.name), pg_size_pretty(v_usage.blob_bytes), pg_size_pretty(p_bytes), pg_size_pretty(v_most.cluster_blob_limit)), c_hint);
  END IF;
  SELECT sum(u.blob_bytes)::bigint AS bytes, count(*) AS clusters INTO v_org FROM tendril.cluster_usage u WHERE u.org_id = p_cluster.org_id;
  IF v_org.bytes + p_bytes > v_most.org_blob_limit AND v_usage.blob_bytes + p_bytes > v_most.org_blob_limit / v_org.clusters THEN
    PERFORM tendril.refuse('PT429', 'org_blobs_full', format('the clusters of this organisation store %s of plans, states and results, %s of it cluster %s; with %s more they would be beyond the %s allowed (tendril.settings.org_blob_limit)',
      pg_size_pretty(v_org.bytes), pg_size_pretty(v_usage.blob_bytes), to_json(p_cluster.name), pg_size_pretty(p_bytes), pg_size_pretty(v_most.org_blob_limit)), c_hint);
  END IF;
END $$;

-- Refuses one more agent than a cluster may have, unless one can go that was not heard of for a
-- day and that nothing waits for. The caller holds the cluster's lock. PT429 too_many_agents.
--
-- Locks: agent.
CREATE OR REPLACE FUNCTION tendril.check_agents(p_cluster public.clusters) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_most int := (SELECT agent_limit FROM tendril.settings);
BEGIN
  IF (SELECT count(*) FROM public.agents a WHERE a.cluster_id = p_cluster.id) < v_most THEN
    RETURN;
  END IF;
  DELETE FROM public.agents WHERE id IN (SELECT a.id FROM tendril.idle_agents(clock_timestamp() - interval '1 day', p_cluster.id) a LIMIT 1);
  IF NOT FOUND THEN
    PERFORM tendril.refuse('PT429', 'too_many_agents', format('cluster %s has %s agents, as many as it may (tendril.settings.agent_limit)', to_json(p_cluster.name), v_most),
      'a data directory is an agent: keep it when an agent is started again; one that was not heard of for a day makes room. If these are not yours, the token has leaked: trellis clusters rotate-token');
  END IF;
END $$;

-- How much of each bound a cluster uses, 1 is all of it.
CREATE OR REPLACE FUNCTION tendril.usage_ratios(p_usage tendril.cluster_usage, p_org_bytes numeric, p_most tendril.settings) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT jsonb_build_object('agents', round(p_usage.agents::numeric / p_most.agent_limit, 4), 'blobs', round(p_usage.blob_bytes::numeric / p_most.cluster_blob_limit, 4),
    'org_blobs', round(p_org_bytes / p_most.org_blob_limit, 4), 'pins', round(p_usage.pins::numeric / p_most.pin_limit, 4),
    'inspections', round(p_usage.inspections::numeric / p_most.inspection_limit, 4),
    'logs', round(p_usage.log_bytes::numeric / p_most.cluster_log_limit, 4), 'org_logs', round(p_usage.org_log_bytes::numeric / p_most.org_log_limit, 4))
$$;
