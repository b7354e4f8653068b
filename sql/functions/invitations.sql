-- Invitations.

-- Invites a person, by e-mail address or by user id, to an organisation. Nothing happens until they
-- accept. A second invitation changes the role and extends the time. Needs the role admin.
--
-- Arguments:
--   p_org    the organisation
--   p_email  e-mail address, at most 320 characters; null with p_user
--   p_role   viewer, operator or admin
--   p_user   id of a user; null with p_email
-- Answers: the id of the invitation.
-- Errors: PT403 token_may_not, PT404 org_not_found, PT409 member_already, PT422 bad_email,
--   PT422 bad_member, PT429 too_many_invitations, PT503 busy.
-- Locks: org.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.invite_member(p_org uuid, p_email text, p_role text, p_user uuid DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_email      text := lower(btrim(p_email));
  v_settings   tendril.settings;
  v_invitation uuid;
BEGIN
  PERFORM tendril.lock_org_for_admin(p_org);
  IF num_nonnulls(v_email, p_user) <> 1 THEN
    PERFORM tendril.refuse('PT422', 'bad_email', 'p_email, p_user: exactly one of them is needed');
  ELSIF v_email !~ '^[^@[:space:][:cntrl:]]+@[^@[:space:][:cntrl:]]+$' OR length(v_email) > tendril.max_email() THEN
    PERFORM tendril.refuse('PT422', 'bad_email', 'p_email: must be an e-mail address');
  ELSIF p_role IS NULL OR p_role NOT IN ('viewer', 'operator', 'admin') THEN
    PERFORM tendril.refuse('PT422', 'bad_member', 'p_role: must be viewer, operator or admin');
  ELSIF EXISTS (SELECT FROM public.org_members m WHERE m.org_id = p_org
                AND (m.user_id = p_user OR m.user_id IN (SELECT p.user_id FROM tendril.persons p WHERE lower(p.email) = v_email AND p.email_verified))) THEN
    PERFORM tendril.refuse('PT409', 'member_already', format('%s is already a member', coalesce(v_email, p_user::text)), 'change the role in the list of members');
  END IF;
  SELECT * INTO STRICT v_settings FROM tendril.settings;
  SELECT i.id INTO v_invitation FROM public.invitations i WHERE i.org_id = p_org AND (i.email = v_email OR i.user_id = p_user);
  IF v_invitation IS NOT NULL THEN
    UPDATE public.invitations
    SET role = p_role, invited_by = tendril.current_user_id(), created_at = clock_timestamp(), expires_at = clock_timestamp() + v_settings.invitation_lasts,
        accepted_at = NULL, accepted_by = NULL, declined_at = NULL
    WHERE id = v_invitation;
  ELSE
    IF (SELECT count(*) FROM public.invitations i WHERE i.org_id = p_org) >= v_settings.invitation_limit THEN
      PERFORM tendril.refuse('PT429', 'too_many_invitations',
        format('this organisation has %s invitations, the most allowed (tendril.settings.invitation_limit)', v_settings.invitation_limit),
        'revoke those that nobody will accept');
    END IF;
    INSERT INTO public.invitations (org_id, email, user_id, role, invited_by, expires_at)
    VALUES (p_org, v_email, p_user, p_role, tendril.current_user_id(), clock_timestamp() + v_settings.invitation_lasts)
    RETURNING id INTO v_invitation;
  END IF;
  PERFORM tendril.audit(p_org, 'invite_member', 'invitation', v_invitation, jsonb_strip_nulls(jsonb_build_object('email', v_email, 'user', p_user, 'role', p_role)));
  RETURN v_invitation;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Revokes an open invitation. Needs the role admin.
--
-- Arguments:
--   p_org         the organisation
--   p_invitation  the invitation
-- Answers: whether there was such an open invitation.
-- Errors: PT403 token_may_not, PT404 org_not_found, PT503 busy.
-- Locks: org.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.revoke_invitation(p_org uuid, p_invitation uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_email text;
BEGIN
  PERFORM tendril.lock_org_for_admin(p_org);
  DELETE FROM public.invitations i WHERE i.id = p_invitation AND i.org_id = p_org AND i.accepted_at IS NULL RETURNING i.email INTO v_email;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM tendril.audit(p_org, 'revoke_invitation', 'invitation', p_invitation, jsonb_build_object('email', v_email));
  RETURN true;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- The open invitations that a user may accept: those for their id, and those for an e-mail address
-- that their identity provider has verified.
CREATE OR REPLACE FUNCTION tendril.open_invitations(p_user uuid) RETURNS SETOF public.invitations
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT i.* FROM public.invitations i
  WHERE (i.user_id = p_user
         OR i.email = (SELECT lower(p.email) FROM tendril.persons p WHERE p.user_id = p_user AND p.email_verified AND p.email <> ''))
    AND i.accepted_at IS NULL AND i.declined_at IS NULL AND i.expires_at > clock_timestamp()
$$;

-- Lists the caller's open invitations, the newest first.
--
-- Arguments: none.
-- Answers: a row for each:
--   id          the invitation
--   org_id      the organisation
--   org_name    its name
--   role        role that the caller would get
--   invited_by  name or e-mail address of the person who invited them, empty: not known
--   created_at  when it was sent
--   expires_at  when it expires
-- Errors: PT401 not_signed_in, PT503 busy.
-- Locks: none.
-- Callers: authenticated.
CREATE OR REPLACE FUNCTION public.own_invitations()
RETURNS TABLE (id uuid, org_id uuid, org_name text, role text, invited_by text, created_at timestamptz, expires_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_user uuid;
BEGIN
  v_user := tendril.asking_person();
  RETURN QUERY SELECT i.id, i.org_id, o.name, i.role, coalesce(nullif(p.name, ''), nullif(p.email, ''), ''), i.created_at, i.expires_at
    FROM tendril.open_invitations(v_user) i JOIN public.orgs o ON o.id = i.org_id LEFT JOIN tendril.persons p ON p.user_id = i.invited_by
    ORDER BY i.created_at DESC, i.id;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Locks an open invitation of a person, its organisation first.
--
-- Errors: PT404 invitation_not_found.
-- Locks: org.
CREATE OR REPLACE FUNCTION tendril.lock_invitation(p_invitation uuid, p_user uuid) RETURNS public.invitations
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_invitation public.invitations;
BEGIN
  PERFORM FROM public.orgs WHERE id = (SELECT i.org_id FROM tendril.open_invitations(p_user) i WHERE i.id = p_invitation) FOR NO KEY UPDATE;
  PERFORM FROM public.invitations WHERE id = p_invitation FOR NO KEY UPDATE;
  SELECT * INTO v_invitation FROM tendril.open_invitations(p_user) i WHERE i.id = p_invitation;
  IF v_invitation.id IS NULL THEN
    PERFORM tendril.refuse('PT404', 'invitation_not_found', format('you have no open invitation %s', p_invitation),
      'ask an admin of the organisation to invite you again');
  END IF;
  RETURN v_invitation;
END $$;

-- Makes the caller a member of the organisation that invited them. A member keeps the role that
-- they have.
--
-- Arguments:
--   p_invitation  the invitation
--   p_role        the role that the caller has read; another one is refused, because an admin may
--                 have changed it
-- Answers: the id of the organisation.
-- Errors: PT401 not_signed_in, PT403 token_may_not, PT404 invitation_not_found,
--   PT409 invitation_changed, PT503 busy.
-- Locks: org, invitation.
-- Callers: authenticated.
CREATE OR REPLACE FUNCTION public.accept_invitation(p_invitation uuid, p_role text) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_user       uuid;
  v_invitation public.invitations;
BEGIN
  v_user := tendril.asking_person();
  PERFORM tendril.check_whole_token();
  v_invitation := tendril.lock_invitation(p_invitation, v_user);
  IF v_invitation.role IS DISTINCT FROM p_role THEN
    PERFORM tendril.refuse('PT409', 'invitation_changed',
      format('this invitation is for the role %s; you accepted %s', v_invitation.role, coalesce(to_json(left(p_role, tendril.quoted_name()))::text, 'none')),
      'read the invitation again, then accept or decline it');
  END IF;
  UPDATE public.invitations SET accepted_at = clock_timestamp(), accepted_by = v_user WHERE id = p_invitation;
  INSERT INTO public.org_members (org_id, user_id, role) VALUES (v_invitation.org_id, v_user, v_invitation.role) ON CONFLICT (org_id, user_id) DO NOTHING;
  PERFORM tendril.audit(v_invitation.org_id, 'accept_invitation', 'user', v_user,
    jsonb_build_object('role', v_invitation.role, 'invited_by', v_invitation.invited_by));
  RETURN v_invitation.org_id;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Declines an invitation of the caller. The organisation learns that it was declined, and nothing
-- else about the person.
--
-- Arguments:
--   p_invitation  the invitation
-- Answers: nothing.
-- Errors: PT401 not_signed_in, PT403 token_may_not, PT404 invitation_not_found, PT503 busy.
-- Locks: org, invitation.
-- Callers: authenticated.
CREATE OR REPLACE FUNCTION public.decline_invitation(p_invitation uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_user       uuid;
  v_invitation public.invitations;
BEGIN
  v_user := tendril.asking_person();
  PERFORM tendril.check_whole_token();
  v_invitation := tendril.lock_invitation(p_invitation, v_user);
  UPDATE public.invitations SET declined_at = clock_timestamp() WHERE id = p_invitation;
  PERFORM tendril.audit(v_invitation.org_id, 'decline_invitation', 'invitation', p_invitation,
    jsonb_strip_nulls(jsonb_build_object('email', v_invitation.email, 'user', v_invitation.user_id, 'role', v_invitation.role)));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
