-- What people may call, by their role in the organisation. Each is audited.

-- +goose Up

-- A new agent token: 32 random bytes, shown once by whoever calls this. The
-- server makes it, so that it appears in no statement.
-- +goose StatementBegin
CREATE FUNCTION tendril.issue_token(p_cluster uuid, OUT token_id uuid, OUT token text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  -- Three version-4 UUIDs carry 366 random bits from the server's strong source.
  token := 'tnd_' || rtrim(translate(encode(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), 'base64'), '+/', '-_'), '=');
  INSERT INTO tendril.cluster_tokens (cluster_id, digest, created_by)
  VALUES (p_cluster, sha256(sha256(convert_to(token, 'UTF8'))), tendril.current_user_id())
  RETURNING id INTO token_id;
END $$;
-- +goose StatementEnd

-- The cluster, if the caller has the role there. One answer for "there is none"
-- and "not yours".
-- +goose StatementBegin
CREATE FUNCTION tendril.cluster_for(p_cluster uuid, p_least text) RETURNS public.clusters
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_cluster public.clusters;
BEGIN
  SELECT * INTO v_cluster FROM public.clusters WHERE id = p_cluster;
  IF v_cluster.id IS NULL OR NOT tendril.may_act(v_cluster.org_id, p_least) THEN
    PERFORM tendril.refuse('PT404', 'cluster_not_found', format('there is no cluster %s where you are %s', p_cluster, p_least));
  END IF;
  RETURN v_cluster;
END $$;
-- +goose StatementEnd

-- Makes a cluster and its first token (admin). Without p_org: the one
-- organisation in which the caller is admin.
-- +goose StatementBegin
CREATE FUNCTION public.create_cluster(p_name text, p_org uuid DEFAULT NULL, p_labels jsonb DEFAULT '{}', p_age_public_key text DEFAULT NULL)
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
      v_orgs := tendril.orgs_with_role('admin');
    ELSE
      v_orgs := ARRAY(SELECT id FROM public.orgs);
    END IF;
    IF cardinality(v_orgs) <> 1 THEN
      PERFORM tendril.refuse('PT422', 'org_missing', format('p_org: say which organisation; you are admin of %s', cardinality(v_orgs)));
    END IF;
    p_org := v_orgs[1];
  ELSIF NOT tendril.may_act(p_org, 'admin') OR NOT EXISTS (SELECT FROM public.orgs WHERE id = p_org) THEN
    PERFORM tendril.refuse('PT404', 'org_not_found', format('there is no organisation %s where you are admin', p_org));
  END IF;

  INSERT INTO public.clusters (org_id, name, labels, age_public_key, created_by)
  VALUES (p_org, p_name, coalesce(p_labels, '{}'), p_age_public_key, tendril.current_user_id())
  RETURNING id INTO v_cluster;
  PERFORM tendril.audit(p_org, 'create_cluster', 'cluster', v_cluster, jsonb_build_object('name', p_name));
  RETURN QUERY SELECT v_cluster, t.token_id, t.token FROM tendril.issue_token(v_cluster) t;
EXCEPTION
  WHEN unique_violation THEN
    PERFORM tendril.refuse('PT409', 'cluster_exists', format('there is a cluster named %s already', to_json(p_name)), 'choose another name');
  WHEN check_violation OR not_null_violation THEN
    PERFORM tendril.refuse('PT422', 'bad_cluster', 'p_name: 1 to 63 letters, digits and . _ - are needed; p_labels must be an object');
END $$;
-- +goose StatementEnd

