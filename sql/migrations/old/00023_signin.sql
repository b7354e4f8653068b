-- Who people are when they come through trellis: their names, what an issuer of
-- identities calls them, and what they show instead of signing in anew (a
-- browser's session, an API token, a one-time link, a code for the CLI). Of all
-- that is shown, only a digest is kept.
--
-- The functions in schema tendril are for the control plane, as the owner: they
-- find out who asks, which nobody can know before. What a person does with their
-- own credentials, and an admin with members, goes through those in public.

-- Those of the migrations after this one as well: the printed script is one
-- transaction, which must not wait for a table while it has others. What a foreign
-- key points at is locked, too.
SELECT tendril.lock_tables('public.orgs, public.org_members, public.clusters, public.workspaces, public.provisions, public.templates, tendril.settings');

ALTER TABLE tendril.settings
  -- How long a browser stays signed in, and how long without being used.
  ADD COLUMN session_lasts interval NOT NULL DEFAULT '30 days' CHECK (session_lasts > interval '0'),
  ADD COLUMN session_idle  interval NOT NULL DEFAULT '7 days'  CHECK (session_idle > interval '0'),
  ADD COLUMN invitation_lasts interval NOT NULL DEFAULT '14 days' CHECK (invitation_lasts > interval '0');

CREATE TABLE tendril.persons (
  user_id        uuid PRIMARY KEY,
  name           text NOT NULL DEFAULT '',
  email          text NOT NULL DEFAULT '',
  -- Whether the issuer says that the address is theirs.
  email_verified boolean NOT NULL DEFAULT false,
  signed_in_at   timestamptz,
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX persons_email ON tendril.persons (lower(email)) WHERE email_verified;

-- What an issuer calls a person: subjects need not be UUIDs, and are unique with
-- their issuer only.
CREATE TABLE tendril.identities (
  issuer     text NOT NULL,
  subject    text NOT NULL CHECK (length(subject) BETWEEN 1 AND 255),
  user_id    uuid NOT NULL REFERENCES tendril.persons,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (issuer, subject)
);
CREATE INDEX identities_user ON tendril.identities (user_id);

CREATE TABLE tendril.credentials (
  id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  kind         text NOT NULL CHECK (kind IN ('session', 'api_token', 'link', 'cli_code')),
  user_id      uuid NOT NULL,
  digest       bytea NOT NULL UNIQUE CHECK (length(digest) = 32),
  label        text NOT NULL DEFAULT '', -- what its person calls it: a name, a browser, a host
  challenge    text,                     -- of a CLI's code: PKCE, S256
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  -- Written at most once a minute.
  last_used_at timestamptz,
  expires_at   timestamptz,
  revoked_at   timestamptz -- or used up
);
CREATE INDEX credentials_user ON tendril.credentials (user_id);

-- Names for the members of an organisation, and for those who were: what they did
-- is still there. Copied from tendril.persons.
CREATE TABLE public.people (
  org_id  uuid NOT NULL REFERENCES public.orgs ON DELETE CASCADE,
  user_id uuid NOT NULL,
  name    text NOT NULL,
  email   text NOT NULL,
  PRIMARY KEY (org_id, user_id)
);
CREATE INDEX people_user ON public.people (user_id);

CREATE TABLE public.invitations (
  id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  org_id      uuid NOT NULL REFERENCES public.orgs ON DELETE CASCADE,
  email       text NOT NULL CHECK (length(email) BETWEEN 3 AND 320 AND email = lower(email)),
  role        text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  invited_by  uuid,
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at  timestamptz NOT NULL,
  accepted_at timestamptz,
  accepted_by uuid,
  UNIQUE (org_id, email)
);
CREATE INDEX invitations_email ON public.invitations (email);

ALTER TABLE public.people ENABLE ROW LEVEL SECURITY;
CREATE POLICY members_read ON public.people FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('viewer'))::uuid[]));
ALTER TABLE public.invitations ENABLE ROW LEVEL SECURITY;
CREATE POLICY admins_read ON public.invitations FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('admin'))::uuid[]));
GRANT SELECT ON public.people, public.invitations TO authenticated, service_role;
