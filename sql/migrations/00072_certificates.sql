-- Certificates that wait for a cluster's identity stand where the share will, and are found by this.
CREATE INDEX identity_shares_certificates ON tendril.identity_shares (created_at) WHERE sealed LIKE 'tendril-identity-certificate-%';
COMMENT ON COLUMN tendril.identity_shares.shared_by IS 'The token or key of the agent that has sealed it, or presented it.';
COMMENT ON COLUMN tendril.identity_shares.sealed IS 'Armoured age message to the key; or the key''s certificate, until an agent shares the identity.';
