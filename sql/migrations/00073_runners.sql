-- Claims that an agent has delegated to a runner, a program that carries out one run.
CREATE TABLE tendril.runners (
  claim_id   uuid PRIMARY KEY REFERENCES tendril.claims ON DELETE CASCADE,
  digest     bytea CHECK (octet_length(digest) = 32),
  public_key bytea CHECK (octet_length(public_key) = 32),
  created_at timestamptz NOT NULL DEFAULT now(),
  CHECK (num_nonnulls(digest, public_key) = 1)
);
COMMENT ON TABLE tendril.runners IS 'Claims that are delegated, each to a runner with a credential for this claim alone.';
COMMENT ON COLUMN tendril.runners.claim_id IS 'The claim.';
COMMENT ON COLUMN tendril.runners.digest IS 'SHA-256 of the hash of the runner''s token; NULL: it has a key.';
COMMENT ON COLUMN tendril.runners.public_key IS 'The Ed25519 key that signs the runner''s requests; NULL: it has a token.';
COMMENT ON COLUMN tendril.runners.created_at IS 'When the claim was delegated.';
