-- Runs that were set down and could not be taken up; the limit of planned machines of an
-- organisation; what the list of machines is filtered by.
ALTER TABLE tendril.claims
  ADD COLUMN take_up_failure text,
  ADD CONSTRAINT claims_take_up_failure CHECK (take_up_failure IS NULL OR apply_begun_at IS NULL AND set_down_at IS NULL) NOT VALID;
COMMENT ON COLUMN tendril.claims.take_up_failure IS 'Why its agent could not take up a run that was set down, which was queued again; NULL: it did not fail so.';

-- The list of machines is by name, within each of these.
CREATE INDEX machines_org_status ON public.machines (org_id, status, name, id);
CREATE INDEX machines_org_pool   ON public.machines (org_id, pool, name, id) WHERE pool IS NOT NULL;
CREATE INDEX machines_org_health ON public.machines (org_id, health, name, id) WHERE health IS NOT NULL;

ALTER TABLE tendril.settings ADD COLUMN planned_limit int NOT NULL DEFAULT 10000 CHECK (planned_limit > 0);
COMMENT ON COLUMN tendril.settings.planned_limit IS 'Machines of an organisation that are planned and not made yet.';
