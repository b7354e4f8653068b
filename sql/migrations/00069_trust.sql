-- How agents join by a Kubernetes service account: issuers that admins trust, and who has joined so.
CREATE TABLE tendril.trusted_issuers (
  id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  cluster_id   uuid NOT NULL REFERENCES public.clusters ON DELETE CASCADE,
  issuer       text NOT NULL,
  audience     text NOT NULL,
  subjects     text[] NOT NULL,
  keys         jsonb NOT NULL,
  created_by   uuid,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at   timestamptz,
  last_used_at timestamptz,
  UNIQUE (issuer, audience)
);
CREATE INDEX trusted_issuers_cluster ON tendril.trusted_issuers (cluster_id);
COMMENT ON TABLE tendril.trusted_issuers IS 'Kubernetes clusters whose service account tokens let agents join.';
COMMENT ON COLUMN tendril.trusted_issuers.id IS 'The trust.';
COMMENT ON COLUMN tendril.trusted_issuers.cluster_id IS 'The cluster that agents join.';
COMMENT ON COLUMN tendril.trusted_issuers.issuer IS 'Issuer of the tokens, as their claim iss has it.';
COMMENT ON COLUMN tendril.trusted_issuers.audience IS 'Audience of the tokens, which names the cluster by its id.';
COMMENT ON COLUMN tendril.trusted_issuers.subjects IS 'Service accounts, as system:serviceaccount:NAMESPACE:NAME.';
COMMENT ON COLUMN tendril.trusted_issuers.keys IS 'The issuer''s public keys, a JSON Web Key Set.';
COMMENT ON COLUMN tendril.trusted_issuers.created_by IS 'User who trusted it, or changed that last; NULL: the control plane.';
COMMENT ON COLUMN tendril.trusted_issuers.created_at IS 'When it was trusted first.';
COMMENT ON COLUMN tendril.trusted_issuers.expires_at IS 'Until when agents may join; NULL: for good.';
COMMENT ON COLUMN tendril.trusted_issuers.last_used_at IS 'When an agent last joined by it; NULL: none did.';

CREATE TABLE tendril.key_accounts (
  key_id       uuid PRIMARY KEY REFERENCES tendril.agent_keys ON DELETE CASCADE,
  issuer       text NOT NULL,
  subject      text NOT NULL,
  pod          text NOT NULL,
  pod_uid      text NOT NULL,
  token_digest bytea NOT NULL UNIQUE CHECK (length(token_digest) = 32)
);
CREATE INDEX key_accounts_subject ON tendril.key_accounts (issuer, subject);
COMMENT ON TABLE tendril.key_accounts IS 'Keys that have joined by a service account''s token, and the pods that they are of.';
COMMENT ON COLUMN tendril.key_accounts.key_id IS 'The key.';
COMMENT ON COLUMN tendril.key_accounts.issuer IS 'Issuer of the token.';
COMMENT ON COLUMN tendril.key_accounts.subject IS 'The service account.';
COMMENT ON COLUMN tendril.key_accounts.pod IS 'Name of the pod.';
COMMENT ON COLUMN tendril.key_accounts.pod_uid IS 'UID of the pod.';
COMMENT ON COLUMN tendril.key_accounts.token_digest IS 'SHA-256 of what the token''s signature covers: a token lets in one key.';
