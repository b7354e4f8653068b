-- Log lines: numbered chunks, the database's own SYSTEM lines, and a log's limit.

-- Gives out the next p_count numbers of a provision's log and says where they begin. The lock
-- on the head is held until the transaction ends, so rows are committed in the order of their
-- numbers. A NOTIFY that lies in the future withholds none. The clock is read once the head is
-- ours, so whoever had it before has stamped earlier. A log that was put together and goes on
-- is no longer all of it.
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
    INSERT INTO tendril.log_heads (provision_id, org_id, cluster_id)
    SELECT id, org_id, cluster_id FROM public.provisions WHERE id = p_provision
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
    PERFORM tendril.notify('tendril_provision', p_provision);
    v_head.notified_at := v_now;
  END IF;
  UPDATE tendril.log_heads SET next_seq = v_head.next_seq + p_count, bytes = bytes + p_bytes, notified_at = v_head.notified_at, archived = false
  WHERE provision_id = p_provision;
  IF v_head.archived THEN
    UPDATE tendril.log_ends SET archived = false WHERE provision_id = p_provision;
  END IF;
  RETURN v_head.next_seq;
END $$;

-- Appends one line that the database itself has to say; up to 2 MiB beyond a log's limit, or
-- beyond where it was cut, for some of them an agent can cause as often as it likes.
CREATE OR REPLACE FUNCTION tendril.system_line(p_provision uuid, p_text text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_beyond CONSTANT bigint := 2097152;
BEGIN
  IF (SELECT h.bytes > coalesce(h.cut_at, s.log_limit) + c_beyond FROM tendril.log_heads h, tendril.settings s WHERE h.provision_id = p_provision) THEN
    RETURN;
  END IF;
  INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at)
  SELECT p.id, tendril.take_seq(p.id, 1, octet_length(p_text) + 1), p.org_id, 'SYSTEM', p_text || E'\n', clock_timestamp()
  FROM public.provisions p WHERE p.id = p_provision;
END $$;

