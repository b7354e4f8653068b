-- Every table that grows says how long its rows are kept (docs/OPERATIONS.md has the
-- table); tendril.expire() removes them, with an index for each.
SELECT tendril.lock_tables('tendril.settings, public.audit_events, tendril.blobs, tendril.credentials, tendril.cluster_tokens,
  public.invitations, public.webhook_deliveries, public.template_inspections, public.template_tags, public.cluster_pins');

-- NULL: never. What people would miss is kept for ever until they say otherwise.
ALTER TABLE tendril.settings
  ADD COLUMN audit_delete_after      interval CHECK (audit_delete_after >= '1 day'),
  ADD COLUMN provision_delete_after  interval CHECK (provision_delete_after >= '1 day'),
  ADD COLUMN event_delete_after      interval CHECK (event_delete_after >= '1 day'),
  ADD COLUMN claim_delete_after      interval DEFAULT '90 days' CHECK (claim_delete_after >= '1 day'),
  ADD COLUMN agent_delete_after      interval DEFAULT '30 days' CHECK (agent_delete_after >= '1 day'),
  ADD COLUMN token_delete_after      interval DEFAULT '90 days' CHECK (token_delete_after >= '1 day'),
  ADD COLUMN credential_delete_after interval DEFAULT '30 days' CHECK (credential_delete_after >= '1 day'),
  ADD COLUMN invitation_delete_after interval DEFAULT '90 days' CHECK (invitation_delete_after >= '1 day'),
  ADD COLUMN delivery_delete_after   interval DEFAULT '30 days' CHECK (delivery_delete_after >= '1 day'),
  ADD COLUMN delivery_limit          int NOT NULL DEFAULT 1000 CHECK (delivery_limit > 0),
  ADD COLUMN request_delete_after    interval DEFAULT '1 day' CHECK (request_delete_after >= '1 day'),
  ADD COLUMN inspection_delete_after interval DEFAULT '90 days' CHECK (inspection_delete_after >= '1 day'),
  ADD COLUMN tag_delete_after        interval DEFAULT '90 days' CHECK (tag_delete_after >= '1 day'),
  ADD COLUMN pin_delete_after        interval DEFAULT '90 days' CHECK (pin_delete_after >= '1 day');

-- Where tendril.expire() goes on, so that large tables need no further index. The first row is
-- locked while it works.
CREATE TABLE tendril.expiry (
  name        text PRIMARY KEY,
  next_number bigint NOT NULL DEFAULT 1,
  began_at    timestamptz NOT NULL DEFAULT '-infinity'
);
COMMENT ON COLUMN tendril.expiry.next_number IS 'The provision to look at next. What is kept of those before it is looked at again in the next pass.';
COMMENT ON COLUMN tendril.expiry.began_at IS 'When this pass began.';
INSERT INTO tendril.expiry (name) VALUES ('agents'), ('claims'), ('provisions');

CREATE INDEX credentials_over           ON tendril.credentials (least(revoked_at, expires_at)) WHERE least(revoked_at, expires_at) IS NOT NULL;
CREATE INDEX cluster_tokens_over        ON tendril.cluster_tokens (least(revoked_at, expires_at)) WHERE least(revoked_at, expires_at) IS NOT NULL;
CREATE INDEX invitations_over           ON public.invitations (coalesce(accepted_at, declined_at, expires_at));
CREATE INDEX webhook_deliveries_created ON public.webhook_deliveries (created_at);
CREATE INDEX template_inspections_over  ON public.template_inspections (greatest(requested_at, inspected_at)) WHERE status IN ('done', 'failed');
DROP INDEX public.template_inspections_failed;
CREATE INDEX template_tags_listed       ON public.template_tags (listed_at);
CREATE INDEX cluster_pins_of_commits    ON public.cluster_pins (first_used_at) WHERE version ~ '^[0-9a-f]{40}$';

-- Only rows that are older than the setting may go, whoever deletes them.
DROP TRIGGER IF EXISTS audit_events_keep ON public.audit_events;

-- Bounds on what the holder of a cluster's token can store, and how much of them is used.
SELECT tendril.lock_tables('public.clusters');
ALTER TABLE tendril.settings
  ADD COLUMN agent_limit        int    NOT NULL DEFAULT 1000 CHECK (agent_limit > 0),
  ADD COLUMN cluster_blob_limit bigint NOT NULL DEFAULT 20 * 1024 ^ 3 CHECK (cluster_blob_limit > 0),
  ADD COLUMN org_blob_limit     bigint NOT NULL DEFAULT 100 * 1024 ^ 3 CHECK (org_blob_limit > 0),
  ADD COLUMN pin_limit          int    NOT NULL DEFAULT 20000 CHECK (pin_limit > 0),
  ADD COLUMN inspection_limit   int    NOT NULL DEFAULT 5000 CHECK (inspection_limit > 0),
  ADD COLUMN resource_limit     int    NOT NULL DEFAULT 20000 CHECK (resource_limit > 0);
COMMENT ON COLUMN tendril.settings.agent_limit IS 'Agents of a cluster.';
COMMENT ON COLUMN tendril.settings.cluster_blob_limit IS 'Bytes of plans, states, results and uploads of a cluster.';
COMMENT ON COLUMN tendril.settings.org_blob_limit IS 'The same of all clusters of an organisation; each may use its share of it, whatever the others do.';
COMMENT ON COLUMN tendril.settings.pin_limit IS 'Tags and commits whose use a cluster has pinned.';
COMMENT ON COLUMN tendril.settings.inspection_limit IS 'Versions of templates of an organisation of which the variables are known.';
COMMENT ON COLUMN tendril.settings.resource_limit IS 'Resources of a workspace that are listed.';

CREATE TABLE tendril.cluster_usage (
  cluster_id  uuid PRIMARY KEY REFERENCES public.clusters ON DELETE CASCADE,
  org_id      uuid NOT NULL,
  measured_at timestamptz NOT NULL DEFAULT '-infinity',
  agents      bigint NOT NULL DEFAULT 0,
  blob_bytes  bigint NOT NULL DEFAULT 0,
  pins        bigint NOT NULL DEFAULT 0,
  inspections bigint NOT NULL DEFAULT 0
);
COMMENT ON COLUMN tendril.cluster_usage.inspections IS 'Of the organisation.';
CREATE INDEX cluster_usage_org      ON tendril.cluster_usage (org_id);
CREATE INDEX cluster_usage_measured ON tendril.cluster_usage (measured_at);
CREATE INDEX blobs_cluster          ON tendril.blobs (cluster_id) INCLUDE (bytes);
INSERT INTO tendril.cluster_usage (cluster_id, org_id) SELECT id, org_id FROM public.clusters;
