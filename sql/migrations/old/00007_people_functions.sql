-- ONLINE, STALE or OFFLINE is computed from when an agent was last heard of.
CREATE VIEW public.cluster_overview WITH (security_invoker = true) AS
SELECT c.id, c.org_id, c.name, c.labels, c.paused_at, c.last_seen_at, c.created_at,
       CASE WHEN c.last_seen_at > now() - interval '45 seconds' THEN 'ONLINE'
            WHEN c.last_seen_at > now() - interval '5 minutes'  THEN 'STALE'
            ELSE 'OFFLINE' END AS connectivity
FROM public.clusters c;
