-- Joining by a Kubernetes service account: the issuers that an admin trusts, and what the gateway has
-- verified of a token.
--
--   admin    trust_issuer(): issuer, audience, service accounts, and the issuer's public keys
--   agent    request_join() with the token that its pod got for that audience
--   gateway  trusted_keys(): verifies the token with these, and says what it claims by the setting
--            tendril.service_account
--   here     join_by_account(): the agent's key joins

-- Trusts the service account tokens of a Kubernetes cluster: agents with such a token join without a
-- person. The same issuer and audience once more replaces service accounts, keys and expiry. Needs
-- the role admin.
--
-- Arguments:
--   p_cluster   the cluster that agents join
--   p_issuer    the issuer, as the tokens' claim iss has it, at most 500 characters
--   p_subjects  1 to 20 service accounts, as system:serviceaccount:NAMESPACE:NAME
--   p_keys      the issuer's public keys: a JSON Web Key Set with 1 to 16 keys in at most 32 KiB,
--               RSA keys of 2048 to 8192 bits
--   p_audience  the tokens' audience, at most 500 characters: must have the cluster's id in it, so
--               that a token for one cluster lets nobody into another; null: tendril:ID
--   p_valid     how long agents may join by it, 1 minute or longer; null: for good
-- Answers: one row:
--   trust_id  the trust, for untrust_issuer()
--   audience  the audience
-- Errors: PT403 token_may_not, PT404 cluster_not_found, PT409 audience_taken, PT409 too_many_issuers,
--   PT422 bad_issuer, PT503 busy.
-- Locks: the trust.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.trust_issuer(p_cluster uuid, p_issuer text, p_subjects text[], p_keys jsonb, p_audience text DEFAULT NULL, p_valid interval DEFAULT NULL)
RETURNS TABLE (trust_id uuid, audience text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  c_word     CONSTANT text := '^[!-~]+$';
  c_length   CONSTANT int := 500;
  c_subject  CONSTANT text := '^system:serviceaccount:[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?:[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$';
  c_subjects CONSTANT int := 20;
  c_keys     CONSTANT int := 16;
  c_bytes    CONSTANT int := 32768;
  c_issuers  CONSTANT int := 20; -- of a cluster
  c_shortest CONSTANT interval := '1 minute';
  c_least    CONSTANT int := 340;  -- characters of an RSA modulus of 2048 bits, about
  c_most     CONSTANT int := 1370; -- of 8192 bits: longer ones cost the gateway too much
  c_private  CONSTANT text[] := ARRAY['d', 'p', 'q', 'dp', 'dq', 'qi', 'oth', 'k'];
  v_cluster  public.clusters;
  v_audience text := coalesce(p_audience, 'tendril:' || p_cluster);
  v_wrong    text;
  v_id       uuid;
BEGIN
  v_cluster := tendril.cluster_for(p_cluster, 'admin');
  IF coalesce(p_issuer, '') !~ c_word OR length(p_issuer) > c_length THEN
    v_wrong := 'p_issuer: must be 1 to 500 characters without spaces';
  ELSIF v_audience !~ c_word OR length(v_audience) > c_length OR position(p_cluster::text IN v_audience) = 0 THEN
    v_wrong := format('p_audience: must be at most 500 characters without spaces, and have the cluster''s id %s in it', p_cluster);
  ELSIF coalesce(cardinality(p_subjects), 0) NOT BETWEEN 1 AND c_subjects OR EXISTS (SELECT FROM unnest(p_subjects) s WHERE coalesce(s, '') !~ c_subject) THEN
    v_wrong := 'p_subjects: must be 1 to 20 service accounts, as system:serviceaccount:NAMESPACE:NAME';
  ELSIF p_valid < c_shortest THEN
    v_wrong := 'p_valid: must be 1 minute or longer';
  ELSIF octet_length(p_keys::text) > c_bytes THEN
    v_wrong := 'p_keys: must have at most 32 KiB';
  ELSIF jsonb_typeof(p_keys -> 'keys') IS DISTINCT FROM 'array' OR jsonb_array_length(CASE jsonb_typeof(p_keys -> 'keys') WHEN 'array' THEN p_keys -> 'keys' ELSE '[]' END) NOT BETWEEN 1 AND c_keys THEN
    v_wrong := 'p_keys: must be a JSON Web Key Set with 1 to 16 keys';
  ELSIF EXISTS (SELECT FROM jsonb_array_elements(p_keys -> 'keys') k WHERE k ->> 'kty' IS NULL OR k ->> 'kty' NOT IN ('RSA', 'EC', 'OKP') OR k ?| c_private
                   OR k ->> 'kty' = 'RSA' AND coalesce(length(k ->> 'n'), 0) NOT BETWEEN c_least AND c_most) THEN
    v_wrong := 'p_keys: must be public keys of the kinds RSA (of 2048 to 8192 bits), EC and OKP';
  END IF;
  IF v_wrong IS NOT NULL THEN
    PERFORM tendril.refuse('PT422', 'bad_issuer', v_wrong);
  END IF;
  INSERT INTO tendril.trusted_issuers AS i (cluster_id, issuer, audience, subjects, keys, created_by, expires_at)
  VALUES (p_cluster, p_issuer, v_audience, p_subjects, p_keys, tendril.current_user_id(), clock_timestamp() + p_valid)
  ON CONFLICT (issuer, audience) DO UPDATE
  SET subjects = EXCLUDED.subjects, keys = EXCLUDED.keys, created_by = EXCLUDED.created_by, expires_at = EXCLUDED.expires_at
  WHERE i.cluster_id = EXCLUDED.cluster_id
  RETURNING i.id INTO v_id;
  IF v_id IS NULL THEN
    PERFORM tendril.refuse('PT409', 'audience_taken', 'another cluster has this issuer and audience', 'leave out the audience');
  ELSIF (SELECT count(*) FROM tendril.trusted_issuers i WHERE i.cluster_id = p_cluster) > c_issuers THEN
    PERFORM tendril.refuse('PT409', 'too_many_issuers', format('a cluster trusts at most %s issuers', c_issuers), 'remove one that is not needed: untrust_issuer()');
  END IF;
  PERFORM tendril.audit(v_cluster.org_id, 'trust_issuer', 'cluster', p_cluster,
    jsonb_strip_nulls(jsonb_build_object('trust', v_id, 'issuer', p_issuer, 'audience', v_audience, 'subjects', p_subjects, 'valid', p_valid,
      'keys', (SELECT jsonb_agg(k -> 'kid') FROM jsonb_array_elements(p_keys -> 'keys') k), 'digest', encode(sha256(convert_to(p_keys::text, 'UTF8')), 'hex'))));
  RETURN QUERY SELECT v_id, v_audience;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Lists the issuers that a cluster trusts, the newest first. Needs the role admin.
--
-- Arguments:
--   p_cluster  the cluster
-- Answers: a row for each:
--   id            the trust
--   issuer        the issuer
--   audience      the tokens' audience
--   subjects      service accounts, as system:serviceaccount:NAMESPACE:NAME
--   key_ids       the ids of its keys; empty: a key without one
--   created_by    user who trusted it, or changed that last; null: the control plane
--   created_at    when it was trusted first
--   expires_at    until when agents may join; null: for good
--   last_used_at  when an agent last joined by it; null: none did
-- Errors: PT403 token_may_not, PT404 cluster_not_found, PT503 busy.
-- Locks: none.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.trusted_issuers(p_cluster uuid)
RETURNS TABLE (id uuid, issuer text, audience text, subjects text[], key_ids text[], created_by uuid, created_at timestamptz, expires_at timestamptz, last_used_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
BEGIN
  PERFORM tendril.cluster_for(p_cluster, 'admin');
  RETURN QUERY SELECT i.id, i.issuer, i.audience, i.subjects, ARRAY(SELECT coalesce(k ->> 'kid', '') FROM jsonb_array_elements(i.keys -> 'keys') k),
      i.created_by, i.created_at, i.expires_at, i.last_used_at
    FROM tendril.trusted_issuers i WHERE i.cluster_id = p_cluster ORDER BY i.created_at DESC, i.id;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Trusts an issuer no more. Agents that have joined by it stay: revoke their keys by
-- revoke_cluster_token(). Needs the role admin.
--
-- Arguments:
--   p_cluster  the cluster
--   p_trust    the trust
-- Answers: whether it was trusted.
-- Errors: PT403 token_may_not, PT404 cluster_not_found, PT503 busy.
-- Locks: the trust.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.untrust_issuer(p_cluster uuid, p_trust uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters;
  v_gone    tendril.trusted_issuers;
BEGIN
  v_cluster := tendril.cluster_for(p_cluster, 'admin');
  DELETE FROM tendril.trusted_issuers WHERE id = p_trust AND cluster_id = p_cluster RETURNING * INTO v_gone;
  IF v_gone.id IS NULL THEN
    RETURN false;
  END IF;
  PERFORM tendril.audit(v_cluster.org_id, 'untrust_issuer', 'cluster', p_cluster, jsonb_build_object('trust', p_trust, 'issuer', v_gone.issuer, 'subjects', v_gone.subjects));
  RETURN true;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- The keys with which the gateway verifies a service account's token. It asks for a request that it
-- has found signed, and nobody else gets an answer.
--
-- Arguments:
--   p_issuer    the token's issuer, not yet verified; so are the others
--   p_audience  its audience
--   p_subject   its subject
-- Answers: one row, or none where no admin has trusted them:
--   trust_id  the trust
--   keys      the issuer's public keys, a JSON Web Key Set
-- Errors: PT401 signature_missing, PT503 busy.
-- Locks: none.
-- Callers: anon.
CREATE OR REPLACE FUNCTION public.trusted_keys(p_issuer text, p_audience text, p_subject text)
RETURNS TABLE (trust_id uuid, keys jsonb)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
BEGIN
  PERFORM tendril.joining_key();
  RETURN QUERY SELECT i.id, i.keys FROM tendril.trusted_issuers i
    WHERE i.issuer = p_issuer AND i.audience = p_audience AND p_subject = ANY (i.subjects) AND (i.expires_at IS NULL OR i.expires_at > clock_timestamp());
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- What the gateway has verified of the token in a signed request; null: there is none. An object:
-- trust, subject, pod, pod_uid, digest (of what the token's signature covers, as 64 hexadecimal
-- digits) and expires (seconds since 1970). It counts where signing_key() does.
CREATE OR REPLACE FUNCTION tendril.service_account() RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF tendril.signing_key() IS NULL THEN
    RETURN NULL;
  END IF;
  RETURN nullif(current_setting('tendril.service_account', true), '')::jsonb;
END $$;

-- Makes the key one of the cluster that its service account's token is for. Keys of the pod that this
-- one has replaced, by name or UID, are revoked, and those of the same service account that were not
-- used for a day.
--
-- Arguments:
--   p_key      Ed25519 public key
--   p_request  what the agent says of itself
-- Answers: the same as request_join().
-- Errors: PT401 account_not_trusted, PT401 account_token_used, PT409 key_taken, PT409 other_cluster.
-- Locks: the trust, so that joins by it come one by one; claims by id; then, as reap(), cluster,
--   workspace, provision, claim and agent that nobody else has locked.
-- Notes: A StatefulSet has one pod of a name, so the one before it is gone, or was given up.
CREATE OR REPLACE FUNCTION tendril.join_by_account(p_key bytea, p_request jsonb) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_longest CONSTANT interval := '1 day'; -- that a token may still be valid
  c_silent  CONSTANT interval := '1 day';
  v_account jsonb := tendril.service_account();
  v_trust   tendril.trusted_issuers;
  v_cluster public.clusters;
  v_key     uuid;
  v_gone    uuid[];
BEGIN
  UPDATE tendril.trusted_issuers SET last_used_at = clock_timestamp()
  WHERE id = (v_account ->> 'trust')::uuid AND v_account ->> 'subject' = ANY (subjects) AND (expires_at IS NULL OR expires_at > clock_timestamp())
    AND to_timestamp((v_account ->> 'expires')::double precision) BETWEEN clock_timestamp() AND clock_timestamp() + c_longest
  RETURNING * INTO v_trust;
  IF v_trust.id IS NULL THEN
    PERFORM tendril.refuse('PT401', 'account_not_trusted', 'no admin has let agents join by this service account token', 'an admin does: trellis clusters trust add CLUSTER');
  ELSIF EXISTS (SELECT FROM tendril.key_accounts WHERE token_digest = decode(v_account ->> 'digest', 'hex')) THEN
    PERFORM tendril.refuse('PT401', 'account_token_used', 'another key has joined with this service account token', 'start again once the pod has got its next token, within ten minutes');
  END IF;
  SELECT * INTO STRICT v_cluster FROM public.clusters WHERE id = v_trust.cluster_id;
  IF v_cluster.name <> p_request ->> 'cluster' THEN
    PERFORM tendril.refuse('PT409', 'other_cluster', format('the service account token is for another cluster than %s', to_json(p_request ->> 'cluster')), 'correct its audience');
  END IF;
  WITH RECURSIVE families AS (
    SELECT a.key_id AS root, a.key_id AS id, v_account ->> 'pod' = a.pod OR v_account ->> 'pod_uid' = a.pod_uid AS replaced
    FROM tendril.key_accounts a JOIN tendril.agent_keys k ON k.id = a.key_id
    WHERE a.issuer = v_trust.issuer AND a.subject = v_account ->> 'subject' AND k.cluster_id = v_cluster.id
    UNION
    SELECT f.root, k.id, f.replaced FROM tendril.agent_keys k JOIN families f ON k.parent = f.id
  )
  SELECT array_agg(g.root) INTO v_gone FROM (
    SELECT f.root FROM families f JOIN tendril.agent_keys k ON k.id = f.id
    GROUP BY f.root, f.replaced
    HAVING bool_or(k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp()))
       AND (f.replaced OR max(coalesce(k.last_used_at, k.created_at)) < clock_timestamp() - c_silent)) g;
  v_key := tendril.add_key(v_cluster, p_key, p_request ->> 'name', v_trust.created_by, 'join_by_account',
    jsonb_build_object('trust', v_trust.id, 'issuer', v_trust.issuer, 'subject', v_account -> 'subject', 'pod', v_account -> 'pod', 'pod_uid', v_account -> 'pod_uid', 'replaces', v_gone,
      'host', p_request ->> 'host', 'address', nullif(current_setting('tendril.address', true), '')));
  INSERT INTO tendril.key_accounts (key_id, issuer, subject, pod, pod_uid, token_digest)
  VALUES (v_key, v_trust.issuer, v_account ->> 'subject', v_account ->> 'pod', v_account ->> 'pod_uid', decode(v_account ->> 'digest', 'hex'));
  IF v_gone IS NOT NULL THEN
    PERFORM tendril.revoke_keys(v_cluster.id, v_gone);
  END IF;
  RETURN tendril.join_standing(p_key);
END $$;
