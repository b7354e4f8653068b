-- A cluster's identity on its way from an agent that has it to one that has joined by key.
CREATE TABLE tendril.identity_shares (
  key_id     uuid PRIMARY KEY REFERENCES tendril.agent_keys ON DELETE CASCADE,
  shared_by  uuid NOT NULL,
  sealed     text NOT NULL CHECK (length(sealed) BETWEEN 1 AND 65536),
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz NOT NULL
);
CREATE INDEX identity_shares_over ON tendril.identity_shares (expires_at);
COMMENT ON TABLE tendril.identity_shares IS 'Identities of clusters, each sealed to the key of one agent.';
COMMENT ON COLUMN tendril.identity_shares.key_id IS 'The key that opens it.';
COMMENT ON COLUMN tendril.identity_shares.shared_by IS 'The token or key of the agent that has sealed it.';
COMMENT ON COLUMN tendril.identity_shares.sealed IS 'Armoured age message to the key.';
COMMENT ON COLUMN tendril.identity_shares.created_at IS 'When it was sealed.';
COMMENT ON COLUMN tendril.identity_shares.expires_at IS 'When it expires, and the row may go.';
