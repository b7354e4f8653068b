-- Runs that an agent sets down, for another to take up.
ALTER TABLE tendril.claims
  ADD COLUMN plan_digest text,
  ADD COLUMN set_down_at timestamptz,
  ADD CONSTRAINT claims_set_down CHECK (set_down_at IS NULL OR plan_digest IS NOT NULL AND apply_begun_at IS NOT NULL) NOT VALID;
COMMENT ON COLUMN tendril.claims.plan_digest IS 'Digest of the stored plan that another agent carries on if this run is set down; NULL: its work does not continue automatically.';
COMMENT ON COLUMN tendril.claims.set_down_at IS 'When its agent set the run down; NULL: it did not.';
