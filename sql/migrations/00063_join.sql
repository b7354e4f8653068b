-- How agents join by key: requests that wait for a person, and one-time tokens.
CREATE TABLE tendril.join_requests (
  id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  public_key   bytea NOT NULL UNIQUE CHECK (length(public_key) = 32),
  code_digest  bytea NOT NULL UNIQUE,
  name         text NOT NULL,
  host         text NOT NULL,
  version      text NOT NULL,
  slots        int NOT NULL,
  operations   text[],
  wanted       text,
  address      inet,
  requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at   timestamptz NOT NULL,
  refused_at   timestamptz
);
CREATE INDEX join_requests_expiry ON tendril.join_requests (expires_at);
COMMENT ON TABLE tendril.join_requests IS 'Agents whose key waits for an admin to type the code that they show.';
COMMENT ON COLUMN tendril.join_requests.id IS 'The request.';
COMMENT ON COLUMN tendril.join_requests.public_key IS 'Ed25519 public key that is to join, and that signed the request.';
COMMENT ON COLUMN tendril.join_requests.code_digest IS 'SHA-256 of the code.';
COMMENT ON COLUMN tendril.join_requests.name IS 'Name of the agent, as it says.';
COMMENT ON COLUMN tendril.join_requests.host IS 'Its host, as it says.';
COMMENT ON COLUMN tendril.join_requests.version IS 'Its version, as it says.';
COMMENT ON COLUMN tendril.join_requests.slots IS 'How many runs it executes at once, as it says.';
COMMENT ON COLUMN tendril.join_requests.operations IS 'Operations that its policy allows, as it says; NULL: it did not say.';
COMMENT ON COLUMN tendril.join_requests.wanted IS 'Name of the cluster that it wants to join; NULL: any.';
COMMENT ON COLUMN tendril.join_requests.address IS 'From where it asked; NULL: not known.';
COMMENT ON COLUMN tendril.join_requests.requested_at IS 'When it asked.';
COMMENT ON COLUMN tendril.join_requests.expires_at IS 'When the code expires.';
COMMENT ON COLUMN tendril.join_requests.refused_at IS 'When an admin refused it; NULL: nobody did.';

CREATE TABLE tendril.join_guesses (
  id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  user_id uuid NOT NULL,
  orgs    uuid[] NOT NULL,
  at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX join_guesses_at ON tendril.join_guesses (at);
COMMENT ON TABLE tendril.join_guesses IS 'Wrong codes that people typed within the last minute.';
COMMENT ON COLUMN tendril.join_guesses.id IS 'The guess.';
COMMENT ON COLUMN tendril.join_guesses.user_id IS 'User who typed it.';
COMMENT ON COLUMN tendril.join_guesses.orgs IS 'Organisations where the user was admin.';
COMMENT ON COLUMN tendril.join_guesses.at IS 'When.';

CREATE TABLE tendril.join_tokens (
  id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  cluster_id uuid NOT NULL REFERENCES public.clusters ON DELETE CASCADE,
  digest     bytea NOT NULL UNIQUE,
  name       text NOT NULL,
  created_by uuid,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at timestamptz NOT NULL,
  used_at    timestamptz
);
CREATE INDEX join_tokens_cluster ON tendril.join_tokens (cluster_id);
CREATE INDEX join_tokens_over    ON tendril.join_tokens (least(used_at, expires_at));
COMMENT ON TABLE tendril.join_tokens IS 'One-time tokens with which a key joins without a person. A revoked one is expired.';
COMMENT ON COLUMN tendril.join_tokens.id IS 'The token.';
COMMENT ON COLUMN tendril.join_tokens.cluster_id IS 'The cluster that a key joins with it.';
COMMENT ON COLUMN tendril.join_tokens.digest IS 'SHA-256 of the SHA-256 that the agent sends.';
COMMENT ON COLUMN tendril.join_tokens.name IS 'What it is for; empty: not said.';
COMMENT ON COLUMN tendril.join_tokens.created_by IS 'User who created it; NULL: the control plane.';
COMMENT ON COLUMN tendril.join_tokens.created_at IS 'When it was created.';
COMMENT ON COLUMN tendril.join_tokens.expires_at IS 'When it expires.';
COMMENT ON COLUMN tendril.join_tokens.used_at IS 'When a key joined with it; NULL: none did.';
