-- Joining: how an agent's key becomes one of a cluster.
--
--   agent    request_join(): its key waits, and it shows a code (or sends a one-time token, or that of
--            its service account: trust.sql)
--   admin    join_request(code): reads what asks; approve_join() or refuse_join()
--   agent    join_status(): joined; from then on its key signs all that it asks

-- The key that signed the request, where only a signed one will do.
--
-- Errors: PT401 signature_missing.
CREATE OR REPLACE FUNCTION tendril.joining_key() RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_key bytea := tendril.signing_key();
BEGIN
  IF v_key IS NULL THEN
    PERFORM tendril.refuse('PT401', 'signature_missing', 'the request is not signed',
      'agents join by trellis serve, which verifies signatures; with Supabase alone and for direct connections they use a token');
  END IF;
  RETURN v_key;
END $$;

-- A new code: 8 of 20 letters. Vowels are left out, so that no words appear, and what is easily
-- mistaken when it is typed.
CREATE OR REPLACE FUNCTION tendril.new_join_code() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_letters CONSTANT text := 'BCDFGHJKLMNPQRSTVWXZ';
  c_byte    CONSTANT int := 256;
  v_random  bytea := sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
BEGIN
  -- Three bytes for each letter, which makes all letters equally likely but for some in a million.
  RETURN (SELECT string_agg(substr(c_letters, ((get_byte(v_random, 3 * i) * c_byte + get_byte(v_random, 3 * i + 1)) * c_byte + get_byte(v_random, 3 * i + 2)) % length(c_letters) + 1, 1), '' ORDER BY i)
          FROM generate_series(0, 7) i);
END $$;

-- The digest of a code, however it was typed.
CREATE OR REPLACE FUNCTION tendril.join_code_digest(p_code text) RETURNS bytea
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT sha256(convert_to(regexp_replace(upper(left(p_code, tendril.max_name())), '[^A-Z]', '', 'g'), 'UTF8'))
$$;

-- A network of which one joiner may have all addresses: an IPv6 /64, or one IPv4 address.
CREATE OR REPLACE FUNCTION tendril.join_network(p_address inet) RETURNS cidr
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_host CONSTANT int := 32; -- bits of an IPv4 address
  c_net  CONSTANT int := 64; -- bits of an IPv6 network
BEGIN
  RETURN network(set_masklen(p_address, CASE family(p_address) WHEN 4 THEN c_host ELSE c_net END));
END $$;

-- Makes the key one of the cluster.
--
-- Arguments:
--   p_cluster  the cluster
--   p_key      Ed25519 public key
--   p_name     name of the agent
--   p_by       user who let it join; null: the control plane
--   p_action   for the audit
--   p_detail   more for the audit
-- Answers: the key's id.
-- Errors: PT409 key_taken.
-- Locks: none.
CREATE OR REPLACE FUNCTION tendril.add_key(p_cluster public.clusters, p_key bytea, p_name text, p_by uuid, p_action text, p_detail jsonb) RETURNS uuid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_id uuid;
BEGIN
  INSERT INTO tendril.agent_keys (cluster_id, public_key, name, created_by) VALUES (p_cluster.id, p_key, p_name, p_by) RETURNING id INTO v_id;
  DELETE FROM tendril.join_requests WHERE public_key = p_key;
  PERFORM tendril.audit(p_cluster.org_id, p_action, 'cluster', p_cluster.id,
    jsonb_strip_nulls(jsonb_build_object('key', v_id, 'fingerprint', encode(sha256(p_key), 'hex'), 'agent', p_name) || p_detail));
  RETURN v_id;
EXCEPTION
  WHEN unique_violation THEN
    PERFORM tendril.refuse('PT409', 'key_taken', 'this key is known already', 'have the agent make a new one: tendril join');
END $$;

-- What is known of a key: the answer of request_join() and join_status().
CREATE OR REPLACE FUNCTION tendril.join_standing(p_key bytea) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_key     record;
  v_request tendril.join_requests;
