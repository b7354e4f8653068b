-- The baseline: roles, schemas, tables, indexes and first rows. A database that has
-- none of it begins here; one that is older comes here by old/, and has the same.
--
-- Two schemas: public is what outsiders may see (tables under row-level security, and
-- the functions that they call); tendril is what they may not. On plain Postgres this
-- creates what Supabase brings, and only what is missing. Functions, triggers and grants
-- are in sql/functions.

DO $$
DECLARE
  v_role text;
  v_need text := CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END;
BEGIN
  FOREACH v_role IN ARRAY ARRAY['anon', 'authenticated', 'service_role', 'tendril_agent'] LOOP
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = v_role) THEN
      BEGIN
        EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
      EXCEPTION
        -- Roles belong to the server: another database may be migrating now.
        WHEN duplicate_object OR unique_violation THEN NULL;
      END;
    END IF;
  END LOOP;

  -- The control plane runs each request as authenticated (SET LOCAL ROLE).
  IF NOT pg_has_role(current_user, 'authenticated', v_need) THEN
    BEGIN
      GRANT authenticated TO CURRENT_USER;
    EXCEPTION
      WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'role % may not act as role authenticated, which somebody else made', current_user
          USING HINT = format('have a superuser run: GRANT authenticated TO %I', current_user);
    END;
  END IF;

  -- The server ends a call that hangs before its agent gives it up. This counts for a
  -- login as this very role; members need the setting themselves.
  BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_db_role_setting WHERE setrole = 'tendril_agent'::regrole AND setdatabase = 0) THEN
      ALTER ROLE tendril_agent SET statement_timeout = '15s';
    END IF;
  EXCEPTION
    -- Somebody else made the role; or another database of the server is migrating now.
    WHEN insufficient_privilege OR unique_violation OR internal_error THEN NULL;
  END;
END $$;

CREATE SCHEMA IF NOT EXISTS tendril;
COMMENT ON SCHEMA tendril IS 'Tendril: what outsiders may not see. Token digests, claims, settings, internal functions.';
REVOKE ALL ON SCHEMA tendril FROM PUBLIC, anon, authenticated, service_role, tendril_agent;

GRANT USAGE ON SCHEMA public TO anon, authenticated, service_role, tendril_agent;

DO $$
BEGIN
  -- Supabase's auth schema belongs to another role: never touch it.
  IF to_regprocedure('auth.uid()') IS NULL THEN
    CREATE SCHEMA IF NOT EXISTS auth;
    CREATE FUNCTION auth.uid() RETURNS uuid LANGUAGE sql STABLE AS
      $f$ SELECT nullif(nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'sub', '')::uuid $f$;
    GRANT USAGE ON SCHEMA auth TO anon, authenticated, service_role;
  END IF;
END $$;

-- ---------------------------------------------------------------------------
-- Settings
-- ---------------------------------------------------------------------------

