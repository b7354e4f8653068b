-- Runs whose log people watch: their agents close chunks sooner.
CREATE TABLE tendril.watched (
  provision_id uuid PRIMARY KEY REFERENCES public.provisions ON DELETE CASCADE,
  until        timestamptz NOT NULL
);
CREATE INDEX watched_until ON tendril.watched (until);
COMMENT ON TABLE tendril.watched IS 'Runs whose log people watch.';
COMMENT ON COLUMN tendril.watched.provision_id IS 'The run.';
COMMENT ON COLUMN tendril.watched.until IS 'Until when that counts, if it is not said again.';
