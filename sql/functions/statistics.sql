-- Metrics.

-- Numbers for metrics, computed from indexes only: a queue of 100,000 costs about 50 ms, and rows
-- that have ended are never read. Each trellis process asks every few seconds.
--
-- Arguments:
--   p_clusters  clusters in the answer: first those that use more than 80 % of a limit, then those
--               where something has waited longest
-- Answers: an object; times are in seconds:
--   contract        version of this contract
--   migration       newest migration of the database
--   clusters        list of {id, paused, queued, runnable, running, oldest, oldest_runnable,
--                   online, stale, offline, slots, usage}
--   omitted         clusters left out
--   statuses        provisions by status: QUEUED, PROCESSING, AWAITING_APPROVAL, AWAITING_INPUT
--   overdue_leases  running claims whose lease ran out over a minute ago
--   webhooks        {waiting, overdue}
--   database_bytes  size of the database
--   log_bytes       size of provision_logs
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
-- Notes: Queued is not runnable: what stands behind a run, an approval or a lock does not wait for
--   an agent. An agent counts for a day after its last heartbeat, and not once another instance has
--   its name.
CREATE OR REPLACE FUNCTION tendril.statistics(p_clusters int DEFAULT 200) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1s'
SET jit = off
SET max_parallel_workers_per_gather = 0
SET work_mem = '32MB'
AS $$
DECLARE
  c_nearly   CONSTANT numeric := 0.8; -- of a limit: clusters that use more come first
  v_now      timestamptz := clock_timestamp();
  v_alive    interval;
  v_clusters jsonb;
  v_omitted  bigint;
  v_queued   bigint;
  v_statuses jsonb;
  v_overdue  bigint;
  v_webhooks jsonb;
