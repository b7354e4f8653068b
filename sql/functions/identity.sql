-- Identity: who asks, and what their role allows.

-- The user who asks, from the request's JWT claims; null, never an error, for missing or malformed
-- claims: a policy must hide rows, not break the query.
--
-- Anybody may set the claims of their own session, so they count only for the role authenticated,
-- which PostgREST and trellis assume after checking who asks, and for the control plane's own
-- roles.
--
-- Arguments: none.
-- Answers: the user's id, or null.
-- Errors: none.
-- Locks: none.
-- Callers: authenticated.
CREATE OR REPLACE FUNCTION tendril.current_user_id() RETURNS uuid
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF current_setting('role', true) IS DISTINCT FROM 'authenticated' THEN
    IF tendril.is_person() THEN
      RETURN NULL;
    END IF;
  END IF;
  RETURN (current_setting('request.jwt.claims', true)::jsonb ->> 'sub')::uuid;
EXCEPTION
  WHEN data_exception OR program_limit_exceeded THEN RETURN NULL;
END $$;

-- Whether the request comes from a person and not from the control plane's own role.
--
-- Notes: In a SECURITY DEFINER function current_user is the owner, so this reads SET ROLE and,
--   without one, the login role.
CREATE OR REPLACE FUNCTION tendril.is_person() RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce((
    SELECT NOT (r.rolsuper OR r.rolbypassrls
                OR pg_has_role(r.oid, (SELECT nspowner FROM pg_namespace WHERE nspname = 'tendril'), 'MEMBER'))
    FROM pg_roles r
    WHERE r.rolname = coalesce(nullif(current_setting('role', true), 'none'), session_user)), true);
END $$;

