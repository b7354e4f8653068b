-- Runners: programs that carry out one claim of an agent, each with a credential for that claim alone.

-- The cluster of an agent or of the claim's runner. A runner's credential counts for its own claim,
-- until that has ended and takes no more lines, or the agent's token or key is revoked. Other
-- functions than those that call this one do not know it.
--
-- Errors: PT401 token_invalid, PT503 busy.
-- Notes: The claim is looked up by its id, so agents without runners pay for one empty look.
CREATE OR REPLACE FUNCTION tendril.authenticate_for(p_token_hash text, p_claim uuid) RETURNS public.clusters
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_runner  tendril.runners;
  v_key     bytea;
  v_cluster public.clusters;
BEGIN
  SELECT * INTO v_runner FROM tendril.runners WHERE claim_id = p_claim;
  IF FOUND THEN
    v_key := tendril.signing_key();
    IF (CASE WHEN v_runner.public_key IS NULL THEN p_token_hash ~ '^[0-9a-f]{64}$' AND v_runner.digest = sha256(decode(p_token_hash, 'hex'))
            ELSE v_key = v_runner.public_key AND p_token_hash = encode(sha256(v_key), 'hex') END) THEN
      SELECT u.* INTO v_cluster
      FROM tendril.claims c JOIN public.clusters u ON u.id = c.cluster_id
      WHERE c.id = p_claim
        AND (c.state <> 'ended' OR c.ended_at > clock_timestamp() - (SELECT s.late_log FROM tendril.settings s))
        AND NOT EXISTS (SELECT FROM tendril.cluster_tokens t WHERE t.id = c.credential_id AND t.revoked_at IS NOT NULL)
        AND NOT EXISTS (SELECT FROM tendril.agent_keys k WHERE k.id = c.credential_id AND k.revoked_at IS NOT NULL);
    END IF;
  END IF;
  IF v_cluster.id IS NULL THEN
    RETURN tendril.authenticate(p_token_hash);
  END IF;
  RETURN v_cluster;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Delegates a claim to a runner: a program that carries out this run alone, and outlives the agent.