BEGIN
  SELECT k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp()) AS valid, c.id, c.name
  INTO v_key FROM tendril.agent_keys k JOIN public.clusters c ON c.id = k.cluster_id WHERE k.public_key = p_key;
  IF v_key.valid THEN
    RETURN jsonb_build_object('status', 'joined', 'cluster_id', v_key.id, 'cluster_name', v_key.name);
  ELSIF v_key.id IS NOT NULL THEN
    RETURN jsonb_build_object('status', 'revoked');
  END IF;
  SELECT * INTO v_request FROM tendril.join_requests WHERE public_key = p_key;
  RETURN jsonb_build_object('status', CASE WHEN v_request.refused_at IS NOT NULL THEN 'refused'
                                           WHEN v_request.expires_at > clock_timestamp() THEN 'waiting' ELSE 'expired' END);
END $$;

-- Asks that the key which signed the request may join a cluster. An admin approves it by the code in
-- the answer; with a one-time token, or that of a service account, it joins at once. Another call for the same key makes another
-- code, and the earlier one counts no more.
--
-- Arguments:
--   p_request  an object
--     name        the agent's name, 1 to 200 characters
--     host        its host, 1 to 300 characters
--     version     version of the program, 1 to 100 characters
--     slots       how many runs it executes at once, 1 to 64
--     operations  list of the operations that its policy allows. Optional
--     cluster     name of the cluster that it wants to join, at most 200 characters. Optional
--     token_hash  SHA-256 of a one-time token, as 64 hexadecimal digits. Optional
--     service_account_token  token of a Kubernetes service account, which the gateway verifies and
--                 does not pass on. Optional
-- Answers: an object:
--   status        waiting, joined, or revoked: the key counts no more, so another is needed
--   code          what an admin types, of a waiting one
--   seconds       how long the code is valid, of a waiting one
--   cluster_id    the cluster, of one that has joined
--   cluster_name  its name, of one that has joined
-- Errors: PT401 account_not_trusted, PT401 account_token_used, PT401 account_unverified,
--   PT401 join_token_invalid, PT401 signature_missing, PT409 key_taken, PT409 other_cluster,
--   PT409 request_repeated, PT422 bad_join, PT429 too_many_joins, PT503 busy.
-- Locks: the join token; by a service account the trust, claims by id; then, as reap(),
--   cluster, workspace, provision, claim and agent that nobody else has locked.
-- Callers: anon.
-- Notes: Calls at one moment may exceed the limits by as many as the gateway admits.
CREATE OR REPLACE FUNCTION public.request_join(p_request jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_valid      CONSTANT interval := '10 minutes';
  c_address    CONSTANT int := 20;   -- open requests of a network
  c_all        CONSTANT int := 1000; -- open requests
  c_host       CONSTANT int := 300;  -- characters
  c_version    CONSTANT int := 100;  -- characters
  c_slots      CONSTANT int := 64;
  c_operation  CONSTANT int := 40;   -- characters
  c_operations CONSTANT int := 20;
  v_key        bytea;
  v_address    inet;
  v_standing   jsonb;
  v_token      tendril.join_tokens;
  v_cluster    public.clusters;
  v_code       text;
  v_operations text[];
BEGIN
  v_key := tendril.joining_key();
  PERFORM tendril.once();
  BEGIN
    IF length(coalesce(p_request ->> 'name', '')) NOT BETWEEN 1 AND tendril.max_name()
       OR length(coalesce(p_request ->> 'host', '')) NOT BETWEEN 1 AND c_host
       OR length(coalesce(p_request ->> 'version', '')) NOT BETWEEN 1 AND c_version
       OR coalesce((p_request ->> 'slots')::int, 0) NOT BETWEEN 1 AND c_slots
       OR length(p_request ->> 'cluster') > tendril.max_name()
       OR jsonb_typeof(coalesce(nullif(p_request -> 'operations', 'null'), '[]')) <> 'array'
       OR p_request ->> 'token_hash' !~ '^[0-9a-f]{64}$' THEN
      RAISE data_exception;
    END IF;
  EXCEPTION WHEN data_exception THEN
    PERFORM tendril.refuse('PT422', 'bad_join', 'p_request needs name, host, version and slots (1 to 64)');
  END;
  v_standing := tendril.join_standing(v_key);
  IF v_standing ->> 'status' IN ('joined', 'revoked') THEN
    RETURN v_standing; -- its answer was lost, or it asks again
  END IF;

  IF tendril.service_account() IS NOT NULL THEN
    RETURN tendril.join_by_account(v_key, p_request);
  ELSIF p_request ? 'service_account_token' THEN
    PERFORM tendril.refuse('PT401', 'account_unverified', 'this server does not verify tokens of service accounts', 'upgrade trellis serve');
  END IF;
  IF p_request ->> 'token_hash' IS NOT NULL THEN
    UPDATE tendril.join_tokens SET used_at = clock_timestamp()
    WHERE digest = sha256(decode(p_request ->> 'token_hash', 'hex')) AND used_at IS NULL AND expires_at > clock_timestamp()
    RETURNING * INTO v_token;
    IF v_token.id IS NULL THEN
      PERFORM tendril.refuse('PT401', 'join_token_invalid', 'the join token is unknown, used, revoked or expired', 'create another one: trellis clusters join-token CLUSTER');
    END IF;
    SELECT * INTO STRICT v_cluster FROM public.clusters WHERE id = v_token.cluster_id;
    IF v_cluster.name <> p_request ->> 'cluster' THEN
      PERFORM tendril.refuse('PT409', 'other_cluster', format('the join token is for another cluster than %s', to_json(p_request ->> 'cluster')), 'create one for this cluster');
    END IF;
    PERFORM tendril.add_key(v_cluster, v_key, p_request ->> 'name', v_token.created_by, 'join_by_token',
      jsonb_build_object('token_id', v_token.id, 'token', nullif(v_token.name, ''), 'host', p_request ->> 'host', 'address', nullif(current_setting('tendril.address', true), '')));
    RETURN tendril.join_standing(v_key);
  END IF;

  v_address := nullif(current_setting('tendril.address', true), '')::inet;
  IF (SELECT count(*) FROM tendril.join_requests r
      WHERE r.expires_at > clock_timestamp() AND r.public_key <> v_key AND tendril.join_network(r.address) IS NOT DISTINCT FROM tendril.join_network(v_address)) >= c_address
     OR (SELECT count(*) FROM tendril.join_requests r WHERE r.expires_at > clock_timestamp() AND r.public_key <> v_key) >= c_all THEN
    PERFORM tendril.refuse('PT429', 'too_many_joins', 'too many agents wait to join', 'try again in ten minutes, or use a join token');
  END IF;
  IF p_request ->> 'operations' IS NOT NULL THEN
    v_operations := ARRAY(SELECT left(o, c_operation) FROM jsonb_array_elements_text(p_request -> 'operations') o LIMIT c_operations);
  END IF;
  v_code := tendril.new_join_code();
  INSERT INTO tendril.join_requests (public_key, code_digest, name, host, version, slots, operations, wanted, address, expires_at)
  VALUES (v_key, tendril.join_code_digest(v_code), p_request ->> 'name', p_request ->> 'host', p_request ->> 'version', (p_request ->> 'slots')::int,
          v_operations, nullif(p_request ->> 'cluster', ''), v_address, clock_timestamp() + c_valid)
  ON CONFLICT (public_key) DO UPDATE
  SET code_digest = EXCLUDED.code_digest, name = EXCLUDED.name, host = EXCLUDED.host, version = EXCLUDED.version, slots = EXCLUDED.slots, operations = EXCLUDED.operations,
      wanted = EXCLUDED.wanted, address = EXCLUDED.address, requested_at = clock_timestamp(), expires_at = EXCLUDED.expires_at, refused_at = NULL;
  RETURN jsonb_build_object('status', 'waiting', 'code', left(v_code, 4) || '-' || right(v_code, 4), 'seconds', extract(epoch FROM c_valid)::int);
EXCEPTION
  -- unique_violation: two codes that are the same.
  WHEN unique_violation OR lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Says whether the key that signed the request has joined.
--
-- Arguments: none.
-- Answers: an object:
--   status        waiting, joined, refused, expired, or revoked
--   cluster_id    the cluster, of one that has joined
--   cluster_name  its name, of one that has joined
-- Errors: PT401 signature_missing, PT503 busy.
-- Locks: none.
-- Callers: anon.
CREATE OR REPLACE FUNCTION public.join_status() RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
BEGIN
  RETURN tendril.join_standing(tendril.joining_key());
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- The request with a code that an admin has typed; null: there is none. Wrong codes are counted, so
-- its callers must not raise where there is none: the count would be rolled back.
--
-- Arguments:
--   p_code  the code, in any case, with or without its hyphen
-- Answers: the request.
-- Errors: PT403 not_an_admin, PT403 token_may_not, PT429 too_many_guesses.
-- Locks: the request.
CREATE OR REPLACE FUNCTION tendril.join_by_code(p_code text) RETURNS tendril.join_requests
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_within CONSTANT interval := '1 minute';
  c_person CONSTANT int := 5;  -- wrong codes of one person within that time
  c_org    CONSTANT int := 20; -- and of all admins of an organisation
  v_user    uuid;
  v_orgs    uuid[];
  v_request tendril.join_requests;
BEGIN
  IF tendril.is_person() THEN
    v_user := tendril.current_user_id();
    v_orgs := tendril.orgs_with_role('admin');
    IF v_orgs = '{}' THEN
      PERFORM tendril.refuse('PT403', 'not_an_admin', 'you are admin of no organisation', 'ask an admin to let the agent join');
    END IF;
    PERFORM tendril.check_whole_token();
    IF (SELECT count(*) FROM tendril.join_guesses g WHERE g.at > clock_timestamp() - c_within AND g.user_id = v_user) >= c_person
          OR EXISTS (SELECT FROM unnest(v_orgs) o (id)
                     WHERE (SELECT count(*) FROM tendril.join_guesses g WHERE g.at > clock_timestamp() - c_within AND o.id = ANY (g.orgs)) >= c_org) THEN
      PERFORM tendril.refuse('PT429', 'too_many_guesses', 'too many wrong codes within a minute', 'wait a minute, then type the code that the agent shows');
    END IF;
  END IF;
  SELECT * INTO v_request FROM tendril.join_requests
  WHERE code_digest = tendril.join_code_digest(p_code) AND expires_at > clock_timestamp() AND refused_at IS NULL
  FOR NO KEY UPDATE;
  IF v_request.id IS NULL AND v_user IS NOT NULL THEN
    INSERT INTO tendril.join_guesses (user_id, orgs) VALUES (v_user, v_orgs);
  END IF;
  RETURN v_request;
END $$;

-- Shows the agent that waits to join with a code. Needs the role admin in some organisation.
--
-- Arguments:
--   p_code  the code, in any case, with or without its hyphen
-- Answers: one row, or none where no agent waits with this code:
--   fingerprint   SHA-256 of its key, as 64 hexadecimal digits
--   name          its name, as it says; so are host, version, slots and operations
--   host          its host
--   version       its version
--   slots         how many runs it executes at once
--   operations    operations that its policy allows; null: it did not say
--   wanted        name of the cluster that it wants to join; null: any
--   address       from where it asked; null: not known
--   requested_at  when it asked
--   expires_at    when the code expires
-- Errors: PT403 not_an_admin, PT403 token_may_not, PT429 too_many_guesses, PT503 busy.
-- Locks: the request.
-- Callers: authenticated, service_role.
-- Notes: Wrong codes are counted: after 5 of a person or 20 of an organisation within a minute no
--   more are taken.
CREATE OR REPLACE FUNCTION public.join_request(p_code text)
RETURNS TABLE (fingerprint text, name text, host text, version text, slots int, operations text[], wanted text, address text,
               requested_at timestamptz, expires_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_request tendril.join_requests;
BEGIN
  v_request := tendril.join_by_code(p_code);
  RETURN QUERY SELECT encode(sha256(v_request.public_key), 'hex'), v_request.name, v_request.host, v_request.version, v_request.slots, v_request.operations,
                      v_request.wanted, host(v_request.address), v_request.requested_at, v_request.expires_at
               WHERE v_request.id IS NOT NULL;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Lets the agent that waits with a code join a cluster. It is online within a second. Needs the role
-- admin.
--
-- Arguments:
--   p_code         the code, in any case, with or without its hyphen
--   p_cluster      the cluster
--   p_fingerprint  the fingerprint that join_request() has shown, so that what was seen is what joins
-- Answers: the key's id; null: no agent waits with this code.
-- Errors: PT403 not_an_admin, PT403 token_may_not, PT404 cluster_not_found, PT409 join_changed,
--   PT409 key_taken, PT429 too_many_guesses, PT503 busy.
-- Locks: the request.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.approve_join(p_code text, p_cluster uuid, p_fingerprint text) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters;
  v_request tendril.join_requests;
BEGIN
  v_cluster := tendril.cluster_for(p_cluster, 'admin');
  v_request := tendril.join_by_code(p_code);
  IF v_request.id IS NULL THEN
    RETURN NULL;
  ELSIF encode(sha256(v_request.public_key), 'hex') IS DISTINCT FROM lower(p_fingerprint) THEN
    PERFORM tendril.refuse('PT409', 'join_changed', 'the agent that waits with this code has another key than was shown', 'look up the code again, and compare the fingerprint with the agent''s');
  END IF;
  PERFORM tendril.notify('tendril_attention', v_request.id); -- its held join_status() ends
  RETURN tendril.add_key(v_cluster, v_request.public_key, v_request.name, tendril.current_user_id(), 'approve_join',
    jsonb_build_object('host', v_request.host, 'version', v_request.version, 'address', host(v_request.address), 'operations', v_request.operations));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Refuses the agent that waits with a code. It learns so and stops. Needs the role admin in some
-- organisation.
--
-- Arguments:
--   p_code  the code, in any case, with or without its hyphen
-- Answers: whether an agent waited with this code.
-- Errors: PT403 not_an_admin, PT403 token_may_not, PT429 too_many_guesses, PT503 busy.
-- Locks: the request.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.refuse_join(p_code text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_request tendril.join_requests;
BEGIN
  v_request := tendril.join_by_code(p_code);
  IF v_request.id IS NULL THEN
    RETURN false;
  END IF;
  UPDATE tendril.join_requests SET refused_at = clock_timestamp() WHERE id = v_request.id;
  PERFORM tendril.notify('tendril_attention', v_request.id);
  PERFORM tendril.audit(o.id, 'refuse_join', 'org', o.id,
    jsonb_build_object('fingerprint', encode(sha256(v_request.public_key), 'hex'), 'agent', v_request.name, 'host', v_request.host, 'address', host(v_request.address)))
  FROM unnest(tendril.orgs_with_role('admin')) o (id);
  RETURN true;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Creates a token with which one key joins a cluster without a person, for charts and images. Needs
-- the role admin.
--
-- Arguments:
--   p_cluster  the cluster
--   p_name     what it is for, at most 200 characters
--   p_valid    how long it is valid, 1 minute to 1 day
-- Answers: one row:
--   token_id    the token, for revoke_cluster_token()
--   token       the token itself, which no other call shows
--   expires_at  when it expires
-- Errors: PT403 token_may_not, PT404 cluster_not_found, PT422 bad_join_token, PT503 busy.
-- Locks: none.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.create_join_token(p_cluster uuid, p_name text DEFAULT '', p_valid interval DEFAULT '1 hour')
RETURNS TABLE (token_id uuid, token text, expires_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  c_shortest CONSTANT interval := '1 minute';
  c_longest  CONSTANT interval := '1 day';
  v_cluster  public.clusters;
  v_token    text := 'tnj_' || tendril.random_text();
  v_id       uuid;
  v_expires  timestamptz;
BEGIN
  v_cluster := tendril.cluster_for(p_cluster, 'admin');
  IF p_valid IS NULL OR p_valid NOT BETWEEN c_shortest AND c_longest THEN
    PERFORM tendril.refuse('PT422', 'bad_join_token', 'p_valid: must be 1 minute to 1 day');
  ELSIF p_name IS NULL OR length(p_name) > tendril.max_name() THEN
    PERFORM tendril.refuse('PT422', 'bad_join_token', format('p_name: must have at most %s characters', tendril.max_name()));
  END IF;
  INSERT INTO tendril.join_tokens (cluster_id, digest, name, created_by, expires_at)
  VALUES (p_cluster, sha256(sha256(convert_to(v_token, 'UTF8'))), p_name, tendril.current_user_id(), clock_timestamp() + p_valid)
  RETURNING id, expires_at INTO v_id, v_expires;
  PERFORM tendril.audit(v_cluster.org_id, 'create_join_token', 'cluster', p_cluster, jsonb_build_object('token_id', v_id, 'name', p_name, 'valid', p_valid));
  RETURN QUERY SELECT v_id, v_token, v_expires;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