-- The organisations where the caller has at least a role. Policies compare with it.
--
-- Arguments:
--   p_least  viewer, operator or admin
-- Answers: the ids of the organisations.
-- Errors: none.
-- Locks: none.
-- Callers: authenticated.
-- Notes: One array, so a policy computes it once for a statement and not for each row.
CREATE OR REPLACE FUNCTION tendril.orgs_with_role(p_least text) RETURNS uuid[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (
    SELECT coalesce(array_agg(m.org_id), '{}')
    FROM public.org_members m
    WHERE m.user_id = tendril.current_user_id()
      AND array_position(ARRAY['viewer', 'operator', 'admin'], m.role)
          >= array_position(ARRAY['viewer', 'operator', 'admin'], p_least));
END $$;

-- Whether the caller has a role in an organisation: the control plane's own always has.
CREATE OR REPLACE FUNCTION tendril.has_role(p_org uuid, p_least text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce(NOT tendril.is_person() OR p_org = ANY (tendril.orgs_with_role(p_least)), false);
END $$;

-- Whether the caller may act in an organisation as operator or admin. What an API token with powers may not do
-- although its person may is refused here: with one nobody is an admin.
--
-- Errors: PT403 token_may_not.
CREATE OR REPLACE FUNCTION tendril.may_act(p_org uuid, p_least text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF NOT tendril.has_role(p_org, p_least) THEN
    RETURN false;
  ELSIF p_least = 'admin' THEN
    PERFORM tendril.check_whole_token();
  ELSIF tendril.powers() ->> 'change' = 'nothing' THEN
    PERFORM tendril.refuse('PT403', 'token_may_not', 'this API token may only read', 'use one that was made to propose changes');
  END IF;
  RETURN true;
END $$;

-- The Ed25519 public key whose signature of the request the gateway has verified; null: the request
-- is not signed.
--
-- The gateway says so by the setting tendril.signing_key. Any role may make that setting, and it
-- counts only in sessions whose login role may act as the contract's owner: the gateway's, and not
-- an agent's own or PostgREST's.
CREATE OR REPLACE FUNCTION tendril.signing_key() RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_key text := current_setting('tendril.signing_key', true);
BEGIN
  IF v_key <> '' AND pg_has_role(session_user, (SELECT nspowner FROM pg_namespace WHERE nspname = 'tendril'), 'MEMBER') THEN
    RETURN decode(v_key, 'hex');
  END IF;
  RETURN NULL;
END $$;

-- When a request was made, for what must not be put off by a repeat of it: when it was signed, if
-- that is not in the future, else now.
CREATE OR REPLACE FUNCTION tendril.asked_at() RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF tendril.signing_key() IS NULL THEN
    RETURN clock_timestamp();
  END IF;
  RETURN least(clock_timestamp(), to_timestamp(current_setting('tendril.signed_at')::double precision));
END $$;

-- Lets a signed request count once. Called by functions whose repeat would change something; all
-- others may be repeated for as long as their signature is good. A request with a token passes.
--
-- Errors: PT409 request_repeated.
-- Locks: tendril.nonces (its own row).
-- Notes: The gateway may repeat a request that it holds, and names no nonce then. A nonce is kept
--   for longer than the gateway takes its signature: a minute after it was made, by clocks that may
--   be a minute apart.
CREATE OR REPLACE FUNCTION tendril.once() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_kept CONSTANT interval := '5 minutes';
  v_key  bytea := tendril.signing_key();
BEGIN
  IF v_key IS NULL OR current_setting('tendril.nonce') = '' THEN
    RETURN;
  END IF;
  INSERT INTO tendril.nonces (public_key, nonce, until) VALUES (v_key, current_setting('tendril.nonce'), clock_timestamp() + c_kept)
  ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    PERFORM tendril.refuse('PT409', 'request_repeated', 'this request has been made already', 'sign a new one');
  END IF;
END $$;

-- The cluster that an agent's token or key belongs to. A key counts for requests that it has signed.
--
-- Errors: PT401 token_invalid, PT503 busy.
-- Notes: It computes the digest once, not for each row. Callers use it in their DECLARE section,
--   which their own EXCEPTION does not cover, so it answers PT503 itself.
CREATE OR REPLACE FUNCTION tendril.authenticate(p_token_hash text) RETURNS public.clusters
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_digest  bytea;
  v_key     bytea := tendril.signing_key();
  v_cluster public.clusters;
BEGIN
  IF v_key IS NOT NULL AND p_token_hash = encode(sha256(v_key), 'hex') THEN
    SELECT c.* INTO v_cluster
    FROM tendril.agent_keys k JOIN public.clusters c ON c.id = k.cluster_id
    WHERE k.public_key = v_key AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp());
  ELSIF p_token_hash ~ '^[0-9a-f]{64}$' THEN
    v_digest := sha256(decode(p_token_hash, 'hex'));
    SELECT c.* INTO v_cluster
    FROM tendril.cluster_tokens t JOIN public.clusters c ON c.id = t.cluster_id
    WHERE t.digest = v_digest AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp());
  END IF;
  IF v_cluster.id IS NULL THEN
    PERFORM tendril.refuse('PT401', 'token_invalid',
      CASE WHEN v_key IS NULL THEN 'the agent token is unknown, revoked or expired' ELSE 'the agent''s key has not joined, is revoked or has expired' END,
      CASE WHEN v_key IS NULL THEN 'create or rotate the cluster''s token, and set TENDRIL_API_TOKEN to the new one' ELSE 'have the agent join again: tendril join URL' END);
  END IF;
  RETURN v_cluster;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- The token or key with which an agent has called.
CREATE OR REPLACE FUNCTION tendril.credential_of(p_token_hash text) RETURNS uuid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT coalesce((SELECT t.id FROM tendril.cluster_tokens t WHERE t.digest = sha256(decode(p_token_hash, 'hex'))),
                  (SELECT k.id FROM tendril.agent_keys k WHERE k.public_key = tendril.signing_key()))
$$;

-- Notes that the key that signed the request is used now, at most once a minute, and from where: the
-- gateway says so by the setting tendril.address.
--
-- Locks: agent_keys (skipped when locked).
CREATE OR REPLACE FUNCTION tendril.use_key() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_key  bytea := tendril.signing_key();
BEGIN
  IF v_key IS NULL OR (SELECT k.last_used_at FROM tendril.agent_keys k WHERE k.public_key = v_key) > clock_timestamp() - tendril.used_every() THEN
    RETURN;
  END IF;
  PERFORM FROM tendril.agent_keys WHERE public_key = v_key FOR NO KEY UPDATE SKIP LOCKED;
  IF FOUND THEN
    UPDATE tendril.agent_keys SET last_used_at = clock_timestamp(), last_address = nullif(current_setting('tendril.address', true), '')::inet
    WHERE public_key = v_key;
  END IF;
END $$;

-- The agent that calls, and its cluster, in one query. authenticate() and current_agent() find out
-- what is wrong when there is none.
--
-- Errors: PT422 bad_agent, PT503 busy.
CREATE OR REPLACE FUNCTION tendril.caller(p_token_hash text, p_instance uuid, p_boot uuid,
  OUT cluster_id uuid, OUT paused_at timestamptz, OUT last_seen_at timestamptz, OUT agent_id uuid, OUT host text, OUT directory text, OUT contract int)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  v_digest bytea;
  v_key    bytea := tendril.signing_key();
BEGIN
  IF v_key IS NOT NULL AND p_token_hash = encode(sha256(v_key), 'hex') THEN
    SELECT c.id, c.paused_at, c.last_seen_at, a.id, a.host, a.directory, a.contract
    INTO cluster_id, paused_at, last_seen_at, agent_id, host, directory, contract
    FROM tendril.agent_keys k
    JOIN public.clusters c ON c.id = k.cluster_id
    JOIN public.agents a ON a.cluster_id = c.id AND a.instance_id = p_instance AND a.boot_id = p_boot
    WHERE k.public_key = v_key AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp());
  ELSIF p_token_hash ~ '^[0-9a-f]{64}$' THEN
    v_digest := sha256(decode(p_token_hash, 'hex'));
    SELECT c.id, c.paused_at, c.last_seen_at, a.id, a.host, a.directory, a.contract
    INTO cluster_id, paused_at, last_seen_at, agent_id, host, directory, contract
    FROM tendril.cluster_tokens t
    JOIN public.clusters c ON c.id = t.cluster_id
    JOIN public.agents a ON a.cluster_id = c.id AND a.instance_id = p_instance AND a.boot_id = p_boot
    WHERE t.digest = v_digest AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp());
  END IF;
  IF agent_id IS NULL THEN
    IF p_boot IS NULL THEN
      PERFORM tendril.authenticate(p_token_hash);
      PERFORM tendril.refuse('PT422', 'bad_agent', 'p_boot: missing');
    END IF;
    PERFORM tendril.current_agent((tendril.authenticate(p_token_hash)).id, p_instance, p_boot);
    PERFORM tendril.refuse('PT503', 'busy', 'the agent has just registered', 'try again');
  END IF;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- The agent of an instance, where the boot is its newest.
--
-- Errors: PT409 agent_superseded, PT409 agent_unregistered, PT503 busy.
CREATE OR REPLACE FUNCTION tendril.current_agent(p_cluster uuid, p_instance uuid, p_boot uuid) RETURNS public.agents
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_agent public.agents;
BEGIN
  SELECT * INTO v_agent FROM public.agents WHERE cluster_id = p_cluster AND instance_id = p_instance;
  IF v_agent.id IS NULL THEN
    PERFORM tendril.refuse('PT409', 'agent_unregistered', 'this agent is not registered', 'call register_agent first');
  ELSIF v_agent.boot_id IS DISTINCT FROM p_boot THEN
    PERFORM tendril.refuse('PT409', 'agent_superseded',
      format('agent %s has been started again on %s; this earlier process must stop', to_json(v_agent.name), v_agent.host));
  END IF;
  RETURN v_agent;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
