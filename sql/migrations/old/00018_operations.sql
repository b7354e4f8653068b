-- What a provision may ask for beyond an apply: the operations, which resources,
-- who must approve, how long and how often. And who may set the rules for it.

-- Those of the migrations after this one as well, as in migration 11.
SELECT tendril.lock_tables('public.clusters, public.agents, public.workspaces, tendril.claims, public.provisions, public.provision_progress,
  public.provision_events, public.provision_logs, public.resources, public.templates, public.audit_events, tendril.settings, tendril.log_heads');

ALTER TABLE public.provisions
  DROP CONSTRAINT provisions_operation_check,
  ADD CONSTRAINT provisions_operation_check CHECK (operation IN ('plan', 'apply', 'destroy', 'refresh', 'unlock', 'state')) NOT VALID,
  -- Which automatic attempt this is; retry_of is the one before. Nobody but our
  -- own functions may insert it, so it also tells that they do.
  ADD COLUMN attempt smallint NOT NULL DEFAULT 1,
  -- An automatic attempt waits until then.
  ADD COLUMN not_before timestamptz;

ALTER TABLE public.clusters
  -- When a plan must be approved: by cluster, by template, by the snapshot. The
  -- strictest counts.
  ADD COLUMN approval text NOT NULL DEFAULT 'never' CHECK (approval IN ('never', 'destructive', 'always')),
  -- The least role of who may approve.
  ADD COLUMN approvers text NOT NULL DEFAULT 'operator' CHECK (approvers IN ('operator', 'admin')),
  -- Who asked for it may not approve it.
  ADD COLUMN four_eyes boolean NOT NULL DEFAULT false,
  ADD COLUMN approval_expiry interval NOT NULL DEFAULT '7 days' CHECK (approval_expiry BETWEEN interval '1 minute' AND interval '90 days');

ALTER TABLE public.templates
  ADD COLUMN approval text NOT NULL DEFAULT 'never' CHECK (approval IN ('never', 'destructive', 'always'));
CREATE INDEX templates_approval ON public.templates (org_id) WHERE approval <> 'never';

-- When something that the workspace is reserved for is due: an approval that
-- nobody gave in time, or another attempt.
ALTER TABLE public.workspaces ADD COLUMN due_at timestamptz;
CREATE INDEX workspaces_due ON public.workspaces (due_at) WHERE due_at IS NOT NULL;
GRANT INSERT (operation) ON public.provisions TO authenticated, service_role;
