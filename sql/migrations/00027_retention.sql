-- What becomes of old logs. Of a provision that ended long ago the log's rows are
-- put together into one, compressed, and removed; who reads it notices nothing.
-- A server does it by itself (a timer, pg_cron), a little at a time.

-- +goose Up

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
-- +goose StatementBegin
DO $$
BEGIN
  ALTER TABLE public.provision_log_archives
    ALTER COLUMN stream_types SET COMPRESSION lz4, ALTER COLUMN log_chunks SET COMPRESSION lz4,
    ALTER COLUMN emitted_at SET COMPRESSION lz4, ALTER COLUMN created_at SET COMPRESSION lz4;
EXCEPTION
  WHEN feature_not_supported THEN
    RAISE NOTICE 'this server compresses old logs by pglz: it was built without lz4';
END $$;
-- +goose StatementEnd

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

-- Notes the end of a provision. It may end again: what was lost may be settled
-- late.
-- +goose StatementBegin
CREATE FUNCTION tendril.note_log_end() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  INSERT INTO tendril.log_ends (provision_id, org_id, ended_at) VALUES (NEW.id, NEW.org_id, coalesce(NEW.finished_at, clock_timestamp()))
  ON CONFLICT (provision_id) DO UPDATE SET ended_at = EXCLUDED.ended_at;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER provisions_note_log_end AFTER UPDATE OF status, finished_at ON public.provisions FOR EACH ROW
  WHEN (NEW.status IN ('SUCCESS', 'FAILED', 'CANCELLED') AND (OLD.status, OLD.finished_at) IS DISTINCT FROM (NEW.status, NEW.finished_at))
  EXECUTE FUNCTION tendril.note_log_end();

