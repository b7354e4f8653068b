-- Idempotency keys.

-- Begins a request with an idempotency key, in the transaction that carries it out. The key stays
-- locked until the transaction ends, so one of several equal requests goes on.
--
-- Arguments:
--   p_key     idempotency key, 1 to 200 characters
--   p_digest  SHA-256 of the request, 64 hexadecimal digits
-- Answers: null: carry the request out, then call finish_request(). Otherwise the stored answer:
--   location  Location header of the answer
--   answer    the answer; null: it held a secret
--   status    HTTP status where the answer is a problem; null: it is none
--   settled   false: the request has begun, and its answer may still become another one
-- Errors: PT401 not_signed_in, PT409 request_under_way, PT422 bad_request_key,
--   PT422 request_key_reused, PT503 busy.
-- Locks: none.
-- Callers: authenticated.
CREATE OR REPLACE FUNCTION public.begin_request(p_key text, p_digest text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_user    uuid;
  v_request record; -- not of the table's type: compiling that may wait for the table, which EXCEPTION does not cover
BEGIN
  v_user := tendril.asking_person();
  IF coalesce(length(p_key), 0) NOT BETWEEN 1 AND tendril.max_name() OR coalesce(p_digest, '') !~ '^[0-9a-f]{64}$' THEN
    PERFORM tendril.refuse('PT422', 'bad_request_key', 'p_key: must have 1 to 200 characters; p_digest: must be a SHA-256 in hexadecimal');
  ELSIF NOT pg_try_advisory_xact_lock(hashtextextended(v_user || ' ' || p_key, (SELECT lock_salt FROM tendril.settings))) THEN
    PERFORM tendril.refuse('PT409', 'request_under_way', 'a request with this key is in progress', 'try again in a moment to get its answer');
  END IF;
  SELECT * INTO v_request FROM tendril.requests WHERE user_id = v_user AND key = p_key;
  IF v_request.made_at < clock_timestamp() - (SELECT request_delete_after FROM tendril.settings) THEN
    DELETE FROM tendril.requests WHERE user_id = v_user AND key = p_key;
    RETURN NULL;
  ELSIF v_request.digest <> p_digest THEN
    PERFORM tendril.refuse('PT422', 'request_key_reused', 'this key was used for another request', 'use a new key for each request, and the same key only to repeat it');
  ELSIF v_request.user_id IS NULL THEN
    RETURN NULL;
  END IF;
  RETURN jsonb_build_object('location', v_request.location, 'answer', v_request.answer, 'status', v_request.status, 'settled', v_request.settled);
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Stores the answer to a request with an idempotency key.
--
-- Arguments:
--   p_key       idempotency key, 1 to 200 characters
--   p_digest    SHA-256 of the request, 64 hexadecimal digits
--   p_location  Location header of the answer, at most 2000 characters
--   p_answer    the answer, at most 65536 bytes; null where it holds a secret
--   p_status    HTTP status where the answer is a problem, 400 to 599; null: it is none
--   p_settled   false: the request has begun, and another call will store its last answer
-- Answers: nothing.
-- Errors: PT401 not_signed_in, PT409 request_under_way, PT413 answer_too_large,
--   PT422 bad_request_key, PT429 too_many_request_keys, PT503 busy.
-- Locks: none.
-- Callers: authenticated.
CREATE OR REPLACE FUNCTION public.finish_request(p_key text, p_digest text, p_location text, p_answer jsonb, p_status int DEFAULT NULL, p_settled boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_location CONSTANT int := 2000; -- characters
  v_user uuid;
  v_kept record;
BEGIN
  v_user := tendril.asking_person();
  IF octet_length(p_answer::text) > tendril.max_answer_bytes() OR length(p_location) > c_location THEN
    PERFORM tendril.refuse('PT413', 'answer_too_large', format('p_answer: at most %s bytes are allowed; p_location: at most %s characters', tendril.max_answer_bytes(), c_location));
  END IF;
  -- Whoever has a name may store something here, of whichever organisation or none.
  SELECT count(*) AS many, coalesce(sum(pg_column_size(r.answer)), 0) AS bytes INTO v_kept
  FROM (SELECT q.answer FROM tendril.requests q WHERE q.user_id = v_user AND q.key <> p_key LIMIT tendril.max_kept_requests()) r;
  IF v_kept.many >= tendril.max_kept_requests() OR v_kept.bytes > tendril.max_kept_answer_bytes() THEN
    PERFORM tendril.refuse('PT429', 'too_many_request_keys', format('your stored requests with keys have reached the limit, %s requests or %s of answers (tendril.settings.request_delete_after)', tendril.max_kept_requests(), pg_size_pretty(tendril.max_kept_answer_bytes()::bigint)), 'send further requests without a key');
  END IF;
  INSERT INTO tendril.requests AS r (user_id, key, digest, location, answer, status, settled) VALUES (v_user, p_key, p_digest, coalesce(p_location, ''), p_answer, p_status, p_settled)
  ON CONFLICT (user_id, key) DO UPDATE SET location = EXCLUDED.location, answer = EXCLUDED.answer, status = EXCLUDED.status, settled = EXCLUDED.settled
  WHERE NOT r.settled AND r.digest = EXCLUDED.digest;
  IF NOT FOUND THEN
    PERFORM tendril.refuse('PT409', 'request_under_way', 'a request with this key is in progress', 'call begin_request first');
  END IF;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
  WHEN check_violation OR not_null_violation THEN
    PERFORM tendril.refuse('PT422', 'bad_request_key', 'p_key: must have 1 to 200 characters; p_digest: must be a SHA-256 in hexadecimal; p_status: must be 400 to 599 or null; p_settled: must be true or false');
END $$;
