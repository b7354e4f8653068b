-- Organisations and members.

-- Locks an organisation, or refuses unless the caller is its admin. The lock makes two admins who
-- remove each other take turns. "There is none" and "not yours" get one answer.
--
-- Errors: PT404 org_not_found.
-- Locks: org.
CREATE OR REPLACE FUNCTION tendril.lock_org_for_admin(p_org uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF tendril.may_act(p_org, 'admin') THEN
    PERFORM FROM public.orgs WHERE id = p_org FOR NO KEY UPDATE;
    IF FOUND AND tendril.may_act(p_org, 'admin') THEN
      RETURN;
    END IF;
  END IF;
  PERFORM tendril.refuse('PT404', 'org_not_found', format('organisation %s not found, or you are not its admin', p_org));
END $$;

-- Refuses what would leave an organisation without an admin.
--
-- Errors: PT409 last_admin.
CREATE OR REPLACE FUNCTION tendril.keep_an_admin(p_org uuid, p_but uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM public.org_members WHERE org_id = p_org AND role = 'admin' AND user_id <> p_but) THEN
    PERFORM tendril.refuse('PT409', 'last_admin', 'the organisation would have no admin', 'make someone else an admin first');
  END IF;
END $$;

-- Creates an organisation with its first admin. For the platform's back end, which decides who may
-- create one.
--
-- Arguments:
--   p_name   1 to 200 characters
--   p_admin  id of the user who becomes admin
-- Answers: the id of the organisation.
-- Errors: PT403 not_allowed, PT422 bad_member, PT422 bad_org, PT503 busy.
-- Locks: none.
-- Callers: service_role.
CREATE OR REPLACE FUNCTION public.create_org(p_name text, p_admin uuid) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_org uuid;
BEGIN
  IF tendril.is_person() THEN
    PERFORM tendril.refuse('PT403', 'not_allowed', 'users may not create organisations; the platform does');
  ELSIF coalesce(length(p_name), 0) NOT BETWEEN 1 AND tendril.max_name() THEN
    PERFORM tendril.refuse('PT422', 'bad_org', format('p_name: must have 1 to %s characters, not %s', tendril.max_name(), coalesce(length(p_name), 0)));
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

-- Changes a member's role. A person who is not a member must be invited; only the control plane's
-- own role adds members. An organisation keeps an admin. Needs the role admin.
--
-- Arguments:
--   p_org   the organisation
--   p_user  the user
--   p_role  viewer, operator or admin
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 member_not_found, PT404 org_not_found, PT409 last_admin,
--   PT422 bad_member, PT503 busy.
-- Locks: org.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.set_member(p_org uuid, p_user uuid, p_role text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_was text;
BEGIN
  PERFORM tendril.lock_org_for_admin(p_org);
  IF p_user IS NULL OR p_role IS NULL OR p_role NOT IN ('viewer', 'operator', 'admin') THEN
    PERFORM tendril.refuse('PT422', 'bad_member', 'p_user: must be a user''s id; p_role: must be viewer, operator or admin');
  END IF;
  v_was := (SELECT role FROM public.org_members WHERE org_id = p_org AND user_id = p_user);
  IF v_was = p_role THEN
    RETURN;
  ELSIF v_was = 'admin' THEN
    PERFORM tendril.keep_an_admin(p_org, p_user);
  ELSIF v_was IS NULL AND tendril.is_person() THEN
    PERFORM tendril.refuse('PT404', 'member_not_found', format('%s is not a member of this organisation', p_user), 'invite them: they join when they accept');
  END IF;
  INSERT INTO public.org_members (org_id, user_id, role) VALUES (p_org, p_user, p_role)
  ON CONFLICT (org_id, user_id) DO UPDATE SET role = EXCLUDED.role;
  PERFORM tendril.audit(p_org, 'set_member', 'user', p_user, jsonb_build_object('role', p_role, 'was', v_was));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Removes a member from an organisation. Needs the role admin.
--
-- Arguments:
--   p_org   the organisation
--   p_user  the user
-- Answers: whether the user was a member.
-- Errors: PT403 token_may_not, PT404 org_not_found, PT409 last_admin, PT503 busy.
-- Locks: org.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.remove_member(p_org uuid, p_user uuid) RETURNS boolean
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

-- Copies a new member's name to public.people.
CREATE OR REPLACE FUNCTION tendril.name_member() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  INSERT INTO public.people (org_id, user_id, name, email)
  SELECT NEW.org_id, p.user_id, p.name, p.email FROM tendril.persons p WHERE p.user_id = NEW.user_id
  ON CONFLICT (org_id, user_id) DO UPDATE SET name = EXCLUDED.name, email = EXCLUDED.email;
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER org_members_name AFTER INSERT ON public.org_members
  FOR EACH ROW EXECUTE FUNCTION tendril.name_member();
