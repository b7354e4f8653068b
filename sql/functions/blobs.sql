-- Plans, states, uploads and results, stored in parts.

-- How many parts of 512 KiB a blob of a kind may have: a plan 8 MiB, a state 256 MiB and what
-- sealing adds, anything else 64 MiB.
CREATE OR REPLACE FUNCTION tendril.most_parts(p_kind text) RETURNS int
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE p_kind WHEN 'plan' THEN 16 WHEN 'state' THEN 513 ELSE 128 END $$;

-- Decodes a part of a blob and checks its size.
--
-- Errors: PT413 blob_too_large, PT422 bad_blob.
CREATE OR REPLACE FUNCTION tendril.blob_part(p_kind text, p_part int, p_parts int, p_data text) RETURNS bytea
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_encoded CONSTANT int := 700000; -- characters: a part in base64, with room for line breaks
  v_most int := tendril.most_parts(p_kind);
  v_data bytea;
BEGIN
  IF p_parts > v_most OR length(p_data) > c_encoded THEN
    PERFORM tendril.refuse('PT413', 'blob_too_large', format('this %s is larger than the %s MiB allowed, in parts of 512 KiB', p_kind, v_most / 2));
  ELSIF p_part IS NULL OR p_parts IS NULL OR p_part NOT BETWEEN 1 AND p_parts THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', 'p_part: must be a number from 1 to p_parts');
  END IF;
  v_data := decode(p_data, 'base64');
  IF v_data IS NULL OR octet_length(v_data) = 0 THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', 'p_data: missing');
  ELSIF octet_length(v_data) > tendril.part_bytes() THEN
    PERFORM tendril.refuse('PT413', 'blob_too_large', format('p_data: %s bytes in one part; at most %s are allowed', octet_length(v_data), tendril.part_bytes()));
  END IF;
  RETURN v_data;
EXCEPTION
  WHEN data_exception THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', 'p_data: must be base64');
END $$;

-- Adds a part to an incomplete blob. Answers whether the blob is complete now.
--
-- Errors: PT409 blob_incomplete.
CREATE OR REPLACE FUNCTION tendril.add_part(p_blob uuid, p_part int, p_parts int, p_data bytea) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_was int := coalesce((SELECT octet_length(data) FROM tendril.blob_parts WHERE blob_id = p_blob AND part = p_part), 0);
BEGIN
  INSERT INTO tendril.blob_parts (blob_id, part, data) VALUES (p_blob, p_part, p_data)
  ON CONFLICT (blob_id, part) DO UPDATE SET data = EXCLUDED.data;
  UPDATE tendril.blobs SET bytes = bytes + octet_length(p_data) - v_was WHERE id = p_blob;
  IF p_part < p_parts THEN
    RETURN false;
  ELSIF (SELECT count(*) FROM tendril.blob_parts WHERE blob_id = p_blob) < p_parts THEN
    PERFORM tendril.refuse('PT409', 'blob_incomplete', 'parts before the last one are missing', 'send all parts again, from 1');
  END IF;
  UPDATE tendril.blobs SET bytes = (SELECT sum(octet_length(data)) FROM tendril.blob_parts WHERE blob_id = p_blob), complete_at = clock_timestamp()
  WHERE id = p_blob;
  RETURN true;
END $$;

-- Deletes expired blobs, the oldest first, about 64 MiB in a call. Answers how many.
--
-- Notes: put_blob() calls it while an agent waits, so a call must end within a few seconds.
CREATE OR REPLACE FUNCTION tendril.expire_blobs() RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_parts CONSTANT int := 128; -- 64 MiB
  v_gone int;