-- A new token for a cluster (admin). The ones before it stay valid for
-- p_overlap, so that agents can be given the new one without a gap.
-- +goose StatementBegin
CREATE FUNCTION public.rotate_cluster_token(p_cluster uuid, p_overlap interval DEFAULT '24 hours')
RETURNS TABLE (token_id uuid, token text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_cluster public.clusters := tendril.cluster_for(p_cluster, 'admin');
BEGIN
  IF p_overlap IS NULL OR p_overlap < interval '0' OR p_overlap > interval '30 days' THEN
    PERFORM tendril.refuse('PT422', 'bad_overlap', 'p_overlap: from 0 to 30 days');
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
-- +goose StatementEnd

-- Ends one token at once, or all of the cluster's when p_token_id is null
-- (admin). Returns how many ended.
-- +goose StatementBegin
CREATE FUNCTION public.revoke_cluster_token(p_cluster uuid, p_token_id uuid DEFAULT NULL) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters := tendril.cluster_for(p_cluster, 'admin');
  v_count   int;
BEGIN
  UPDATE tendril.cluster_tokens SET revoked_at = clock_timestamp()
  WHERE cluster_id = p_cluster AND revoked_at IS NULL AND (p_token_id IS NULL OR id = p_token_id);
  GET DIAGNOSTICS v_count = ROW_COUNT;
  PERFORM tendril.audit(v_cluster.org_id, 'revoke_cluster_token', 'cluster', p_cluster, jsonb_build_object('token_id', p_token_id, 'revoked', v_count));
  RETURN v_count;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Cancels what is queued or awaits approval; asks the agent to stop what runs
-- (operator). Returns the status now: CANCELLED, or PROCESSING with the request
-- noted, or FAILED for a lost run that still holds its workspace. A success
-- reported first wins.
-- +goose StatementBegin
CREATE FUNCTION public.cancel_provision(p_provision uuid) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_provision public.provisions;
  v_claim     tendril.claims;
  v_who       uuid := tendril.current_user_id();
BEGIN
  SELECT * INTO v_provision FROM public.provisions WHERE id = p_provision;
  IF v_provision.id IS NULL OR NOT tendril.may_act(v_provision.org_id, 'operator') THEN
    PERFORM tendril.refuse('PT404', 'provision_not_found', format('there is no provision %s that you may cancel', p_provision));
  END IF;

  PERFORM FROM public.workspaces WHERE id = v_provision.workspace_id FOR NO KEY UPDATE;
  SELECT * INTO v_claim FROM tendril.claims WHERE provision_id = p_provision AND state <> 'ended' ORDER BY number DESC LIMIT 1 FOR NO KEY UPDATE;
  SELECT * INTO STRICT v_provision FROM public.provisions WHERE id = p_provision FOR NO KEY UPDATE;

  IF v_provision.status = 'CANCELLED' THEN
    RETURN 'CANCELLED'; -- a repeat after a lost reply
  ELSIF v_provision.status IN ('QUEUED', 'AWAITING_APPROVAL') THEN
    UPDATE public.provisions SET cancel_requested_at = clock_timestamp(), cancel_requested_by = v_who WHERE id = p_provision;
    PERFORM tendril.system_line(p_provision, CASE v_provision.status WHEN 'QUEUED' THEN 'Cancelled before it began.' ELSE 'Cancelled while it awaited approval.' END);
    PERFORM tendril.end_provision(p_provision, 'CANCELLED', 'cancelled', 'Cancelled before apply had begun.');
    UPDATE public.workspaces SET reserved_by = NULL WHERE id = v_provision.workspace_id AND reserved_by = p_provision;
    PERFORM tendril.refresh_head(v_provision.workspace_id);
    PERFORM tendril.wake(v_provision.workspace_id); -- who passed over it while we held the lock
  ELSIF v_claim.id IS NOT NULL AND (v_provision.status = 'PROCESSING'
        OR EXISTS (SELECT FROM public.workspaces WHERE id = v_provision.workspace_id AND held_by_claim = v_claim.id)) THEN
    IF v_claim.cancel_requested_at IS NULL THEN
      UPDATE tendril.claims SET cancel_requested_at = clock_timestamp() WHERE id = v_claim.id;
      UPDATE public.provisions SET cancel_requested_at = clock_timestamp(), cancel_requested_by = v_who WHERE id = p_provision;
      PERFORM tendril.system_line(p_provision, 'Cancel requested.');
    END IF;
    PERFORM pg_notify('tendril_attention', v_provision.cluster_id::text);
  ELSE
    PERFORM tendril.refuse('PT409', 'already_ended', format('provision %s is %s already', v_provision.number, v_provision.status));
  END IF;
  PERFORM tendril.audit(v_provision.org_id, 'cancel_provision', 'provision', p_provision, jsonb_build_object('was', v_provision.status));
  RETURN (SELECT status FROM public.provisions WHERE id = p_provision);
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- ONLINE, STALE or OFFLINE is computed from when an agent was last heard of.
CREATE VIEW public.cluster_overview WITH (security_invoker = true) AS
SELECT c.id, c.org_id, c.name, c.labels, c.paused_at, c.last_seen_at, c.created_at,
       CASE WHEN c.last_seen_at > now() - interval '45 seconds' THEN 'ONLINE'
            WHEN c.last_seen_at > now() - interval '5 minutes'  THEN 'STALE'
            ELSE 'OFFLINE' END AS connectivity
FROM public.clusters c;

SELECT tendril.deny_all(ARRAY['cluster_overview', 'create_cluster', 'rotate_cluster_token', 'revoke_cluster_token', 'cancel_provision']);
