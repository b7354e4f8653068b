-- Logs: numbered chunks, SYSTEM lines of the database, and limits.

-- Reserves the next p_count positions of a log and answers the first; null where p_within is true
-- and the log has no room for p_bytes.
--
-- Notes: The lock on the log's head lasts until the transaction ends, so rows commit in the order
--   of their positions. The clock is read after the head is locked. A log that continues after it
--   was archived is no longer archived as a whole.
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

-- Appends a SYSTEM line of the database to a log, up to 2 MiB beyond the log's limit, because an
-- agent can cause some of them as often as it likes.
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

-- Appends chunks to a provision's log. Chunks are numbered for each claim from 1: those stored
-- already are ignored, and after a gap nothing is stored.
--
-- A claim that has ended may append for tendril.settings.late_log, and one that holds its workspace
-- for as long as it does, unless a newer claim has the log. Beyond the limit of the log, cluster or
-- organisation, text is left out and the log says so; the chunks still count as stored. A time more
-- than a day from the database's clock is replaced by the database's time.
--
-- Arguments:
--   p_token_hash   SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_claim_id     the claim
--   p_first_chunk  number of the first chunk, from 1
--   p_streams      STDOUT, STDERR or SYSTEM for each chunk, at most 128; null or empty: only ask
--                  for the number
--   p_texts        text of each chunk, at most 65536 bytes each and 1048576 in all
--   p_times        when the agent read each chunk
-- Answers: the number of the chunk expected next.
-- Errors: PT401 token_invalid, PT409 claim_lost, PT413 chunks_too_large, PT413 too_many_chunks,
--   PT422 bad_chunks, PT503 busy.
-- Locks: claim.
-- Callers: anon, tendril_agent.
-- Notes: Three arrays rather than JSON: making and reading JSON costs twice as much as storing. A
--   chunk counts as 16 bytes at least, because its row takes more.
CREATE OR REPLACE FUNCTION public.append_provision_log(p_token_hash text, p_claim_id uuid, p_first_chunk bigint,
                                                       p_streams text[], p_texts text[], p_times timestamptz[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters := tendril.authenticate_for(p_token_hash, p_claim_id);
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
    PERFORM tendril.claim_lost(p_claim_id, 'is unknown');
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
      PERFORM tendril.refuse('PT422', 'bad_chunks', 'p_streams, p_texts and p_times must have the same length, and p_first_chunk must be a number from 1');
    ELSIF v_count > tendril.max_chunks() THEN
      PERFORM tendril.refuse('PT413', 'too_many_chunks', format('%s chunks in one call; at most %s are allowed', v_count, tendril.max_chunks()));
    END IF;
  END IF;
  v_skip := v_claim.next_chunk - p_first_chunk;
  IF v_count = 0 OR v_skip < 0 OR v_skip >= v_count THEN
    RETURN v_claim.next_chunk;
  END IF;

  SELECT sum(octet_length(c.text)), max(octet_length(c.text)),
         bool_or(c.text IS NULL OR c.at IS NULL OR c.stream IS NULL OR c.stream NOT IN ('STDOUT', 'STDERR', 'SYSTEM')),
         sum(greatest(octet_length(c.text), tendril.least_chunk_weight())), min(c.at::text) FILTER (WHERE c.at <> tendril.plausible_time(c.at, v_now))
  INTO v_bytes, v_largest, v_bad, v_weight, v_odd
  FROM unnest(p_streams, p_texts, p_times) AS c (stream, text, at);
  IF v_bad THEN
    PERFORM tendril.refuse('PT422', 'bad_chunks', 'each chunk needs text, at (a time) and stream (STDOUT, STDERR or SYSTEM)');
  ELSIF v_largest > tendril.max_chunk_bytes() OR v_bytes > tendril.max_chunks_bytes() THEN
    PERFORM tendril.refuse('PT413', 'chunks_too_large',
      format('the largest chunk has %s bytes (%s allowed), the call %s (%s allowed)', v_largest, tendril.max_chunk_bytes(), v_bytes, tendril.max_chunks_bytes()));
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
    PERFORM tendril.refuse('PT422', 'bad_chunks', format('the chunks cannot be stored: %s', left(SQLERRM, tendril.quoted_error())));
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Does what append_provision_log() does, for callers that send JSON.
--
-- Arguments:
--   p_token_hash   SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_claim_id     the claim
--   p_first_chunk  number of the first chunk, from 1
--   p_chunks       list of at most 128 {stream, text, at}; null: only ask for the number
-- Answers: the number of the chunk expected next.
-- Errors: PT401 token_invalid, PT409 claim_lost, PT413 chunks_too_large, PT413 too_many_chunks,
--   PT422 bad_chunks, PT503 busy.
-- Locks: claim.
-- Callers: anon, tendril_agent.
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
    PERFORM tendril.authenticate_for(p_token_hash, p_claim_id);
    IF jsonb_typeof(p_chunks) <> 'array' OR p_first_chunk IS NULL OR p_first_chunk < 1 THEN
      PERFORM tendril.refuse('PT422', 'bad_chunks', 'p_chunks must be an array and p_first_chunk a number from 1');
    ELSIF jsonb_array_length(p_chunks) > tendril.max_chunks() THEN
      PERFORM tendril.refuse('PT413', 'too_many_chunks', format('%s chunks in one call; at most %s are allowed', jsonb_array_length(p_chunks), tendril.max_chunks()));
    END IF;
    SELECT array_agg(c.stream ORDER BY c.n), array_agg(c.text ORDER BY c.n), array_agg(c.at ORDER BY c.n) INTO v_streams, v_texts, v_times
    FROM ROWS FROM (jsonb_to_recordset(p_chunks) AS (stream text, text text, at timestamptz)) WITH ORDINALITY AS c (stream, text, at, n);
  END IF;
  RETURN public.append_provision_log(p_token_hash, p_claim_id, p_first_chunk, v_streams, v_texts, v_times);
EXCEPTION
  WHEN data_exception THEN
    PERFORM tendril.refuse('PT422', 'bad_chunks', format('p_chunks cannot be stored: %s', left(SQLERRM, tendril.quoted_error())));
END $$;

-- Stores what a log keeps beyond its limit: SYSTEM lines, for another MiB. The rest is left out,
-- and one line says so. A log that was cut stays cut. take_seq() has locked the log's head.
--
-- Notes: The agent is not told: it could only ask again.
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
    v_weight := greatest(octet_length(v_chunk.text), tendril.least_chunk_weight());
    IF NOT v_cut AND v_full IS NOT NULL THEN
      PERFORM tendril.cut_log(p_claim.provision_id, v_full);
      v_cut := true;
      v_cut_at := least(v_stored, v_limit);
    END IF;
    IF (CASE v_chunk.stream WHEN 'SYSTEM' THEN v_stored + v_weight <= coalesce(v_cut_at, v_limit) + tendril.kept_beyond_limit()
                            ELSE NOT v_cut AND v_stored + v_weight <= v_limit END) THEN
      INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at)
      VALUES (p_claim.provision_id, tendril.take_seq(p_claim.provision_id, 1, v_weight), p_org, v_chunk.stream, v_chunk.text, tendril.plausible_time(v_chunk.at, clock_timestamp()));
      v_stored := v_stored + v_weight;
    ELSIF NOT v_cut THEN
      PERFORM tendril.cut_log(p_claim.provision_id, format(
        'This log has reached %s, the limit of one log (tendril.settings.log_limit).', pg_size_pretty(v_limit)));
      v_cut := true;
    END IF;
  END LOOP;
END $$;

-- Marks a log as full and writes a line that says why. The caller has locked the log's head.
CREATE OR REPLACE FUNCTION tendril.cut_log(p_provision uuid, p_why text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  UPDATE tendril.log_heads SET cut = true, cut_at = bytes WHERE provision_id = p_provision;
  PERFORM tendril.system_line(p_provision, p_why || ' Further output is left out.');
END $$;

-- Rows of a log after p_after, archived or not, in order: at most p_limit rows and about p_bytes of
-- text. A page may be shorter; only an empty one means that there is no more.
--
-- Arguments:
--   p_provision  the provision
--   p_after      position of the last row read; 0: from the beginning
--   p_limit      rows
--   p_bytes      bytes of text
-- Answers: a row for each:
--   seq          position in the log
--   stream_type  STDOUT, STDERR or SYSTEM
--   log_chunk    the text
--   emitted_at   when the agent read it
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
-- Notes: It must be STABLE: one snapshot then sees each row either in its table or in an archive.
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

-- Reads rows of a provision's log, archived or not, in order. Ask again after the last position
-- until no row comes. Needs the role viewer.
--
-- Arguments:
--   p_provision  the provision
--   p_after      position of the last row read; 0: from the beginning
--   p_limit      rows, 1 to 1000
--   p_bytes      about how many bytes of text, 1 to 1048576
-- Answers: a row for each:
--   seq          position in the log
--   stream_type  STDOUT, STDERR or SYSTEM
--   log_chunk    the text
--   emitted_at   when the agent read it
-- Errors: PT404 provision_not_found, PT503 busy.
-- Locks: none.
-- Callers: authenticated, service_role.
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
  IF NOT tendril.has_role(v_org, 'viewer') OR v_org IS NULL THEN
    PERFORM tendril.refuse('PT404', 'provision_not_found', format('run %s not found, or you have no access to it', p_provision));
  END IF;
  RETURN QUERY SELECT * FROM tendril.log_page(p_provision, coalesce(greatest(p_after, 0), 0),
    coalesce(least(greatest(p_limit, 1), tendril.max_page_rows()), 100), coalesce(least(greatest(p_bytes, 1), tendril.max_page_bytes()), tendril.max_page_bytes()));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Notes that people watch the logs of these runs, for a minute. Agents are notified, and close chunks
-- of such a log after 200 ms in place of 500. It changes nothing else, so a call that is lost or
-- repeated does no harm.
--
-- Arguments:
--   p_provisions  the runs, in any number; what has ended or is unknown is ignored
-- Answers: nothing.
-- Errors: none.
-- Locks: tendril.watched (its own rows, by id).
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.watch(p_provisions uuid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_counts CONSTANT interval := '1 minute';
  v_known  uuid[] := ARRAY(SELECT w.provision_id FROM tendril.watched w WHERE w.provision_id = ANY (p_provisions) AND w.until > clock_timestamp());
BEGIN
  INSERT INTO tendril.watched AS w (provision_id, until)
  SELECT p.id, clock_timestamp() + c_counts FROM public.provisions p WHERE p.id = ANY (p_provisions) AND p.finished_at IS NULL ORDER BY p.id
  ON CONFLICT (provision_id) DO UPDATE SET until = EXCLUDED.until;
  PERFORM tendril.notify('tendril_agent', c.instance_id) FROM tendril.claims c
  WHERE c.provision_id = ANY (p_provisions) AND c.provision_id <> ALL (v_known) AND c.state = 'running';
END $$;
