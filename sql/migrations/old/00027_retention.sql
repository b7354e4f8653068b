-- What becomes of old logs. Of a provision that ended long ago the log's rows are
-- put together into one, compressed, and removed; who reads it notices nothing.
-- A server does it by itself (a timer, pg_cron), a little at a time.

SELECT tendril.lock_tables('tendril.settings, public.provisions, public.provision_logs, tendril.log_heads');

ALTER TABLE tendril.settings
  -- How long after its end a provision's log is put together, and never while
  -- lines are still taken for it (late_log). NULL: it stays as it is.
  ADD COLUMN log_archive_after interval DEFAULT '7 days' CHECK (log_archive_after > interval '0'),
  -- How long after its end its log is deleted. NULL: never.
  ADD COLUMN log_delete_after  interval,
  -- Only what was put together is deleted.
  ADD CONSTRAINT settings_log_delete_after
    CHECK (log_delete_after IS NULL OR log_archive_after IS NOT NULL AND log_delete_after >= log_archive_after);

-- A part of a log, rows first_seq to last_seq of it, without a gap: the nth of
-- each array is that of row first_seq + n - 1. A log of up to 4 MiB is one part;
-- a longer one has several, so that nobody needs the memory for 256 MiB, and who
-- reads a page takes one part apart.
CREATE TABLE public.provision_log_archives (
  provision_id uuid NOT NULL REFERENCES public.provisions ON DELETE CASCADE,
  first_seq    bigint NOT NULL CHECK (first_seq > 0),
  last_seq     bigint NOT NULL CHECK (last_seq >= first_seq),
  org_id       uuid NOT NULL,
  bytes        bigint NOT NULL, -- of its text
  archived_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  stream_types text[] NOT NULL,
  log_chunks   text[] NOT NULL,
  emitted_at   timestamptz[] NOT NULL,
  created_at   timestamptz[] NOT NULL,
  PRIMARY KEY (provision_id, last_seq),
  CHECK (cardinality(stream_types) = last_seq - first_seq + 1 AND cardinality(log_chunks) = last_seq - first_seq + 1
     AND cardinality(emitted_at) = last_seq - first_seq + 1 AND cardinality(created_at) = last_seq - first_seq + 1)
);

-- The server compresses what is this long by itself, by lz4 where it has it.
DO $$
BEGIN
  ALTER TABLE public.provision_log_archives
    ALTER COLUMN stream_types SET COMPRESSION lz4, ALTER COLUMN log_chunks SET COMPRESSION lz4,
    ALTER COLUMN emitted_at SET COMPRESSION lz4, ALTER COLUMN created_at SET COMPRESSION lz4;
EXCEPTION
  WHEN feature_not_supported THEN
    RAISE NOTICE 'this server compresses old logs by pglz: it was built without lz4';
END $$;

ALTER TABLE public.provision_log_archives ENABLE ROW LEVEL SECURITY;
CREATE POLICY members_read ON public.provision_log_archives FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('viewer'))::uuid[]));

-- Rows go by the ten thousand: their room is to be used again soon.
ALTER TABLE public.provision_logs SET (autovacuum_vacuum_scale_factor = 0.05);

-- All rows of the log are in provision_log_archives.
ALTER TABLE tendril.log_heads ADD COLUMN archived boolean NOT NULL DEFAULT false;

-- The provisions that have ended and whose logs are there, put together or not.
CREATE TABLE tendril.log_ends (
  provision_id uuid PRIMARY KEY REFERENCES public.provisions ON DELETE CASCADE,
  org_id       uuid NOT NULL,
  ended_at     timestamptz NOT NULL,
  archived     boolean NOT NULL DEFAULT false
);
CREATE INDEX log_ends_due      ON tendril.log_ends (ended_at) WHERE NOT archived;
CREATE INDEX log_ends_archived ON tendril.log_ends (ended_at) WHERE archived;

-- Which of the provisions that were there before this are still to be put into
-- it, by their numbers: a migration does not read what may be large.
CREATE TABLE tendril.log_backlog (
  only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  next_number bigint NOT NULL DEFAULT 1,
  last_number bigint NOT NULL
);
INSERT INTO tendril.log_backlog (last_number)
SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('public.provisions', 'number')::regclass), 0);
GRANT SELECT ON public.provision_log_archives TO authenticated, service_role;
