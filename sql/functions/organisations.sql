-- Organisations, their members and invitations.

-- Refuses unless the caller is admin there. One answer for "there is none" and "not yours".
-- The lock makes two admins who remove each other take turns.
--
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
  PERFORM tendril.refuse('PT404', 'org_not_found', format('there is no organisation %s where you are admin', p_org));
END $$;

-- Refuses what would leave an organisation without an admin.
CREATE OR REPLACE FUNCTION tendril.keep_an_admin(p_org uuid, p_but uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM public.org_members WHERE org_id = p_org AND role = 'admin' AND user_id <> p_but) THEN
    PERFORM tendril.refuse('PT409', 'last_admin', 'the organisation would have no admin any more', 'make somebody else an admin first');
  END IF;
END $$;

-- Founds an organisation with its first admin. For the platform's own back end (service_role)
-- and for whoever owns the database: who may found one is theirs to decide.
CREATE OR REPLACE FUNCTION public.create_org(p_name text, p_admin uuid) RETURNS uuid
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

-- Gives a member another role (admin). A person who is no member is refused with
-- PT404 member_not_found: invite them, for joining is their decision. Only who owns
-- the database (the service role, a migration) adds members without asking them.
-- An organisation keeps an admin: PT409 last_admin. Locks: org.
CREATE OR REPLACE FUNCTION public.set_member(p_org uuid, p_user uuid, p_role text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
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
  ELSIF v_was IS NULL AND tendril.is_person() THEN
    PERFORM tendril.refuse('PT404', 'member_not_found', format('%s is no member of this organisation', p_user), 'invite them: they join when they accept');
  END IF;
  INSERT INTO public.org_members (org_id, user_id, role) VALUES (p_org, p_user, p_role)
  ON CONFLICT (org_id, user_id) DO UPDATE SET role = EXCLUDED.role;
  PERFORM tendril.audit(p_org, 'set_member', 'user', p_user, jsonb_build_object('role', p_role, 'was', v_was));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Takes a member out (admin). False: there was none.
--
-- Locks: org.
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

CREATE OR REPLACE FUNCTION tendril.name_member() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  INSERT INTO public.people (org_id, user_id, name, email)
  SELECT NEW.org_id, p.user_id, p.name, p.email FROM tendril.persons p WHERE p.user_id = NEW.user_id
  ON CONFLICT (org_id, user_id) DO UPDATE SET name = EXCLUDED.name, email = EXCLUDED.email;
  RETURN NULL;
END $$;
