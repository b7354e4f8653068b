-- Plan bundles, states, uploads and results, in parts.

-- How many parts of 512 KiB a blob may have: a plan 8 MiB, a state 256 MiB and what sealing
-- adds, the rest 64 MiB.
CREATE OR REPLACE FUNCTION tendril.most_parts(p_kind text) RETURNS int
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE p_kind WHEN 'plan' THEN 16 WHEN 'state' THEN 513 ELSE 128 END $$;

-- A part as it was sent.
CREATE OR REPLACE FUNCTION tendril.blob_part(p_kind text, p_part int, p_parts int, p_data text) RETURNS bytea
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_most int := tendril.most_parts(p_kind);
  v_data bytea;
BEGIN
  IF p_parts > v_most OR length(p_data) > 700000 THEN
    PERFORM tendril.refuse('PT413', 'blob_too_large', format('this %s is larger than the %s MiB allowed, in parts of 512 KiB', p_kind, v_most / 2));
  ELSIF p_part IS NULL OR p_parts IS NULL OR p_part NOT BETWEEN 1 AND p_parts THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', 'p_part: a number from 1 to p_parts is needed');
  END IF;
  v_data := decode(p_data, 'base64');
  IF v_data IS NULL OR octet_length(v_data) = 0 THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', 'p_data: missing');
  ELSIF octet_length(v_data) > 524288 THEN
    PERFORM tendril.refuse('PT413', 'blob_too_large', format('p_data: a part of %s bytes, more than the 524288 allowed', octet_length(v_data)));
  END IF;
  RETURN v_data;
EXCEPTION
  WHEN data_exception THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', 'p_data: no base64');
END $$;

-- Adds a part to a blob that is not complete. True: it is the last that was missing.
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
    PERFORM tendril.refuse('PT409', 'blob_incomplete', 'parts before the last one are missing', 'send all of them again, from 1 on');
  END IF;
  UPDATE tendril.blobs SET bytes = (SELECT sum(octet_length(data)) FROM tendril.blob_parts WHERE blob_id = p_blob), complete_at = clock_timestamp()
  WHERE id = p_blob;
  RETURN true;
END $$;