-- The numbers that an operator, or a test, may want different.
CREATE TABLE tendril.settings (
  only_row          boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  lease             interval NOT NULL DEFAULT '2 minutes'  CHECK (lease > interval '0'),
  heartbeat         interval NOT NULL DEFAULT '10 seconds' CHECK (heartbeat > interval '0'),
  -- An agent with a heartbeat this recent is alive: its name and instance are taken.
  agent_alive       interval NOT NULL DEFAULT '30 seconds',
  poll              interval NOT NULL DEFAULT '5 seconds'  CHECK (poll > interval '0'),
  -- At most one NOTIFY per provision's log in this time.
  log_notify        interval NOT NULL DEFAULT '100 milliseconds',
  -- How long after its end a provision's newest claim may still append lines.
  late_log          interval NOT NULL DEFAULT '24 hours',
  newest_agent      text,
  -- Bytes of one provision's log. An agent keeps 64 MiB by itself, and a provision that
  -- needs approval has a run before it and one after: what agents send fits, unless
  -- their run.log_limit is higher.
  log_limit         bigint NOT NULL DEFAULT 256 * 1024 * 1024 CHECK (log_limit > 0),
  -- Provisions that people may have queued in one workspace.
  queue_limit       int    NOT NULL DEFAULT 1000 CHECK (queue_limit > 0),
  -- Bytes of one run's events, as JSON. A run that makes 100,000 resources has less.
  event_limit       bigint NOT NULL DEFAULT 64 * 1024 * 1024 CHECK (event_limit > 0),
  -- The first automatic attempt after a failure waits so long; each further one twice as
  -- long, and none longer than retry_at_most.
  retry_after       interval NOT NULL DEFAULT '30 seconds' CHECK (retry_after > interval '0'),
  retry_at_most     interval NOT NULL DEFAULT '10 minutes',
  -- States of a workspace that are kept, the newest included.
  state_history     int NOT NULL DEFAULT 20 CHECK (state_history > 0),
  -- How long the result of a state operation waits for the person who asked for it.
  result_kept       interval NOT NULL DEFAULT '7 days' CHECK (result_kept > interval '0'),
  -- How long an upload waits for its operation, and an unfinished blob for its rest.
  upload_kept       interval NOT NULL DEFAULT '1 day' CHECK (upload_kept > interval '0'),
  -- Uploads of a cluster that may wait, of up to 64 MiB each.
  upload_limit      int NOT NULL DEFAULT 20 CHECK (upload_limit > 0),
  -- How long a browser stays signed in, and how long without use.
  session_lasts     interval NOT NULL DEFAULT '30 days' CHECK (session_lasts > interval '0'),
  session_idle      interval NOT NULL DEFAULT '7 days'  CHECK (session_idle > interval '0'),
  invitation_lasts  interval NOT NULL DEFAULT '14 days' CHECK (invitation_lasts > interval '0'),
  -- How long after its end a provision's log is archived, and never while lines are
  -- still taken for it (late_log). NULL: never.
  log_archive_after interval DEFAULT '7 days' CHECK (log_archive_after > interval '0'),
  -- How long after its end a provision's log is deleted. NULL: never.
  log_delete_after  interval,
  lock_salt         bigint NOT NULL DEFAULT hashtextextended(gen_random_uuid()::text, 0),
  invitation_limit  int NOT NULL DEFAULT 1000 CHECK (invitation_limit > 0),
  -- Retention of each table that grows. NULL: never. What people would miss is kept
  -- until they say otherwise.
  audit_delete_after      interval CHECK (audit_delete_after >= '1 day'),
  provision_delete_after  interval CHECK (provision_delete_after >= '1 day'),
  event_delete_after      interval CHECK (event_delete_after >= '1 day'),
  claim_delete_after      interval DEFAULT '90 days' CHECK (claim_delete_after >= '1 day'),
  agent_delete_after      interval DEFAULT '30 days' CHECK (agent_delete_after >= '1 day'),
  token_delete_after      interval DEFAULT '90 days' CHECK (token_delete_after >= '1 day'),
  credential_delete_after interval DEFAULT '30 days' CHECK (credential_delete_after >= '1 day'),
  invitation_delete_after interval DEFAULT '90 days' CHECK (invitation_delete_after >= '1 day'),
  delivery_delete_after   interval DEFAULT '30 days' CHECK (delivery_delete_after >= '1 day'),
  delivery_limit          int NOT NULL DEFAULT 1000 CHECK (delivery_limit > 0),
  request_delete_after    interval DEFAULT '1 day' CHECK (request_delete_after >= '1 day'),
  inspection_delete_after interval DEFAULT '90 days' CHECK (inspection_delete_after >= '1 day'),
  tag_delete_after        interval DEFAULT '90 days' CHECK (tag_delete_after >= '1 day'),
  pin_delete_after        interval DEFAULT '90 days' CHECK (pin_delete_after >= '1 day'),
  -- Bounds on what the holder of a cluster's token can store.
  agent_limit        int    NOT NULL DEFAULT 1000 CHECK (agent_limit > 0),
  cluster_blob_limit bigint NOT NULL DEFAULT 20 * 1024 ^ 3 CHECK (cluster_blob_limit > 0),
  org_blob_limit     bigint NOT NULL DEFAULT 100 * 1024 ^ 3 CHECK (org_blob_limit > 0),
  pin_limit          int    NOT NULL DEFAULT 20000 CHECK (pin_limit > 0),
  inspection_limit   int    NOT NULL DEFAULT 5000 CHECK (inspection_limit > 0),
  resource_limit     int    NOT NULL DEFAULT 20000 CHECK (resource_limit > 0),
  cluster_log_limit  bigint NOT NULL DEFAULT 100 * 1024 ^ 3 CHECK (cluster_log_limit > 0),
  org_log_limit      bigint NOT NULL DEFAULT 500 * 1024 ^ 3 CHECK (org_log_limit > 0),
  -- Only archived logs are deleted.
  CONSTRAINT settings_log_delete_after
    CHECK (log_delete_after IS NULL OR log_archive_after IS NOT NULL AND log_delete_after >= log_archive_after)
);
COMMENT ON COLUMN tendril.settings.lock_salt IS 'Makes the keys of advisory locks unknown outside of this schema.';
COMMENT ON COLUMN tendril.settings.agent_limit IS 'Agents of a cluster.';
COMMENT ON COLUMN tendril.settings.cluster_blob_limit IS 'Bytes of plans, states, results and uploads of a cluster.';
COMMENT ON COLUMN tendril.settings.org_blob_limit IS 'The same of all clusters of an organisation; each may use its share of it, whatever the others do.';
COMMENT ON COLUMN tendril.settings.pin_limit IS 'Tags and commits whose use a cluster has pinned.';
COMMENT ON COLUMN tendril.settings.inspection_limit IS 'Versions of templates of an organisation of which the variables are known.';
COMMENT ON COLUMN tendril.settings.resource_limit IS 'Resources of a workspace that are listed.';
COMMENT ON COLUMN tendril.settings.cluster_log_limit IS 'Bytes of text of all logs of a cluster.';
COMMENT ON COLUMN tendril.settings.org_log_limit IS 'The same of all clusters of an organisation; each may use its share of it, whatever the others do.';
INSERT INTO tendril.settings DEFAULT VALUES;

-- ---------------------------------------------------------------------------
-- Organisations and people
-- ---------------------------------------------------------------------------

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
  row_id     uuid NOT NULL DEFAULT gen_random_uuid(),
  PRIMARY KEY (org_id, user_id)
);
CREATE INDEX org_members_user ON public.org_members (user_id);

