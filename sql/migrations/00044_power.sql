-- What a run can do to one machine: the operation power, and which machines take which action.
ALTER TABLE public.provisions
  DROP CONSTRAINT provisions_operation_check,
  ADD CONSTRAINT provisions_operation_check CHECK (operation IN ('plan', 'apply', 'destroy', 'refresh', 'power', 'unlock', 'state', 'inspect')) NOT VALID;
ALTER TABLE public.machines
  ADD COLUMN actions text[] NOT NULL DEFAULT '{}'
  CHECK (actions <@ ARRAY['destroy', 'rebuild', 'refresh', 'power', 'reveal'] AND cardinality(actions) <= 5);
UPDATE public.machines SET actions = ARRAY['destroy'] WHERE address IS NOT NULL;
COMMENT ON COLUMN public.machines.actions IS 'What a run can do to this machine alone: destroy, rebuild, refresh, power and reveal (its credentials).';
