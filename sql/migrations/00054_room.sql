-- Runs that wait for room in a pool.
ALTER TABLE public.provisions
  ADD COLUMN waits_for   text,
  ADD COLUMN waits_since timestamptz;
ALTER TABLE tendril.settings ADD COLUMN room_wait interval NOT NULL DEFAULT '1 day' CHECK (room_wait >= interval '0');
ALTER TABLE public.reservations
  ADD COLUMN kept      boolean NOT NULL DEFAULT false,
  ADD COLUMN wanted_by uuid;
CREATE INDEX reservations_provision ON public.reservations (provision_id);

COMMENT ON COLUMN public.provisions.waits_for IS 'Why it found no room in a pool when it was tried last; NULL: it did not.';
COMMENT ON COLUMN public.provisions.waits_since IS 'When it found no room for the first time.';
COMMENT ON COLUMN public.reservations.kept IS 'Whether the machine is made by others than the agent (Terraform), so that its place is kept while a run wants it.';
COMMENT ON COLUMN public.reservations.wanted_by IS 'The provision that wanted the place last.';
COMMENT ON COLUMN tendril.settings.room_wait IS 'How long a run waits for room in a pool before it fails.';
