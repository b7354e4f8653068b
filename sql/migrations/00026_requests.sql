-- What the control plane's API needs beyond what people do here: that a request
-- sent twice is carried out once, and to show the tokens that a cluster has.

-- +goose Up

-- The requests that their senders have named by a key, with what they were
-- answered, for a day. An answer that holds a secret is not kept.
CREATE TABLE tendril.requests (
  user_id  uuid NOT NULL,
  key      text NOT NULL CHECK (length(key) BETWEEN 1 AND 200),
  digest   text NOT NULL CHECK (digest ~ '^[0-9a-f]{64}$'), -- of the request
  location text NOT NULL,
  answer   jsonb,
  made_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (user_id, key)
);
CREATE INDEX requests_made ON tendril.requests (made_at);

-- Begins a request that its sender names by a key, in the transaction in which it
-- is carried out. Null: it is to be. Else it was already, and answered that. The
-- lock lasts as long as the transaction: of any number at once one goes on.
-- +goose StatementBegin
CREATE FUNCTION public.begin_request(p_key text, p_digest text) RETURNS jsonb
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
  ELSIF NOT pg_try_advisory_xact_lock(hashtextextended(v_user || ' ' || p_key, 26)) THEN
    PERFORM tendril.refuse('PT409', 'request_under_way', 'a request of that key is being carried out', 'ask again in a moment: then it is answered what that was');
  END IF;
  SELECT * INTO v_request FROM tendril.requests WHERE user_id = v_user AND key = p_key;
  IF v_request.made_at < clock_timestamp() - interval '1 day' THEN
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
-- +goose StatementEnd

-- Keeps what a request that was begun is answered; null where that holds a
-- secret.
-- +goose StatementBegin
CREATE FUNCTION public.finish_request(p_key text, p_digest text, p_location text, p_answer jsonb) RETURNS void
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
    PERFORM tendril.refuse('PT429', 'too_many_request_keys', 'you have made 10000 requests with keys within a day, or were answered 16 MiB, which is the most', 'make further ones without');
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
-- +goose StatementEnd

-- Forgets requests of more than a day ago, at most p_limit of them; says how many.
-- +goose StatementBegin
CREATE FUNCTION tendril.expire_requests(p_limit int DEFAULT 1000) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_gone int;
BEGIN
  DELETE FROM tendril.requests WHERE (user_id, key) IN (
    SELECT user_id, key FROM tendril.requests WHERE made_at < clock_timestamp() - interval '1 day' ORDER BY made_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS v_gone = ROW_COUNT;
  RETURN v_gone;
END $$;
-- +goose StatementEnd

-- The tokens of a cluster, without what would let anybody use them: the newest
-- first, at most 200 (admin).
-- +goose StatementBegin
CREATE FUNCTION public.cluster_tokens(p_cluster uuid)
RETURNS TABLE (id uuid, created_at timestamptz, expires_at timestamptz, revoked_at timestamptz, created_by uuid)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
BEGIN
  PERFORM tendril.cluster_for(p_cluster, 'admin'); -- here, for EXCEPTION does not cover DECLARE
  RETURN QUERY SELECT t.id, t.created_at, t.expires_at, t.revoked_at, t.created_by
    FROM tendril.cluster_tokens t WHERE t.cluster_id = p_cluster ORDER BY t.created_at DESC, t.id LIMIT 200;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

SELECT tendril.deny_all(ARRAY['begin_request', 'finish_request', 'cluster_tokens']);
GRANT EXECUTE ON FUNCTION public.begin_request(text, text), public.finish_request(text, text, text, jsonb) TO authenticated;
GRANT EXECUTE ON FUNCTION public.cluster_tokens(uuid) TO authenticated, service_role;

NOTIFY pgrst, 'reload schema';
