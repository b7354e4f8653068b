-- Who people are when they come through trellis: their names, what an issuer of
-- identities calls them, and what they show instead of signing in anew (a
-- browser's session, an API token, a one-time link, a code for the CLI). Of all
-- that is shown, only a digest is kept.
--
-- The functions in schema tendril are for the control plane, as the owner: they
-- find out who asks, which nobody can know before. What a person does with their
-- own credentials, and an admin with members, goes through those in public.

-- +goose Up

-- Those of the migrations after this one as well: the printed script is one
-- transaction, which must not wait for a table while it has others. What a foreign
-- key points at is locked, too.
SELECT tendril.lock_tables('public.orgs, public.org_members, public.clusters, public.workspaces, public.provisions, public.templates, tendril.settings');

ALTER TABLE tendril.settings
  -- How long a browser stays signed in, and how long without being used.
  ADD COLUMN session_lasts interval NOT NULL DEFAULT '30 days' CHECK (session_lasts > interval '0'),
  ADD COLUMN session_idle  interval NOT NULL DEFAULT '7 days'  CHECK (session_idle > interval '0'),
  ADD COLUMN invitation_lasts interval NOT NULL DEFAULT '14 days' CHECK (invitation_lasts > interval '0');

CREATE TABLE tendril.persons (
  user_id        uuid PRIMARY KEY,
  name           text NOT NULL DEFAULT '',
  email          text NOT NULL DEFAULT '',
  -- Whether the issuer says that the address is theirs.
  email_verified boolean NOT NULL DEFAULT false,
  signed_in_at   timestamptz,
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX persons_email ON tendril.persons (lower(email)) WHERE email_verified;

-- What an issuer calls a person: subjects need not be UUIDs, and are unique with
-- their issuer only.
CREATE TABLE tendril.identities (
  issuer     text NOT NULL,
  subject    text NOT NULL CHECK (length(subject) BETWEEN 1 AND 255),
  user_id    uuid NOT NULL REFERENCES tendril.persons,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (issuer, subject)
);
CREATE INDEX identities_user ON tendril.identities (user_id);

CREATE TABLE tendril.credentials (
  id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  kind         text NOT NULL CHECK (kind IN ('session', 'api_token', 'link', 'cli_code')),
  user_id      uuid NOT NULL,
  digest       bytea NOT NULL UNIQUE CHECK (length(digest) = 32),
  label        text NOT NULL DEFAULT '', -- what its person calls it: a name, a browser, a host
  challenge    text,                     -- of a CLI's code: PKCE, S256
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  -- Written at most once a minute.
  last_used_at timestamptz,
  expires_at   timestamptz,
  revoked_at   timestamptz -- or used up
);
CREATE INDEX credentials_user ON tendril.credentials (user_id);

-- Names for the members of an organisation, and for those who were: what they did
-- is still there. Copied from tendril.persons.
CREATE TABLE public.people (
  org_id  uuid NOT NULL REFERENCES public.orgs ON DELETE CASCADE,
  user_id uuid NOT NULL,
  name    text NOT NULL,
  email   text NOT NULL,
  PRIMARY KEY (org_id, user_id)
);
CREATE INDEX people_user ON public.people (user_id);

CREATE TABLE public.invitations (
  id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  org_id      uuid NOT NULL REFERENCES public.orgs ON DELETE CASCADE,
  email       text NOT NULL CHECK (length(email) BETWEEN 3 AND 320 AND email = lower(email)),
  role        text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  invited_by  uuid,
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at  timestamptz NOT NULL,
  accepted_at timestamptz,
  accepted_by uuid,
  UNIQUE (org_id, email)
);
CREATE INDEX invitations_email ON public.invitations (email);

-- +goose StatementBegin
CREATE FUNCTION tendril.name_member() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  INSERT INTO public.people (org_id, user_id, name, email)
  SELECT NEW.org_id, p.user_id, p.name, p.email FROM tendril.persons p WHERE p.user_id = NEW.user_id
  ON CONFLICT (org_id, user_id) DO UPDATE SET name = EXCLUDED.name, email = EXCLUDED.email;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER org_members_name AFTER INSERT ON public.org_members
  FOR EACH ROW EXECUTE FUNCTION tendril.name_member();

-- Keeps what a person is called. What is not said stays as it was.
-- +goose StatementBegin
CREATE FUNCTION tendril.name_person(p_user uuid, p_name text, p_email text, p_verified boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_name  text := left(btrim(coalesce(p_name, '')), 200);
  v_email text := lower(left(btrim(coalesce(p_email, '')), 320));
BEGIN
  INSERT INTO tendril.persons (user_id, name, email, email_verified)
  VALUES (p_user, v_name, v_email, v_email <> '' AND coalesce(p_verified, false))
  ON CONFLICT (user_id) DO UPDATE SET
    name = coalesce(nullif(v_name, ''), persons.name),
    email = coalesce(nullif(v_email, ''), persons.email),
    email_verified = CASE WHEN v_email IN ('', persons.email) THEN persons.email_verified OR EXCLUDED.email_verified ELSE EXCLUDED.email_verified END;
  INSERT INTO public.people (org_id, user_id, name, email)
  SELECT m.org_id, p.user_id, p.name, p.email FROM tendril.persons p JOIN public.org_members m ON m.user_id = p.user_id WHERE p.user_id = p_user
  ON CONFLICT (org_id, user_id) DO UPDATE SET name = EXCLUDED.name, email = EXCLUDED.email
  WHERE people.name <> EXCLUDED.name OR people.email <> EXCLUDED.email;
END $$;
-- +goose StatementEnd

-- Adds a credential. NULL p_lasts: until it is revoked. What ended long ago goes.
-- +goose StatementBegin
CREATE FUNCTION tendril.add_credential(p_kind text, p_user uuid, p_digest bytea, p_lasts interval, p_label text, p_challenge text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_id uuid;
BEGIN
  DELETE FROM tendril.credentials WHERE id IN (
    SELECT id FROM tendril.credentials
    WHERE least(expires_at, revoked_at) < clock_timestamp() - interval '30 days' LIMIT 100 FOR UPDATE SKIP LOCKED);
  IF p_kind = 'session' THEN
    p_lasts := (SELECT session_lasts FROM tendril.settings);
  END IF;
  INSERT INTO tendril.credentials (kind, user_id, digest, label, challenge, expires_at, last_used_at)
  VALUES (p_kind, p_user, p_digest, left(btrim(coalesce(p_label, '')), 200), p_challenge, clock_timestamp() + p_lasts,
          CASE p_kind WHEN 'session' THEN clock_timestamp() END)
  RETURNING id INTO v_id;
  RETURN v_id;
END $$;
-- +goose StatementEnd

-- Whether a credential counts. A function, so that all ask alike.
-- +goose StatementBegin
CREATE FUNCTION tendril.credential_lives(p_credential tendril.credentials) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN p_credential.revoked_at IS NULL
    AND (p_credential.expires_at IS NULL OR p_credential.expires_at > clock_timestamp())
    AND (p_credential.kind <> 'session' OR p_credential.last_used_at > clock_timestamp() - (SELECT session_idle FROM tendril.settings));
END $$;
-- +goose StatementEnd

-- Who shows a session or an API token; no row: it is nobody's, or no longer.
-- +goose StatementBegin
CREATE FUNCTION tendril.find_person(p_kind text, p_digest bytea)
RETURNS TABLE (credential_id uuid, user_id uuid, name text, email text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_found tendril.credentials;
BEGIN
  SELECT c.* INTO v_found FROM tendril.credentials c
  WHERE c.digest = p_digest AND c.kind = p_kind AND p_kind IN ('session', 'api_token');
  IF v_found.id IS NULL OR NOT tendril.credential_lives(v_found) THEN
    RETURN;
  END IF;
  IF v_found.last_used_at IS NULL OR v_found.last_used_at < clock_timestamp() - interval '1 minute' THEN
    UPDATE tendril.credentials SET last_used_at = clock_timestamp()
    WHERE id = (SELECT id FROM tendril.credentials WHERE id = v_found.id FOR NO KEY UPDATE SKIP LOCKED);
  END IF;
  RETURN QUERY SELECT v_found.id, v_found.user_id, coalesce(p.name, ''), coalesce(p.email, '')
    FROM (VALUES (1)) one (row) LEFT JOIN tendril.persons p ON p.user_id = v_found.user_id;
END $$;
-- +goose StatementEnd

-- Those that do not count any more.
-- +goose StatementBegin
CREATE FUNCTION tendril.ended_credentials(p_credentials uuid[]) RETURNS uuid[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN ARRAY(
    SELECT i.id FROM unnest(p_credentials) i (id) LEFT JOIN tendril.credentials c ON c.id = i.id
    WHERE c.id IS NULL OR NOT tendril.credential_lives(c));
END $$;
-- +goose StatementEnd

-- Uses up a one-time link or a CLI's code, and answers whose it was; NULL: it is
-- nobody's, was used, or is too old. A wrong verifier uses it up as well.
-- +goose StatementBegin
CREATE FUNCTION tendril.redeem(p_kind text, p_digest bytea, p_verifier text DEFAULT NULL, OUT user_id uuid, OUT label text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_used tendril.credentials;
BEGIN
  -- Of two at once the second finds it used.
  UPDATE tendril.credentials c SET revoked_at = clock_timestamp(), last_used_at = clock_timestamp()
  WHERE c.digest = p_digest AND c.kind = p_kind AND p_kind IN ('link', 'cli_code')
    AND c.revoked_at IS NULL AND c.expires_at > clock_timestamp()
  RETURNING c.* INTO v_used;
  IF v_used.challenge IS NULL
     OR v_used.challenge = rtrim(translate(encode(sha256(convert_to(p_verifier, 'UTF8')), 'base64'), '+/', '-_'), '=') THEN
    user_id := v_used.user_id;
    label := v_used.label;
  END IF;
END $$;
-- +goose StatementEnd

-- Ends the credential that is shown.
-- +goose StatementBegin
CREATE FUNCTION tendril.end_credential(p_digest bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
BEGIN
  UPDATE tendril.credentials SET revoked_at = clock_timestamp() WHERE digest = p_digest AND revoked_at IS NULL;
END $$;
-- +goose StatementEnd

-- Tells every organisation of a person's what they did with their credentials.
-- +goose StatementBegin
CREATE FUNCTION tendril.audit_person(p_user uuid, p_action text, p_credential uuid, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  INSERT INTO public.audit_events (org_id, actor, action, object, object_id, detail)
  SELECT m.org_id, p_user, p_action, 'credential', p_credential, p_detail FROM public.org_members m WHERE m.user_id = p_user;
END $$;
-- +goose StatementEnd

-- A new API token, shown once. The server makes it, so that it appears in no
-- statement.
-- +goose StatementBegin
CREATE FUNCTION tendril.issue_api_token(p_user uuid, p_name text, p_lasts interval, OUT token_id uuid, OUT token text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
BEGIN
  token := 'trt_' || rtrim(translate(encode(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), 'base64'), '+/', '-_'), '=');
  token_id := tendril.add_credential('api_token', p_user, sha256(convert_to(token, 'UTF8')), p_lasts, p_name);
  PERFORM tendril.audit_person(p_user, 'create_api_token', token_id, jsonb_build_object('name', p_name, 'lasts', p_lasts));
END $$;
-- +goose StatementEnd

-- Who asks, for what is about themselves.
-- +goose StatementBegin
CREATE FUNCTION tendril.asking_person() RETURNS uuid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_user uuid := tendril.current_user_id();
BEGIN
  IF v_user IS NULL THEN
    PERFORM tendril.refuse('PT401', 'not_signed_in', 'nobody is signed in', 'sign in first');
  END IF;
  RETURN v_user;
END $$;
-- +goose StatementEnd

-- The caller's own sessions and API tokens that count, the newest first.
-- +goose StatementBegin
CREATE FUNCTION public.own_credentials()
RETURNS TABLE (id uuid, kind text, label text, created_at timestamptz, last_used_at timestamptz, expires_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_user uuid;
BEGIN
  v_user := tendril.asking_person();
  RETURN QUERY SELECT c.id, c.kind, c.label, c.created_at, c.last_used_at, c.expires_at FROM tendril.credentials c
    WHERE c.user_id = v_user AND c.kind IN ('session', 'api_token') AND tendril.credential_lives(c) ORDER BY c.created_at DESC, c.id;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Makes the caller an API token. It may do what they may.
-- +goose StatementBegin
CREATE FUNCTION public.create_api_token(p_name text, p_lasts interval DEFAULT '90 days')
RETURNS TABLE (token_id uuid, token text, expires_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_user  uuid;
  v_made  record;
BEGIN
  v_user := tendril.asking_person();
  IF coalesce(length(btrim(p_name)), 0) NOT BETWEEN 1 AND 200 THEN
    PERFORM tendril.refuse('PT422', 'bad_token_name', 'p_name: from 1 to 200 characters are needed', 'name what will use it');
  ELSIF p_lasts IS NULL OR p_lasts < interval '1 minute' OR p_lasts > interval '366 days' THEN
    PERFORM tendril.refuse('PT422', 'bad_token_life', 'p_lasts: from 1 minute to 366 days');
  ELSIF (SELECT count(*) FROM tendril.credentials c WHERE c.user_id = v_user AND c.kind = 'api_token' AND tendril.credential_lives(c)) >= 100 THEN
    PERFORM tendril.refuse('PT409', 'too_many_tokens', 'you have 100 API tokens', 'revoke those that nothing uses any more');
  END IF;
  v_made := tendril.issue_api_token(v_user, p_name, p_lasts);
  RETURN QUERY SELECT v_made.token_id, v_made.token, c.expires_at FROM tendril.credentials c WHERE c.id = v_made.token_id;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Ends one of the caller's own sessions or API tokens. False: there is none.
-- +goose StatementBegin
CREATE FUNCTION public.revoke_credential(p_credential uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_user uuid;
  v_kind text;
BEGIN
  v_user := tendril.asking_person();
  UPDATE tendril.credentials SET revoked_at = clock_timestamp()
  WHERE id = p_credential AND user_id = v_user AND kind IN ('session', 'api_token') AND revoked_at IS NULL
  RETURNING kind INTO v_kind;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM tendril.audit_person(v_user, 'revoke_credential', p_credential, jsonb_build_object('kind', v_kind));
  RETURN true;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Ends all sessions of the caller's, and with p_tokens their API tokens as well.
-- Returns how many.
-- +goose StatementBegin
CREATE FUNCTION public.sign_out_everywhere(p_tokens boolean DEFAULT false) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_user  uuid;
  v_count int;
BEGIN
  v_user := tendril.asking_person();
  -- Links and codes too: one that is under way must not outlive this.
  UPDATE tendril.credentials SET revoked_at = clock_timestamp()
  WHERE user_id = v_user AND revoked_at IS NULL AND (kind <> 'api_token' OR p_tokens);
  GET DIAGNOSTICS v_count = ROW_COUNT;
  PERFORM tendril.audit_person(v_user, 'sign_out_everywhere', NULL, jsonb_build_object('tokens', coalesce(p_tokens, false)));
  RETURN v_count;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Makes a person a member by an invitation; a role that they have already stays.
-- +goose StatementBegin
CREATE FUNCTION tendril.accept_invitation(p_invitation uuid, p_user uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_invitation public.invitations;
BEGIN
  UPDATE public.invitations SET accepted_at = clock_timestamp(), accepted_by = p_user
  WHERE id = p_invitation AND accepted_at IS NULL AND expires_at > clock_timestamp() RETURNING * INTO v_invitation;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  INSERT INTO public.org_members (org_id, user_id, role) VALUES (v_invitation.org_id, p_user, v_invitation.role) ON CONFLICT (org_id, user_id) DO NOTHING;
  INSERT INTO public.audit_events (org_id, actor, action, object, object_id, detail)
  VALUES (v_invitation.org_id, p_user, 'accept_invitation', 'user', p_user,
          jsonb_build_object('role', v_invitation.role, 'invited_by', v_invitation.invited_by));
END $$;
-- +goose StatementEnd

-- Whom an issuer calls so, where they have come before.
-- +goose StatementBegin
CREATE FUNCTION tendril.find_identity(p_issuer text, p_subject text)
RETURNS TABLE (user_id uuid, name text, email text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT p.user_id, p.name, p.email FROM tendril.identities i JOIN tendril.persons p ON p.user_id = i.user_id
    WHERE i.issuer = p_issuer AND i.subject = p_subject;
END $$;
-- +goose StatementEnd

-- Finds, or makes, the person whom an issuer calls so, keeps what they are called,
-- and accepts what they are invited to. p_user: who it is, where the issuer's
-- subjects are users' ids already. p_first_admin: the address of who becomes
-- admin where no admin has ever signed in.
-- +goose StatementBegin
CREATE FUNCTION tendril.sign_in(p_issuer text, p_subject text, p_name text, p_email text, p_verified boolean, p_first_admin text, p_user uuid) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_user uuid;
  v_org  uuid;
BEGIN
  SELECT i.user_id INTO v_user FROM tendril.identities i WHERE i.issuer = p_issuer AND i.subject = p_subject;
  IF v_user IS NULL THEN
    v_user := coalesce(p_user, gen_random_uuid());
    PERFORM tendril.name_person(v_user, p_name, p_email, p_verified);
    INSERT INTO tendril.identities (issuer, subject, user_id) VALUES (p_issuer, p_subject, v_user) ON CONFLICT (issuer, subject) DO NOTHING;
    IF NOT FOUND THEN -- two at once: who came first counts
      DELETE FROM tendril.persons p WHERE p.user_id = v_user AND p_user IS NULL;
      SELECT i.user_id INTO v_user FROM tendril.identities i WHERE i.issuer = p_issuer AND i.subject = p_subject;
    END IF;
  END IF;
  PERFORM tendril.name_person(v_user, p_name, p_email, p_verified);
  UPDATE tendril.persons p SET signed_in_at = clock_timestamp() WHERE p.user_id = v_user;

  IF coalesce(p_verified, false) AND p_email <> '' THEN
    PERFORM tendril.accept_invitation(i.id, v_user) FROM public.invitations i
    WHERE i.email = lower(btrim(p_email)) AND i.accepted_at IS NULL AND i.expires_at > clock_timestamp();

    IF lower(btrim(p_email)) = lower(btrim(p_first_admin)) THEN
      LOCK TABLE public.orgs IN SHARE ROW EXCLUSIVE MODE; -- two at once must not make two
      IF NOT EXISTS (SELECT FROM public.org_members m JOIN tendril.identities i ON i.user_id = m.user_id WHERE m.role = 'admin') THEN
        SELECT o.id INTO v_org FROM public.orgs o ORDER BY o.created_at, o.id LIMIT 1;
        IF v_org IS NULL THEN
          INSERT INTO public.orgs (name) VALUES ('default') RETURNING id INTO v_org;
        END IF;
        INSERT INTO public.org_members (org_id, user_id, role) VALUES (v_org, v_user, 'admin')
        ON CONFLICT (org_id, user_id) DO UPDATE SET role = 'admin';
        INSERT INTO public.audit_events (org_id, actor, action, object, object_id, detail)
        VALUES (v_org, v_user, 'first_admin', 'user', v_user, jsonb_build_object('role', 'admin'));
      END IF;
    END IF;
  END IF;
  RETURN v_user;
END $$;
-- +goose StatementEnd

-- Invites whoever signs in with that verified e-mail address (admin). Who has
-- already becomes a member at once. Again: another role, and more time.
-- +goose StatementBegin
CREATE FUNCTION public.invite_member(p_org uuid, p_email text, p_role text) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_email      text := lower(btrim(p_email));
  v_invitation uuid;
  v_known      uuid[];
BEGIN
  PERFORM tendril.lock_org_for_admin(p_org);
  IF v_email IS NULL OR v_email !~ '^[^@[:space:][:cntrl:]]+@[^@[:space:][:cntrl:]]+$' OR length(v_email) > 320 THEN
    PERFORM tendril.refuse('PT422', 'bad_email', 'p_email: an e-mail address is needed');
  ELSIF p_role IS NULL OR p_role NOT IN ('viewer', 'operator', 'admin') THEN
    PERFORM tendril.refuse('PT422', 'bad_member', 'p_role: viewer, operator or admin');
  END IF;
  v_known := ARRAY(SELECT p.user_id FROM tendril.persons p WHERE lower(p.email) = v_email AND p.email_verified);
  IF EXISTS (SELECT FROM public.org_members m WHERE m.org_id = p_org AND m.user_id = ANY (v_known)) THEN
    PERFORM tendril.refuse('PT409', 'member_already', format('%s is a member already', v_email), 'change the role in the list of members');
  END IF;
  INSERT INTO public.invitations (org_id, email, role, invited_by, expires_at)
  VALUES (p_org, v_email, p_role, tendril.current_user_id(), clock_timestamp() + (SELECT invitation_lasts FROM tendril.settings))
  ON CONFLICT (org_id, email) DO UPDATE SET role = EXCLUDED.role, invited_by = EXCLUDED.invited_by,
    created_at = EXCLUDED.created_at, expires_at = EXCLUDED.expires_at, accepted_at = NULL, accepted_by = NULL
  RETURNING id INTO v_invitation;
  PERFORM tendril.audit(p_org, 'invite_member', 'invitation', v_invitation, jsonb_build_object('email', v_email, 'role', p_role));
  IF cardinality(v_known) = 1 THEN
    PERFORM tendril.accept_invitation(v_invitation, v_known[1]);
  END IF;
  RETURN v_invitation;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- Takes an invitation back (admin). False: there is none that is open.
-- +goose StatementBegin
CREATE FUNCTION public.revoke_invitation(p_org uuid, p_invitation uuid) RETURNS boolean
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
-- +goose StatementEnd

ALTER TABLE public.people ENABLE ROW LEVEL SECURITY;
CREATE POLICY members_read ON public.people FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('viewer'))::uuid[]));
ALTER TABLE public.invitations ENABLE ROW LEVEL SECURITY;
CREATE POLICY admins_read ON public.invitations FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('admin'))::uuid[]));

SELECT tendril.deny_all(ARRAY['people', 'invitations', 'own_credentials', 'create_api_token', 'revoke_credential', 'sign_out_everywhere',
  'invite_member', 'revoke_invitation']);
GRANT SELECT ON public.people, public.invitations TO authenticated, service_role;
GRANT EXECUTE ON FUNCTION public.own_credentials(), public.create_api_token(text, interval), public.revoke_credential(uuid),
  public.sign_out_everywhere(boolean) TO authenticated;
GRANT EXECUTE ON FUNCTION public.invite_member(uuid, text, text), public.revoke_invitation(uuid, uuid) TO authenticated, service_role;

NOTIFY pgrst, 'reload schema';
