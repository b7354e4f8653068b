-- Limits: what the holder of a cluster's token can make the database store. Settings say how much;
-- more is refused with PT429, which an agent treats as an outage: it keeps what it has and tries
-- again.
--
--   limit                             counted             can be exceeded by
--   agent_limit                       at each new agent   nothing
--   cluster_blob_limit                every 30 seconds    what is stored in 30 seconds
--   org_blob_limit                    every 30 seconds    as before, and the shares of clusters
--                                                         that use less than theirs
--   pin_limit, inspection_limit       at each new one     a few at once
--   event_limit, log_limit,           at each call        one report or call
--   resource_limit
--   cluster_log_limit, org_log_limit  every 5 minutes     what is stored in 5 minutes, and the MiB
--                                                         of SYSTEM lines of each run; nothing is
--                                                         refused: logs are cut, and say so
--
-- A claim stores one plan, one result and two states at most (the newest, and one that is being
-- sent), each of the size that tendril.most_parts() says.

-- Creates the usage counters of a new cluster.
CREATE OR REPLACE FUNCTION tendril.begin_usage() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  INSERT INTO tendril.cluster_usage (cluster_id, org_id) VALUES (NEW.id, NEW.org_id);
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER clusters_begin_usage AFTER INSERT ON public.clusters FOR EACH ROW EXECUTE FUNCTION tendril.begin_usage();

-- Counts what clusters use, for limits and metrics: those first that were counted longest ago, and
-- none that was counted within five minutes.
--
-- Arguments:
--   p_limit  clusters in a call
-- Answers: how many clusters it counted.
-- Errors: none.
-- Locks: expiry, cluster_usage, skipping locked rows.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.measure_usage(p_limit int DEFAULT 20) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_cluster uuid;
  v_count   int := 0;
BEGIN
  PERFORM tendril.measure_logs();
  FOR v_cluster IN SELECT u.cluster_id FROM tendril.cluster_usage u WHERE u.measured_at < clock_timestamp() - tendril.usage_every() ORDER BY u.measured_at LIMIT p_limit LOOP
    v_count := v_count + tendril.measure_cluster(v_cluster);
  END LOOP;
  RETURN v_count;
END $$;

-- Counts the text of all logs, at most every five minutes.
--
-- Locks: expiry, cluster_usage, skipping locked rows.
-- Notes: One pass over tendril.log_heads: an index with the bytes, or a counter for each cluster,
--   would cost every stored line.
CREATE OR REPLACE FUNCTION tendril.measure_logs() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM FROM tendril.expiry e WHERE e.name = 'log_usage' AND e.began_at NOT BETWEEN clock_timestamp() - tendril.usage_every() AND clock_timestamp()
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

