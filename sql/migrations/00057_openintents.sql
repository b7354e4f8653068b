-- What a run has begun that another agent could not find yet. Claims that are there already have
-- NULL: nobody knows.
ALTER TABLE tendril.claims ADD COLUMN open_intents text[];
ALTER TABLE tendril.claims ALTER COLUMN open_intents SET DEFAULT '{}';
COMMENT ON COLUMN tendril.claims.open_intents IS 'Addresses of machines that the run was about to make or destroy, and that it has not reported as found or done; if there are more than 100 none is taken out any more; NULL: unknown.';