-- Stores chunks p_first_chunk, p_first_chunk + 1, … of a claim and returns the number expected
-- next. Numbers below that are there already and are ignored; above it there is a gap, and
-- nothing is stored. A claim that holds its workspace may add lines however late, for its
-- result, which ends the hold, comes after them. A log that has reached its limit, or whose
-- cluster or organisation has (tendril.logs_full()), takes no more text. Then, too, the chunks
-- count as stored: the run goes on, and its end is told after them. A short line counts as 16 bytes, for its row takes more than that. A time that is more
-- than a day from the database's is replaced by that, and one line of the log says so.
--
-- The chunks come as three arrays of one length: to make JSON of them here and to take that
-- apart again costs twice as much as to store them. NULL or empty arrays ask for the number.
--
-- Locks: claim.
CREATE OR REPLACE FUNCTION public.append_provision_log(p_token_hash text, p_claim_id uuid, p_first_chunk bigint,
                                                       p_streams text[], p_texts text[], p_times timestamptz[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters := tendril.authenticate(p_token_hash);
  v_claim   tendril.claims;
  v_count   int := coalesce(cardinality(p_texts), 0);
  v_skip    bigint;
  v_bytes   bigint;
  v_largest int;
  v_bad     boolean;
  v_weight  bigint;
  v_seq     bigint;
  v_now     timestamptz := clock_timestamp();
  v_odd     text; -- a time that the database's clock contradicts
BEGIN
  SELECT * INTO v_claim FROM tendril.claims WHERE id = p_claim_id AND cluster_id = v_cluster.id FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    PERFORM tendril.claim_lost(p_claim_id, 'is not known here');
  END IF;
  IF v_claim.state <> 'running' THEN
    IF v_claim.ended_at < clock_timestamp() - (SELECT late_log FROM tendril.settings)
       AND NOT EXISTS (SELECT FROM public.workspaces WHERE id = v_claim.workspace_id AND held_by_claim = p_claim_id) THEN
      PERFORM tendril.claim_lost(p_claim_id, 'ended too long ago to add lines to its log');
    ELSIF EXISTS (SELECT FROM tendril.claims c WHERE c.provision_id = v_claim.provision_id AND c.number > v_claim.number) THEN
      PERFORM tendril.claim_lost(p_claim_id, 'was followed by a newer one, which has the log now');
    END IF;
  END IF;

  IF v_count > 0 THEN
    IF p_first_chunk IS NULL OR p_first_chunk < 1 OR array_ndims(p_texts) <> 1
       OR cardinality(p_streams) IS DISTINCT FROM v_count OR cardinality(p_times) IS DISTINCT FROM v_count THEN
      PERFORM tendril.refuse('PT422', 'bad_chunks', 'p_streams, p_texts and p_times must be as long as each other, and p_first_chunk a number from 1');
    ELSIF v_count > 128 THEN
      PERFORM tendril.refuse('PT413', 'too_many_chunks', format('%s chunks in one call, more than the 128 allowed', v_count));
    END IF;
  END IF;
  v_skip := v_claim.next_chunk - p_first_chunk;
  IF v_count = 0 OR v_skip < 0 OR v_skip >= v_count THEN
    RETURN v_claim.next_chunk;
  END IF;

  SELECT sum(octet_length(c.text)), max(octet_length(c.text)),
         bool_or(c.text IS NULL OR c.at IS NULL OR c.stream IS NULL OR c.stream NOT IN ('STDOUT', 'STDERR', 'SYSTEM')),
         sum(greatest(octet_length(c.text), 16)), min(c.at::text) FILTER (WHERE c.at <> tendril.plausible_time(c.at, v_now))
  INTO v_bytes, v_largest, v_bad, v_weight, v_odd
  FROM unnest(p_streams, p_texts, p_times) AS c (stream, text, at);
  IF v_bad THEN
    PERFORM tendril.refuse('PT422', 'bad_chunks', 'each chunk needs text, at (a time) and stream (STDOUT, STDERR or SYSTEM)');
  ELSIF v_largest > 65536 OR v_bytes > 1048576 THEN
    PERFORM tendril.refuse('PT413', 'chunks_too_large',
      format('the largest chunk has %s bytes (65536 allowed), the call %s (1048576 allowed)', v_largest, v_bytes));
  END IF;

  IF v_odd IS NOT NULL AND NOT v_claim.clock_wrong THEN
    PERFORM tendril.system_line(v_claim.provision_id,
      format('The agent''s clock differs from the database''s by more than a day (it says %s). Lines have the database''s time.', v_odd));
  END IF;
  IF tendril.logs_full(v_cluster.id) IS NULL THEN
    v_seq := tendril.take_seq(v_claim.provision_id, (v_count - v_skip)::int, v_weight, p_within => true);
  ELSE
    PERFORM tendril.take_seq(v_claim.provision_id, 0, 0); -- for the lock
  END IF;
  IF v_seq IS NULL THEN
    PERFORM tendril.store_beyond_limit(v_claim, v_cluster.org_id, p_streams, p_texts, p_times, v_skip);
  ELSE
    INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at)
    SELECT v_claim.provision_id, v_seq + c.n - 1 - v_skip, v_cluster.org_id, c.stream, c.text, tendril.plausible_time(c.at, v_now)
    FROM unnest(p_streams, p_texts, p_times) WITH ORDINALITY AS c (stream, text, at, n)
    WHERE c.n > v_skip;
  END IF;
  UPDATE tendril.claims SET next_chunk = p_first_chunk + v_count, clock_wrong = clock_wrong OR v_odd IS NOT NULL WHERE id = p_claim_id;
  RETURN p_first_chunk + v_count;
EXCEPTION
  WHEN data_exception THEN
    PERFORM tendril.refuse('PT422', 'bad_chunks', format('the chunks cannot be stored: %s', left(SQLERRM, 500)));
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- append_provision_log() for callers that send JSON: p_chunks is a list of {"stream", "text",
-- "at"}.
--
-- Locks: claim.
CREATE OR REPLACE FUNCTION public.insert_provision_log(p_token_hash text, p_claim_id uuid, p_first_chunk bigint, p_chunks jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_streams text[];
  v_texts   text[];
  v_times   timestamptz[];
BEGIN
  IF p_chunks IS NOT NULL THEN
    PERFORM tendril.authenticate(p_token_hash);
    IF jsonb_typeof(p_chunks) <> 'array' OR p_first_chunk IS NULL OR p_first_chunk < 1 THEN
      PERFORM tendril.refuse('PT422', 'bad_chunks', 'p_chunks must be an array and p_first_chunk a number from 1');
    ELSIF jsonb_array_length(p_chunks) > 128 THEN
      PERFORM tendril.refuse('PT413', 'too_many_chunks', format('%s chunks in one call, more than the 128 allowed', jsonb_array_length(p_chunks)));
    END IF;
    SELECT array_agg(c.stream ORDER BY c.n), array_agg(c.text ORDER BY c.n), array_agg(c.at ORDER BY c.n) INTO v_streams, v_texts, v_times
    FROM ROWS FROM (jsonb_to_recordset(p_chunks) AS (stream text, text text, at timestamptz)) WITH ORDINALITY AS c (stream, text, at, n);
  END IF;
  RETURN public.append_provision_log(p_token_hash, p_claim_id, p_first_chunk, v_streams, v_texts, v_times);
EXCEPTION
  WHEN data_exception THEN
    PERFORM tendril.refuse('PT422', 'bad_chunks', format('p_chunks cannot be stored: %s', left(SQLERRM, 500)));
END $$;

-- What of a log is kept once its limit is reached, or that of its cluster or organisation: the
-- database's and the agent's own words, SYSTEM lines, for another MiB. The rest is passed over,
-- and one line says so; it stays cut when there is room again. The agent is not told: it could
-- do nothing but ask again.
CREATE OR REPLACE FUNCTION tendril.store_beyond_limit(p_claim tendril.claims, p_org uuid, p_streams text[], p_texts text[], p_times timestamptz[], p_skip bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_stored bigint;
  v_cut    boolean;
  v_cut_at bigint;
  v_limit  bigint := (SELECT log_limit FROM tendril.settings);
  v_full   text := tendril.logs_full(p_claim.cluster_id);
  v_chunk  record;
  v_weight int;
BEGIN
  -- take_seq() has locked it.
  SELECT bytes, cut, least(cut_at, v_limit) INTO STRICT v_stored, v_cut, v_cut_at FROM tendril.log_heads WHERE provision_id = p_claim.provision_id;
  FOR v_chunk IN
    SELECT c.stream, c.text, c.at
    FROM unnest(p_streams, p_texts, p_times) WITH ORDINALITY AS c (stream, text, at, n)
    WHERE c.n > p_skip ORDER BY c.n
  LOOP
    v_weight := greatest(octet_length(v_chunk.text), 16);
    IF NOT v_cut AND v_full IS NOT NULL THEN
      PERFORM tendril.cut_log(p_claim.provision_id, v_full);
      v_cut := true;
      v_cut_at := least(v_stored, v_limit);
    END IF;
    IF (CASE v_chunk.stream WHEN 'SYSTEM' THEN v_stored + v_weight <= coalesce(v_cut_at, v_limit) + 1048576
                            ELSE NOT v_cut AND v_stored + v_weight <= v_limit END) THEN
      INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at)
      VALUES (p_claim.provision_id, tendril.take_seq(p_claim.provision_id, 1, v_weight), p_org, v_chunk.stream, v_chunk.text, tendril.plausible_time(v_chunk.at, clock_timestamp()));
      v_stored := v_stored + v_weight;
    ELSIF NOT v_cut THEN
      PERFORM tendril.cut_log(p_claim.provision_id, format(
        'This log has reached %s, the most that the database keeps of one (tendril.settings.log_limit).', pg_size_pretty(v_limit)));
      v_cut := true;
    END IF;
  END LOOP;
END $$;

-- Ends what a log takes of a run's output, and says why. The caller has locked its head.
CREATE OR REPLACE FUNCTION tendril.cut_log(p_provision uuid, p_why text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  UPDATE tendril.log_heads SET cut = true, cut_at = bytes WHERE provision_id = p_provision;
  PERFORM tendril.system_line(p_provision, p_why || ' What is printed from here on is left out.');
END $$;

-- Rows of a log after p_after, in order: at most p_limit, and about p_bytes of text. Only none
-- says that there are no more, for a page ends with its part. It must be STABLE: then all of
-- it sees one moment, in which each row is either in its table or in a part.
CREATE OR REPLACE FUNCTION tendril.log_page(p_provision uuid, p_after bigint, p_limit int, p_bytes bigint)
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

-- Rows of a provision's log after p_after, in order, old ones as well (viewer): at most
-- p_limit, 1000, and about p_bytes, 1 MiB. Ask again after the last until none comes.
CREATE OR REPLACE FUNCTION public.provision_log(p_provision uuid, p_after bigint DEFAULT 0, p_limit int DEFAULT 100, p_bytes int DEFAULT 1048576)
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