-- From then on the runner renews the lease, and no later start of the agent ends the claim. The call
-- may be repeated.
--
-- Arguments:
--   p_token_hash     SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_claim_id       the claim
--   p_runner_digest  SHA-256 of what the runner's calls have for p_token_hash, which is SHA-256 of
--                    its token, as 64 hexadecimal digits: it may be known to others. Or ed25519: and
--                    the public key that signs the runner's requests, as 64 hexadecimal digits
-- Answers: nothing.
-- Errors: PT401 token_invalid, PT409 already_delegated, PT409 cancel_requested, PT409 claim_lost,
--   PT422 bad_runner, PT503 busy.
-- Locks: claim.
-- Callers: anon, tendril_agent.
-- Notes: A runner cannot delegate: its credential counts for functions that call authenticate_for().
CREATE OR REPLACE FUNCTION public.delegate_claim(p_token_hash text, p_claim_id uuid, p_runner_digest text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters := tendril.authenticate(p_token_hash);
  v_claim   tendril.claims;
  v_runner  tendril.runners;
  v_key     bytea;
  v_digest  bytea;
BEGIN
  IF p_runner_digest ~ '^ed25519:[0-9a-f]{64}$' THEN
    v_key := decode(split_part(p_runner_digest, ':', 2), 'hex');
  ELSIF p_runner_digest ~ '^[0-9a-f]{64}$' THEN
    v_digest := decode(p_runner_digest, 'hex');
  ELSE
    PERFORM tendril.refuse('PT422', 'bad_runner', 'p_runner_digest: must be 64 hexadecimal digits, or ed25519: and 64 hexadecimal digits');
  END IF;
  -- First, for a claim that has a runner keeps it, whatever has become of the claim.
  SELECT r.* INTO v_runner FROM tendril.runners r JOIN tendril.claims c ON c.id = r.claim_id WHERE r.claim_id = p_claim_id AND c.cluster_id = v_cluster.id;
  IF FOUND THEN
    IF v_runner.digest IS NOT DISTINCT FROM v_digest AND v_runner.public_key IS NOT DISTINCT FROM v_key THEN
      RETURN; -- a repeat after a lost reply
    END IF;
    PERFORM tendril.refuse('PT409', 'already_delegated', format('claim %s is delegated to another runner', p_claim_id), 'a claim has one runner: leave this one alone');
  END IF;
  v_claim := tendril.claim_for_blob(v_cluster.id, p_claim_id, false);
  IF v_claim.cancel_requested_at IS NOT NULL THEN
    PERFORM tendril.refuse('PT409', 'cancel_requested', 'cancellation was requested before the run was handed over');
  END IF;
  INSERT INTO tendril.runners (claim_id, digest, public_key) VALUES (p_claim_id, v_digest, v_key);
EXCEPTION
  -- unique_violation: of a call that is not committed yet.
  WHEN lock_not_available OR unique_violation THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Renews the lease of one claim, for its runner, and tells it what to stop.
--
-- Arguments:
--   p_token_hash  SHA-256 of the runner's token or key, as 64 hexadecimal digits
--   p_claim_id    the claim
--   p_awaits      what would be news, as in agent_heartbeat(): cancelled, lost, watched; null: the
--                 call is not held
-- Answers: an object as agent_heartbeat() answers, without newest_agent.
-- Errors: PT401 token_invalid, PT409 claim_lost, PT413 too_many_claims, PT503 busy.
-- Locks: claim.
-- Callers: anon, tendril_agent.
-- Notes: It says nothing of the agent, which may be gone. Leases that ran out are given up by agents
--   and by trellis.
CREATE OR REPLACE FUNCTION public.renew_claim(p_token_hash text, p_claim_id uuid, p_awaits jsonb DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_awaits  CONSTANT int := 1024; -- bytes
  v_cluster public.clusters := tendril.authenticate_for(p_token_hash, p_claim_id);
  v_at      record;
  v_claim   tendril.claims;
  v_lost    boolean;
  v_cancel  boolean;
  v_watched boolean;
BEGIN
  IF octet_length(p_awaits::text) > c_awaits THEN
    PERFORM tendril.refuse('PT413', 'too_many_claims', format('p_awaits: %s bytes; at most %s are allowed', octet_length(p_awaits::text), c_awaits));
  END IF;
  SELECT s.lease, s.poll, s.heartbeat INTO STRICT v_at FROM tendril.settings s;
  SELECT * INTO v_claim FROM tendril.claims WHERE id = p_claim_id AND cluster_id = v_cluster.id FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    PERFORM tendril.claim_lost(p_claim_id, 'is unknown');
  END IF;
  v_lost := v_claim.state <> 'running';
  v_cancel := v_claim.cancel_requested_at IS NOT NULL;
  v_watched := NOT v_lost AND EXISTS (SELECT FROM tendril.watched w WHERE w.provision_id = v_claim.provision_id AND w.until > clock_timestamp());
  IF NOT v_lost THEN
    UPDATE tendril.claims SET lease_until = greatest(lease_until, tendril.asked_at() + v_at.lease) WHERE id = p_claim_id;
  END IF;
  IF p_awaits IS NOT NULL
     AND (v_cancel AND (p_awaits -> 'cancelled' ? p_claim_id::text) IS NOT TRUE) IS NOT TRUE
     AND (v_lost AND (p_awaits -> 'lost' ? p_claim_id::text) IS NOT TRUE) IS NOT TRUE
     AND (v_watched AND p_awaits ? 'watched' AND (p_awaits -> 'watched' ? p_claim_id::text) IS NOT TRUE) IS NOT TRUE THEN
    PERFORM tendril.hold('runner ' || p_claim_id, least(tendril.held_at_most(), 2 * v_at.heartbeat, v_at.lease / 6), ARRAY['tendril_agent:' || v_claim.instance_id]);
  END IF;
  RETURN jsonb_build_object(
    'cancel', CASE WHEN v_cancel THEN jsonb_build_array(p_claim_id) ELSE '[]' END,
    'lost', CASE WHEN v_lost THEN jsonb_build_array(p_claim_id) ELSE '[]' END,
    'watched', CASE WHEN v_watched THEN jsonb_build_array(p_claim_id) ELSE '[]' END,
    'poll_seconds', extract(epoch FROM v_at.poll),
    'heartbeat_seconds', extract(epoch FROM v_at.heartbeat),
    'checks_due', false, 'work', false);
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
