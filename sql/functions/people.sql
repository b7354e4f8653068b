-- Sign-in, sessions and API tokens.

-- Stores a person's name and e-mail address, also for their organisations. Empty values change
-- nothing.
--
-- Arguments:
--   p_user      the user
--   p_name      name, cut after 200 characters
--   p_email     e-mail address, cut after 320 characters
--   p_verified  whether the identity provider has verified the address
-- Answers: nothing.
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.name_person(p_user uuid, p_name text, p_email text, p_verified boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_name  text := left(btrim(coalesce(p_name, '')), tendril.max_name());
  v_email text := lower(left(btrim(coalesce(p_email, '')), tendril.max_email()));
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

-- Stores a credential.
--
-- Arguments:
--   p_kind       session, api_token, link, cli_code or oauth_code
--   p_user       the user
--   p_digest     SHA-256 of the credential
--   p_lasts      how long it is valid; null: until it is revoked. A session lasts
--                tendril.settings.session_lasts
--   p_label      what the user calls it, cut after 200 characters
--   p_challenge  PKCE challenge (S256) of a code
--   p_grant      what a token that a code is changed for gets: {powers, audience, client}, each of
--                which may be missing
-- Answers: the id of the credential.
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.add_credential(p_kind text, p_user uuid, p_digest bytea, p_lasts interval, p_label text, p_challenge text DEFAULT NULL, p_grant jsonb DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_id uuid;
BEGIN
  IF p_kind = 'session' THEN
    p_lasts := (SELECT session_lasts FROM tendril.settings);
  END IF;
  INSERT INTO tendril.credentials (kind, user_id, digest, label, challenge, expires_at, last_used_at, powers, audience, client)
  VALUES (p_kind, p_user, p_digest, left(btrim(coalesce(p_label, '')), tendril.max_name()), p_challenge, clock_timestamp() + p_lasts,
          CASE p_kind WHEN 'session' THEN clock_timestamp() END, p_grant -> 'powers', p_grant ->> 'audience', p_grant ->> 'client')
  RETURNING id INTO v_id;
  RETURN v_id;
END $$;

-- Whether a credential is valid: not revoked, not expired, and not idle for too long if it is a
-- session.
CREATE OR REPLACE FUNCTION tendril.credential_lives(p_credential tendril.credentials) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN p_credential.revoked_at IS NULL
    AND (p_credential.expires_at IS NULL OR p_credential.expires_at > clock_timestamp())
    AND (p_credential.kind <> 'session' OR p_credential.last_used_at > clock_timestamp() - (SELECT session_idle FROM tendril.settings));
END $$;

-- Finds the user of a valid session or API token and notes its use, at most once a minute.
--
-- Arguments:
--   p_kind    session or api_token
--   p_digest  SHA-256 of the credential
-- Answers: one row, or none: it is not valid:
--   credential_id  the credential
--   user_id        the user
--   name           their name, empty: not known
--   email          their e-mail address, empty: not known
--   powers         what the token may do; null: all that its user may
--   audience       URL of the resource that the token is for; null: the whole REST API
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.find_person(p_kind text, p_digest bytea)
RETURNS TABLE (credential_id uuid, user_id uuid, name text, email text, powers jsonb, audience text)
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
  IF v_found.last_used_at IS NULL OR v_found.last_used_at < clock_timestamp() - tendril.used_every() THEN
    UPDATE tendril.credentials SET last_used_at = clock_timestamp()
    WHERE id = (SELECT id FROM tendril.credentials WHERE id = v_found.id FOR NO KEY UPDATE SKIP LOCKED);
  END IF;
  RETURN QUERY SELECT v_found.id, v_found.user_id, coalesce(p.name, ''), coalesce(p.email, ''), v_found.powers, v_found.audience
    FROM (VALUES (1)) one (row) LEFT JOIN tendril.persons p ON p.user_id = v_found.user_id;
END $$;

-- Which of these credentials are no longer valid.
--
-- Arguments:
--   p_credentials  ids of credentials
-- Answers: the ids of those that are not valid.
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.ended_credentials(p_credentials uuid[]) RETURNS uuid[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN ARRAY(
    SELECT i.id FROM unnest(p_credentials) i (id) LEFT JOIN tendril.credentials c ON c.id = i.id
    WHERE c.id IS NULL OR NOT tendril.credential_lives(c));
END $$;

-- Uses up a one-time link or code. A wrong verifier uses it up as well.
--
-- Arguments:
--   p_kind      link, cli_code or oauth_code
--   p_digest    SHA-256 of the link's or code's secret
--   p_verifier  PKCE verifier of a code
-- Answers: one row; all null where it is unknown, used or expired:
--   user_id  the user
--   label    what it was called
--   given    {powers, audience, client} of a code, as add_credential() stored them; {}: none
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.redeem(p_kind text, p_digest bytea, p_verifier text DEFAULT NULL, OUT user_id uuid, OUT label text, OUT given jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_used tendril.credentials;
BEGIN
  -- Of two at once the second finds it used.
  UPDATE tendril.credentials c SET revoked_at = clock_timestamp(), last_used_at = clock_timestamp()
  WHERE c.digest = p_digest AND c.kind = p_kind AND p_kind IN ('link', 'cli_code', 'oauth_code')
    AND c.revoked_at IS NULL AND c.expires_at > clock_timestamp()
  RETURNING c.* INTO v_used;
  IF v_used.challenge IS NULL
     OR v_used.challenge = rtrim(translate(encode(sha256(convert_to(p_verifier, 'UTF8')), 'base64'), '+/', '-_'), '=') THEN
    user_id := v_used.user_id;
    label := v_used.label;
    given := jsonb_strip_nulls(jsonb_build_object('powers', v_used.powers, 'audience', v_used.audience, 'client', v_used.client));
  END IF;
END $$;

-- Revokes the credential with that digest.
--
-- Arguments:
--   p_digest  SHA-256 of the credential
-- Answers: nothing.
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.end_credential(p_digest bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
BEGIN
  UPDATE tendril.credentials SET revoked_at = clock_timestamp() WHERE digest = p_digest AND revoked_at IS NULL;
END $$;

-- Creates an API token, which only this answer holds.
--
-- Arguments:
--   p_user   the user
--   p_name   what the user calls it
--   p_lasts  how long it is valid; null: until it is revoked
--   p_grant  what it is limited to: {powers, audience, client}, each of which may be missing
-- Answers: one row:
--   token_id  the token
--   token     the token itself
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
-- Notes: The database makes it, so it appears in no statement.
CREATE OR REPLACE FUNCTION tendril.issue_api_token(p_user uuid, p_name text, p_lasts interval, p_grant jsonb DEFAULT NULL, OUT token_id uuid, OUT token text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
BEGIN
  token := 'trt_' || rtrim(translate(encode(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), 'base64'), '+/', '-_'), '=');
  token_id := tendril.add_credential('api_token', p_user, sha256(convert_to(token, 'UTF8')), p_lasts, p_name, NULL, p_grant);
  PERFORM tendril.audit_person(p_user, 'create_api_token', token_id, jsonb_build_object('name', p_name, 'lasts', p_lasts) || jsonb_strip_nulls(coalesce(p_grant, '{}')));
END $$;

-- The user who asks, for functions about themselves.
--
-- Errors: PT401 not_signed_in.
CREATE OR REPLACE FUNCTION tendril.asking_person() RETURNS uuid
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

-- Lists the caller's valid sessions and API tokens, the newest first.
--
-- Arguments: none.
-- Answers: a row for each:
--   id            the credential
--   kind          session or api_token
--   label         what the caller calls it
--   created_at    when it was created
--   last_used_at  last use, null: never
--   expires_at    when it expires, null: never
--   powers        what an API token may do, as create_api_token() takes it; null: all that the caller
--                 may
--   audience      URL of the resource that it is for; null: the whole REST API
-- Errors: PT401 not_signed_in, PT503 busy.
-- Locks: none.
-- Callers: authenticated.
CREATE OR REPLACE FUNCTION public.own_credentials()
RETURNS TABLE (id uuid, kind text, label text, created_at timestamptz, last_used_at timestamptz, expires_at timestamptz, powers jsonb, audience text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_user uuid;
BEGIN
  v_user := tendril.asking_person();
  RETURN QUERY SELECT c.id, c.kind, c.label, c.created_at, c.last_used_at, c.expires_at, c.powers, c.audience FROM tendril.credentials c
    WHERE c.user_id = v_user AND c.kind IN ('session', 'api_token') AND tendril.credential_lives(c) ORDER BY c.created_at DESC, c.id;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Whether the caller signed in with an API token, which the control plane writes into the claims.
CREATE OR REPLACE FUNCTION tendril.by_api_token() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce(current_setting('request.jwt.claims', true)::jsonb ->> 'credential' = 'api_token', false);
END $$;

-- Creates an API token with the caller's permissions, or with some of them. An API token cannot
-- create another, so one that has leaked ends when it is revoked.
--
-- Arguments:
--   p_name    what will use it, 1 to 200 characters
--   p_lasts   how long it is valid, 1 minute to 366 days
--   p_powers  what it may do; null: all that the caller may. Else it does no admin's work, and an object:
--     change            nothing: it reads alone; propose: the plans of its runs wait for a person
--                       (default)
--     may_apply         list of patterns of workspaces where they don't wait, but for destroys, which
--                       it may approve there itself; * is any text (none)
--     workspaces        list of patterns of workspaces where it may change anything (["*"])
--     destroy           whether it may ask for a destroy, and apply without an approval what destroys
--                       something (true)
--     approve           whether it may approve plans, but for those that its user's tokens have
--                       proposed (false)
--     calls_per_minute  how many requests the control plane answers it (any number)
--     runs_per_hour     how many runs it may ask for (any number)
-- Answers: one row:
--   token_id    the token
--   token       the token itself, which no other call shows
--   expires_at  when it expires
-- Errors: PT401 not_signed_in, PT403 token_makes_token, PT409 too_many_tokens,
--   PT422 bad_token_life, PT422 bad_token_name, PT422 bad_token_powers, PT503 busy.
-- Locks: none.
-- Callers: authenticated.
CREATE OR REPLACE FUNCTION public.create_api_token(p_name text, p_lasts interval DEFAULT '90 days', p_powers jsonb DEFAULT NULL)
RETURNS TABLE (token_id uuid, token text, expires_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  c_shortest CONSTANT interval := '1 minute';
  c_longest  CONSTANT interval := '366 days';
  v_user  uuid;
  v_made  record;
BEGIN
  v_user := tendril.asking_person();
  IF tendril.by_api_token() THEN
    PERFORM tendril.refuse('PT403', 'token_makes_token', 'an API token cannot create another', 'sign in with a browser, and create it on the Account page');
  END IF;
  IF coalesce(length(btrim(p_name)), 0) NOT BETWEEN 1 AND tendril.max_name() THEN
    PERFORM tendril.refuse('PT422', 'bad_token_name', format('p_name: must have 1 to %s characters', tendril.max_name()), 'name what will use it');
  ELSIF p_lasts IS NULL OR p_lasts < c_shortest OR p_lasts > c_longest THEN
    PERFORM tendril.refuse('PT422', 'bad_token_life', 'p_lasts: must be 1 minute to 366 days');
  ELSIF p_powers IS NOT NULL AND tendril.powers_problem(p_powers) IS NOT NULL THEN
    PERFORM tendril.refuse('PT422', 'bad_token_powers', format('p_powers: %s', tendril.powers_problem(p_powers)));
  ELSIF (SELECT count(*) FROM tendril.credentials c WHERE c.user_id = v_user AND c.kind = 'api_token' AND tendril.credential_lives(c)) >= tendril.max_api_tokens() THEN
    PERFORM tendril.refuse('PT409', 'too_many_tokens', format('you have %s API tokens, the most allowed', tendril.max_api_tokens()), 'revoke those that are not used');
  END IF;
  v_made := tendril.issue_api_token(v_user, p_name, p_lasts, CASE WHEN p_powers IS NOT NULL THEN jsonb_build_object('powers', p_powers) END);
  RETURN QUERY SELECT v_made.token_id, v_made.token, c.expires_at FROM tendril.credentials c WHERE c.id = v_made.token_id;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Revokes one of the caller's sessions or API tokens.
--
-- Arguments:
--   p_credential  the credential
-- Answers: whether there was such a valid credential.
-- Errors: PT401 not_signed_in, PT403 token_may_not, PT503 busy.
-- Locks: none.
-- Callers: authenticated.
CREATE OR REPLACE FUNCTION public.revoke_credential(p_credential uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_user uuid;
  v_kind text;
BEGIN
  v_user := tendril.asking_person();
  PERFORM tendril.check_whole_token();
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

-- Ends all sessions of the caller, sign-in links and codes included.
--
-- Arguments:
--   p_tokens  true: revoke their API tokens as well
-- Answers: how many credentials it revoked.
-- Errors: PT401 not_signed_in, PT403 token_may_not, PT503 busy.
-- Locks: none.
-- Callers: authenticated.
CREATE OR REPLACE FUNCTION public.sign_out_everywhere(p_tokens boolean DEFAULT false) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_user  uuid;
  v_count int;
BEGIN
  v_user := tendril.asking_person();
  PERFORM tendril.check_whole_token();
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

-- Finds the user whom an identity provider knows by a subject.
--
-- Arguments:
--   p_issuer   the identity provider
--   p_subject  the provider's id of the person
-- Answers: one row, or none: they have never signed in:
--   user_id  the user
--   name     their name
--   email    their e-mail address
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.find_identity(p_issuer text, p_subject text)
RETURNS TABLE (user_id uuid, name text, email text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT p.user_id, p.name, p.email FROM tendril.identities i JOIN tendril.persons p ON p.user_id = i.user_id
    WHERE i.issuer = p_issuer AND i.subject = p_subject;
END $$;

-- Finds or creates the user whom an identity provider knows by a subject, and stores their name and
-- e-mail address. Invitations stay open until the person accepts them.
--
-- Arguments:
--   p_issuer       the identity provider
--   p_subject      the provider's id of the person
--   p_name         name
--   p_email        e-mail address
--   p_verified     whether the provider has verified the address
--   p_first_admin  e-mail address of the person who becomes admin where no admin has ever signed
--                  in; null: nobody
--   p_user         the user's id, where the provider's subjects are user ids; null: a new one
-- Answers: the user's id.
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.sign_in(p_issuer text, p_subject text, p_name text, p_email text, p_verified boolean, p_first_admin text, p_user uuid) RETURNS uuid
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
    IF NOT FOUND THEN -- two at once: the first one counts
      DELETE FROM tendril.persons p WHERE p.user_id = v_user AND p_user IS NULL;
      SELECT i.user_id INTO v_user FROM tendril.identities i WHERE i.issuer = p_issuer AND i.subject = p_subject;
    END IF;
  END IF;
  PERFORM tendril.name_person(v_user, p_name, p_email, p_verified);
  UPDATE tendril.persons p SET signed_in_at = clock_timestamp() WHERE p.user_id = v_user;

  IF coalesce(p_verified, false) AND lower(btrim(p_email)) = lower(btrim(p_first_admin)) AND p_email <> '' THEN
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
  RETURN v_user;
END $$;
