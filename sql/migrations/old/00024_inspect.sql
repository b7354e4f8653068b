-- What a template declares, found out before anybody deploys it: by trellis where
-- it can reach the repository, else by a run of its own on an agent that can. And
-- by every run that is the first of its version.

SELECT tendril.lock_tables('public.orgs, public.workspaces, public.provisions, public.templates');

-- One version of one template. An inspection is wanted (trellis has a minute to
-- take it), handed (an agent must look, for trellis cannot), queued (as a provision
-- of operation inspect), done or failed.
CREATE TABLE public.template_inspections (
  org_id       uuid NOT NULL REFERENCES public.orgs,
  repo         text NOT NULL, -- as tendril.plain_repo() has it
  version      text NOT NULL,
  path         text NOT NULL, -- as tendril.plain_path() has it
  address      text NOT NULL, -- of the repository, as somebody wrote it
  status       text NOT NULL DEFAULT 'wanted' CHECK (status IN ('wanted', 'handed', 'queued', 'done', 'failed')),
  commit       text CHECK (commit ~ '^[0-9a-f]{40}$'),
  -- As internal/provision has them. What was found out before stays while it is
  -- looked at again.
  variables    jsonb,
  inspected_by text CHECK (inspected_by IN ('trellis', 'agent', 'run')),
  inspected_at timestamptz,
  -- Why nothing is known, or why trellis leaves it to an agent; for people.
  problem_code text,
  problem      text,
  provision_id uuid, -- the newest run that looks, or did; no foreign key, as with retry_of
  requested_by uuid,
  requested_at timestamptz NOT NULL DEFAULT now(),
  tried        uuid[] NOT NULL DEFAULT '{}', -- clusters whose agents could not
  -- Which trellis has it, and until when.
  lease        uuid,
  lease_until  timestamptz,
  PRIMARY KEY (org_id, repo, version, path)
);
CREATE INDEX template_inspections_due ON public.template_inspections (requested_at) WHERE status IN ('wanted', 'handed');
CREATE INDEX template_inspections_queued ON public.template_inspections (org_id) WHERE status = 'queued';
CREATE INDEX template_inspections_failed ON public.template_inspections (requested_at) WHERE status = 'failed' AND variables IS NULL;

-- The tags that a repository had when trellis looked last: [{"tag", "commit"}].
CREATE TABLE public.template_tags (
  org_id    uuid NOT NULL REFERENCES public.orgs,
  repo      text NOT NULL,
  tags      jsonb NOT NULL,
  listed_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (org_id, repo)
);

ALTER TABLE public.template_inspections ENABLE ROW LEVEL SECURITY;
CREATE POLICY members_read ON public.template_inspections FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('viewer'))::uuid[]));
ALTER TABLE public.template_tags ENABLE ROW LEVEL SECURITY;
CREATE POLICY members_read ON public.template_tags FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('viewer'))::uuid[]));

ALTER TABLE public.provisions
  DROP CONSTRAINT provisions_operation_check,
  ADD CONSTRAINT provisions_operation_check CHECK (operation IN ('plan', 'apply', 'destroy', 'refresh', 'unlock', 'state', 'inspect')) NOT VALID;

-- A workspace that is none: an inspection needs the queue's place, and no state.
-- Lists leave it out, and people's functions do not find it.
ALTER TABLE public.workspaces ADD COLUMN hidden boolean NOT NULL DEFAULT false;
GRANT SELECT ON public.template_inspections, public.template_tags TO authenticated, service_role;
-- after the functions

-- What is in the catalogue already.
SELECT tendril.want_inspection(org_id, repo, version, path) FROM public.templates;
