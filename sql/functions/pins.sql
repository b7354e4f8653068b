-- Pins: the commit that a template's tag means. A tag that moves to another commit is refused.
--
-- template_pins holds for a whole organisation: the control plane has read the commit from the
-- repository, or an admin has decided it. An agent's report pins for its own cluster only
-- (cluster_pins), so the holder of a leaked token cannot choose what another cluster runs.

-- The commit that a version means for a run on a cluster; null: neither the organisation nor the
-- cluster has used it.
CREATE OR REPLACE FUNCTION tendril.pinned_commit(p_org uuid, p_cluster uuid, p_repo text, p_version text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce(
    (SELECT t.commit FROM public.template_pins t WHERE t.org_id = p_org AND t.repo = p_repo AND t.version = p_version),
    (SELECT c.commit FROM public.cluster_pins c WHERE c.cluster_id = p_cluster AND c.repo = p_repo AND c.version = p_version));
END $$;

-- Checks the commit that an agent has checked out against the pins of the organisation and the
-- cluster, and pins it for the cluster where there is none.
--
-- Errors: PT409 commit_differs, PT409 tag_moved, PT429 too_many_pins.
CREATE OR REPLACE FUNCTION tendril.pin_for_cluster(p_org uuid, p_cluster uuid, p_repo text, p_version text, p_commit text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_pinned text;
  v_most   int;
BEGIN
  IF p_version ~ '^[0-9a-f]{40}$' AND p_version <> p_commit THEN
    PERFORM tendril.refuse('PT409', 'commit_differs', format('commit %s of %s was requested, and %s is checked out', p_version, p_repo, p_commit),
      'deploy the right commit');
  END IF;
  SELECT t.commit INTO v_pinned FROM public.template_pins t WHERE t.org_id = p_org AND t.repo = p_repo AND t.version = p_version;
  IF v_pinned <> p_commit THEN
    PERFORM tendril.refuse('PT409', 'tag_moved', format('%s of %s is pinned to %s for this organisation and is %s now', p_version, p_repo, v_pinned, p_commit),
      'give the new commit a new tag, or deploy the full commit');
  END IF;
  IF NOT EXISTS (SELECT FROM public.cluster_pins c WHERE c.cluster_id = p_cluster AND c.repo = p_repo AND c.version = p_version) THEN
    v_most := (SELECT pin_limit FROM tendril.settings);
    IF EXISTS (SELECT FROM public.cluster_pins c WHERE c.cluster_id = p_cluster OFFSET v_most - 1) THEN
      PERFORM tendril.refuse('PT429', 'too_many_pins', format('this cluster has pinned %s tags and commits, the most allowed (tendril.settings.pin_limit)', v_most),
        'raise the setting, or let pins of commits expire sooner (pin_delete_after)');
    END IF;
  END IF;
  INSERT INTO public.cluster_pins (cluster_id, repo, version, commit, org_id) VALUES (p_cluster, p_repo, p_version, p_commit, p_org)
  ON CONFLICT (cluster_id, repo, version) DO NOTHING;
  SELECT c.commit INTO STRICT v_pinned FROM public.cluster_pins c WHERE c.cluster_id = p_cluster AND c.repo = p_repo AND c.version = p_version;
  IF v_pinned <> p_commit THEN
    PERFORM tendril.refuse('PT409', 'tag_moved',
      format('%s of %s was %s when this cluster first used it and is %s now', p_version, p_repo, v_pinned, p_commit),
      'give the new commit a new tag, or deploy the full commit; an admin who has inspected it may pin it (trellis templates pin)');
  END IF;
END $$;

-- Pins a version for an organisation to the commit that the control plane has read from the
-- repository. Answers null, or, for people, why the version cannot mean that commit.
CREATE OR REPLACE FUNCTION tendril.pin_inspected(p_org uuid, p_repo text, p_version text, p_commit text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_pinned  text;
  v_cluster record;
BEGIN
  SELECT t.commit INTO v_pinned FROM public.template_pins t WHERE t.org_id = p_org AND t.repo = p_repo AND t.version = p_version;
  IF v_pinned IS NULL THEN
    SELECT c.commit, k.name INTO v_cluster FROM public.clusters k JOIN public.cluster_pins c ON c.cluster_id = k.id
    WHERE k.org_id = p_org AND c.repo = p_repo AND c.version = p_version AND c.commit <> p_commit LIMIT 1;
    IF FOUND THEN
      RETURN format('%s of %s was %s when cluster %s first used it and is %s now. Give the new commit a new tag, deploy the full commit, or ask an admin to pin the right one: trellis templates pin.',
        p_version, p_repo, v_cluster.commit, to_json(v_cluster.name), p_commit);
    END IF;
    INSERT INTO public.template_pins (org_id, repo, version, commit, pinned_by) VALUES (p_org, p_repo, p_version, p_commit, 'inspection')
    ON CONFLICT (org_id, repo, version) DO NOTHING;
    SELECT t.commit INTO STRICT v_pinned FROM public.template_pins t WHERE t.org_id = p_org AND t.repo = p_repo AND t.version = p_version;
  END IF;
  IF v_pinned <> p_commit THEN
    RETURN format('%s of %s is pinned to %s and is %s now. Give the new commit a new tag, or deploy the full commit.', p_version, p_repo, v_pinned, p_commit);
  END IF;
  RETURN NULL;
END $$;

-- Decides which commit a tag means for a whole organisation, whatever was pinned before. Clusters'
-- pins to another commit are removed. Needs the role admin.
--
-- Arguments:
--   p_org      the organisation
--   p_repo     address of the repository
--   p_version  the tag
--   p_commit   the commit, 40 hexadecimal digits in lower case
--   p_reason   for the audit, 1 to 500 characters
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 org_not_found, PT422 bad_reason, PT422 bad_template,
--   PT503 busy.
-- Locks: org.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.pin_template(p_org uuid, p_repo text, p_version text, p_commit text, p_reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  c_reason CONSTANT int := 500; -- characters
  v_repo text;
  v_was  text;
  v_gone jsonb;
BEGIN
  PERFORM tendril.lock_org_for_admin(p_org);
  PERFORM tendril.check_source(p_repo, p_version, '');
  IF coalesce(p_commit !~ '^[0-9a-f]{40}$', true) THEN
    PERFORM tendril.refuse('PT422', 'bad_template', 'p_commit: must be a full commit, 40 hexadecimal digits in lower case');
  ELSIF p_version ~ '^[0-9a-f]{40}$' THEN
    PERFORM tendril.refuse('PT422', 'bad_template', 'p_version: must be a tag; a commit needs no pin');
  ELSIF length(coalesce(btrim(p_reason), '')) NOT BETWEEN 1 AND c_reason THEN
    PERFORM tendril.refuse('PT422', 'bad_reason', format('p_reason: must have 1 to %s characters', c_reason));
  END IF;
  v_repo := tendril.plain_repo(p_repo);
  SELECT t.commit INTO v_was FROM public.template_pins t WHERE t.org_id = p_org AND t.repo = v_repo AND t.version = p_version;
  INSERT INTO public.template_pins AS t (org_id, repo, version, commit, pinned_by) VALUES (p_org, v_repo, p_version, p_commit, 'admin')
  ON CONFLICT (org_id, repo, version) DO UPDATE SET commit = EXCLUDED.commit, pinned_by = EXCLUDED.pinned_by;
  WITH gone AS (
    DELETE FROM public.cluster_pins c USING public.clusters k
    WHERE k.org_id = p_org AND c.cluster_id = k.id AND c.repo = v_repo AND c.version = p_version AND c.commit <> p_commit
    RETURNING k.name, c.commit)
  SELECT coalesce(jsonb_object_agg(g.name, g.commit), '{}') INTO v_gone FROM gone g;
  PERFORM tendril.audit(p_org, 'pin_template', 'template', NULL,
    jsonb_build_object('repo', v_repo, 'version', p_version, 'commit', p_commit, 'was', v_was, 'clusters', v_gone, 'reason', p_reason));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
