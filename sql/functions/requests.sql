-- Requests that carry an idempotency key.

-- Begins a request that its sender names by a key, in the transaction in which it is carried
-- out. Null: it is to be. Else it was already, and answered that. The lock lasts as long as
-- the transaction: of any number at once one goes on.
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
  IF coalesce(length(p_key), 0) NOT BETWEEN 1 AND 200 OR coalesce(p_digest, '') !~ '^[0-9a-f]{64}$' THEN
    PERFORM tendril.refuse('PT422', 'bad_request_key', 'p_key: from 1 to 200 characters; p_digest: a SHA-256 in hexadecimal');
  ELSIF NOT pg_try_advisory_xact_lock(hashtextextended(v_user || ' ' || p_key, (SELECT lock_salt FROM tendril.settings))) THEN
    PERFORM tendril.refuse('PT409', 'request_under_way', 'a request of that key is being carried out', 'ask again in a moment: then it is answered what that was');
  END IF;
  SELECT * INTO v_request FROM tendril.requests WHERE user_id = v_user AND key = p_key;
  IF v_request.made_at < clock_timestamp() - (SELECT request_delete_after FROM tendril.settings) THEN
    DELETE FROM tendril.requests WHERE user_id = v_user AND key = p_key;
    RETURN NULL;
  ELSIF v_request.digest <> p_digest THEN
    PERFORM tendril.refuse('PT422', 'request_key_reused', 'another request was made with that key', 'choose a new key for each request, and keep it for its repeats only');
  ELSIF v_request.user_id IS NULL THEN
    RETURN NULL;
  END IF;
  RETURN jsonb_build_object('location', v_request.location, 'answer', v_request.answer);
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Keeps what a request that was begun is answered; null where that holds a secret.
CREATE OR REPLACE FUNCTION public.finish_request(p_key text, p_digest text, p_location text, p_answer jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_user uuid;
  v_kept record;
BEGIN
  v_user := tendril.asking_person();
  IF octet_length(p_answer::text) > 65536 OR length(p_location) > 2000 THEN
    PERFORM tendril.refuse('PT413', 'answer_too_large', 'p_answer: more than 64 KiB');
  END IF;
  -- Whoever has a name may store something here, of whichever organisation or none.
  SELECT count(*) AS many, coalesce(sum(pg_column_size(r.answer)), 0) AS bytes INTO v_kept
  FROM (SELECT q.answer FROM tendril.requests q WHERE q.user_id = v_user LIMIT 10000) r;
  IF v_kept.many >= 10000 OR v_kept.bytes > 16777216 THEN
    PERFORM tendril.refuse('PT429', 'too_many_request_keys', 'you have made 10000 requests with keys that are still kept (tendril.settings.request_delete_after), or were answered 16 MiB, which is the most', 'make further ones without');
  END IF;
  INSERT INTO tendril.requests (user_id, key, digest, location, answer) VALUES (v_user, p_key, p_digest, coalesce(p_location, ''), p_answer);
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
  WHEN unique_violation THEN
    PERFORM tendril.refuse('PT409', 'request_under_way', 'a request of that key is being carried out', 'begin it first');
  WHEN check_violation OR not_null_violation THEN
    PERFORM tendril.refuse('PT422', 'bad_request_key', 'p_key: from 1 to 200 characters; p_digest: a SHA-256 in hexadecimal');
END $$;
