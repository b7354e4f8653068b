-- Upgrades: brings rows of earlier releases to what today's functions expect. It runs after the files
-- before it in the alphabet, whenever its text has changed, and a second run changes nothing.

-- Brings rows of earlier releases to the canonical form. Where two rows become one both pins are
-- audited, and where two workspaces want one name the second one gets a number.
--
-- Locks: workspace, provision.
CREATE OR REPLACE FUNCTION tendril.use_canonical_forms() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_row  record;
  v_name text;
  v_n    int;
BEGIN
  -- Before there were canonical forms, empty segments were accepted in a template's address.
  UPDATE public.templates t SET repo = f.usual
  FROM (SELECT id, substring((tendril.canonical_repo(repo)).p_problem FROM '^has an empty or "\." segment in its path; write (.*)$') AS usual
        FROM public.templates) f
  WHERE f.id = t.id AND f.usual IS NOT NULL;

  FOR v_row IN
    SELECT p.ctid AS id, p.org_id, p.repo, p.version, p.commit, p.first_used_at, tendril.plain_repo(p.repo) AS plain
    FROM public.template_pins p WHERE tendril.plain_repo(p.repo) <> p.repo ORDER BY p.first_used_at, p.repo FOR UPDATE
  LOOP
    BEGIN
      UPDATE public.template_pins SET repo = v_row.plain WHERE ctid = v_row.id;
    EXCEPTION WHEN unique_violation THEN
      -- The commit that was used first counts.
      INSERT INTO public.audit_events (org_id, actor, action, object, object_id, detail)
      SELECT v_row.org_id, NULL, 'merge_pins', 'template', NULL, jsonb_build_object('repo', v_row.plain, 'version', v_row.version,
        'pins', jsonb_build_array(jsonb_build_object('repo', p.repo, 'commit', p.commit, 'first_used_at', p.first_used_at),
                                  jsonb_build_object('repo', v_row.repo, 'commit', v_row.commit, 'first_used_at', v_row.first_used_at)))
      FROM public.template_pins p WHERE p.org_id = v_row.org_id AND p.repo = v_row.plain AND p.version = v_row.version;
      UPDATE public.template_pins p SET commit = v_row.commit, first_used_at = v_row.first_used_at
      WHERE p.org_id = v_row.org_id AND p.repo = v_row.plain AND p.version = v_row.version AND p.first_used_at > v_row.first_used_at;
      DELETE FROM public.template_pins WHERE ctid = v_row.id;
    END;
  END LOOP;

  -- What a template declares, and its tags, are read again when somebody asks: the newest stays.
  DELETE FROM public.template_inspections i USING public.template_inspections o
  WHERE (o.org_id, tendril.plain_repo(o.repo), o.version, tendril.plain_path(o.path)) = (i.org_id, tendril.plain_repo(i.repo), i.version, tendril.plain_path(i.path))
    AND (o.variables IS NOT NULL, o.requested_at, o.repo, o.path) > (i.variables IS NOT NULL, i.requested_at, i.repo, i.path)
    AND (i.repo, i.path) IS DISTINCT FROM (o.repo, o.path);
  UPDATE public.template_inspections SET repo = tendril.plain_repo(repo), path = tendril.plain_path(path)
  WHERE (repo, path) <> (tendril.plain_repo(repo), tendril.plain_path(path));
  DELETE FROM public.template_tags i USING public.template_tags o
  WHERE o.org_id = i.org_id AND tendril.plain_repo(o.repo) = tendril.plain_repo(i.repo) AND (o.listed_at, o.repo) > (i.listed_at, i.repo);
  UPDATE public.template_tags SET repo = tendril.plain_repo(repo) WHERE repo <> tendril.plain_repo(repo);

  UPDATE public.workspaces SET repo = tendril.plain_repo(repo), path = tendril.plain_path(path)
  WHERE (repo, path) <> (tendril.plain_repo(repo), tendril.plain_path(path));

  FOR v_row IN
    SELECT w.id, w.org_id, w.cluster_id, w.name, regexp_replace(w.name, '(/\.?)+(?=/|$)', '', 'g') AS plain
    FROM public.workspaces w WHERE w.name ~ '/\.?(/|$)' AND NOT w.hidden ORDER BY w.created_at, w.id FOR UPDATE
  LOOP
    v_n := 1;
    v_name := v_row.plain;
    WHILE EXISTS (SELECT FROM public.workspaces o WHERE o.cluster_id = v_row.cluster_id AND o.name = v_name) LOOP
      v_n := v_n + 1;
      v_name := left(v_row.plain, 120) || '-' || v_n;
    END LOOP;
    UPDATE public.workspaces SET name = v_name WHERE id = v_row.id;
    -- What is not over yet goes on under the new name.
    UPDATE public.provisions SET config_snapshot = jsonb_set(config_snapshot, '{workspace}', to_jsonb(v_name))
    WHERE workspace_id = v_row.id AND status IN ('QUEUED', 'PROCESSING', 'AWAITING_APPROVAL', 'AWAITING_INPUT');
    UPDATE public.webhooks SET workspace = v_name WHERE org_id = v_row.org_id AND workspace = v_row.name;
    INSERT INTO public.audit_events (org_id, actor, action, object, object_id, detail)
    VALUES (v_row.org_id, NULL, 'rename_workspace', 'workspace', v_row.id, jsonb_build_object('was', v_row.name, 'name', v_name,
      'reason', 'a workspace has one spelling'));
  END LOOP;
END $$;

SELECT tendril.use_canonical_forms();
