-- Who there is: organisations and their members, clusters with their tokens
-- and agents, and the record of what people did.

CREATE TABLE public.orgs (
  id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  name       text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE public.org_members (
  org_id     uuid NOT NULL REFERENCES public.orgs ON DELETE CASCADE,
  user_id    uuid NOT NULL,
  -- viewer reads; operator deploys, cancels, approves; admin manages the rest
  role       text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (org_id, user_id)
);
CREATE INDEX org_members_user ON public.org_members (user_id);

CREATE TABLE public.clusters (
  id             uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  org_id         uuid NOT NULL REFERENCES public.orgs,
  name           text NOT NULL CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'),
  labels         jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object'),
  age_public_key text,
  paused_at      timestamptz,
  -- Written at most every 15 s; whether a cluster is online is computed from it.
  last_seen_at   timestamptz,
  created_by     uuid,
  created_at     timestamptz NOT NULL DEFAULT now(),
  UNIQUE (org_id, name)
);

-- The agent holds the token and sends its SHA-256; this is the SHA-256 of that,
-- so whoever reads the table has no credential. Several at a time, so that a
-- rotation has no gap.
CREATE TABLE tendril.cluster_tokens (
  id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  cluster_id uuid NOT NULL REFERENCES public.clusters ON DELETE CASCADE,
  digest     bytea NOT NULL UNIQUE CHECK (length(digest) = 32),
  created_by uuid,
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz,
  revoked_at timestamptz
);
CREATE INDEX cluster_tokens_cluster ON tendril.cluster_tokens (cluster_id);

CREATE TABLE public.agents (
  id                uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  org_id            uuid NOT NULL REFERENCES public.orgs,
  cluster_id        uuid NOT NULL REFERENCES public.clusters ON DELETE CASCADE,
  instance_id       uuid NOT NULL, -- lives in the agent's data directory
  boot_id           uuid NOT NULL, -- new at each start; older ones are refused
  name              text NOT NULL,
  host              text NOT NULL,
  version           text NOT NULL,
  contract          int  NOT NULL,
  slots             int  NOT NULL CHECK (slots BETWEEN 1 AND 64),
  registered_at     timestamptz NOT NULL DEFAULT now(),
  last_heartbeat_at timestamptz NOT NULL DEFAULT now(),
  -- The last boots that a later one has superseded: none of them may come back.
  past_boots        uuid[] NOT NULL DEFAULT '{}',
  UNIQUE (cluster_id, instance_id)
);
CREATE INDEX agents_name ON public.agents (cluster_id, name);

CREATE TABLE public.audit_events (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  org_id     uuid NOT NULL REFERENCES public.orgs,
  at         timestamptz NOT NULL DEFAULT clock_timestamp(),
  actor      uuid, -- null: the control plane itself
  action     text NOT NULL,
  object     text NOT NULL,
  object_id  uuid,
  detail     jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_events_org ON public.audit_events (org_id, id);

-- The organisations in which the caller has at least a role. One array, so
-- that a policy computes it once per statement and not per row.
CREATE FUNCTION tendril.orgs_with_role(p_least text) RETURNS uuid[]
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
  SELECT coalesce(array_agg(m.org_id), '{}')
  FROM public.org_members m
  WHERE m.user_id = tendril.current_user_id()
    AND array_position(ARRAY['viewer', 'operator', 'admin'], m.role)
        >= array_position(ARRAY['viewer', 'operator', 'admin'], p_least)
$$;