CREATE TABLE tendril.persons (
  user_id        uuid PRIMARY KEY,
  name           text NOT NULL DEFAULT '',
  email          text NOT NULL DEFAULT '',
  email_verified boolean NOT NULL DEFAULT false, -- by the issuer
  signed_in_at   timestamptz,
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX persons_email ON tendril.persons (lower(email)) WHERE email_verified;

-- What an issuer calls a person. Subjects need not be UUIDs, and are unique with their
-- issuer only.
CREATE TABLE tendril.identities (
  issuer     text NOT NULL,
  subject    text NOT NULL CHECK (length(subject) BETWEEN 1 AND 255),
  user_id    uuid NOT NULL REFERENCES tendril.persons,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (issuer, subject)
);
CREATE INDEX identities_user ON tendril.identities (user_id);

-- What people show instead of signing in again. Only a digest of it is kept.
CREATE TABLE tendril.credentials (
  id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  kind         text NOT NULL CHECK (kind IN ('session', 'api_token', 'link', 'cli_code')),
  user_id      uuid NOT NULL,
  digest       bytea NOT NULL UNIQUE CHECK (length(digest) = 32),
  label        text NOT NULL DEFAULT '', -- what its person calls it: a name, a browser, a host
  challenge    text,                     -- of a CLI's code: PKCE, S256
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  last_used_at timestamptz,              -- written at most once a minute
  expires_at   timestamptz,
  revoked_at   timestamptz               -- or used up
);
CREATE INDEX credentials_user ON tendril.credentials (user_id);
CREATE INDEX credentials_over ON tendril.credentials (least(revoked_at, expires_at)) WHERE least(revoked_at, expires_at) IS NOT NULL;

-- Names for the members of an organisation, and for former members: their actions are
-- still shown. Copied from tendril.persons.
CREATE TABLE public.people (
  org_id  uuid NOT NULL REFERENCES public.orgs ON DELETE CASCADE,
  user_id uuid NOT NULL,
  name    text NOT NULL,
  email   text NOT NULL,
  row_id  uuid NOT NULL DEFAULT gen_random_uuid(),
  PRIMARY KEY (org_id, user_id)
);
CREATE INDEX people_user ON public.people (user_id);

-- An invitation is for an e-mail address, or for a user whose id is known.
CREATE TABLE public.invitations (
  id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  org_id      uuid NOT NULL REFERENCES public.orgs ON DELETE CASCADE,
  email       text CHECK (length(email) BETWEEN 3 AND 320 AND email = lower(email)),
  role        text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  invited_by  uuid,
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at  timestamptz NOT NULL,
  accepted_at timestamptz,
  accepted_by uuid,
  user_id     uuid,
  declined_at timestamptz,
  UNIQUE (org_id, email),
  CONSTRAINT invitations_user UNIQUE (org_id, user_id),
  CONSTRAINT invitations_for_one CHECK (num_nonnulls(email, user_id) = 1)
);
CREATE INDEX invitations_email   ON public.invitations (email);
CREATE INDEX invitations_user_id ON public.invitations (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX invitations_over    ON public.invitations (coalesce(accepted_at, declined_at, expires_at));

CREATE TABLE public.audit_events (
  id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  org_id    uuid NOT NULL REFERENCES public.orgs,
  at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  actor     uuid, -- null: the control plane itself
  action    text NOT NULL,
  object    text NOT NULL,
  object_id uuid,
  detail    jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_events_org ON public.audit_events (org_id, id);

-- API requests that their senders named by a key, with their answers, so that a request
-- sent twice is carried out once. An answer that holds a secret is not kept.
CREATE TABLE tendril.requests (
  user_id  uuid NOT NULL,
  key      text NOT NULL CHECK (length(key) BETWEEN 1 AND 200),
  digest   text NOT NULL CHECK (digest ~ '^[0-9a-f]{64}$'), -- of the request
  location text NOT NULL,
  answer   jsonb,
  made_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (user_id, key)
);
CREATE INDEX requests_made ON tendril.requests (made_at);

-- ---------------------------------------------------------------------------
-- Clusters and agents
-- ---------------------------------------------------------------------------

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
  -- When a plan needs approval: by cluster, by template, by snapshot. The strictest counts.
  approval       text NOT NULL DEFAULT 'never' CHECK (approval IN ('never', 'destructive', 'always')),
  approvers      text NOT NULL DEFAULT 'operator' CHECK (approvers IN ('operator', 'admin')), -- the least role
  four_eyes      boolean NOT NULL DEFAULT false, -- the requester may not approve
  approval_expiry interval NOT NULL DEFAULT '7 days' CHECK (approval_expiry BETWEEN interval '1 minute' AND interval '90 days'),
  UNIQUE (org_id, name)
) WITH (fillfactor = 50); -- each heartbeat writes a row; with room on its page no index changes

-- The agent holds the token and sends its SHA-256; this is the SHA-256 of that, so a
-- reader of the table has no credential. Several at a time: a rotation has no gap.
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
CREATE INDEX cluster_tokens_over    ON tendril.cluster_tokens (least(revoked_at, expires_at)) WHERE least(revoked_at, expires_at) IS NOT NULL;

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
  past_boots        uuid[] NOT NULL DEFAULT '{}', -- superseded: none of them may come back
  directory         text,
  operations        text[], -- allowed by the agent's own policy. NULL: it has not said
  -- Which run of its machine's kernel the agent is on: the same host with another run
  -- proves that the agent of the run before is dead.
  kernel            text CHECK (length(kernel) <= 100),
  UNIQUE (cluster_id, instance_id)
) WITH (fillfactor = 50);
CREATE INDEX agents_name ON public.agents (cluster_id, name);

-- ONLINE, STALE or OFFLINE is computed from the last heartbeat of any agent. An agent
-- seen in the future was not seen just now.
CREATE VIEW public.cluster_overview WITH (security_invoker = true) AS
SELECT c.id, c.org_id, c.name, c.labels, c.paused_at, c.last_seen_at, c.created_at,
       CASE WHEN c.last_seen_at BETWEEN now() - interval '45 seconds' AND now() + interval '45 seconds' THEN 'ONLINE'
            WHEN c.last_seen_at BETWEEN now() - interval '5 minutes'  AND now() + interval '5 minutes'  THEN 'STALE'
            ELSE 'OFFLINE' END AS connectivity
FROM public.clusters c;

-- How much of its bounds a cluster uses.
CREATE TABLE tendril.cluster_usage (
  cluster_id    uuid PRIMARY KEY REFERENCES public.clusters ON DELETE CASCADE,
  org_id        uuid NOT NULL,
  measured_at   timestamptz NOT NULL DEFAULT '-infinity',
  agents        bigint NOT NULL DEFAULT 0,
  blob_bytes    bigint NOT NULL DEFAULT 0,
  pins          bigint NOT NULL DEFAULT 0,
  inspections   bigint NOT NULL DEFAULT 0,
  log_bytes     bigint NOT NULL DEFAULT 0,
  org_log_bytes bigint NOT NULL DEFAULT 0
);
COMMENT ON COLUMN tendril.cluster_usage.inspections IS 'Of the organisation.';
COMMENT ON COLUMN tendril.cluster_usage.org_log_bytes IS 'Of the organisation.';
CREATE INDEX cluster_usage_org      ON tendril.cluster_usage (org_id);
CREATE INDEX cluster_usage_measured ON tendril.cluster_usage (measured_at);

-- When something last beat here: heartbeats and reaping timers stamp it. An old stamp
-- means that the database itself was away, and that leases ran out through no fault of
-- their agents.
CREATE TABLE tendril.pulse (
  only_row        boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  stamped_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  reap_not_before timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 20);
INSERT INTO tendril.pulse DEFAULT VALUES;

-- ---------------------------------------------------------------------------
-- Templates
-- ---------------------------------------------------------------------------

CREATE TABLE public.templates (
  id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  org_id      uuid NOT NULL REFERENCES public.orgs,
  name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  repo        text NOT NULL,
  path        text NOT NULL DEFAULT '',
  version     text NOT NULL, -- the one offered first
  description text NOT NULL DEFAULT '',
  created_at  timestamptz NOT NULL DEFAULT now(),
  approval    text NOT NULL DEFAULT 'never' CHECK (approval IN ('never', 'destructive', 'always')),
  UNIQUE (org_id, name)
);
CREATE INDEX templates_approval ON public.templates (org_id) WHERE approval <> 'never';

-- The commit that a tag meant, for the whole organisation: read by trellis, or given by
-- an admin. A tag that moved is refused.
CREATE TABLE public.template_pins (
  org_id        uuid NOT NULL REFERENCES public.orgs,
  repo          text NOT NULL, -- in the canonical form of tendril.plain_repo()
  version       text NOT NULL,
  commit        text NOT NULL CHECK (commit ~ '^[0-9a-f]{40}$'),
  variables     jsonb,         -- declared by this version, once inspected
  first_used_at timestamptz NOT NULL DEFAULT now(),
  pinned_by     text NOT NULL DEFAULT 'earlier' CHECK (pinned_by IN ('earlier', 'inspection', 'admin')),
  row_id        uuid NOT NULL DEFAULT gen_random_uuid(),
  PRIMARY KEY (org_id, repo, version)
);

-- The same for one cluster, reported by its agents.
CREATE TABLE public.cluster_pins (
  cluster_id    uuid NOT NULL REFERENCES public.clusters ON DELETE CASCADE,
  repo          text NOT NULL, -- in the canonical form of tendril.plain_repo()
  version       text NOT NULL,
  commit        text NOT NULL CHECK (commit ~ '^[0-9a-f]{40}$'),
  org_id        uuid NOT NULL,
  first_used_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  row_id        uuid NOT NULL DEFAULT gen_random_uuid(),
  PRIMARY KEY (cluster_id, repo, version)
);
CREATE INDEX cluster_pins_of_commits ON public.cluster_pins (first_used_at) WHERE version ~ '^[0-9a-f]{40}$';

-- The declared variables of one version of one template. An inspection is wanted (trellis
-- has a minute to take it), handed (trellis cannot reach it, so an agent must), queued (as
-- a provision of operation inspect), done or failed.
CREATE TABLE public.template_inspections (
  org_id       uuid NOT NULL REFERENCES public.orgs,
  repo         text NOT NULL, -- in the canonical form of tendril.plain_repo()
  version      text NOT NULL,
  path         text NOT NULL, -- in the canonical form of tendril.plain_path()
  address      text NOT NULL, -- of the repository, as somebody wrote it
  status       text NOT NULL DEFAULT 'wanted' CHECK (status IN ('wanted', 'handed', 'queued', 'done', 'failed')),
  commit       text CHECK (commit ~ '^[0-9a-f]{40}$'),
  variables    jsonb, -- as in internal/provision; kept during the next inspection
  inspected_by text CHECK (inspected_by IN ('trellis', 'agent', 'run')),
  inspected_at timestamptz,
  problem_code text, -- why nothing is known, or why trellis leaves it to an agent
  problem      text, -- the same for people
  provision_id uuid, -- the newest run that inspects or did; no foreign key, as with retry_of
  requested_by uuid,
  requested_at timestamptz NOT NULL DEFAULT now(),
  tried        uuid[] NOT NULL DEFAULT '{}', -- clusters whose agents could not
  lease        uuid,        -- which trellis has it
  lease_until  timestamptz, -- and until when
  row_id       uuid NOT NULL DEFAULT gen_random_uuid(),
  PRIMARY KEY (org_id, repo, version, path)
);
CREATE INDEX template_inspections_due    ON public.template_inspections (requested_at) WHERE status IN ('wanted', 'handed');
CREATE INDEX template_inspections_queued ON public.template_inspections (org_id) WHERE status = 'queued';
CREATE INDEX template_inspections_over   ON public.template_inspections (greatest(requested_at, inspected_at)) WHERE status IN ('done', 'failed');

-- The tags that a repository had when trellis listed them last: [{"tag", "commit"}].
CREATE TABLE public.template_tags (
  org_id    uuid NOT NULL REFERENCES public.orgs,
  repo      text NOT NULL,
  tags      jsonb NOT NULL,
  listed_at timestamptz NOT NULL DEFAULT now(),
  row_id    uuid NOT NULL DEFAULT gen_random_uuid(),
  PRIMARY KEY (org_id, repo)
);
CREATE INDEX template_tags_listed ON public.template_tags (listed_at);

-- ---------------------------------------------------------------------------
-- Workspaces, provisions, claims
-- ---------------------------------------------------------------------------

-- Keys of these two begin with the time they were made (version 7 of RFC 9562): rows
-- made together lie together, so a claim finds its pages in memory and changes few.

-- One Terraform state object.
CREATE TABLE public.workspaces (
  id            uuid PRIMARY KEY DEFAULT (
    lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid,
  org_id        uuid NOT NULL REFERENCES public.orgs,
  cluster_id    uuid NOT NULL REFERENCES public.clusters,
  name          text NOT NULL,
  -- Bound at first use; another template there is refused.
  repo          text,
  path          text,
  -- At most one claim runs here. One that lost its lease during apply holds the
  -- workspace: Terraform may still be at work.
  running_claim uuid,
  held_by_claim uuid,
  -- A provision that needs approval, or is approved and not yet applied.
  reserved_by   uuid,
  locked_at     timestamptz,
  locked_by     uuid,
  lock_reason   text,
  -- The only agent instance that can run it, where its state is a local file.
  home_instance uuid,
  -- The provision to run next: kept here so that a claim reads one short index however
  -- long the queue of one busy workspace is.
  head_id       uuid,
  head_priority smallint,
  head_number   bigint,
  created_at    timestamptz NOT NULL DEFAULT now(),
  -- The agent instance that keeps a state which its engine could not store.
  unsaved_state_on uuid,
  -- The one agent instance that may run here; all zeros: any. Where the state's file is
  -- on one and an unsaved state on another, neither may: all f.
  only_instance uuid NOT NULL GENERATED ALWAYS AS (
    CASE WHEN home_instance <> unsaved_state_on THEN 'ffffffff-ffff-ffff-ffff-ffffffffffff'
         ELSE coalesce(home_instance, unsaved_state_on, '00000000-0000-0000-0000-000000000000') END) STORED,
  -- When a reservation is due: an approval that nobody gave in time, or another attempt.
  due_at        timestamptz,
  -- Changes outside that the newest refresh found: [{address, action, attributes}], at
  -- most 200 of drift_count. NULL: not known, or corrected by an apply since.
  drift         jsonb,
  drift_count   int,
  drift_at      timestamptz,
  -- The holder of the state's lock when a run last wanted it: {id, who, operation,
  -- created, number, at}; number and at name the run that met it. NULL once a run has
  -- the lock.
  state_lock    jsonb,
  -- How often a refresh checks for drift, and when it does next.
  drift_every   interval CHECK (drift_every BETWEEN interval '5 minutes' AND interval '366 days'),
  drift_due_at  timestamptz,
  -- The newest managed state: its version here, its own serial, since when, and the
  -- provision whose run wrote it. NULL: the state is elsewhere.
  state_version   bigint,
  state_serial    bigint,
  state_at        timestamptz,
  state_provision uuid,
  -- A place in the queue for inspections, without a state. Lists leave it out.
  hidden        boolean NOT NULL DEFAULT false,
  UNIQUE (cluster_id, name),
  CHECK ((locked_at IS NULL) = (lock_reason IS NULL)),
  CHECK ((head_id IS NULL) = (head_number IS NULL) AND (head_id IS NULL) = (head_priority IS NULL)),
  CHECK ((drift_every IS NULL) = (drift_due_at IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02); -- every claim leaves a dead entry where the next begins to read

CREATE TABLE public.provisions (
  id                  uuid PRIMARY KEY DEFAULT (
    lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid,
  number              bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
  -- The workspace implies both; SQL sets them, and a foreign key would lock one shared
  -- row at every insert and claim.
  org_id              uuid NOT NULL,
  cluster_id          uuid NOT NULL,
  workspace_id        uuid NOT NULL REFERENCES public.workspaces,
  operation           text NOT NULL DEFAULT 'apply',
  config_snapshot     jsonb NOT NULL,
  status              text NOT NULL DEFAULT 'QUEUED'
                      CHECK (status IN ('QUEUED', 'PROCESSING', 'AWAITING_APPROVAL', 'SUCCESS', 'FAILED', 'CANCELLED')),
  priority            smallint NOT NULL DEFAULT 0 CHECK (priority BETWEEN -100 AND 100),
  resolved_commit     text,
  engine              text,
  engine_version      text,
  plan_summary        jsonb,
  outputs             jsonb,
  error_code          text,
  error_message       text,
  requested_by        uuid,
  cancel_requested_at timestamptz,
  cancel_requested_by uuid,
  created_at          timestamptz NOT NULL DEFAULT now(),
  started_at          timestamptz,
  finished_at         timestamptz,
  -- SHA-256, in hexadecimal, of the plan that needs approval, and of the approved one:
  -- no other may be applied.
  plan_digest         text,
  approved_plan       text,
  approved_at         timestamptz,
  approved_by         uuid,
  -- No foreign key: it would need an index on a table that may be large.
  retry_of            uuid,
  -- The number of this automatic attempt; retry_of is the one before. Only our own
  -- functions may insert it, so it also tells that they do.
  attempt             smallint NOT NULL DEFAULT 1,
  not_before          timestamptz -- an automatic attempt waits until then
) WITH (fillfactor = 80);
CREATE INDEX provisions_queue     ON public.provisions (workspace_id, priority DESC, number) WHERE status = 'QUEUED';
CREATE INDEX provisions_workspace ON public.provisions (workspace_id, number);
CREATE INDEX provisions_org       ON public.provisions (org_id, number);

-- One agent's claim of one provision. The agent chooses the id, so that a claim repeated
-- after a lost reply is the same claim; every write is fenced by it.
CREATE TABLE tendril.claims (
  id                  uuid PRIMARY KEY,
  number              bigint GENERATED ALWAYS AS IDENTITY,
  provision_id        uuid NOT NULL REFERENCES public.provisions ON DELETE CASCADE,
  workspace_id        uuid NOT NULL REFERENCES public.workspaces,
  cluster_id          uuid NOT NULL,
  instance_id         uuid NOT NULL,
  boot_id             uuid NOT NULL,
  host                text NOT NULL,
  -- running: its agent has it. lost: the lease ran out, the agent may still report.
  -- ended: settled, only late lines are accepted.
  state               text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'lost', 'ended')),
  lease_until         timestamptz NOT NULL,
  next_chunk          bigint NOT NULL DEFAULT 1,
  last_report         bigint NOT NULL DEFAULT 0, -- the number of the newest report stored
  stage               text,
  apply_begun_at      timestamptz,
  cancel_requested_at timestamptz,
  created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
  ended_at            timestamptz,
  directory           text,
  percent_due         smallint, -- progress that viewers have not been told yet
  event_bytes         bigint NOT NULL DEFAULT 0,
  running_due         jsonb,    -- resources in progress that viewers have not been told yet
  clock_wrong         boolean NOT NULL DEFAULT false
) WITH (fillfactor = 70);

-- NOT VALID, as in databases from before, which took these rules without reading all of their
-- rows: the rules count for every new row all the same.
ALTER TABLE public.agents ADD CONSTRAINT agents_instance_is_one
  CHECK (instance_id NOT IN ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff')) NOT VALID;
ALTER TABLE public.provisions
  ADD CONSTRAINT provisions_plan_digest CHECK (plan_digest ~ '^[0-9a-f]{64}$') NOT VALID,
  ADD CONSTRAINT provisions_operation_check CHECK (operation IN ('plan', 'apply', 'destroy', 'refresh', 'unlock', 'state', 'inspect')) NOT VALID;
ALTER TABLE tendril.claims ADD CONSTRAINT claims_percent_due CHECK (percent_due BETWEEN 0 AND 100) NOT VALID;
COMMENT ON COLUMN tendril.claims.clock_wrong IS 'Whether the log says that the agent''s times were replaced.';
CREATE INDEX claims_provision ON tendril.claims (provision_id, number);
CREATE INDEX claims_workspace ON tendril.claims (workspace_id, number);
CREATE INDEX claims_leases    ON tendril.claims (lease_until) WHERE state = 'running';
CREATE INDEX claims_lost      ON tendril.claims (workspace_id) WHERE state = 'lost';
-- Whatever else goes wrong: never two at once on a workspace. By CASE, because a plan is
-- kept, and a partial index that was empty when it was made looks cheaper than any other:
-- no condition may imply a predicate that is not meant, which = and <> do.
CREATE UNIQUE INDEX claims_one_running ON tendril.claims (workspace_id) WHERE CASE state WHEN 'running' THEN true ELSE false END;

ALTER TABLE public.workspaces
  ADD FOREIGN KEY (running_claim) REFERENCES tendril.claims,
  ADD FOREIGN KEY (held_by_claim) REFERENCES tendril.claims,
  ADD FOREIGN KEY (reserved_by)   REFERENCES public.provisions;
CREATE INDEX workspaces_runnable ON public.workspaces (cluster_id, only_instance, head_priority DESC, head_number)
  WHERE head_id IS NOT NULL AND running_claim IS NULL AND held_by_claim IS NULL AND locked_at IS NULL;
CREATE INDEX workspaces_due       ON public.workspaces (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX workspaces_drift_due ON public.workspaces (drift_due_at) WHERE drift_due_at IS NOT NULL;
-- Without these the deletion of a provision reads every workspace.
CREATE INDEX workspaces_running_claim ON public.workspaces (running_claim) WHERE running_claim IS NOT NULL;
CREATE INDEX workspaces_held_by_claim ON public.workspaces (held_by_claim) WHERE held_by_claim IS NOT NULL;
CREATE INDEX workspaces_reserved_by   ON public.workspaces (reserved_by)   WHERE reserved_by IS NOT NULL;

-- What exists now. Values that a provider marks sensitive never come here.
CREATE TABLE public.resources (
  workspace_id uuid NOT NULL REFERENCES public.workspaces ON DELETE CASCADE,
  address      text NOT NULL,
  org_id       uuid NOT NULL,
  type         text NOT NULL,
  provider     text,
  external_id  text,
  ip_addresses text[] NOT NULL DEFAULT '{}',
  status       text,
  provision_id uuid REFERENCES public.provisions ON DELETE SET NULL,
  updated_at   timestamptz NOT NULL DEFAULT now(),
  row_id       uuid NOT NULL DEFAULT gen_random_uuid(),
  PRIMARY KEY (workspace_id, address)
);
CREATE INDEX resources_provision ON public.resources (provision_id);

-- ---------------------------------------------------------------------------
-- What a run shows
-- ---------------------------------------------------------------------------

-- Small and often written, so that provisions stays quiet.
CREATE TABLE public.provision_progress (
  provision_id uuid PRIMARY KEY REFERENCES public.provisions ON DELETE CASCADE,
  org_id       uuid NOT NULL,
  stage        text NOT NULL CHECK (stage IN ('checkout', 'validate', 'engine', 'init', 'plan', 'approval', 'apply', 'outputs', 'done')),
  percent      smallint CHECK (percent BETWEEN 0 AND 100),
  updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  running      jsonb NOT NULL DEFAULT '[]' -- resources in progress, at most 50: [{address, action, since}]
) WITH (fillfactor = 50);

-- One row for each stage of each attempt; attempts are counted by how often the provision
-- was queued: first, after an approval, for a retry. A stage that a run comes back to
-- stays one row, from its first start to its last end, so no agent makes more rows than
-- there are stages.
CREATE TABLE public.provision_stages (
  provision_id uuid NOT NULL REFERENCES public.provisions ON DELETE CASCADE,
  org_id       uuid NOT NULL,
  attempt      int  NOT NULL,
  stage        text NOT NULL CHECK (stage IN ('queued', 'checkout', 'validate', 'engine', 'init', 'plan', 'approval', 'apply', 'outputs', 'done')),
  started_at   timestamptz NOT NULL,
  ended_at     timestamptz,
  PRIMARY KEY (provision_id, attempt, stage)
) WITH (fillfactor = 70);

CREATE TABLE public.provision_events (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  provision_id uuid NOT NULL REFERENCES public.provisions ON DELETE CASCADE,
  org_id       uuid NOT NULL,
  kind         text NOT NULL,
  at           timestamptz NOT NULL,
  detail       jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX provision_events_provision ON public.provision_events (provision_id, id);

-- seq counts a provision's rows 1, 2, 3, … without a gap, over all its claims.
CREATE TABLE public.provision_logs (
  provision_id uuid NOT NULL REFERENCES public.provisions ON DELETE CASCADE,
  seq          bigint NOT NULL,
  org_id       uuid NOT NULL,
  stream_type  text NOT NULL CHECK (stream_type IN ('STDOUT', 'STDERR', 'SYSTEM')),
  log_chunk    text NOT NULL,
  emitted_at   timestamptz NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (provision_id, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.05); -- archiving removes ten thousands of rows: their room is reused soon

-- Where a provision's log stands. Only its holder gives out seq.
CREATE TABLE tendril.log_heads (
  provision_id uuid PRIMARY KEY REFERENCES public.provisions ON DELETE CASCADE,
  org_id       uuid NOT NULL,
  next_seq     bigint NOT NULL DEFAULT 1,
  bytes        bigint NOT NULL DEFAULT 0,
  notified_at  timestamptz NOT NULL DEFAULT '-infinity',
  cut          boolean NOT NULL DEFAULT false, -- the log has reached its limit
  archived     boolean NOT NULL DEFAULT false, -- all rows of the log are in provision_log_archives
  cluster_id   uuid,
  cut_at       bigint
) WITH (fillfactor = 50);
COMMENT ON COLUMN tendril.log_heads.cluster_id IS 'NULL for a log that began before clusters had a bound: it counts for the organisation alone.';
COMMENT ON COLUMN tendril.log_heads.cut_at IS 'How many bytes the log had when it was cut; NULL where it was not, or before there was this column.';

-- A part of a log, rows first_seq to last_seq without a gap: element n of each array is
-- that of row first_seq + n - 1. A log of up to 4 MiB is one part; a longer one has
-- several, so that nobody needs memory for 256 MiB and a page reads one part.
CREATE TABLE public.provision_log_archives (
  provision_id uuid NOT NULL REFERENCES public.provisions ON DELETE CASCADE,
  first_seq    bigint NOT NULL CHECK (first_seq > 0),
  last_seq     bigint NOT NULL CHECK (last_seq >= first_seq),
  org_id       uuid NOT NULL,
  bytes        bigint NOT NULL, -- of its text
  archived_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  stream_types text[] NOT NULL,
  log_chunks   text[] NOT NULL,
  emitted_at   timestamptz[] NOT NULL,
  created_at   timestamptz[] NOT NULL,
  PRIMARY KEY (provision_id, last_seq),
  CHECK (cardinality(stream_types) = last_seq - first_seq + 1 AND cardinality(log_chunks) = last_seq - first_seq + 1
     AND cardinality(emitted_at) = last_seq - first_seq + 1 AND cardinality(created_at) = last_seq - first_seq + 1)
);

-- lz4 compresses a log as well as the default does, in a fraction of the time. A server
-- may have been built without it.
DO $$
BEGIN
  ALTER TABLE public.provision_logs ALTER COLUMN log_chunk SET COMPRESSION lz4;
  ALTER TABLE public.provisions ALTER COLUMN config_snapshot SET COMPRESSION lz4;
  ALTER TABLE public.provision_log_archives
    ALTER COLUMN stream_types SET COMPRESSION lz4, ALTER COLUMN log_chunks SET COMPRESSION lz4,
    ALTER COLUMN emitted_at SET COMPRESSION lz4, ALTER COLUMN created_at SET COMPRESSION lz4;
EXCEPTION
  WHEN feature_not_supported THEN
    RAISE NOTICE 'this server compresses logs by pglz: it was built without lz4';
END $$;

-- The provisions that have ended and whose logs are there, archived or not.
CREATE TABLE tendril.log_ends (
  provision_id uuid PRIMARY KEY REFERENCES public.provisions ON DELETE CASCADE,
  org_id       uuid NOT NULL,
  ended_at     timestamptz NOT NULL,
  archived     boolean NOT NULL DEFAULT false
);
CREATE INDEX log_ends_due      ON tendril.log_ends (ended_at) WHERE NOT archived;
CREATE INDEX log_ends_archived ON tendril.log_ends (ended_at) WHERE archived;

-- Which provisions, by number, are still to be entered in log_ends: those from before
-- there was that table.
CREATE TABLE tendril.log_backlog (
  only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  next_number bigint NOT NULL DEFAULT 1,
  last_number bigint NOT NULL
);
INSERT INTO tendril.log_backlog (last_number) VALUES (0);

-- ---------------------------------------------------------------------------
-- Blobs: sealed plans, states, results and uploads
-- ---------------------------------------------------------------------------

-- Too large for a report, and needed longer than the agent that made it. The database
-- keeps it; functions decide who may put and get what.
CREATE TABLE tendril.blobs (
  id           uuid PRIMARY KEY DEFAULT gen_random_uuid(), -- the uploader chooses that of an upload
  kind         text NOT NULL CHECK (kind IN ('plan', 'state', 'result', 'upload')),
  cluster_id   uuid NOT NULL,
  workspace_id uuid REFERENCES public.workspaces,
  provision_id uuid REFERENCES public.provisions ON DELETE CASCADE,
  number       bigint NOT NULL DEFAULT 0, -- the version of a state
  claim_id     uuid, -- made by a claim
  created_by   uuid, -- or by a person
  made_for     uuid, -- the provision of that claim, which may be deleted before a state is
  digest       text,
  meta         jsonb NOT NULL DEFAULT '{}',
  parts        int NOT NULL CHECK (parts > 0),
  bytes        bigint NOT NULL DEFAULT 0,
  complete_at  timestamptz, -- NULL while parts are missing: nobody gets it
  expires_at   timestamptz, -- NULL: it does not expire by itself
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK ((kind = 'state') = (workspace_id IS NOT NULL)),
  CHECK ((kind IN ('plan', 'result')) = (provision_id IS NOT NULL))
);
-- One plan and one result for a provision, one state of a version.
CREATE UNIQUE INDEX blobs_of_provision ON tendril.blobs (provision_id, kind) WHERE provision_id IS NOT NULL;
CREATE UNIQUE INDEX blobs_of_workspace ON tendril.blobs (workspace_id, number) WHERE workspace_id IS NOT NULL;
CREATE INDEX blobs_uploads  ON tendril.blobs (cluster_id) WHERE kind = 'upload';
CREATE INDEX blobs_expiring ON tendril.blobs (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX blobs_cluster  ON tendril.blobs (cluster_id) INCLUDE (bytes);

CREATE TABLE tendril.blob_parts (
  blob_id uuid NOT NULL REFERENCES tendril.blobs ON DELETE CASCADE,
  part    int NOT NULL CHECK (part > 0),
  data    bytea NOT NULL,
  PRIMARY KEY (blob_id, part)
);
ALTER TABLE tendril.blob_parts ALTER COLUMN data SET STORAGE EXTERNAL; -- sealed data does not compress

-- ---------------------------------------------------------------------------
-- Webhooks
-- ---------------------------------------------------------------------------

-- A message is written in the transaction in which its event happens, so nothing is told
-- that was rolled back and nothing that happened is forgotten; trellis sends it.
CREATE TABLE public.webhooks (
  id            uuid PRIMARY KEY,
  org_id        uuid NOT NULL REFERENCES public.orgs ON DELETE CASCADE,
  name          text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
  kind          text NOT NULL CHECK (kind IN ('generic', 'slack')),
  host          text NOT NULL CHECK (length(host) BETWEEN 1 AND 300), -- the part of its URL that is shown
  events        text[] NOT NULL CHECK (cardinality(events) > 0 AND events <@ ARRAY['awaiting_approval', 'success', 'failure', 'cancelled', 'drift']),
  -- Only of this cluster, and of workspaces that match (* is anything).
  cluster_id    uuid REFERENCES public.clusters ON DELETE CASCADE,
  workspace     text CHECK (length(workspace) BETWEEN 1 AND 200),
  enabled       boolean NOT NULL DEFAULT true,
  disabled_why  text,        -- failing or gone; NULL where a person disabled it
  failing_since timestamptz, -- when deliveries began to fail
  generation    int NOT NULL DEFAULT 1, -- of the signing secret; a new one ends the one before
  created_by    uuid,
  created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  UNIQUE (org_id, name)
);
CREATE INDEX webhooks_cluster ON public.webhooks (cluster_id);

-- URLs are credentials (Slack's are), so a key that only trellis has seals them, and the
-- signing keys are derived from it: a reader of this database can send nothing.
CREATE TABLE tendril.webhook_urls (
  webhook_id uuid PRIMARY KEY REFERENCES public.webhooks ON DELETE CASCADE,
  sealed     bytea NOT NULL CHECK (length(sealed) BETWEEN 1 AND 4096)
);

-- One message to one webhook, and every attempt to deliver it.
CREATE TABLE public.webhook_deliveries (
  id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  org_id       uuid NOT NULL,
  -- No foreign key: an agent's report must not wait for a change of a webhook, nor fail
  -- because one is removed just then.
  webhook_id   uuid NOT NULL,
  event        text NOT NULL,
  provision_id uuid,
  payload      jsonb NOT NULL,
  status       text NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'delivered', 'failed')),
  attempts     jsonb NOT NULL DEFAULT '[]', -- [{at, code, duration_ms, error}], the oldest first
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  next_at      timestamptz DEFAULT clock_timestamp(), -- NULL once it has arrived or was given up
  taken_by     uuid, -- which sender has it: one that comes too late changes nothing
  finished_at  timestamptz
);
-- Found by their webhook. An index by time alone would also be taken, and badly, for the
-- newest ones of a webhook.
CREATE INDEX webhook_deliveries_due    ON public.webhook_deliveries (webhook_id, next_at) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_latest ON public.webhook_deliveries (webhook_id, created_at DESC);

-- ---------------------------------------------------------------------------
-- Housekeeping
-- ---------------------------------------------------------------------------

-- What only one may do at a time is guarded by a row, which only the contract's own
-- functions can lock. Anybody can take an advisory lock whose key they know.
CREATE TABLE tendril.locks (name text PRIMARY KEY);
COMMENT ON TABLE tendril.locks IS 'Rows to lock: one for each thing that only one may do at a time.';
INSERT INTO tendril.locks (name) VALUES ('archive'), ('hand_inspections'), ('sample'), ('up');

-- Where tendril.expire() goes on, so that large tables need no further index. The first
-- row is locked while it works.
CREATE TABLE tendril.expiry (
  name        text PRIMARY KEY,
  next_number bigint NOT NULL DEFAULT 1,
  began_at    timestamptz NOT NULL DEFAULT '-infinity'
);
COMMENT ON COLUMN tendril.expiry.next_number IS 'The provision to look at next. What is kept of those before it is looked at again in the next pass.';
COMMENT ON COLUMN tendril.expiry.began_at IS 'When this pass began.';
INSERT INTO tendril.expiry (name) VALUES ('agents'), ('claims'), ('provisions'), ('log_usage');

CREATE TABLE tendril.function_files (
  file      text PRIMARY KEY,
  digest    text NOT NULL,  -- SHA-256 of the file's text, in hexadecimal
  functions text[] NOT NULL -- schema.name of each function in it
);
COMMENT ON TABLE tendril.function_files IS 'Which files of functions this database has.';

-- No policy can be asked about a row that is gone, so Realtime tells every subscriber the
-- replica identity of a deleted row, where a publication covers all tables. The keys of
-- these tables name people, repositories and resources: a random id identifies their rows
-- instead. (With REPLICA IDENTITY NOTHING each DELETE would fail there.)
DO $$
DECLARE
  v_table text;
BEGIN
  FOREACH v_table IN ARRAY ARRAY['org_members', 'people', 'resources', 'template_inspections', 'template_pins', 'template_tags', 'cluster_pins'] LOOP
    EXECUTE format('CREATE UNIQUE INDEX %I ON public.%I (row_id)', v_table || '_row_id', v_table);
    EXECUTE format('ALTER TABLE public.%I REPLICA IDENTITY USING INDEX %I', v_table, v_table || '_row_id');
    EXECUTE format('COMMENT ON COLUMN public.%I.row_id IS %L', v_table, 'Random: what logical replication names a deleted row by.');
  END LOOP;
END $$;

-- ---------------------------------------------------------------------------
-- after the functions
-- Policies ask tendril.orgs_with_role().
-- ---------------------------------------------------------------------------

DO $$
DECLARE
  v_table text;
BEGIN
  -- Members read what belongs to their organisation. Who did what, and whom admins have
  -- invited and notify, is for admins. The sub-select makes it one look-up per statement,
  -- not per row.
  FOREACH v_table IN ARRAY ARRAY['org_members', 'people', 'clusters', 'agents', 'templates', 'template_pins', 'cluster_pins', 'template_inspections',
                                 'template_tags', 'workspaces', 'provisions', 'provision_progress', 'provision_stages', 'provision_events',
                                 'provision_logs', 'provision_log_archives', 'resources', 'webhooks'] LOOP
    EXECUTE format('ALTER TABLE public.%I ENABLE ROW LEVEL SECURITY', v_table);
    EXECUTE format('CREATE POLICY members_read ON public.%I FOR SELECT TO authenticated
                    USING (org_id = ANY ((SELECT tendril.orgs_with_role(''viewer''))::uuid[]))', v_table);
  END LOOP;
  FOREACH v_table IN ARRAY ARRAY['audit_events', 'invitations', 'webhook_deliveries'] LOOP
    EXECUTE format('ALTER TABLE public.%I ENABLE ROW LEVEL SECURITY', v_table);
    EXECUTE format('CREATE POLICY admins_read ON public.%I FOR SELECT TO authenticated
                    USING (org_id = ANY ((SELECT tendril.orgs_with_role(''admin''))::uuid[]))', v_table);
  END LOOP;
END $$;
ALTER TABLE public.orgs ENABLE ROW LEVEL SECURITY;
CREATE POLICY members_read ON public.orgs FOR SELECT TO authenticated
  USING (id = ANY ((SELECT tendril.orgs_with_role('viewer'))::uuid[]));

-- accept_deploy() has checked already and filled in the organisation; this is the second lock.
CREATE POLICY operators_deploy ON public.provisions FOR INSERT TO authenticated
  WITH CHECK (org_id = ANY ((SELECT tendril.orgs_with_role('operator'))::uuid[]));

-- What the platform offers: Realtime and pg_cron.
DO $$
DECLARE
  v_left record;
BEGIN
  FOR v_left IN SELECT * FROM tendril.fit_platform() LOOP
    RAISE NOTICE 'still to be run by %: %;', v_left.run_as, v_left.statement;
  END LOOP;
END $$;