-- Removes what nobody has come for, the oldest first, about 64 MiB at a time: who puts
-- something waits for it, and has few seconds. Also run by timers.
CREATE OR REPLACE FUNCTION tendril.expire_blobs() RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_gone int;
BEGIN
  DELETE FROM tendril.blobs WHERE id IN (
    SELECT id FROM tendril.blobs WHERE id IN (
      SELECT o.id FROM (
        SELECT e.id, sum(e.parts) OVER (ORDER BY e.expires_at, e.id) - e.parts AS before FROM (
          SELECT id, parts, expires_at FROM tendril.blobs WHERE expires_at < clock_timestamp() ORDER BY expires_at LIMIT 20) e) o
      WHERE o.before < 128)
    FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS v_gone = ROW_COUNT;
  RETURN v_gone;
END $$;

-- The claim under which an agent puts or gets something, locked. One that was lost and still
-- holds its workspace may store the state that its run writes.
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
    PERFORM tendril.claim_lost(p_claim, 'is not known here');
  ELSIF v_claim.state = 'ended' THEN
    PERFORM tendril.claim_lost(p_claim, 'has ended');
  ELSIF v_claim.state = 'lost'
        AND NOT (p_also_held AND EXISTS (SELECT FROM public.workspaces WHERE id = v_claim.workspace_id AND held_by_claim = p_claim)) THEN
    PERFORM tendril.claim_lost(p_claim, 'has lost its lease');
  END IF;
  RETURN v_claim;
END $$;

-- Stores part p_part of p_parts of a blob; the last one makes it count. Each call
-- may be repeated. p_kind is
--   plan    the plan bundle that a person is to approve; p_digest is what they approve
--   state   version p_number of the workspace's state; p_meta has its serial
--   result  what a state operation has read, for who asked for it
-- and p_digest, but for a plan, SHA-256 of all bytes. PT413 blob_too_large: this one is, for its
-- kind. PT429 cluster_blobs_full, org_blobs_full: too much is stored already.
--
-- Locks: workspace, claim.
CREATE OR REPLACE FUNCTION public.put_blob(p_token_hash text, p_claim_id uuid, p_kind text, p_number bigint, p_part int, p_parts int,
                                p_digest text, p_meta jsonb, p_data text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster   public.clusters := tendril.authenticate(p_token_hash);
  v_meta      jsonb := coalesce(p_meta, '{}');
  v_settings  tendril.settings;
  v_workspace public.workspaces;
  v_claim     tendril.claims;
  v_blob      tendril.blobs;
  v_data      bytea;
  -- Versions that a run wrote while the database was away are not all sent, and a database
  -- that was restored is behind; more than that would use the numbers up.
  c_ahead CONSTANT bigint := 10000;
BEGIN
  IF p_kind IS NULL OR p_kind NOT IN ('plan', 'state', 'result') THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', 'p_kind: plan, state or result');
  ELSIF coalesce(p_digest !~ '^[0-9a-f]{64}$', true) THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', 'p_digest: SHA-256 in hexadecimal is needed');
  ELSIF jsonb_typeof(v_meta) <> 'object' OR tendril.has_vast_number(v_meta) OR octet_length(v_meta::text) > 4096 THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', 'p_meta: an object of at most 4096 bytes');
  ELSIF p_kind = 'state' AND (coalesce(p_number, 0) NOT BETWEEN 1 AND 9007199254740991 OR coalesce(v_meta ->> 'serial', '') !~ '^[0-9]{1,18}$') THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', 'a state needs p_number, from 1, and serial in p_meta');
  END IF;
  v_data := tendril.blob_part(p_kind, p_part, p_parts, p_data);
  IF p_parts = 1 AND p_kind <> 'plan' AND encode(sha256(v_data), 'hex') <> p_digest THEN
    PERFORM tendril.refuse('PT422', 'bad_blob', 'p_digest: it is not that of p_data');
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
      PERFORM tendril.refuse('PT409', 'state_moved', format('version %s of the state of workspace %s cannot be stored: %s is there already',
        p_number, to_json(v_workspace.name), v_workspace.state_version));
    ELSIF p_number > coalesce(v_workspace.state_version, 0) + c_ahead THEN
      PERFORM tendril.refuse('PT422', 'bad_blob', format('p_number: version %s of the state of workspace %s cannot follow version %s',
        p_number, to_json(v_workspace.name), coalesce(v_workspace.state_version, 0)), format('number states one after the other; a gap may have %s at most', c_ahead));
    END IF;
  ELSE
    SELECT * INTO v_blob FROM tendril.blobs WHERE provision_id = v_claim.provision_id AND kind = p_kind FOR UPDATE;
    IF v_blob.complete_at IS NOT NULL AND v_blob.digest = p_digest AND v_blob.claim_id = p_claim_id THEN
      RETURN; -- likewise
    ELSIF p_kind = 'plan' AND (SELECT approved_plan FROM public.provisions WHERE id = v_claim.provision_id) IS NOT NULL THEN
      PERFORM tendril.refuse('PT409', 'plan_approved', 'a plan is approved for this provision: there cannot be another one');
    END IF;
  END IF;

  IF v_blob.id IS NOT NULL AND (v_blob.complete_at IS NOT NULL OR v_blob.claim_id <> p_claim_id OR v_blob.digest <> p_digest OR v_blob.parts <> p_parts) THEN
    DELETE FROM tendril.blobs WHERE id = v_blob.id; -- another one takes its place
    v_blob.id := NULL;
  END IF;
  IF v_blob.id IS NULL THEN
    IF p_part > 1 THEN
      PERFORM tendril.refuse('PT409', 'blob_incomplete', 'parts before this one are missing', 'send all of them again, from 1 on');
    END IF;
    PERFORM tendril.expire_blobs();
    PERFORM tendril.check_room(v_cluster, p_parts * 524288::bigint);
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

-- A part of a blob as functions answer it: parts is 0 where there is none.
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

-- Answers a part of a blob that the claim may read: the plan of its provision, the workspace's
-- state (p_number 0: the newest), and the upload that its snapshot names.
--
-- Locks: claim.
CREATE OR REPLACE FUNCTION public.get_blob(p_token_hash text, p_claim_id uuid, p_kind text, p_number bigint, p_part int) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster   public.clusters := tendril.authenticate(p_token_hash);
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
      PERFORM tendril.refuse('PT409', 'state_missing', format('version %s of the state of workspace %s is not there any more: somebody has removed it by hand',
        v_workspace.state_version, to_json(v_workspace.name)), 'restore the database from a backup, or bring a state in with "trellis state push"');
    END IF;
  ELSIF p_kind = 'upload' THEN
    SELECT config_snapshot -> 'state' ->> 'upload' INTO v_upload FROM public.provisions WHERE id = v_claim.provision_id;
    SELECT * INTO v_blob FROM tendril.blobs WHERE id::text = v_upload AND kind = 'upload' AND cluster_id = v_cluster.id AND expires_at > clock_timestamp();
  ELSE
    PERFORM tendril.refuse('PT422', 'bad_blob', 'p_kind: plan, state or upload');
  END IF;
  RETURN tendril.part_of(v_blob, p_part);
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Whether the plan of that digest is here to be approved. Asked by functions of migration 18.
CREATE OR REPLACE FUNCTION tendril.plan_bundle_stored(p_provision uuid, p_digest text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT EXISTS (SELECT FROM tendril.blobs WHERE provision_id = p_provision AND kind = 'plan' AND digest = p_digest AND complete_at IS NOT NULL) $$;

-- A plan goes with the end of its provision, whatever brought that about, and also where it
-- was stored and its run did not come to tell of it. An upload goes once it was taken.
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

-- Brings what a state operation is to take, sealed to the cluster's key (admin). p_upload is
-- the caller's choice, a new UUID, for the snapshot to name (state.upload); without one it is
-- made by the first part and returned.
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
      PERFORM tendril.refuse('PT409', 'blob_incomplete', 'parts before this one are missing', 'send all of them again, from 1 on');
    END IF;
    PERFORM tendril.expire_blobs();
    PERFORM tendril.check_room(v_cluster, p_parts * 524288::bigint);
    v_most := (SELECT upload_limit FROM tendril.settings);
    IF (SELECT count(*) FROM tendril.blobs WHERE kind = 'upload' AND cluster_id = p_cluster) >= v_most THEN
      PERFORM tendril.refuse('PT429', 'uploads_full', format('%s uploads wait on cluster %s for the operation that takes them, which is the most', v_most, to_json(v_cluster.name)),
        'an upload goes when its operation has succeeded, else a day after it was brought');
    END IF;
    INSERT INTO tendril.blobs (id, kind, cluster_id, created_by, parts, expires_at)
    VALUES (coalesce(p_upload, gen_random_uuid()), 'upload', p_cluster, v_who, p_parts, clock_timestamp() + (SELECT upload_kept FROM tendril.settings))
    RETURNING * INTO v_blob;
  ELSIF v_blob.kind <> 'upload' OR v_blob.cluster_id <> p_cluster OR v_blob.created_by IS DISTINCT FROM v_who OR v_blob.parts <> p_parts THEN
    PERFORM tendril.refuse('PT409', 'upload_taken', format('the id %s is taken', p_upload), 'choose a new UUID');
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

-- Answers a part of what a state operation has read (operator, but what others have asked for
-- is for an admin): parts, digest, meta and data in base64, which is sealed to the key that
-- the snapshot names (requester_key).
--
-- Locks: workspace, provision.
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
    PERFORM tendril.refuse('PT403', 'not_yours', format('what provision %s has read is for who asked for it, and for admins', v_provision.number), 'ask for it yourself');
  END IF;
  SELECT * INTO v_blob FROM tendril.blobs
  WHERE provision_id = p_provision AND kind = 'result' AND complete_at IS NOT NULL AND expires_at > clock_timestamp();
  IF v_blob.id IS NULL THEN
    PERFORM tendril.refuse('PT404', 'result_not_found', format('provision %s has left no result, or it is gone', v_provision.number),
      'a result is kept for some days; ask for it again');
  END IF;
  IF coalesce(p_part, 1) = 1 THEN
    PERFORM tendril.audit(v_provision.org_id, 'fetch_result', 'provision', p_provision, jsonb_build_object('digest', v_blob.digest));
  END IF;
  RETURN tendril.part_of(v_blob, coalesce(p_part, 1));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- The states of a workspace that are kept, the newest first (viewer).
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
  IF NOT tendril.may_act(v_org, 'viewer') OR v_org IS NULL THEN
    PERFORM tendril.refuse('PT404', 'workspace_not_found', format('there is no workspace %s where you are viewer', p_workspace));
  END IF;
  RETURN QUERY SELECT b.number, (b.meta ->> 'serial')::bigint, b.bytes, b.complete_at, b.made_for
    FROM tendril.blobs b WHERE b.workspace_id = p_workspace AND b.complete_at IS NOT NULL ORDER BY b.number DESC;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
