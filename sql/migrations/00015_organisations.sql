-- Who belongs to an organisation, which templates it offers, and which one a
-- workspace belongs to: an admin's, through functions, for people change no row
-- themselves. And what service_role may do.

-- +goose Up

-- Refuses unless the caller is admin there. One answer for "there is none" and
-- "not yours". The lock makes two admins who remove each other take turns.
-- +goose StatementBegin
CREATE FUNCTION tendril.lock_org_for_admin(p_org uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF tendril.may_act(p_org, 'admin') THEN
    PERFORM FROM public.orgs WHERE id = p_org FOR NO KEY UPDATE;
    IF FOUND AND tendril.may_act(p_org, 'admin') THEN
      RETURN;
    END IF;
  END IF;
  PERFORM tendril.refuse('PT404', 'org_not_found', format('there is no organisation %s where you are admin', p_org));
END $$;
-- +goose StatementEnd

-- Refuses what would leave an organisation without an admin.
-- +goose StatementBegin
CREATE FUNCTION tendril.keep_an_admin(p_org uuid, p_but uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM public.org_members WHERE org_id = p_org AND role = 'admin' AND user_id <> p_but) THEN
    PERFORM tendril.refuse('PT409', 'last_admin', 'the organisation would have no admin any more', 'make somebody else an admin first');
  END IF;
END $$;
-- +goose StatementEnd

-- Founds an organisation with its first admin. For the platform's own back end
-- (service_role) and for whoever owns the database: who may found one is theirs
-- to decide.
-- +goose StatementBegin
CREATE FUNCTION public.create_org(p_name text, p_admin uuid) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_org uuid;
BEGIN
  IF tendril.is_person() THEN
    PERFORM tendril.refuse('PT403', 'not_allowed', 'organisations are founded by the platform, not by its users');
  ELSIF coalesce(length(p_name), 0) NOT BETWEEN 1 AND 200 THEN
    PERFORM tendril.refuse('PT422', 'bad_org', format('p_name: %s characters; from 1 to 200 are allowed', coalesce(length(p_name), 0)));
  ELSIF p_admin IS NULL THEN
    PERFORM tendril.refuse('PT422', 'bad_member', 'p_admin: missing; an organisation needs an admin');
  END IF;
  INSERT INTO public.orgs (name) VALUES (p_name) RETURNING id INTO v_org;
  INSERT INTO public.org_members (org_id, user_id, role) VALUES (v_org, p_admin, 'admin');
  PERFORM tendril.audit(v_org, 'create_org', 'org', v_org, jsonb_build_object('name', p_name, 'admin', p_admin));
  RETURN v_org;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Adds a member, or gives one another role (admin).
-- +goose StatementBegin
CREATE FUNCTION public.set_member(p_org uuid, p_user uuid, p_role text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_was text;
BEGIN
  PERFORM tendril.lock_org_for_admin(p_org);
  IF p_user IS NULL OR p_role IS NULL OR p_role NOT IN ('viewer', 'operator', 'admin') THEN
    PERFORM tendril.refuse('PT422', 'bad_member', 'p_user: a user''s id is needed; p_role: viewer, operator or admin');
  END IF;
  v_was := (SELECT role FROM public.org_members WHERE org_id = p_org AND user_id = p_user);
  IF v_was = p_role THEN
    RETURN;
  ELSIF v_was = 'admin' THEN
    PERFORM tendril.keep_an_admin(p_org, p_user);
  END IF;
  INSERT INTO public.org_members (org_id, user_id, role) VALUES (p_org, p_user, p_role)
  ON CONFLICT (org_id, user_id) DO UPDATE SET role = EXCLUDED.role;
  PERFORM tendril.audit(p_org, 'set_member', 'user', p_user, jsonb_build_object('role', p_role, 'was', v_was));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Takes a member out (admin). False: there was none.
-- +goose StatementBegin
CREATE FUNCTION public.remove_member(p_org uuid, p_user uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_was text;
BEGIN
  PERFORM tendril.lock_org_for_admin(p_org);
  v_was := (SELECT role FROM public.org_members WHERE org_id = p_org AND user_id = p_user);
  IF v_was IS NULL THEN
    RETURN false;
  ELSIF v_was = 'admin' THEN
    PERFORM tendril.keep_an_admin(p_org, p_user);
  END IF;
  DELETE FROM public.org_members WHERE org_id = p_org AND user_id = p_user;
  PERFORM tendril.audit(p_org, 'remove_member', 'user', p_user, jsonb_build_object('was', v_was));
  RETURN true;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- What is wrong with a repository and a path, by the rules of a snapshot.
-- +goose StatementBegin
CREATE FUNCTION tendril.check_source(p_repo text, p_version text, p_path text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_problems text[] := tendril.snapshot_problems(jsonb_build_object('workspace', 'w',
    'template_source', jsonb_build_object('repo', p_repo, 'version', p_version, 'path', p_path)));
BEGIN
  IF v_problems <> '{}' THEN
    PERFORM tendril.refuse('PT422', 'bad_template', replace(array_to_string(v_problems, E'\n'), 'config_snapshot.template_source.', 'p_'));
  END IF;
END $$;
-- +goose StatementEnd

-- Puts a template into the organisation's catalogue, or changes what stands
-- there under that name (admin).
-- +goose StatementBegin
CREATE FUNCTION public.save_template(p_org uuid, p_name text, p_repo text, p_version text, p_path text DEFAULT '', p_description text DEFAULT '') RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_template uuid;
BEGIN
  PERFORM tendril.lock_org_for_admin(p_org);
  IF coalesce(length(p_name), 0) NOT BETWEEN 1 AND 200 THEN
    PERFORM tendril.refuse('PT422', 'bad_template', format('p_name: %s characters; from 1 to 200 are allowed', coalesce(length(p_name), 0)));
  ELSIF length(p_description) > 4000 THEN
    PERFORM tendril.refuse('PT422', 'bad_template', format('p_description: %s characters, more than the 4000 allowed', length(p_description)));
  END IF;
  PERFORM tendril.check_source(p_repo, p_version, coalesce(p_path, ''));
  INSERT INTO public.templates (org_id, name, repo, version, path, description)
  VALUES (p_org, p_name, p_repo, p_version, coalesce(p_path, ''), coalesce(p_description, ''))
  ON CONFLICT (org_id, name) DO UPDATE
  SET repo = EXCLUDED.repo, version = EXCLUDED.version, path = EXCLUDED.path, description = EXCLUDED.description
  RETURNING id INTO v_template;
  PERFORM tendril.audit(p_org, 'save_template', 'template', v_template,
    jsonb_build_object('name', p_name, 'repo', p_repo, 'version', p_version, 'path', coalesce(p_path, '')));
  RETURN v_template;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Takes a template out of the catalogue (admin). What was deployed stays. False:
-- there was none of that name.
-- +goose StatementBegin
CREATE FUNCTION public.remove_template(p_org uuid, p_name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_template uuid;
BEGIN
  PERFORM tendril.lock_org_for_admin(p_org);
  DELETE FROM public.templates WHERE org_id = p_org AND name = p_name RETURNING id INTO v_template;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM tendril.audit(p_org, 'remove_template', 'template', v_template, jsonb_build_object('name', p_name));
  RETURN true;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Binds a workspace to another template (admin): the next apply there destroys
-- what that one does not know. A reason is needed.
-- +goose StatementBegin
CREATE FUNCTION public.rebind_workspace(p_workspace uuid, p_repo text, p_reason text, p_path text DEFAULT '') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_workspace public.workspaces;
  v_reason    text;
BEGIN
  v_workspace := tendril.lock_workspace_for(p_workspace, 'admin');
  v_reason := tendril.reason(p_reason, true);
  PERFORM tendril.check_source(p_repo, 'v0', coalesce(p_path, ''));
  IF v_workspace.running_claim IS NOT NULL OR v_workspace.held_by_claim IS NOT NULL THEN
    PERFORM tendril.refuse('PT409', 'workspace_running', format('something runs in workspace %s, or holds it', to_json(v_workspace.name)),
      'wait until it has ended, or cancel or release it');
  ELSIF v_workspace.reserved_by IS NOT NULL THEN
    -- It is applied without its template being looked at again.
    PERFORM tendril.refuse('PT409', 'workspace_reserved', format('a plan of workspace %s awaits approval, or is approved', to_json(v_workspace.name)),
      'reject it, or cancel its provision');
  END IF;
  UPDATE public.workspaces SET repo = tendril.plain_repo(p_repo), path = tendril.plain_path(p_path) WHERE id = p_workspace;
  PERFORM tendril.audit(v_workspace.org_id, 'rebind_workspace', 'workspace', p_workspace,
    jsonb_build_object('reason', v_reason, 'was', jsonb_build_object('repo', v_workspace.repo, 'path', v_workspace.path), 'repo', p_repo, 'path', p_path));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

SELECT tendril.deny_all(ARRAY['create_org', 'set_member', 'remove_member', 'save_template', 'remove_template', 'rebind_workspace']);
GRANT EXECUTE ON FUNCTION public.set_member(uuid, uuid, text), public.remove_member(uuid, uuid),
  public.save_template(uuid, text, text, text, text, text), public.remove_template(uuid, text), public.rebind_workspace(uuid, text, text, text)
  TO authenticated;

-- service_role is the key of a platform's own back end. Supabase's bypasses RLS,
-- and so acts as the control plane does: it reads all, deploys for whom it says,
-- and calls what people call; rows it changes no more than they do. On plain
-- PostgreSQL it bypasses nothing: a person without a name, who sees no row and is
-- a stranger everywhere.
GRANT SELECT ON public.orgs, public.org_members, public.clusters, public.agents, public.audit_events, public.templates,
  public.template_pins, public.workspaces, public.provisions, public.provision_progress, public.provision_logs,
  public.provision_events, public.resources, public.cluster_overview TO service_role;
GRANT INSERT (id, cluster_id, config_snapshot, priority, requested_by) ON public.provisions TO service_role;
GRANT EXECUTE ON FUNCTION public.create_cluster(text, uuid, jsonb, text), public.rotate_cluster_token(uuid, interval),
  public.revoke_cluster_token(uuid, uuid), public.pause_cluster(uuid, boolean, text), public.cancel_provision(uuid),
  public.approve_provision(uuid, text), public.reject_provision(uuid, text), public.retry_provision(uuid),
  public.lock_workspace(uuid, text), public.unlock_workspace(uuid, text), public.release_workspace(uuid, text),
  public.rebind_workspace(uuid, text, text, text), public.create_org(text, uuid), public.set_member(uuid, uuid, text),
  public.remove_member(uuid, uuid), public.save_template(uuid, text, text, text, text, text), public.remove_template(uuid, text)
  TO service_role;

NOTIFY pgrst, 'reload schema';
