-- Shares of a cluster's identity: an agent that has it seals it to the key of another agent, when
-- its operator says so, or when a key that its configuration names has signed a certificate for that
-- agent. What is sealed and what is certified say themselves for whom they are; see package identity.

-- The public key of an agent of the caller's cluster, by its fingerprint. Who asks compares the key
-- with the fingerprint.
--
-- Arguments:
--   p_token_hash   SHA-256 of the agent's token or key, as 64 hexadecimal digits
--   p_fingerprint  SHA-256 of the key that is looked for, or at least its first 22 hexadecimal digits
-- Answers: the Ed25519 key as 64 hexadecimal digits; null: no key of the cluster that counts is like
--   that.
-- Errors: PT401 token_invalid, PT422 bad_fingerprint, PT503 busy.
-- Locks: none.
-- Callers: anon, tendril_agent.
CREATE OR REPLACE FUNCTION public.agent_key(p_token_hash text, p_fingerprint text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters := tendril.authenticate(p_token_hash);
BEGIN
  IF p_fingerprint !~ '^[0-9a-f]{22,64}$' OR p_fingerprint IS NULL THEN
    PERFORM tendril.refuse('PT422', 'bad_fingerprint', 'p_fingerprint: must be 22 to 64 hexadecimal digits');
  END IF;
  RETURN (
    SELECT encode(k.public_key, 'hex') FROM tendril.agent_keys k
    WHERE k.cluster_id = v_cluster.id AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
      AND starts_with(encode(sha256(k.public_key), 'hex'), p_fingerprint)
    LIMIT 1);
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Stores the cluster's identity, sealed to the key of another agent of the cluster, in place of what
-- was stored for that key before. An agent without the identity stores a certificate for its own key
-- instead: check_agent() shows it to the agents that have the identity, until one shares it.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's token or key, as 64 hexadecimal digits
--   p_public_key  the other agent's Ed25519 key, as 64 hexadecimal digits
--   p_sealed      armoured age message to that key, at most 65536 characters; or, if that key signed
--                 this request, its certificate, at most 8192 characters
--   p_expires     when it expires, at most 8 days ahead
-- Answers: nothing.
-- Errors: PT401 token_invalid, PT404 key_not_found, PT409 request_repeated, PT422 bad_share,
--   PT503 busy.
-- Locks: identity_shares.
-- Callers: anon, tendril_agent.
CREATE OR REPLACE FUNCTION public.share_identity(p_token_hash text, p_public_key text, p_sealed text, p_expires timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_sealed      CONSTANT int := 65536; -- characters, as the table allows
  c_certificate CONSTANT int := 8192;  -- characters
  c_longest     CONSTANT interval := '8 days';
  v_cluster   public.clusters := tendril.authenticate(p_token_hash);
  v_certifies boolean := p_sealed LIKE 'tendril-identity-certificate-%';
  v_key       tendril.agent_keys;
BEGIN
  PERFORM tendril.once();
  IF v_certifies AND p_public_key IS DISTINCT FROM encode(tendril.signing_key(), 'hex') THEN
    PERFORM tendril.refuse('PT422', 'bad_share', 'p_sealed: an agent presents a certificate for its own key alone, which must sign the request');
  ELSIF coalesce(length(p_sealed), 0) NOT BETWEEN 1 AND (CASE WHEN v_certifies THEN c_certificate ELSE c_sealed END)
     OR NOT (v_certifies OR p_sealed LIKE '-----BEGIN AGE ENCRYPTED FILE-----%')
     OR coalesce(p_expires, '-infinity') NOT BETWEEN clock_timestamp() AND clock_timestamp() + c_longest THEN
    PERFORM tendril.refuse('PT422', 'bad_share', format('p_sealed: must be an armoured age message of at most %s characters or a certificate of at most %s, and p_expires within %s', c_sealed, c_certificate, c_longest));
  END IF;
  IF p_public_key ~ '^[0-9a-f]{64}$' THEN
    SELECT * INTO v_key FROM tendril.agent_keys k
    WHERE k.public_key = decode(p_public_key, 'hex') AND k.cluster_id = v_cluster.id
      AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp());
  END IF;
  IF v_key.id IS NULL THEN
    PERFORM tendril.refuse('PT404', 'key_not_found', 'no agent of the cluster has this key', 'have that agent join: tendril join URL');
  END IF;
  INSERT INTO tendril.identity_shares AS s (key_id, shared_by, sealed, expires_at)
  VALUES (v_key.id, tendril.credential_of(p_token_hash), p_sealed, p_expires)
  ON CONFLICT (key_id) DO UPDATE
  SET shared_by = EXCLUDED.shared_by, sealed = EXCLUDED.sealed, created_at = now(), expires_at = EXCLUDED.expires_at
  WHERE s.sealed <> EXCLUDED.sealed;
  IF NOT FOUND THEN
    RETURN; -- the same certificate, presented again
  END IF;
  PERFORM tendril.audit(v_cluster.org_id, CASE WHEN v_certifies THEN 'present_identity_certificate' ELSE 'share_identity' END, 'cluster', v_cluster.id,
    jsonb_build_object('agent', v_key.name, 'to', encode(sha256(v_key.public_key), 'hex'), 'credential', tendril.credential_of(p_token_hash)));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- The cluster's identity, if an agent has shared it with the agent whose key signed this request.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's key, as 64 hexadecimal digits
-- Answers: armoured age message to the key; null: nothing was shared with it, or that has expired.
-- Errors: PT401 token_invalid, PT503 busy.
-- Locks: none.
-- Callers: anon, tendril_agent.
CREATE OR REPLACE FUNCTION public.shared_identity(p_token_hash text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters := tendril.authenticate(p_token_hash);
BEGIN
  RETURN (
    SELECT s.sealed FROM tendril.identity_shares s JOIN tendril.agent_keys k ON k.id = s.key_id
    WHERE k.public_key = tendril.signing_key() AND p_token_hash = encode(sha256(k.public_key), 'hex')
      AND k.cluster_id = v_cluster.id AND s.expires_at > clock_timestamp() AND s.sealed NOT LIKE 'tendril-identity-certificate-%');
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- The certificates that wait for the cluster's identity, the newest first, each with the key that has
-- presented it. Agents verify them: this says nothing about who signed.
--
-- Arguments:
--   p_cluster  the cluster
-- Answers: a list of objects, at most c_most:
--   key          Ed25519 key as 64 hexadecimal digits
--   certificate  the certificate
CREATE OR REPLACE FUNCTION tendril.waiting_certificates(p_cluster uuid) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_most CONSTANT int := 20;
BEGIN
  RETURN (
    SELECT coalesce(jsonb_agg(jsonb_build_object('key', w.key, 'certificate', w.sealed) ORDER BY w.created_at DESC), '[]')
    FROM (
      SELECT encode(k.public_key, 'hex') AS key, s.sealed, s.created_at
      FROM tendril.identity_shares s JOIN tendril.agent_keys k ON k.id = s.key_id
      WHERE s.sealed LIKE 'tendril-identity-certificate-%' AND s.expires_at > clock_timestamp()
        AND k.cluster_id = p_cluster AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
      ORDER BY s.created_at DESC LIMIT c_most) w);
END $$;