BEGIN
  DELETE FROM tendril.blobs WHERE id IN (
    SELECT id FROM tendril.blobs WHERE id IN (
      SELECT o.id FROM (
        SELECT e.id, sum(e.parts) OVER (ORDER BY e.expires_at, e.id) - e.parts AS before FROM (
          SELECT id, parts, expires_at FROM tendril.blobs WHERE expires_at < clock_timestamp() ORDER BY expires_at LIMIT tendril.max_blobs_expired()) e) o
      WHERE o.before < c_parts)
    FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS v_gone = ROW_COUNT;
  RETURN v_gone;
END $$;

-- Locks the claim for which an agent reads or writes a blob. A lost claim that still holds its
-- workspace may store and read states when p_also_held is true.
--
-- Locks: claim.
CREATE OR REPLACE FUNCTION tendril.claim_for_blob(p_cluster uuid, p_claim uuid, p_also_held boolean) RETURNS tendril.claims
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_claim tendril.claims;
BEGIN
  SELECT * INTO v_claim FROM tendril.claims WHERE id = p_claim AND cluster_id = p_cluster FOR NO KEY UPDATE;
  IF v_claim.id IS NULL THEN
    PERFORM tendril.claim_lost(p_claim, 'is unknown');
  ELSIF v_claim.state = 'ended' THEN
    PERFORM tendril.claim_lost(p_claim, 'has ended');
  ELSIF v_claim.state = 'lost'
        AND NOT (p_also_held AND EXISTS (SELECT FROM public.workspaces WHERE id = v_claim.workspace_id AND held_by_claim = p_claim)) THEN
    PERFORM tendril.claim_lost(p_claim, 'has lost its lease');
  END IF;
  RETURN v_claim;
END $$;

-- Stores one part of a blob. The blob counts once its last part is stored. Each call may be
-- repeated.
--
-- A claim stores one plan, one result and two states at most: the newest, and one that is being
-- sent.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_claim_id    the claim
--   p_kind        plan (the plan that a person is to approve), state (a version of the workspace's
--                 state) or result (what a state operation has read)
--   p_number      version of the state, from 1; ignored for other kinds
--   p_part        number of this part, from 1
--   p_parts       number of all parts
--   p_digest      64 hexadecimal digits: SHA-256 of all bytes; of a plan, the digest that people
--                 approve
--   p_meta        an object of at most 4096 bytes; a state needs serial, Terraform's serial of it
--   p_data        the part in base64, at most 524288 bytes decoded
-- Answers: nothing.
-- Errors: PT401 token_invalid, PT409 blob_incomplete, PT409 claim_lost, PT409 plan_approved,
--   PT409 state_moved, PT413 blob_too_large, PT422 bad_blob, PT429 cluster_blobs_full,
--   PT429 org_blobs_full, PT503 busy.
-- Locks: workspace, claim.
-- Callers: anon, tendril_agent.
CREATE OR REPLACE FUNCTION public.put_blob(p_token_hash text, p_claim_id uuid, p_kind text, p_number bigint, p_part int, p_parts int,
                                p_digest text, p_meta jsonb, p_data text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster   public.clusters := tendril.authenticate_for(p_token_hash, p_claim_id);
  v_meta      jsonb := coalesce(p_meta, '{}');
  v_settings  tendril.settings;
  v_workspace public.workspaces;
  v_claim     tendril.claims;
  v_blob      tendril.blobs;
  v_data      bytea;
  -- Versions that a run wrote while the database was away are not all sent, and a database
  -- that was restored is behind; more than that would use the numbers up.
  c_ahead CONSTANT bigint := 10000;
  c_meta  CONSTANT int := 4096; -- bytes
BEGIN
  IF p_kind IS NULL OR p_kind NOT IN ('plan', 'state', 'result') THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', 'p_kind: must be plan, state or result');
  ELSIF coalesce(p_digest !~ '^[0-9a-f]{64}$', true) THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', 'p_digest: must be a SHA-256 in hexadecimal');
  ELSIF jsonb_typeof(v_meta) <> 'object' OR tendril.has_vast_number(v_meta) OR octet_length(v_meta::text) > c_meta THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', format('p_meta: must be an object of at most %s bytes', c_meta));
  ELSIF p_kind = 'state' AND (coalesce(p_number, 0) NOT BETWEEN 1 AND tendril.max_exact_number() OR coalesce(v_meta ->> 'serial', '') !~ '^[0-9]{1,18}$') THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', 'a state needs p_number, from 1, and serial in p_meta');
  END IF;
  v_data := tendril.blob_part(p_kind, p_part, p_parts, p_data);
  IF p_parts = 1 AND p_kind <> 'plan' AND encode(sha256(v_data), 'hex') <> p_digest THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', 'p_digest: does not match p_data');
  END IF;
  SELECT * INTO STRICT v_settings FROM tendril.settings;

  IF p_kind = 'state' AND p_part = p_parts THEN
    SELECT w.* INTO v_workspace FROM tendril.claims c JOIN public.workspaces w ON w.id = c.workspace_id
    WHERE c.id = p_claim_id AND c.cluster_id = v_cluster.id FOR NO KEY UPDATE OF w;
  END IF;
  v_claim := tendril.claim_for_blob(v_cluster.id, p_claim_id, p_kind = 'state');

  IF p_kind = 'state' THEN
    SELECT * INTO v_blob FROM tendril.blobs WHERE workspace_id = v_claim.workspace_id AND number = p_number FOR UPDATE;
    SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE id = v_claim.workspace_id;
    IF v_workspace.state_version >= p_number THEN
      IF v_blob.complete_at IS NOT NULL AND v_blob.digest = p_digest OR EXISTS (
           SELECT FROM tendril.blobs WHERE workspace_id = v_workspace.id AND number = v_workspace.state_version AND number > p_number AND claim_id = p_claim_id) THEN
        RETURN; -- a repeat after a lost reply: this one, or a later one of this run, is stored
      END IF;
      PERFORM tendril.refuse('PT409', 'state_moved', format('version %s of the state of workspace %s cannot be stored: version %s exists already',
        p_number, to_json(v_workspace.name), v_workspace.state_version));
    ELSIF p_number > coalesce(v_workspace.state_version, 0) + c_ahead THEN
      PERFORM tendril.refuse('PT422', 'bad_blob', format('p_number: version %s of the state of workspace %s cannot follow version %s',
        p_number, to_json(v_workspace.name), coalesce(v_workspace.state_version, 0)), format('number states one after the other; a gap may be at most %s', c_ahead));
    END IF;
  ELSE
    SELECT * INTO v_blob FROM tendril.blobs WHERE provision_id = v_claim.provision_id AND kind = p_kind FOR UPDATE;
    IF v_blob.complete_at IS NOT NULL AND v_blob.digest = p_digest AND v_blob.claim_id = p_claim_id THEN
      RETURN; -- likewise
    ELSIF p_kind = 'plan' AND (SELECT plan_digest FROM public.provisions WHERE id = v_claim.provision_id) IS NOT NULL THEN
      PERFORM tendril.refuse('PT409', 'plan_approved', 'a plan of this provision is approved, so another one cannot be stored');
    END IF;
  END IF;

  IF v_blob.id IS NOT NULL AND (v_blob.complete_at IS NOT NULL OR v_blob.claim_id <> p_claim_id OR v_blob.digest <> p_digest OR v_blob.parts <> p_parts) THEN
    DELETE FROM tendril.blobs WHERE id = v_blob.id; -- another one takes its place
    v_blob.id := NULL;
  END IF;
  IF v_blob.id IS NULL THEN
    IF p_part > 1 THEN
      PERFORM tendril.refuse('PT409', 'blob_incomplete', 'parts before this one are missing', 'send all parts again, from 1');
    END IF;
    PERFORM tendril.expire_blobs();
    PERFORM tendril.check_room(v_cluster, p_parts * tendril.part_bytes()::bigint);
    -- States come one after the other: one that did not come to its end was overtaken.
    DELETE FROM tendril.blobs WHERE p_kind = 'state' AND workspace_id = v_claim.workspace_id AND claim_id = p_claim_id AND complete_at IS NULL;
    INSERT INTO tendril.blobs (kind, cluster_id, workspace_id, provision_id, number, claim_id, made_for, digest, parts)
    VALUES (p_kind, v_cluster.id, CASE p_kind WHEN 'state' THEN v_claim.workspace_id END, CASE p_kind WHEN 'state' THEN NULL ELSE v_claim.provision_id END,
            CASE p_kind WHEN 'state' THEN p_number ELSE 0 END, p_claim_id, v_claim.provision_id, p_digest, p_parts)
    RETURNING * INTO v_blob;
  ELSE
    PERFORM tendril.check_room(v_cluster, octet_length(v_data));
  END IF;
  UPDATE tendril.blobs SET meta = v_meta, expires_at = clock_timestamp() + v_settings.upload_kept WHERE id = v_blob.id;
  IF NOT tendril.add_part(v_blob.id, p_part, p_parts, v_data) THEN
    RETURN;
  END IF;
  UPDATE tendril.blobs SET expires_at = CASE p_kind WHEN 'result' THEN clock_timestamp() + v_settings.result_kept END WHERE id = v_blob.id;

  IF p_kind = 'state' THEN
    -- It is for any agent of the cluster from now on, wherever it was before.
    UPDATE public.workspaces
    SET state_version = p_number, state_serial = (v_meta ->> 'serial')::bigint, state_at = clock_timestamp(), state_provision = v_claim.provision_id,
        home_instance = NULL
    WHERE id = v_workspace.id;
    -- Of one run the last is kept: while it goes on, an engine stores its state
    -- again and again.
    DELETE FROM tendril.blobs
    WHERE workspace_id = v_workspace.id AND number < p_number
      AND (claim_id = p_claim_id OR complete_at IS NULL OR number <= (
        SELECT b.number FROM tendril.blobs b
        WHERE b.workspace_id = v_workspace.id AND b.complete_at IS NOT NULL AND (b.claim_id <> p_claim_id OR b.number = p_number)
        ORDER BY b.number DESC OFFSET v_settings.state_history LIMIT 1));
  END IF;
EXCEPTION
  WHEN lock_not_available OR unique_violation THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- A part of a blob in the form in which functions answer it; parts is 0 where there is no such
-- blob.
--
-- Errors: PT422 bad_blob.
CREATE OR REPLACE FUNCTION tendril.part_of(p_blob tendril.blobs, p_part int) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_data bytea;
BEGIN
  IF p_blob.complete_at IS NULL THEN
    RETURN jsonb_build_object('parts', 0);
  END IF;
  SELECT data INTO v_data FROM tendril.blob_parts WHERE blob_id = p_blob.id AND part = p_part;
  IF NOT FOUND THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', format('p_part: there is no part %s of %s', p_part, p_blob.parts));
  END IF;
  RETURN jsonb_build_object('parts', p_blob.parts, 'number', p_blob.number, 'digest', p_blob.digest, 'meta', p_blob.meta,
                            'data', translate(encode(v_data, 'base64'), E'\n', ''));
END $$;

-- Reads one part of a blob.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_claim_id    the claim
--   p_kind        plan (of the claim's provision), state (of its workspace) or upload (which the
--                 snapshot names)
--   p_number      version of the state; 0: the newest. Ignored for other kinds
--   p_part        number of the part, from 1
-- Answers: an object:
--   parts   number of parts; 0: there is no such blob, and nothing else is answered
--   number  version of a state
--   digest  SHA-256 of all bytes, in hexadecimal
--   meta    what was stored with it
--   data    the part in base64
-- Errors: PT401 token_invalid, PT409 claim_lost, PT409 state_missing, PT422 bad_blob, PT503 busy.
-- Locks: claim.
-- Callers: anon, tendril_agent.
CREATE OR REPLACE FUNCTION public.get_blob(p_token_hash text, p_claim_id uuid, p_kind text, p_number bigint, p_part int) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster   public.clusters := tendril.authenticate_for(p_token_hash, p_claim_id);
  v_claim     tendril.claims;
  v_workspace public.workspaces;
  v_blob      tendril.blobs;
  v_upload    text;
BEGIN
  v_claim := tendril.claim_for_blob(v_cluster.id, p_claim_id, p_kind = 'state');
  IF p_kind = 'plan' THEN
    SELECT * INTO v_blob FROM tendril.blobs WHERE provision_id = v_claim.provision_id AND kind = 'plan';
  ELSIF p_kind = 'state' THEN
    SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE id = v_claim.workspace_id;
    SELECT * INTO v_blob FROM tendril.blobs
    WHERE workspace_id = v_workspace.id AND number = coalesce(nullif(p_number, 0), v_workspace.state_version);
    IF coalesce(p_number, 0) = 0 AND v_workspace.state_version IS NOT NULL AND v_blob.complete_at IS NULL THEN
      PERFORM tendril.refuse('PT409', 'state_missing', format('version %s of the state of workspace %s is missing: it was deleted by hand',
        v_workspace.state_version, to_json(v_workspace.name)), 'restore the database from a backup, or store a state with "trellis state push"');
    END IF;
  ELSIF p_kind = 'upload' THEN
    SELECT config_snapshot -> 'state' ->> 'upload' INTO v_upload FROM public.provisions WHERE id = v_claim.provision_id;
    SELECT * INTO v_blob FROM tendril.blobs WHERE id::text = v_upload AND kind = 'upload' AND cluster_id = v_cluster.id AND expires_at > clock_timestamp();
  ELSE
    PERFORM tendril.refuse('PT422', 'bad_blob', 'p_kind: must be plan, state or upload');
  END IF;
  RETURN tendril.part_of(v_blob, p_part);
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Whether the plan with that digest is stored completely.
--
-- Notes: Functions of migration 18 call it as well.
CREATE OR REPLACE FUNCTION tendril.plan_bundle_stored(p_provision uuid, p_digest text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT EXISTS (SELECT FROM tendril.blobs WHERE provision_id = p_provision AND kind = 'plan' AND digest = p_digest AND complete_at IS NOT NULL) $$;

-- Deletes a provision's plan when the provision ends, and an upload when its operation succeeds.
CREATE OR REPLACE FUNCTION tendril.drop_blobs() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  DELETE FROM tendril.blobs WHERE provision_id = NEW.id AND kind = 'plan';
  IF NEW.operation = 'state' AND NEW.status = 'SUCCESS' THEN
    DELETE FROM tendril.blobs
    WHERE id = (NEW.config_snapshot -> 'state' ->> 'upload')::uuid AND kind = 'upload' AND cluster_id = NEW.cluster_id;
  END IF;
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER provisions_drop_blobs AFTER UPDATE OF status ON public.provisions
  FOR EACH ROW WHEN (NEW.status IN ('SUCCESS', 'FAILED', 'CANCELLED'))
  EXECUTE FUNCTION tendril.drop_blobs();

-- Stores one part of an upload for a state operation, sealed to the cluster's key. Each call may be
-- repeated. Needs the role admin.
--
-- Arguments:
--   p_cluster  the cluster
--   p_part     number of this part, from 1
--   p_parts    number of all parts, at most 128
--   p_data     the part in base64, at most 524288 bytes decoded
--   p_upload   new UUID that the caller chooses and the snapshot names (state.upload); without one
--              the first part makes it
-- Answers: the id of the upload.
-- Errors: PT403 token_may_not, PT404 cluster_not_found, PT409 blob_incomplete, PT409 upload_taken,
--   PT413 blob_too_large, PT422 bad_blob, PT429 cluster_blobs_full, PT429 org_blobs_full,
--   PT429 uploads_full, PT503 busy.
-- Locks: none.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.upload_blob(p_cluster uuid, p_part int, p_parts int, p_data text, p_upload uuid DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters;
  v_who     uuid := tendril.current_user_id();
  v_blob    tendril.blobs;
  v_data    bytea;
  v_most    int;
BEGIN
  v_cluster := tendril.cluster_for(p_cluster, 'admin');
  v_data := tendril.blob_part('upload', p_part, p_parts, p_data);
  SELECT * INTO v_blob FROM tendril.blobs WHERE id = p_upload FOR UPDATE;
  IF v_blob.id IS NULL THEN
    IF p_part > 1 THEN
      PERFORM tendril.refuse('PT409', 'blob_incomplete', 'parts before this one are missing', 'send all parts again, from 1');
    END IF;
    PERFORM tendril.expire_blobs();
    PERFORM tendril.check_room(v_cluster, p_parts * tendril.part_bytes()::bigint);
    v_most := (SELECT upload_limit FROM tendril.settings);
    IF (SELECT count(*) FROM tendril.blobs WHERE kind = 'upload' AND cluster_id = p_cluster) >= v_most THEN
      PERFORM tendril.refuse('PT429', 'uploads_full', format('cluster %s has %s waiting uploads, the most allowed (tendril.settings.upload_limit)', to_json(v_cluster.name), v_most),
        'an upload is deleted when its operation succeeds, or after a day (tendril.settings.upload_kept)');
    END IF;
    INSERT INTO tendril.blobs (id, kind, cluster_id, created_by, parts, expires_at)
    VALUES (coalesce(p_upload, gen_random_uuid()), 'upload', p_cluster, v_who, p_parts, clock_timestamp() + (SELECT upload_kept FROM tendril.settings))
    RETURNING * INTO v_blob;
  ELSIF v_blob.kind <> 'upload' OR v_blob.cluster_id <> p_cluster OR v_blob.created_by IS DISTINCT FROM v_who OR v_blob.parts <> p_parts THEN
    PERFORM tendril.refuse('PT409', 'upload_taken', format('the id %s is in use', p_upload), 'choose a new UUID');
  ELSIF v_blob.complete_at IS NOT NULL THEN
    RETURN v_blob.id; -- a repeat after a lost reply
  END IF;
  IF tendril.add_part(v_blob.id, p_part, p_parts, v_data) THEN
    UPDATE tendril.blobs SET digest = encode(sha256((SELECT string_agg(data, '' ORDER BY part) FROM tendril.blob_parts WHERE blob_id = v_blob.id)), 'hex')
    WHERE id = v_blob.id RETURNING * INTO v_blob;
    PERFORM tendril.audit(v_cluster.org_id, 'upload_blob', 'cluster', p_cluster,
      jsonb_build_object('upload', v_blob.id, 'digest', v_blob.digest, 'bytes', v_blob.bytes));
  END IF;
  RETURN v_blob.id;
EXCEPTION
  WHEN lock_not_available OR unique_violation THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Reads one part of the result of a state operation, which is sealed to the key that the snapshot
-- names (requester_key). Needs the role operator for one's own, admin for another person's.
--
-- Arguments:
--   p_provision  the provision
--   p_part       number of the part, from 1
-- Answers: an object:
--   parts   number of parts
--   number  always 0
--   digest  SHA-256 of all bytes, in hexadecimal
--   meta    what the agent stored with it
--   data    the part in base64
-- Errors: PT403 not_yours, PT403 token_may_not, PT404 provision_not_found, PT404 result_not_found,
--   PT422 bad_blob, PT503 busy.
-- Locks: workspace, provision.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.fetch_result(p_provision uuid, p_part int DEFAULT 1) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_provision public.provisions;
  v_blob      tendril.blobs;
BEGIN
  v_provision := tendril.lock_provision_for(p_provision, 'operator');
  IF v_provision.requested_by IS DISTINCT FROM tendril.current_user_id() AND NOT tendril.may_act(v_provision.org_id, 'admin') THEN
    PERFORM tendril.refuse('PT403', 'not_yours', format('only its requester and admins may read the result of run %s', v_provision.number), 'request the operation yourself');
  END IF;
  SELECT * INTO v_blob FROM tendril.blobs
  WHERE provision_id = p_provision AND kind = 'result' AND complete_at IS NOT NULL AND expires_at > clock_timestamp();
  IF v_blob.id IS NULL THEN
    PERFORM tendril.refuse('PT404', 'result_not_found', format('run %s has no result, or it has expired', v_provision.number),
      'results are kept for some days; run the operation again');
  END IF;
  IF coalesce(p_part, 1) = 1 THEN
    PERFORM tendril.audit(v_provision.org_id, 'fetch_result', 'provision', p_provision, jsonb_build_object('digest', v_blob.digest));
  END IF;
  RETURN tendril.part_of(v_blob, coalesce(p_part, 1));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Lists the stored states of a workspace, the newest first. Needs the role viewer.
--
-- Arguments:
--   p_workspace  the workspace
-- Answers: a row for each:
--   version       number of the state
--   serial        Terraform's serial of it
--   bytes         its size
--   stored_at     when it was stored
--   provision_id  the provision that wrote it
-- Errors: PT404 workspace_not_found, PT503 busy.
-- Locks: none.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.state_versions(p_workspace uuid)
RETURNS TABLE (version bigint, serial bigint, bytes bigint, stored_at timestamptz, provision_id uuid)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_org uuid;
BEGIN
  SELECT w.org_id INTO v_org FROM public.workspaces w WHERE w.id = p_workspace; -- here, for EXCEPTION does not cover DECLARE
  -- In this order, so that both answers take the same time.
  IF NOT tendril.has_role(v_org, 'viewer') OR v_org IS NULL THEN
    PERFORM tendril.refuse('PT404', 'workspace_not_found', format('workspace %s not found, or you have no access to it', p_workspace));
  END IF;
  RETURN QUERY SELECT b.number, (b.meta ->> 'serial')::bigint, b.bytes, b.complete_at, b.made_for
    FROM tendril.blobs b WHERE b.workspace_id = p_workspace AND b.complete_at IS NOT NULL ORDER BY b.number DESC;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