BEGIN
  SELECT s.agent_alive INTO STRICT v_alive FROM tendril.settings s;

  -- Both indexes have all that is asked of them, so that no row of the queue itself is
  -- read, however long its snapshot is: the oldest goes by its number, and one row a
  -- cluster then says when that was.
  WITH queued AS MATERIALIZED (
    SELECT w.cluster_id, sum(q.depth)::bigint AS depth, min(q.oldest) AS oldest
    FROM (SELECT p.workspace_id, count(*) AS depth, min(p.number) AS oldest
          FROM public.provisions p WHERE p.status = 'QUEUED' GROUP BY p.workspace_id) q
    JOIN public.workspaces w ON w.id = q.workspace_id GROUP BY w.cluster_id
  ), runnable AS MATERIALIZED (
    SELECT w.cluster_id, count(*) AS workspaces, min(w.head_number) AS oldest
    FROM public.workspaces w
    WHERE w.head_id IS NOT NULL AND w.running_claim IS NULL AND w.held_by_claim IS NULL AND w.locked_at IS NULL
    GROUP BY w.cluster_id
  ), running AS MATERIALIZED (
    SELECT c.cluster_id, count(*) AS claims, count(*) FILTER (WHERE c.lease_until < v_now - tendril.overdue_after()) AS overdue
    FROM tendril.claims c WHERE c.state = 'running' GROUP BY c.cluster_id
  ), agents AS MATERIALIZED (
    SELECT a.cluster_id,
      count(*) FILTER (WHERE a.last_heartbeat_at BETWEEN v_now - v_alive AND v_now + v_alive) AS online,
      count(*) FILTER (WHERE a.last_heartbeat_at BETWEEN v_now - tendril.stale_within() AND v_now - v_alive) AS stale,
      count(*) FILTER (WHERE a.last_heartbeat_at < v_now - greatest(v_alive, tendril.stale_within())) AS offline,
      coalesce(sum(a.slots) FILTER (WHERE a.last_heartbeat_at BETWEEN v_now - v_alive AND v_now + v_alive), 0) AS slots
    FROM (SELECT DISTINCT ON (n.cluster_id, n.name) n.* FROM public.agents n WHERE n.last_heartbeat_at > v_now - tendril.forgotten_after()
          ORDER BY n.cluster_id, n.name, n.last_heartbeat_at DESC) a GROUP BY a.cluster_id
  ), used AS MATERIALIZED (
    SELECT u.cluster_id, tendril.usage_ratios(u, sum(u.blob_bytes) OVER (PARTITION BY u.org_id), s) AS ratios FROM tendril.cluster_usage u, tendril.settings s
  ), all_clusters AS MATERIALIZED (
    SELECT c.id, c.paused_at, x.ratios, coalesce(q.depth, 0) AS depth, q.oldest, coalesce(r.workspaces, 0) AS runnable, r.oldest AS oldest_runnable,
      coalesce(u.claims, 0) AS running, coalesce(u.overdue, 0) AS overdue,
      coalesce(a.online, 0) AS online, coalesce(a.stale, 0) AS stale, coalesce(a.offline, 0) AS offline, coalesce(a.slots, 0) AS slots,
      row_number() OVER (ORDER BY (SELECT max(e.value::numeric) FROM jsonb_each_text(x.ratios) e) > c_nearly DESC NULLS LAST, r.oldest NULLS LAST, q.oldest NULLS LAST, u.claims DESC NULLS LAST, c.last_seen_at DESC NULLS LAST, c.id) AS place
    FROM public.clusters c
    LEFT JOIN queued q ON q.cluster_id = c.id
    LEFT JOIN runnable r ON r.cluster_id = c.id
    LEFT JOIN running u ON u.cluster_id = c.id
    LEFT JOIN agents a ON a.cluster_id = c.id
    LEFT JOIN used x ON x.cluster_id = c.id
  )
  SELECT jsonb_agg(jsonb_build_object('id', l.id, 'paused', l.paused_at IS NOT NULL, 'queued', l.depth, 'runnable', l.runnable, 'running', l.running,
      'oldest', extract(epoch FROM greatest(v_now - o.created_at, interval '0')),
      'oldest_runnable', extract(epoch FROM greatest(v_now - n.created_at, interval '0')),
      'online', l.online, 'stale', l.stale, 'offline', l.offline, 'slots', l.slots, 'usage', coalesce(l.ratios, '{}')) ORDER BY l.place) FILTER (WHERE l.place <= p_clusters),
    count(*) FILTER (WHERE l.place > p_clusters), coalesce(sum(l.depth), 0), coalesce(sum(l.overdue), 0)
  INTO v_clusters, v_omitted, v_queued, v_overdue
  FROM all_clusters l
  LEFT JOIN LATERAL (SELECT p.created_at FROM public.provisions p WHERE p.number = l.oldest AND l.place <= p_clusters OFFSET 0) o ON true
  LEFT JOIN LATERAL (SELECT p.created_at FROM public.provisions p WHERE p.number = l.oldest_runnable AND l.place <= p_clusters OFFSET 0) n ON true;

  -- Whatever is neither queued nor over has a claim or reserves its workspace. OFFSET:
  -- one look by the primary key for each, never a scan.
  SELECT jsonb_build_object('QUEUED', v_queued,
    'PROCESSING', count(*) FILTER (WHERE p.status = 'PROCESSING'), 'AWAITING_APPROVAL', count(*) FILTER (WHERE p.status = 'AWAITING_APPROVAL'),
    'AWAITING_INPUT', count(*) FILTER (WHERE p.status = 'AWAITING_INPUT'))
  INTO v_statuses
  FROM (SELECT c.provision_id AS id FROM tendril.claims c WHERE c.state = 'running'
        UNION SELECT w.reserved_by FROM public.workspaces w WHERE w.reserved_by IS NOT NULL) active
  CROSS JOIN LATERAL (SELECT q.status FROM public.provisions q WHERE q.id = active.id OFFSET 0) p;

  SELECT jsonb_build_object('waiting', count(*), 'overdue', coalesce(extract(epoch FROM greatest(v_now - min(d.next_at), interval '0')), 0))
  INTO v_webhooks FROM public.webhook_deliveries d WHERE d.next_at IS NOT NULL;

  RETURN jsonb_build_object(
    'contract', tendril.contract_version(), 'migration', (SELECT max(m.version_id) FROM tendril.schema_migrations m WHERE m.is_applied),
    'clusters', coalesce(v_clusters, '[]'), 'omitted', v_omitted, 'statuses', v_statuses, 'overdue_leases', v_overdue, 'webhooks', v_webhooks,
    'database_bytes', pg_database_size(current_database()), 'log_bytes', pg_total_relation_size('public.provision_logs'));
END $$;
