-- What a run tells as it goes: each of its stages with start and end, what is
-- being worked on, and what it finds in its workspace: which resources there
-- are, what has drifted, who holds the state's lock.

SELECT tendril.lock_tables('public.workspaces, tendril.claims, public.provisions, public.provision_progress, public.resources');

-- One row for each stage of each attempt; attempts are counted by how often the
-- provision was queued: at first, after an approval, for a retry. A stage that a
-- run comes back to stays one row, from its first start to its last end, so that
-- no agent can make more of them than there are stages.
CREATE TABLE public.provision_stages (
  provision_id uuid NOT NULL REFERENCES public.provisions ON DELETE CASCADE,
  org_id       uuid NOT NULL,
  attempt      int  NOT NULL,
  stage        text NOT NULL CHECK (stage IN ('queued', 'checkout', 'validate', 'engine', 'init', 'plan', 'approval', 'apply', 'outputs', 'done')),
  started_at   timestamptz NOT NULL,
  ended_at     timestamptz,
  PRIMARY KEY (provision_id, attempt, stage)
) WITH (fillfactor = 70);
ALTER TABLE public.provision_stages ENABLE ROW LEVEL SECURITY;
CREATE POLICY members_read ON public.provision_stages FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('viewer'))::uuid[]));

INSERT INTO public.provision_stages (provision_id, org_id, attempt, stage, started_at)
SELECT id, org_id, 1, 'queued', created_at FROM public.provisions WHERE status = 'QUEUED';

-- Which resources are being worked on, for the page: [{address, action, since}],
-- at most 50 of them.
ALTER TABLE public.provision_progress ADD COLUMN running jsonb NOT NULL DEFAULT '[]';
-- As percent_due: what viewers are not told yet.
ALTER TABLE tendril.claims ADD COLUMN running_due jsonb;

ALTER TABLE public.workspaces
  -- What the newest refresh found to have changed outside: [{address, action,
  -- attributes}], at most 200 of drift_count. All null: not known, or an apply
  -- has put it right since.
  ADD COLUMN drift       jsonb,
  ADD COLUMN drift_count int,
  ADD COLUMN drift_at    timestamptz,
  -- Who held the lock of the state when a run last wanted it: {id, who,
  -- operation, created, number, at}, of which number and at say which run met it
  -- and when. Null once a run has got the lock.
  ADD COLUMN state_lock  jsonb;
GRANT SELECT ON public.provision_stages TO authenticated, service_role;

DROP TRIGGER IF EXISTS claims_show_percent_due ON tendril.claims; -- it is another now
