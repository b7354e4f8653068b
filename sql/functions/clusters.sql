-- Clusters and their tokens.

-- 32 random bytes as text, in the alphabet of URLs.
CREATE OR REPLACE FUNCTION tendril.random_text() RETURNS text
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
  -- Three version-4 UUIDs carry 366 random bits from the server's strong source.
  SELECT rtrim(translate(encode(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), 'base64'), '+/', '-_'), '=')
$$;

-- Creates an agent token of a cluster: 32 random bytes as text, which only this answer holds.
--
-- Arguments:
--   p_cluster  the cluster
-- Answers: one row:
--   token_id  the token
--   token     the token itself
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
-- Notes: The database makes it, so it appears in no statement.
CREATE OR REPLACE FUNCTION tendril.issue_token(p_cluster uuid, OUT token_id uuid, OUT token text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  token := 'tnd_' || tendril.random_text();
  INSERT INTO tendril.cluster_tokens (cluster_id, digest, created_by)
  VALUES (p_cluster, sha256(sha256(convert_to(token, 'UTF8'))), tendril.current_user_id())
  RETURNING id INTO token_id;
END $$;

-- The cluster, where the caller has the role there. "There is none" and "not yours" get one answer.
--
-- Errors: PT404 cluster_not_found, PT503 busy.
CREATE OR REPLACE FUNCTION tendril.cluster_for(p_cluster uuid, p_least text) RETURNS public.clusters
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_cluster public.clusters;
BEGIN
  SELECT * INTO v_cluster FROM public.clusters WHERE id = p_cluster;
  IF NOT tendril.may_act(v_cluster.org_id, p_least) OR v_cluster.id IS NULL THEN
    PERFORM tendril.refuse('PT404', 'cluster_not_found', format('cluster %s not found, or you are not %s there', p_cluster, p_least));
  END IF;
  RETURN v_cluster;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Creates a cluster and its first agent token. Needs the role admin.
--
-- Arguments:
--   p_name            1 to 63 letters, digits and . _ -, unique in the organisation
--   p_org             the organisation; without one, the only organisation where the caller is
--                     admin
--   p_labels          an object of at most 8192 bytes
--   p_age_public_key  age recipient; without one, the first agent that registers sets it
-- Answers: one row:
--   cluster_id  the cluster
--   token_id    the token
--   token       the token itself, which no other call shows
-- Errors: PT403 token_may_not, PT404 org_not_found, PT409 cluster_exists, PT422 bad_cluster,
--   PT422 org_missing, PT503 busy.
-- Locks: none.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.create_cluster(p_name text, p_org uuid DEFAULT NULL, p_labels jsonb DEFAULT '{}', p_age_public_key text DEFAULT NULL)
RETURNS TABLE (cluster_id uuid, token_id uuid, token text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_orgs    uuid[];
  v_cluster uuid;
BEGIN
  IF p_org IS NULL THEN
    IF tendril.is_person() THEN
      PERFORM tendril.check_whole_token();
      v_orgs := tendril.orgs_with_role('admin');
    ELSE
      v_orgs := ARRAY(SELECT id FROM public.orgs);
    END IF;
    IF cardinality(v_orgs) <> 1 THEN
      PERFORM tendril.refuse('PT422', 'org_missing', format('p_org: missing; you are admin of %s organisations', cardinality(v_orgs)));
    END IF;
    p_org := v_orgs[1];
  ELSIF NOT tendril.may_act(p_org, 'admin') OR NOT EXISTS (SELECT FROM public.orgs WHERE id = p_org) THEN
    PERFORM tendril.refuse('PT404', 'org_not_found', format('organisation %s not found, or you are not its admin', p_org));
  END IF;
  IF tendril.has_vast_number(p_labels) OR octet_length(p_labels::text) > tendril.max_object_bytes() THEN
    PERFORM tendril.refuse('PT422', 'bad_cluster', format('p_labels: at most %s bytes are allowed', tendril.max_object_bytes()));
  ELSIF p_age_public_key !~ tendril.age_key_pattern() THEN
    PERFORM tendril.refuse('PT422', 'bad_cluster', 'p_age_public_key: must be an age recipient (age1…)');
  END IF;

  INSERT INTO public.clusters (org_id, name, labels, age_public_key, created_by)
  VALUES (p_org, p_name, coalesce(p_labels, '{}'), p_age_public_key, tendril.current_user_id())
  RETURNING id INTO v_cluster;
  PERFORM tendril.audit(p_org, 'create_cluster', 'cluster', v_cluster, jsonb_build_object('name', p_name));
  RETURN QUERY SELECT v_cluster, t.token_id, t.token FROM tendril.issue_token(v_cluster) t;
EXCEPTION
  WHEN unique_violation THEN
    PERFORM tendril.refuse('PT409', 'cluster_exists', format('a cluster named %s already exists', to_json(p_name)), 'choose another name');
  WHEN check_violation OR not_null_violation THEN
    PERFORM tendril.refuse('PT422', 'bad_cluster', 'p_name: must be 1 to 63 letters, digits and . _ -; p_labels: must be an object');
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Creates another agent token of a cluster; earlier ones expire after p_overlap. Needs the role
-- admin.
--
-- Arguments:
--   p_cluster  the cluster
--   p_overlap  how long earlier tokens stay valid, 0 to 30 days
-- Answers: one row:
--   token_id  the token
--   token     the token itself, which no other call shows
-- Errors: PT403 token_may_not, PT404 cluster_not_found, PT422 bad_overlap, PT503 busy.
-- Locks: none.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.rotate_cluster_token(p_cluster uuid, p_overlap interval DEFAULT '24 hours')
RETURNS TABLE (token_id uuid, token text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  c_longest CONSTANT interval := '30 days';
  v_cluster public.clusters := tendril.cluster_for(p_cluster, 'admin');
BEGIN
  IF p_overlap IS NULL OR p_overlap < interval '0' OR p_overlap > c_longest THEN
    PERFORM tendril.refuse('PT422', 'bad_overlap', 'p_overlap: must be 0 to 30 days');
  END IF;
  UPDATE tendril.cluster_tokens SET expires_at = clock_timestamp() + p_overlap
  WHERE cluster_id = p_cluster AND revoked_at IS NULL
    AND (expires_at IS NULL OR expires_at > clock_timestamp() + p_overlap);
  PERFORM tendril.audit(v_cluster.org_id, 'rotate_cluster_token', 'cluster', p_cluster, jsonb_build_object('overlap', p_overlap));
  RETURN QUERY SELECT t.token_id, t.token FROM tendril.issue_token(p_cluster) t;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Has the held calls of a cluster's agents repeated: they end where their credential is gone.
CREATE OR REPLACE FUNCTION tendril.recall(p_cluster uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_alive CONSTANT interval := '5 minutes'; -- agents that were heard of within it may have one
BEGIN
  PERFORM tendril.notify('tendril_agent', instance_id) FROM public.agents
  WHERE cluster_id = p_cluster AND last_heartbeat_at > clock_timestamp() - c_alive;
END $$;

-- Revokes keys of a cluster, and those that they have asked for by a rotation. What they run ends as
-- the runs of lost agents.
--
-- Arguments:
--   p_cluster  the cluster
--   p_ids      the keys, or tokens for which keys were exchanged; null: all
-- Answers: how many were revoked.
-- Locks: claims by id; then, as reap(), cluster, workspace, provision, claim and agent that nobody
--   else has locked.
CREATE OR REPLACE FUNCTION tendril.revoke_keys(p_cluster uuid, p_ids uuid[]) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_keys uuid[];
BEGIN
  WITH RECURSIVE meant AS (
    SELECT k.id FROM tendril.agent_keys k WHERE k.cluster_id = p_cluster AND (p_ids IS NULL OR k.id = ANY (p_ids) OR k.parent = ANY (p_ids))
    UNION
    SELECT k.id FROM tendril.agent_keys k JOIN meant m ON k.parent = m.id WHERE k.cluster_id = p_cluster
  ), gone AS (
    UPDATE tendril.agent_keys SET revoked_at = clock_timestamp() WHERE id IN (SELECT id FROM meant) AND revoked_at IS NULL RETURNING id
  )
  SELECT array_agg(id) INTO v_keys FROM gone;
  IF v_keys IS NOT NULL THEN
    UPDATE tendril.claims SET lease_until = clock_timestamp()
    WHERE id IN (SELECT id FROM tendril.claims WHERE cluster_id = p_cluster AND credential_id = ANY (v_keys) AND state = 'running' ORDER BY id FOR NO KEY UPDATE);
    IF FOUND THEN
      PERFORM tendril.reap();
    END IF;
    PERFORM tendril.recall(p_cluster);
  END IF;
  RETURN coalesce(cardinality(v_keys), 0);
END $$;

-- Revokes one agent token, join token or key of a cluster, or all of them. With a key go those that it has asked
-- for by a rotation. The runs of agents with a key that is revoked end at once as those of a lost
-- agent. Needs the role admin.
--
-- Arguments:
--   p_cluster   the cluster
--   p_token_id  the token, join token or key; null: all of the cluster
-- Answers: how many were revoked.
-- Errors: PT403 token_may_not, PT404 cluster_not_found, PT503 busy.
-- Locks: claims by id; then, as reap(), cluster, workspace, provision, claim and agent that nobody
--   else has locked.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.revoke_cluster_token(p_cluster uuid, p_token_id uuid DEFAULT NULL) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters := tendril.cluster_for(p_cluster, 'admin');
  v_count   int;
  v_joins   int;
BEGIN
  UPDATE tendril.cluster_tokens SET revoked_at = clock_timestamp()
  WHERE cluster_id = p_cluster AND revoked_at IS NULL AND (p_token_id IS NULL OR id = p_token_id);
  GET DIAGNOSTICS v_count = ROW_COUNT;
  UPDATE tendril.join_tokens SET expires_at = clock_timestamp()
  WHERE cluster_id = p_cluster AND used_at IS NULL AND expires_at > clock_timestamp() AND (p_token_id IS NULL OR id = p_token_id);
  GET DIAGNOSTICS v_joins = ROW_COUNT;
  v_count := v_count + v_joins + tendril.revoke_keys(p_cluster, CASE WHEN p_token_id IS NOT NULL THEN ARRAY[p_token_id] END);
  PERFORM tendril.audit(v_cluster.org_id, 'revoke_cluster_token', 'cluster', p_cluster, jsonb_build_object('token_id', p_token_id, 'revoked', v_count));
  IF v_count > 0 THEN
    PERFORM tendril.recall(p_cluster);
  END IF;
  RETURN v_count;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Gives an agent a new key in place of the one that signs the request, which counts for ten more
-- minutes, or of the token that it shares with others, which stays. What the agent runs belongs to
-- the new key from then on. Revoking the old one revokes the new one.
--
-- Arguments:
--   p_token_hash  SHA-256 of the old key or of the token, as 64 hexadecimal digits
--   p_instance    the agent's instance id
--   p_boot        the boot id of this start
--   p_public_key  the new Ed25519 key, 32 bytes as 64 hexadecimal digits
-- Answers: when the old key expires; null: it was a token, which stays as it is.
-- Errors: PT401 token_invalid, PT409 agent_superseded, PT409 agent_unregistered, PT409 key_taken,
--   PT409 request_repeated, PT422 bad_agent, PT422 bad_key, PT503 busy.
-- Locks: the old key, claims by id.
-- Callers: anon, tendril_agent.
CREATE OR REPLACE FUNCTION public.rotate_agent_key(p_token_hash text, p_instance uuid, p_boot uuid, p_public_key text) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_overlap CONSTANT interval := '10 minutes';
  v_caller  record := tendril.caller(p_token_hash, p_instance, p_boot);
  v_old     tendril.agent_keys;
  v_new     uuid;
  v_agent   public.agents;
BEGIN
  PERFORM tendril.once();
  IF p_public_key !~ '^[0-9a-f]{64}$' OR p_public_key IS NULL THEN
    PERFORM tendril.refuse('PT422', 'bad_key', 'p_public_key: must be an Ed25519 key as 64 hexadecimal digits');
  END IF;
  UPDATE tendril.agent_keys SET expires_at = least(expires_at, clock_timestamp() + c_overlap)
  WHERE public_key = tendril.signing_key() RETURNING * INTO v_old;
  SELECT * INTO v_agent FROM public.agents WHERE id = v_caller.agent_id;
  INSERT INTO tendril.agent_keys (cluster_id, public_key, name, parent)
  VALUES (v_caller.cluster_id, decode(p_public_key, 'hex'), v_agent.name, tendril.credential_of(p_token_hash))
  RETURNING id INTO v_new;
  UPDATE tendril.claims SET credential_id = v_new
  WHERE id IN (SELECT id FROM tendril.claims WHERE cluster_id = v_caller.cluster_id AND instance_id = p_instance AND state = 'running' ORDER BY id FOR NO KEY UPDATE);
  PERFORM tendril.audit(v_agent.org_id, 'rotate_agent_key', 'cluster', v_caller.cluster_id,
    jsonb_build_object('agent', v_agent.name, 'old', encode(sha256(v_old.public_key), 'hex'), 'new', encode(sha256(decode(p_public_key, 'hex')), 'hex')));
  RETURN v_old.expires_at;
EXCEPTION
  WHEN unique_violation THEN
    PERFORM tendril.refuse('PT409', 'key_taken', 'this key is known already', 'make a new one');
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Lists the agent tokens and keys of a cluster, the newest first, at most 200. Needs the role admin.
--
-- Arguments:
--   p_cluster  the cluster
-- Answers: a row for each:
--   id            the token or key
--   created_at    when it was created
--   expires_at    when it expires; null: never
--   revoked_at    when it was revoked; null: it was not
--   created_by    user who created it; null: the control plane
--   fingerprint   SHA-256 of the key, as 64 hexadecimal digits; null: a token
--   name          name of the agent that joined with the key; null: a token
--   parent        the key that asked for this one by a rotation; null: none
--   last_used_at  when it was last used, to a minute or so; null: not known
--   last_address  from where; null: not known
-- Errors: PT403 token_may_not, PT404 cluster_not_found, PT503 busy.
-- Locks: none.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.cluster_tokens(p_cluster uuid)
RETURNS TABLE (id uuid, created_at timestamptz, expires_at timestamptz, revoked_at timestamptz, created_by uuid,
               fingerprint text, name text, parent uuid, last_used_at timestamptz, last_address text)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
BEGIN
  PERFORM tendril.cluster_for(p_cluster, 'admin'); -- here, for EXCEPTION does not cover DECLARE
  RETURN QUERY SELECT t.id, t.created_at, t.expires_at, t.revoked_at, t.created_by,
      t.fingerprint, t.name, t.parent, t.last_used_at, t.last_address
    FROM (SELECT t.id, t.created_at, t.expires_at, t.revoked_at, t.created_by, NULL::text AS fingerprint, NULL::text AS name, NULL::uuid AS parent,
                 NULL::timestamptz AS last_used_at, NULL::text AS last_address
          FROM tendril.cluster_tokens t WHERE t.cluster_id = p_cluster
          UNION ALL
          SELECT k.id, k.created_at, k.expires_at, k.revoked_at, k.created_by, encode(sha256(k.public_key), 'hex'), k.name, k.parent, k.last_used_at, host(k.last_address)
          FROM tendril.agent_keys k WHERE k.cluster_id = p_cluster) t
    ORDER BY t.created_at DESC, t.id LIMIT tendril.max_tokens_listed();
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Stops agents of a cluster from claiming more, or lets them claim again. What runs continues.
-- Needs the role admin.
--
-- Arguments:
--   p_cluster  the cluster
--   p_paused   true: pause; false: resume
--   p_reason   for the audit, at most 1000 characters
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 cluster_not_found, PT422 bad_paused, PT422 bad_reason,
--   PT503 busy.
-- Locks: cluster.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.pause_cluster(p_cluster uuid, p_paused boolean DEFAULT true, p_reason text DEFAULT '') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters;
  v_reason  text;
BEGIN
  v_cluster := tendril.cluster_for(p_cluster, 'admin');
  v_reason := tendril.reason(p_reason);
  IF p_paused IS NULL THEN
    PERFORM tendril.refuse('PT422', 'bad_paused', 'p_paused: must be true or false');
  END IF;
  UPDATE public.clusters SET paused_at = CASE WHEN p_paused THEN clock_timestamp() END
  WHERE id = p_cluster AND (paused_at IS NOT NULL) <> p_paused;
  IF NOT FOUND THEN
    RETURN; -- it is as wanted
  END IF;
  IF NOT p_paused THEN
    PERFORM tendril.notify('tendril_work', p_cluster);
  END IF;
  PERFORM tendril.audit(v_cluster.org_id, CASE WHEN p_paused THEN 'pause_cluster' ELSE 'resume_cluster' END, 'cluster', p_cluster,
    jsonb_build_object('reason', v_reason));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- The form of an age recipient, as a regular expression.
CREATE OR REPLACE FUNCTION tendril.age_key_pattern() RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT '^age1[02-9ac-hj-np-z]{58}$' $$;

-- Sets the key that secrets for a cluster are sealed to. Needs the role admin.
--
-- Arguments:
--   p_cluster         the cluster
--   p_age_public_key  age recipient; null: the next agent that registers sets its own
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 cluster_not_found, PT422 bad_key, PT503 busy.
-- Locks: cluster.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.set_cluster_key(p_cluster uuid, p_age_public_key text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters;
BEGIN
  v_cluster := tendril.cluster_for(p_cluster, 'admin');
  IF p_age_public_key !~ tendril.age_key_pattern() THEN
    PERFORM tendril.refuse('PT422', 'bad_key', 'p_age_public_key: must be an age recipient', 'use the public half of the agents'' identity, age1…, which their log shows');
  END IF;
  UPDATE public.clusters SET age_public_key = p_age_public_key
  WHERE id = p_cluster AND age_public_key IS DISTINCT FROM p_age_public_key;
  IF FOUND THEN
    PERFORM tendril.audit(v_cluster.org_id, 'set_cluster_key', 'cluster', p_cluster,
      jsonb_build_object('age_public_key', p_age_public_key, 'before', v_cluster.age_public_key));
  END IF;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
