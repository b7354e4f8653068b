-- Agents by key, and which token or key has claimed.
CREATE TABLE tendril.agent_keys (
  id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  cluster_id   uuid NOT NULL REFERENCES public.clusters ON DELETE CASCADE,
  public_key   bytea NOT NULL UNIQUE CHECK (length(public_key) = 32),
  name         text NOT NULL,
  parent       uuid,
  created_by   uuid,
  created_at   timestamptz NOT NULL DEFAULT now(),
  expires_at   timestamptz,
  revoked_at   timestamptz,
  last_used_at timestamptz,
  last_address inet
) WITH (fillfactor = 50);
CREATE INDEX agent_keys_cluster ON tendril.agent_keys (cluster_id);
CREATE INDEX agent_keys_parent  ON tendril.agent_keys (parent) WHERE parent IS NOT NULL;
CREATE INDEX agent_keys_over    ON tendril.agent_keys (least(revoked_at, expires_at)) WHERE least(revoked_at, expires_at) IS NOT NULL;
COMMENT ON TABLE tendril.agent_keys IS 'Keys with which agents sign their requests, in place of a token.';
COMMENT ON COLUMN tendril.agent_keys.id IS 'The key.';
COMMENT ON COLUMN tendril.agent_keys.cluster_id IS 'The cluster that it has joined.';
COMMENT ON COLUMN tendril.agent_keys.public_key IS 'Ed25519 public key.';
COMMENT ON COLUMN tendril.agent_keys.name IS 'Name of the agent that joined with it.';
COMMENT ON COLUMN tendril.agent_keys.parent IS 'The key or token that asked for this one, and whose revocation revokes this one; NULL: a person let it join.';
COMMENT ON COLUMN tendril.agent_keys.created_by IS 'User who let it join; NULL: the control plane.';
COMMENT ON COLUMN tendril.agent_keys.created_at IS 'When it joined.';
COMMENT ON COLUMN tendril.agent_keys.expires_at IS 'When it expires; NULL: never.';
COMMENT ON COLUMN tendril.agent_keys.revoked_at IS 'When it was revoked; NULL: it was not.';
COMMENT ON COLUMN tendril.agent_keys.last_used_at IS 'When it was last used, to a minute or so; NULL: never.';
COMMENT ON COLUMN tendril.agent_keys.last_address IS 'From where it was last used; NULL: not known.';

ALTER TABLE tendril.claims ADD COLUMN credential_id uuid;
COMMENT ON COLUMN tendril.claims.credential_id IS 'The token or key that the agent showed; NULL: claimed before this was written.';

-- Nonces of signed requests whose repeat would change something.
CREATE TABLE tendril.nonces (
  public_key bytea NOT NULL,
  nonce      text NOT NULL CHECK (length(nonce) BETWEEN 16 AND 64),
  until      timestamptz NOT NULL,
  PRIMARY KEY (public_key, nonce)
);
CREATE INDEX nonces_until ON tendril.nonces (until);
COMMENT ON TABLE tendril.nonces IS 'Nonces of signed requests that may count once only, until their signature has expired.';
COMMENT ON COLUMN tendril.nonces.public_key IS 'Ed25519 public key that signed.';
COMMENT ON COLUMN tendril.nonces.nonce IS 'The signature''s nonce.';
COMMENT ON COLUMN tendril.nonces.until IS 'From when its signature is refused as too old, and the row may go.';
