-- Invitations are accepted or declined by the person who is invited.

SELECT tendril.lock_tables('public.invitations, tendril.settings');

ALTER TABLE tendril.settings
  ADD COLUMN invitation_limit int NOT NULL DEFAULT 1000 CHECK (invitation_limit > 0);

-- An invitation is for an e-mail address, or for a user whose id is known.
ALTER TABLE public.invitations
  ALTER COLUMN email DROP NOT NULL,
  ADD COLUMN user_id uuid,
  ADD COLUMN declined_at timestamptz,
  ADD CONSTRAINT invitations_for_one CHECK (num_nonnulls(email, user_id) = 1),
  ADD CONSTRAINT invitations_user UNIQUE (org_id, user_id);
CREATE INDEX invitations_user_id ON public.invitations (user_id) WHERE user_id IS NOT NULL;

-- A tag's commit is pinned for the organisation by what trellis has read or an admin
-- has said; what an agent reports pins it for that agent's cluster.
SELECT tendril.lock_tables('public.template_pins, public.clusters');

ALTER TABLE public.template_pins
  ADD COLUMN pinned_by text NOT NULL DEFAULT 'earlier' CHECK (pinned_by IN ('earlier', 'inspection', 'admin'));

CREATE TABLE public.cluster_pins (
  cluster_id    uuid NOT NULL REFERENCES public.clusters ON DELETE CASCADE,
  repo          text NOT NULL, -- as tendril.plain_repo() has it
  version       text NOT NULL,
  commit        text NOT NULL CHECK (commit ~ '^[0-9a-f]{40}$'),
  org_id        uuid NOT NULL,
  first_used_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (cluster_id, repo, version)
);
ALTER TABLE public.cluster_pins ENABLE ROW LEVEL SECURITY;
CREATE POLICY members_read ON public.cluster_pins FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('viewer'))::uuid[]));
