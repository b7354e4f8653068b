-- Webhooks: who is told of what happens, by HTTP. What is to be sent is written
-- in the transaction in which it happens, so nothing is told that was rolled back
-- and nothing that happened is forgotten; trellis sends it.
--
-- URLs are credentials (Slack's are), so they are sealed by a key that only
-- trellis has, and what signs messages is derived from that key: whoever reads
-- this database can neither send in our name nor to those receivers.

SELECT tendril.lock_tables('public.orgs, public.clusters, public.workspaces, public.provisions');

CREATE TABLE public.webhooks (
  id            uuid PRIMARY KEY,
  org_id        uuid NOT NULL REFERENCES public.orgs ON DELETE CASCADE,
  name          text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
  kind          text NOT NULL CHECK (kind IN ('generic', 'slack')),
  host          text NOT NULL CHECK (length(host) BETWEEN 1 AND 300), -- all of its URL that is shown
  events        text[] NOT NULL CHECK (cardinality(events) > 0 AND events <@ ARRAY['awaiting_approval', 'success', 'failure', 'cancelled', 'drift']),
  -- Of which cluster, and of workspaces whose name is like that (* is anything).
  cluster_id    uuid REFERENCES public.clusters ON DELETE CASCADE,
  workspace     text CHECK (length(workspace) BETWEEN 1 AND 200),
  enabled       boolean NOT NULL DEFAULT true,
  -- Why it is not enabled, when no person has said so: failing, gone.
  disabled_why  text,
  -- Since when nothing has arrived any more.
  failing_since timestamptz,
  -- Which signing secret counts; a new one ends that before it.
  generation    int NOT NULL DEFAULT 1,
  created_by    uuid,
  created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  UNIQUE (org_id, name)
);
CREATE INDEX webhooks_cluster ON public.webhooks (cluster_id);

CREATE TABLE tendril.webhook_urls (
  webhook_id uuid PRIMARY KEY REFERENCES public.webhooks ON DELETE CASCADE,
  sealed     bytea NOT NULL CHECK (length(sealed) BETWEEN 1 AND 4096)
);

-- One message to one webhook, and every attempt to deliver it.
CREATE TABLE public.webhook_deliveries (
  id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  org_id       uuid NOT NULL,
  -- No foreign key: an agent's report must not wait for who changes a webhook, nor
  -- fail because one is removed just then.
  webhook_id   uuid NOT NULL,
  event        text NOT NULL,
  provision_id uuid,
  payload      jsonb NOT NULL,
  status       text NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'delivered', 'failed')),
  -- [{at, code, duration_ms, error}], the oldest first.
  attempts     jsonb NOT NULL DEFAULT '[]',
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  -- Null once it has arrived or was given up.
  next_at      timestamptz DEFAULT clock_timestamp(),
  -- Who is at it, so that another who came too late changes nothing.
  taken_by     uuid,
  finished_at  timestamptz
);
CREATE INDEX webhook_deliveries_due ON public.webhook_deliveries (webhook_id, next_at) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_latest ON public.webhook_deliveries (webhook_id, created_at DESC);

ALTER TABLE public.webhooks ENABLE ROW LEVEL SECURITY;
CREATE POLICY members_read ON public.webhooks FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('viewer'))::uuid[]));
ALTER TABLE public.webhook_deliveries ENABLE ROW LEVEL SECURITY;
CREATE POLICY admins_read ON public.webhook_deliveries FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('admin'))::uuid[]));
GRANT SELECT ON public.webhooks, public.webhook_deliveries TO authenticated, service_role;