-- Says, as a sentence for a log, that the logs of a cluster or its organisation have reached their
-- limit; null while there is room. Where the clusters of an organisation have filled it together,
-- each may use its equal share.
CREATE OR REPLACE FUNCTION tendril.logs_full(p_cluster uuid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_u record;
BEGIN
  SELECT u.org_id, u.log_bytes, u.org_log_bytes, s.cluster_log_limit, s.org_log_limit INTO v_u
  FROM tendril.cluster_usage u, tendril.settings s WHERE u.cluster_id = p_cluster;
  IF v_u.log_bytes >= v_u.cluster_log_limit THEN
    RETURN format('The logs of this cluster have reached their limit of %s (tendril.settings.cluster_log_limit).', pg_size_pretty(v_u.cluster_log_limit));
  ELSIF v_u.org_log_bytes >= v_u.org_log_limit
    AND v_u.log_bytes >= v_u.org_log_limit / (SELECT count(*) FROM tendril.cluster_usage o WHERE o.org_id = v_u.org_id) THEN
    RETURN format('The logs of this organisation have reached their limit of %s (tendril.settings.org_log_limit).', pg_size_pretty(v_u.org_log_limit));
  END IF;
  RETURN NULL;
END $$;

-- Counts what one cluster uses. Answers 0 where another session is counting it.
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

-- What a cluster uses, at most 30 seconds old, or older while another session counts it.
CREATE OR REPLACE FUNCTION tendril.usage_of(p_cluster uuid) RETURNS tendril.cluster_usage
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_usage tendril.cluster_usage;
BEGIN
  SELECT * INTO v_usage FROM tendril.cluster_usage WHERE cluster_id = p_cluster;
  IF v_usage.measured_at NOT BETWEEN clock_timestamp() - tendril.usage_fresh() AND clock_timestamp() AND tendril.measure_cluster(p_cluster) > 0 THEN
    SELECT * INTO v_usage FROM tendril.cluster_usage WHERE cluster_id = p_cluster;
  END IF;
  RETURN v_usage;
END $$;

-- Refuses blobs beyond what a cluster or its organisation may store. Where the clusters of an
-- organisation have filled it together, each may use its equal share, so that none is shut out.
--
-- Errors: PT429 cluster_blobs_full, PT429 org_blobs_full.
CREATE OR REPLACE FUNCTION tendril.check_room(p_cluster public.clusters, p_bytes bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_hint CONSTANT text := 'an agent keeps what it could not store and tries again: raise the setting, keep fewer states (tendril.settings.state_history), or find out what stores so much';
  v_most  tendril.settings;
  v_usage tendril.cluster_usage;
  v_org   record;
BEGIN
  SELECT * INTO STRICT v_most FROM tendril.settings;
  v_usage := tendril.usage_of(p_cluster.id);
  IF v_usage.blob_bytes + p_bytes > v_most.cluster_blob_limit THEN
    PERFORM tendril.refuse('PT429', 'cluster_blobs_full', format('cluster %s stores %s of plans, states and results; %s more would exceed the %s allowed (tendril.settings.cluster_blob_limit)',
      to_json(p_cluster.name), pg_size_pretty(v_usage.blob_bytes), pg_size_pretty(p_bytes), pg_size_pretty(v_most.cluster_blob_limit)), c_hint);
  END IF;
  SELECT sum(u.blob_bytes)::bigint AS bytes, count(*) AS clusters INTO v_org FROM tendril.cluster_usage u WHERE u.org_id = p_cluster.org_id;
  IF v_org.bytes + p_bytes > v_most.org_blob_limit AND v_usage.blob_bytes + p_bytes > v_most.org_blob_limit / v_org.clusters THEN
    PERFORM tendril.refuse('PT429', 'org_blobs_full', format('the clusters of this organisation store %s of plans, states and results, %s of it cluster %s; %s more would exceed the %s allowed (tendril.settings.org_blob_limit)',
      pg_size_pretty(v_org.bytes), pg_size_pretty(v_usage.blob_bytes), to_json(p_cluster.name), pg_size_pretty(p_bytes), pg_size_pretty(v_most.org_blob_limit)), c_hint);
  END IF;
END $$;

-- Refuses one more agent than a cluster may have, unless an agent can be deleted that was not seen
-- for a day and that nothing depends on. The caller holds the cluster's lock.
--
-- Errors: PT429 too_many_agents.
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
  DELETE FROM public.agents WHERE id IN (SELECT a.id FROM tendril.idle_agents(clock_timestamp() - tendril.forgotten_after(), p_cluster.id) a LIMIT 1);
  IF NOT FOUND THEN
    PERFORM tendril.refuse('PT429', 'too_many_agents', format('cluster %s has %s agents, the most allowed (tendril.settings.agent_limit)', to_json(p_cluster.name), v_most),
      'each data directory is one agent: keep it across restarts. An agent that was not seen for a day makes room. If these agents are not yours, the token has leaked: trellis clusters rotate-token');
  END IF;
END $$;

-- How much of each limit a cluster uses, as a fraction: 1 is all of it.
CREATE OR REPLACE FUNCTION tendril.usage_ratios(p_usage tendril.cluster_usage, p_org_bytes numeric, p_most tendril.settings) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT jsonb_build_object('agents', round(p_usage.agents::numeric / p_most.agent_limit, 4), 'blobs', round(p_usage.blob_bytes::numeric / p_most.cluster_blob_limit, 4),
    'org_blobs', round(p_org_bytes / p_most.org_blob_limit, 4), 'pins', round(p_usage.pins::numeric / p_most.pin_limit, 4),
    'inspections', round(p_usage.inspections::numeric / p_most.inspection_limit, 4),
    'logs', round(p_usage.log_bytes::numeric / p_most.cluster_log_limit, 4), 'org_logs', round(p_usage.org_log_bytes::numeric / p_most.org_log_limit, 4))
$$;
