-- The agent instance that keeps a state which could not be stored. Only it may
-- run the workspace: its next run stores that state before anything else.
ALTER TABLE public.workspaces ADD COLUMN unsaved_state_on uuid;

-- Tells a data directory from a copy of it on the same host. NULL: an agent of
-- contract 1, which may be the same one before its upgrade.
ALTER TABLE public.agents ADD COLUMN directory text;
ALTER TABLE tendril.claims ADD COLUMN directory text;

CREATE INDEX claims_lost ON tendril.claims (workspace_id) WHERE state = 'lost';

-- An agent seen in the future was not seen just now.
CREATE OR REPLACE VIEW public.cluster_overview WITH (security_invoker = true) AS
SELECT c.id, c.org_id, c.name, c.labels, c.paused_at, c.last_seen_at, c.created_at,
       CASE WHEN c.last_seen_at BETWEEN now() - interval '45 seconds' AND now() + interval '45 seconds' THEN 'ONLINE'
            WHEN c.last_seen_at BETWEEN now() - interval '5 minutes'  AND now() + interval '5 minutes'  THEN 'STALE'
            ELSE 'OFFLINE' END AS connectivity
FROM public.clusters c;

DROP TRIGGER IF EXISTS workspaces_notify ON public.workspaces; -- it is another now