-- As before, and: a log that was put together and goes on is no longer all of it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.take_seq(p_provision uuid, p_count int, p_bytes bigint, p_within boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_head record;
  v_most record;
  v_now  timestamptz;
BEGIN
  SELECT next_seq, notified_at, bytes, cut, archived INTO v_head FROM tendril.log_heads WHERE provision_id = p_provision FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    INSERT INTO tendril.log_heads (provision_id, org_id)
    SELECT id, org_id FROM public.provisions WHERE id = p_provision
    ON CONFLICT (provision_id) DO NOTHING;
    -- It may have ended without a line. Whether or not: who archives it just now has
    -- that row, and we wait, or finds it locked.
    UPDATE tendril.log_ends SET archived = false WHERE provision_id = p_provision;
    SELECT next_seq, notified_at, bytes, cut, archived INTO v_head FROM tendril.log_heads WHERE provision_id = p_provision FOR NO KEY UPDATE;
  END IF;
  SELECT log_notify, log_limit INTO v_most FROM tendril.settings;
  IF p_within AND (v_head.cut OR v_head.bytes + p_bytes > v_most.log_limit) THEN
    RETURN NULL;
  END IF;
  v_now := clock_timestamp();
  IF v_head.notified_at <= v_now - v_most.log_notify OR v_head.notified_at > v_now THEN
    PERFORM pg_notify('tendril_provision', p_provision::text);
    v_head.notified_at := v_now;
  END IF;
  UPDATE tendril.log_heads SET next_seq = v_head.next_seq + p_count, bytes = bytes + p_bytes, notified_at = v_head.notified_at, archived = false
  WHERE provision_id = p_provision;
  IF v_head.archived THEN
    UPDATE tendril.log_ends SET archived = false WHERE provision_id = p_provision;
  END IF;
  RETURN v_head.next_seq;
END $$;
-- +goose StatementEnd

-- Puts the next part of a log together: its first rows, 4 MiB of text and 16384
-- rows at most. The statement that removes them makes the part, of exactly what it
-- removes. No row is left: nothing happens, and the answer is null.
-- +goose StatementBegin
CREATE FUNCTION tendril.archive_part(p_provision uuid, p_org uuid, OUT chunks bigint, OUT bytes bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_first bigint;
  v_last  bigint;
BEGIN
  -- A row that somebody has deleted by hand ends a part.
  SELECT min(n.seq), max(n.seq) INTO v_first, v_last
  FROM (SELECT l.seq, first_value(l.seq) OVER w AS first, row_number() OVER w AS nth, sum(octet_length(l.log_chunk)) OVER w AS bytes
        FROM (SELECT seq, log_chunk FROM public.provision_logs WHERE provision_id = p_provision ORDER BY seq LIMIT 16384) l
        WINDOW w AS (ORDER BY l.seq ROWS UNBOUNDED PRECEDING)) n
  WHERE n.nth = 1 OR n.bytes <= 4194304 AND n.seq = n.first + n.nth - 1;
  IF v_first IS NULL THEN
    RETURN;
  END IF;
  WITH gone AS (
    DELETE FROM public.provision_logs WHERE provision_id = p_provision AND seq BETWEEN v_first AND v_last RETURNING *)
  INSERT INTO public.provision_log_archives AS a (provision_id, first_seq, last_seq, org_id, bytes, stream_types, log_chunks, emitted_at, created_at)
  SELECT p_provision, v_first, v_last, p_org, sum(octet_length(g.log_chunk)), array_agg(g.stream_type), array_agg(g.log_chunk), array_agg(g.emitted_at), array_agg(g.created_at)
  FROM (SELECT * FROM gone ORDER BY seq) g
  HAVING count(*) = v_last - v_first + 1
  RETURNING a.last_seq - a.first_seq + 1, a.bytes INTO chunks, bytes;
  IF NOT FOUND THEN -- the rows stay
    RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = format('rows of the log of provision %s were removed while they were put together', p_provision);
  END IF;
END $$;
-- +goose StatementEnd

-- Puts into log_ends what had ended before there was one, 5000 provisions at a
-- time. True: there are more.
-- +goose StatementBegin
CREATE FUNCTION tendril.find_log_ends() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_next bigint;
  v_last bigint;
BEGIN
  SELECT next_number, last_number INTO v_next, v_last FROM tendril.log_backlog;
  IF v_next > v_last THEN
    RETURN false;
  END IF;
  SELECT next_number INTO v_next FROM tendril.log_backlog FOR UPDATE SKIP LOCKED;
  IF FOUND THEN
    INSERT INTO tendril.log_ends (provision_id, org_id, ended_at)
    SELECT id, org_id, finished_at FROM public.provisions
    WHERE number >= v_next AND number < v_next + 5000 AND status IN ('SUCCESS', 'FAILED', 'CANCELLED') AND finished_at IS NOT NULL
    ON CONFLICT (provision_id) DO NOTHING;
    UPDATE tendril.log_backlog SET next_number = v_next + 5000 WHERE only_row;
  END IF;
  RETURN true;
END $$;
-- +goose StatementEnd

-- Puts logs together that are old enough: about p_rows rows or 32 MiB of text at
-- most, and no further part is begun after p_time. Says how many logs are done
-- with, how much went into parts, and whether there may be more at once. Any
-- number of callers may at once: each takes what nobody else has. p_older_than
-- goes before the setting. A log that cannot be read (a broken block, say) is
-- passed over for a day, with a warning that names it: else none that ended later
-- would ever have its turn.
-- +goose StatementBegin
CREATE FUNCTION tendril.archive_logs(p_rows int DEFAULT 20000, p_older_than interval DEFAULT NULL, p_time interval DEFAULT '1 second',
  OUT logs int, OUT chunks bigint, OUT bytes bigint, OUT more boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s'
AS $$
DECLARE
  v_until  timestamptz := clock_timestamp() + p_time;
  v_after  interval;
  v_late   interval;
  v_before timestamptz;
  v_passed uuid[] := '{}';
  v_id     uuid;
  v_org    uuid;
  v_noted  timestamptz;
  v_ended  timestamptz;
  v_part   record;
  v_did    boolean := false;
BEGIN
  logs := 0;
  chunks := 0;
  bytes := 0;
  more := false;
  SELECT coalesce(p_older_than, log_archive_after), late_log INTO v_after, v_late FROM tendril.settings;
  -- Not while somebody moves the table's rows (trellis gc --compact).
  IF v_after IS NULL OR NOT pg_try_advisory_xact_lock_shared(27, 1) THEN
    RETURN;
  END IF;
  more := tendril.find_log_ends();
  v_before := clock_timestamp() - greatest(v_after, v_late);
  BEGIN
    LOOP
      IF chunks >= p_rows OR bytes >= 33554432 OR clock_timestamp() >= v_until THEN
        more := true;
        RETURN;
      ELSIF cardinality(v_passed) >= 1000 THEN
        more := more OR v_did;
        RETURN;
      END IF;
      v_id := NULL;
      -- The provision first: who deletes one waits for that, and not for what hangs on it.
      SELECT p.id, p.org_id, e.ended_at INTO v_id, v_org, v_noted FROM tendril.log_ends e JOIN public.provisions p ON p.id = e.provision_id
      WHERE NOT e.archived AND e.ended_at < v_before AND e.provision_id <> ALL (v_passed)
      ORDER BY e.ended_at LIMIT 1 FOR KEY SHARE OF p SKIP LOCKED;
      IF NOT FOUND THEN
        RETURN;
      END IF;
      v_passed := v_passed || v_id;
      PERFORM FROM tendril.log_ends e WHERE e.provision_id = v_id AND NOT e.archived FOR NO KEY UPDATE SKIP LOCKED;
      CONTINUE WHEN NOT FOUND;
      -- Without one it has no line; while it is locked none is added.
      PERFORM FROM tendril.log_heads h WHERE h.provision_id = v_id FOR NO KEY UPDATE SKIP LOCKED;
      CONTINUE WHEN NOT FOUND AND EXISTS (SELECT FROM tendril.log_heads h WHERE h.provision_id = v_id);
      -- Its newest claim may add lines for as long after its own end.
      v_ended := greatest(v_noted, (SELECT max(c.ended_at) FROM tendril.claims c WHERE c.provision_id = v_id));
      IF v_ended >= v_before THEN
        UPDATE tendril.log_ends SET ended_at = v_ended WHERE provision_id = v_id;
        v_did := true;
        CONTINUE;
      END IF;
      -- Its agent may still apply, and tell of it. Looked at again in an hour, so that
      -- a thousand of them are in nobody's way.
      IF EXISTS (SELECT FROM tendril.claims c JOIN public.workspaces w ON w.held_by_claim = c.id WHERE c.provision_id = v_id) THEN
        UPDATE tendril.log_ends SET ended_at = v_before + interval '1 hour' WHERE provision_id = v_id;
        v_did := true;
        CONTINUE;
      END IF;
      WHILE EXISTS (SELECT FROM public.provision_logs l WHERE l.provision_id = v_id) LOOP
        v_part := tendril.archive_part(v_id, v_org);
        chunks := chunks + coalesce(v_part.chunks, 0);
        bytes := bytes + coalesce(v_part.bytes, 0);
        EXIT WHEN chunks >= p_rows OR bytes >= 33554432 OR clock_timestamp() >= v_until;
      END LOOP;
      IF NOT EXISTS (SELECT FROM public.provision_logs l WHERE l.provision_id = v_id) THEN
        UPDATE tendril.log_heads SET archived = true WHERE provision_id = v_id;
        UPDATE tendril.log_ends SET archived = true WHERE provision_id = v_id;
        logs := logs + 1;
        v_did := true;
      END IF;
    END LOOP;
  EXCEPTION
    WHEN transaction_rollback OR insufficient_resources THEN
      RAISE;
    WHEN OTHERS THEN -- all of this call is undone; the next begins behind this log
      IF v_id IS NULL THEN
        RAISE;
      END IF;
      UPDATE tendril.log_ends SET ended_at = v_before + interval '1 day' WHERE provision_id = v_id;
      logs := 0;
      chunks := 0;
      bytes := 0;
      more := true;
      RAISE WARNING 'the log of provision % cannot be archived and is passed over for a day: %', v_id, SQLERRM;
  END;
END $$;
-- +goose StatementEnd

-- Puts the rows of a log back as they were.
-- +goose StatementBegin
CREATE FUNCTION tendril.restore_log(p_provision uuid) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_count bigint;
BEGIN
  PERFORM FROM public.provisions WHERE id = p_provision FOR KEY SHARE;
  PERFORM FROM tendril.log_heads WHERE provision_id = p_provision FOR NO KEY UPDATE;
  UPDATE tendril.log_heads SET archived = false WHERE provision_id = p_provision;
  UPDATE tendril.log_ends SET archived = false WHERE provision_id = p_provision;
  WITH gone AS (
    DELETE FROM public.provision_log_archives WHERE provision_id = p_provision RETURNING *)
  INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at, created_at)
  SELECT g.provision_id, g.first_seq + u.nth - 1, g.org_id, u.stream_type, u.log_chunk, u.emitted_at, u.created_at
  FROM gone g, unnest(g.stream_types, g.log_chunks, g.emitted_at, g.created_at) WITH ORDINALITY u (stream_type, log_chunk, emitted_at, created_at, nth);
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END $$;
-- +goose StatementEnd

-- Deletes logs that are older than tendril.settings.log_delete_after, at most
-- p_limit of them and about 64 MiB; says how many. In the place of each stands one
-- line that tells of it, and an event in the audit.
-- +goose StatementBegin
CREATE FUNCTION tendril.delete_logs(p_limit int DEFAULT 100) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_after  interval := (SELECT log_delete_after FROM tendril.settings);
  v_now    timestamptz := clock_timestamp();
  v_passed uuid[] := '{}';
  v_id     uuid;
  v_org    uuid;
  v_chunks bigint;
  v_bytes  bigint;
  v_all    bigint := 0;
  v_text   text;
  v_count  int := 0;
BEGIN
  WHILE v_after IS NOT NULL AND cardinality(v_passed) < p_limit AND v_all < 67108864 LOOP
    SELECT p.id, p.org_id INTO v_id, v_org FROM tendril.log_ends e JOIN public.provisions p ON p.id = e.provision_id
    WHERE e.archived AND e.ended_at < v_now - v_after AND e.provision_id <> ALL (v_passed)
    ORDER BY e.ended_at LIMIT 1 FOR KEY SHARE OF p SKIP LOCKED;
    EXIT WHEN NOT FOUND;
    v_passed := v_passed || v_id;
    PERFORM FROM tendril.log_ends e WHERE e.provision_id = v_id AND e.archived FOR NO KEY UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    PERFORM FROM tendril.log_heads h WHERE h.provision_id = v_id FOR NO KEY UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND AND EXISTS (SELECT FROM tendril.log_heads h WHERE h.provision_id = v_id);
    WITH gone AS (
      DELETE FROM public.provision_log_archives a WHERE a.provision_id = v_id RETURNING a.last_seq - a.first_seq + 1 AS chunks, a.bytes)
    SELECT coalesce(sum(g.chunks), 0), coalesce(sum(g.bytes), 0) INTO v_chunks, v_bytes FROM gone g;
    -- Who reads from the beginning finds row 1, and no gap behind it.
    v_text := format(E'This log was deleted at %s, as all are %s after the end (tendril.settings.log_delete_after). It had %s.\n', tendril.at(v_now), v_after, pg_size_pretty(v_bytes));
    IF v_chunks > 0 THEN -- a provision that was cancelled in the queue may have none
      INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at) VALUES (v_id, 1, v_org, 'SYSTEM', v_text, v_now);
      PERFORM tendril.audit(v_org, 'delete_log', 'provision', v_id, jsonb_build_object('bytes', v_bytes, 'after', v_after));
      UPDATE tendril.log_heads SET next_seq = 2, bytes = octet_length(v_text), archived = false WHERE provision_id = v_id;
      v_count := v_count + 1;
    END IF;
    DELETE FROM tendril.log_ends WHERE provision_id = v_id;
    v_all := v_all + v_bytes;
  END LOOP;
  RETURN v_count;
END $$;
-- +goose StatementEnd

-- Rows of a log after p_after, in order: at most p_limit, and about p_bytes of
-- text. Only none says that there are no more, for a page ends with its part. It
-- must be STABLE: then all of it sees one moment, in which each row is either in
-- its table or in a part.
-- +goose StatementBegin
CREATE FUNCTION tendril.log_page(p_provision uuid, p_after bigint, p_limit int, p_bytes bigint)
RETURNS TABLE (seq bigint, stream_type text, log_chunk text, emitted_at timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  v_first bigint; -- of the part that has what comes next
  v_last  bigint;
  v_from  int;
BEGIN
  SELECT a.first_seq, a.last_seq INTO v_first, v_last FROM public.provision_log_archives a
  WHERE a.provision_id = p_provision AND a.last_seq > p_after ORDER BY a.last_seq LIMIT 1;
  IF FOUND THEN
    v_from := greatest(p_after + 1 - v_first, 0) + 1;
    RETURN QUERY
      SELECT n.seq, n.stream_type, n.log_chunk, n.emitted_at
      FROM (SELECT v_first + v_from + u.nth - 2 AS seq, u.stream_type, u.log_chunk, u.emitted_at,
                   sum(octet_length(u.log_chunk)) OVER (ORDER BY u.nth ROWS UNBOUNDED PRECEDING) - octet_length(u.log_chunk) AS before
            FROM public.provision_log_archives a,
                 unnest(a.stream_types[v_from:v_from + p_limit - 1], a.log_chunks[v_from:v_from + p_limit - 1], a.emitted_at[v_from:v_from + p_limit - 1])
                   WITH ORDINALITY u (stream_type, log_chunk, emitted_at, nth)
            WHERE a.provision_id = p_provision AND a.last_seq = v_last) n
      WHERE n.before < p_bytes ORDER BY n.seq;
  ELSE
    RETURN QUERY
      SELECT n.seq, n.stream_type, n.log_chunk, n.emitted_at
      FROM (SELECT l.seq, l.stream_type, l.log_chunk, l.emitted_at,
                   sum(octet_length(l.log_chunk)) OVER (ORDER BY l.seq ROWS UNBOUNDED PRECEDING) - octet_length(l.log_chunk) AS before
            FROM public.provision_logs l WHERE l.provision_id = p_provision AND l.seq > p_after ORDER BY l.seq LIMIT p_limit) n
      WHERE n.before < p_bytes ORDER BY n.seq;
  END IF;
END $$;
-- +goose StatementEnd

-- Rows of a provision's log after p_after, in order, old ones as well (viewer): at
-- most p_limit, 1000, and about p_bytes, 1 MiB. Ask again after the last until
-- none comes.
-- +goose StatementBegin
CREATE FUNCTION public.provision_log(p_provision uuid, p_after bigint DEFAULT 0, p_limit int DEFAULT 100, p_bytes int DEFAULT 1048576)
RETURNS TABLE (seq bigint, stream_type text, log_chunk text, emitted_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_org uuid;
BEGIN
  SELECT p.org_id INTO v_org FROM public.provisions p WHERE p.id = p_provision;
  IF NOT tendril.may_act(v_org, 'viewer') OR v_org IS NULL THEN
    PERFORM tendril.refuse('PT404', 'provision_not_found', format('there is no provision %s where you are viewer', p_provision));
  END IF;
  RETURN QUERY SELECT * FROM tendril.log_page(p_provision, coalesce(greatest(p_after, 0), 0),
    coalesce(least(greatest(p_limit, 1), 1000), 100), coalesce(least(greatest(p_bytes, 1), 1048576), 1048576));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- As before, and: old logs.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.schedule_jobs() RETURNS TABLE (run_as text, statement text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_job record;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_cron') THEN
    RETURN;
  END IF;
  statement := format('GRANT USAGE ON SCHEMA cron TO %I', current_user);
  run_as := 'a superuser';
  FOR v_job IN VALUES ('tendril-reap', 'SELECT tendril.reap()'), ('tendril-drift', 'SELECT tendril.queue_drift()'), ('tendril-inspect', 'SELECT tendril.hand_inspections()'),
    ('tendril-expire', 'SELECT tendril.expire_blobs()'), ('tendril-logs', 'SELECT tendril.archive_logs(), tendril.delete_logs()') LOOP
    IF NOT EXISTS (SELECT FROM cron.job WHERE jobname = v_job.column1 AND database = current_database()) THEN
      PERFORM cron.schedule(v_job.column1, '* * * * *', v_job.column2);
    END IF;
  END LOOP;
EXCEPTION
  WHEN insufficient_privilege THEN
    RETURN NEXT;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $$
DECLARE
  v_left record;
BEGIN
  FOR v_left IN SELECT * FROM tendril.schedule_jobs() LOOP
    RAISE NOTICE 'still to be run by %: %;', v_left.run_as, v_left.statement;
  END LOOP;
END $$;
-- +goose StatementEnd

SELECT tendril.deny_all(ARRAY['provision_log_archives', 'provision_log']);
GRANT SELECT ON public.provision_log_archives TO authenticated, service_role;
GRANT EXECUTE ON FUNCTION public.provision_log(uuid, bigint, int, int) TO authenticated, service_role;

NOTIFY pgrst, 'reload schema';
